"""Sixty closed-loop runs of real H100s beside simulated ones: `python -m benchmarks.closed_loop`.

Qwen3-32B in bf16 on vLLM 0.12 with 2 and 8 H100s; mean TTFT and TPOT at fixed concurrency, from
the sample of measurements in aiconfigurator-core, whose kernel times the simulation uses
(predictor silicon, so the package is needed). `--fit` fits the engine's own time anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

import mist_sim as mist
from mist_sim.hardware.predictors import SiliconPredictor

POINTS = Path(__file__).parents[2] / "shared/measurements/vllm-0.12-h100-qwen3-32b-closed-loop.csv"

# How the project that measured them starts engines and loads them, as far as that is public:
# batch size (128 where none is chosen) + prompt + 1,500 tokens in a step (aiconfigurator,
# generator/rule_plugin/benchmark/vllm.rule); ten requests a user, all of one length, after a
# warm-up that does not count (eval/benchmarks/genai_perf_runner.py). The digits of the measured
# means, sums over the number of requests, say ten a user too.
TOKENS_BEYOND_PROMPT = 128 + 1500
REQUESTS_PER_USER = 10

CLIENT_DELAY = 2e-3  # seconds; results hardly depend on it, as long as there is one
STEP, SEQUENCE = 1.5e-3, 46e-6  # seconds; fitted on the TPOT of half of the points, see `--fit`
QUEUES = 4.0  # seconds of TTFT from which on a point is one of a queue for memory


def load() -> pd.DataFrame:
    """Return the measured points; `half` says which were used to fit the engine's own time."""
    points = pd.read_csv(POINTS)
    points["half"] = np.where(np.arange(len(points)) // 2 % 2, "held out", "fitted")
    return points


def predictors() -> dict[int, SiliconPredictor]:
    """Return what times the steps, by the number of GPUs."""
    model, gpu = mist.load_model("qwen3-32b"), mist.load_gpu("h100-sxm")
    return {ranks: SiliconPredictor(model, mist.Cluster(gpu, ranks)) for ranks in (2, 8)}


def simulated(
    points: pd.DataFrame,
    timed_by: dict[int, SiliconPredictor],
    *,
    step: float = STEP,
    sequence: float = SEQUENCE,
    client_delay: float = CLIENT_DELAY,
    max_num_batched_tokens: Callable[[int], int] = lambda prompt: prompt + TOKENS_BEYOND_PROMPT,
) -> pd.DataFrame:
    """Return the points with simulated means, and errors in percent."""
    means = [
        _summary(
            point,
            predictor=timed_by[point.tp_size],
            overhead=mist.EngineOverhead(step=step, sequence=sequence),
            scheduler=mist.ChunkedScheduler(
                max_num_batched_tokens=max_num_batched_tokens(point.isl)
            ),
            users=mist.ClosedLoop(concurrency=point.concurrency, think_time=client_delay),
        )
        for point in points.itertuples()
    ]
    found = points.assign(
        ttft_ms=[mean["mean_ttft_ms"] for mean in means],
        tpot_ms=[mean["mean_tpot_ms"] for mean in means],
    )
    for metric in ("ttft", "tpot"):
        measured = found[f"silicon_{metric}_ms"]
        found[f"{metric}_error"] = 100 * (found[f"{metric}_ms"] / measured - 1)
    return found


def _summary(
    point: Any, users: mist.ClosedLoop, overhead: mist.EngineOverhead, **parts: Any
) -> dict[str, Any]:
    client = mist.llm_client(
        "llm",
        model="qwen3-32b",
        gpu="h100-sxm",
        tensor_parallel_size=point.tp_size,
        overhead=overhead,
        **parts,
    )
    num_requests = REQUESTS_PER_USER * point.concurrency
    workload = mist.Workload.from_lists(
        [point.isl] * num_requests, [point.osl] * num_requests, arrivals=users
    )
    return mist.Simulation(clients=[client], workload=workload).run().summary


def scores(found: pd.DataFrame) -> dict[str, float]:
    """Return errors in percent: of TPOT at all points, of TTFT where no queue for memory is."""
    ttft = found.loc[found["silicon_ttft_ms"] < 1e3 * QUEUES, "ttft_error"]
    return {
        "TPOT, mean absolute": found["tpot_error"].abs().mean(),
        "TPOT, median": found["tpot_error"].median(),
        "TTFT, median absolute": ttft.abs().median(),
        "TTFT, mean absolute": ttft.abs().mean(),
        "TTFT, median": ttft.median(),
    }


def fit(points: pd.DataFrame, timed_by: dict[int, SiliconPredictor]) -> tuple[float, float]:
    """Return step and sequence overhead in seconds with the least squares of TPOT errors."""
    half = points[(points["half"] == "fitted") & (points["silicon_ttft_ms"] < 1e3 * QUEUES)]

    def squares(overhead: Any) -> float:
        step, sequence = np.abs(overhead)
        found = simulated(half, timed_by, step=step * 1e-3, sequence=sequence * 1e-6)
        return float((found["tpot_error"] ** 2).mean())

    start = [[1.0, 30.0], [2.0, 30.0], [1.0, 60.0]]  # ms, us
    options = {"initial_simplex": start, "xatol": 0.05, "fatol": 0.02, "maxfev": 60}
    step, sequence = np.abs(minimize(squares, start[0], method="Nelder-Mead", options=options).x)
    return step * 1e-3, sequence * 1e-6


def table(found: pd.DataFrame) -> str:
    """Return every point's errors in percent, a row for three lengths of answers."""
    answers = sorted(found["osl"].unique())
    columns = [(metric, answer) for metric in ("ttft", "tpot") for answer in answers]
    lines = [
        "| GPUs, prompt, users | " + " | ".join(f"{m.upper()}, {n}" for m, n in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for (ranks, prompt, users), points in found.groupby(["tp_size", "isl", "concurrency"]):
        errors = points.set_index("osl")
        cells = (_percent(errors.loc[answer, f"{metric}_error"]) for metric, answer in columns)
        lines.append(f"| {ranks}, {prompt:,}, {users} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def score_table(found: pd.DataFrame) -> str:
    """Return the scores of all points, and of those that were fitted or not."""
    lines = [f"| | {' | '.join(scores(found))} |", "|---|" + "---|" * len(scores(found))]
    for name, part in [("all 60", found), *found.groupby("half")]:
        cells = (f"{value:.1f} %".replace("-", "−") for value in scores(part).values())
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _percent(value: float) -> str:
    return f"{value:+.0f} %".replace("-", "−").replace("−0 %", "0 %").replace("+0 %", "0 %")


def main() -> None:
    points, timed_by = load(), predictors()
    if "--fit" in sys.argv:
        step, sequence = fit(points, timed_by)
        print(f"step {step * 1e3:.2f} ms, sequence {sequence * 1e6:.1f} us")
        return
    found = simulated(points, timed_by)
    print(table(found), score_table(found), sep="\n\n")


if __name__ == "__main__":
    main()
