"""Sixty closed-loop runs of real H100s beside simulated ones: `python -m benchmarks.closed_loop`.

Qwen3-32B in bf16 on vLLM 0.12 with 2 and 8 H100s; mean TTFT and TPOT at fixed concurrency, from
the sample of measurements in aiconfigurator-core, whose kernel times the simulation uses
(predictor silicon, so the package is needed). `--fit` fits the engine's own time anew.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from mist_sim_silicon import SiliconPredictor
from tools.validation.closed_loop import measured_points, predictors, queued, simulated

POINTS = Path(__file__).parents[2] / "shared/measurements/vllm-0.12-h100-qwen3-32b-closed-loop.csv"


def scores(found: pd.DataFrame) -> dict[str, float]:
    """Return errors in percent: of TPOT at all points, of TTFT where no queue for memory is."""
    ttft = found.loc[~queued(found), "ttft_error"]
    return {
        "TPOT, mean absolute": found["tpot_error"].abs().mean(),
        "TPOT, median": found["tpot_error"].median(),
        "TTFT, median absolute": ttft.abs().median(),
        "TTFT, mean absolute": ttft.abs().mean(),
        "TTFT, median": ttft.median(),
    }


def fit(points: pd.DataFrame, timed_by: dict[int, SiliconPredictor]) -> tuple[float, float]:
    """Return step and sequence overhead in seconds with the least squares of TPOT errors."""
    half = _fitted_half(points)

    def squares(overhead: Any) -> float:
        step, sequence = np.abs(overhead)
        found = simulated(half, timed_by, step=step * 1e-3, sequence=sequence * 1e-6)
        return float((found["tpot_error"] ** 2).mean())

    start = [[1.0, 30.0], [2.0, 30.0], [1.0, 60.0]]  # ms, us
    options = {"initial_simplex": start, "xatol": 0.05, "fatol": 0.02, "maxfev": 60}
    step, sequence = np.abs(minimize(squares, start[0], method="Nelder-Mead", options=options).x)
    return step * 1e-3, sequence * 1e-6


def fit_prompt_token(points: pd.DataFrame, timed_by: dict[int, SiliconPredictor]) -> float:
    """Return the half microseconds a token of a prompt with the least mean TTFT error."""
    half = _fitted_half(points)

    def score(seconds: float) -> float:
        return float(simulated(half, timed_by, prompt_token=seconds)["ttft_error"].abs().mean())

    return min((0.5e-6 * steps for steps in range(11)), key=score)


def _fitted_half(points: pd.DataFrame) -> pd.DataFrame:
    return points[(points["half"] == "fitted") & ~queued(points)]


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
    """Print measured and simulated runs side by side; with `--fit`, the fitted times."""
    parser = ArgumentParser(
        prog="python -m benchmarks.closed_loop",
        description="Print sixty closed-loop runs of real H100s beside simulated ones.",
    )
    parser.add_argument("--fit", action="store_true", help="fit the engine's own time anew")
    said = parser.parse_args()
    points, timed_by = measured_points(POINTS), predictors()
    if said.fit:
        step, sequence = fit(points, timed_by)
        token = fit_prompt_token(points, timed_by)
        print(f"step {step * 1e3:.2f} ms, sequence {sequence * 1e6:.1f} us, ", end="")
        print(f"prompt token {token * 1e6:.1f} us")
        return
    found = simulated(points, timed_by)
    print(table(found), score_table(found), sep="\n\n")


if __name__ == "__main__":
    main()
