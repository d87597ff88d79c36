"""Whole runs of vLLM beside the simulator: `python -m tools.evidence [SOURCE] [--runs]`.

Each source is a folder of measurements (`../shared/measurements`); a row of it becomes a `vllm
serve` line and a load. Errors are simulated / measured - 1 of mean TTFT, mean TPOT and output
tokens per second; a figure lies inside where its bar (docs/background/error_bars.md) holds it.
SOURCE: part of the name of a source, model or label. Simulations are kept in `.evidence/` until a
file of the package changes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mist_sim.errors import MistError
from mist_sim.metrics.expected_errors import expected_ranges
from mist_sim.rng import Streams
from mist_sim.scenario import Scenario, simulate
from mist_sim.scenario.from_vllm.commands import from_vllm
from tools.validation.shared_prefixes import MODELS, measured_stages, simulated_stages

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
KEPT = ROOT / ".evidence"
METRICS = ("ttft", "tpot", "throughput")
_CHAT_LIMIT = 1_024  # tokens of a prompt of `vllm bench serve --dataset-name sharegpt`
_ANSWERED = 2_048  # of a prompt and its answer
_QWEN2_BLOCK = 16 * 28 * 2 * 4 * 128 * 2  # bytes of 16 tokens of Qwen2-7B, whose sizes 2.5 kept


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measured run.

    serve: its `vllm serve` line. release: of vLLM, and engine: the entry of ours that is nearest.
    lengths: of all prompts and answers. concurrency: at most so many at once; None: no limit.
    figures: means of `METRICS`, in ms and output tokens/s; those not measured are left out.
    """

    source: str
    label: str
    gpu: str
    release: str
    engine: str
    model: str
    serve: str
    lengths: tuple[tuple[int, int], ...] = field(repr=False)
    concurrency: int | None = None
    figures: Mapping[str, float]


@cache
def _chats() -> np.ndarray:
    """Lengths of the first turns of ShareGPT that the benchmark takes (true Llama-2 tokens)."""
    turns = pd.read_csv(SHARED / "traces/sharegpt-lengths/sharegpt_8k_turns_llama2.csv").to_numpy()
    first = np.r_[True, turns[1:, 0] <= turns[:-1, 0]]
    has_more = np.r_[~first[1:], False]
    chats = turns[first & has_more]
    fits = (chats[:, 0] <= _CHAT_LIMIT) & (chats.sum(axis=1) <= _ANSWERED) & (chats.min(axis=1) > 3)
    return np.asarray(chats[fits])


def _drawn(number: int, prompts: int, answers: int) -> tuple[tuple[int, int], ...]:
    """Return that many chats, scaled to the tokens of all prompts and all answers."""
    drawn = _chats()[Streams(57).generator("chats").integers(len(_chats()), size=number)]
    scaled = np.maximum(1, np.rint(drawn * ([prompts, answers] / drawn.sum(axis=0)))).astype(int)
    return tuple((int(prompt), int(answer)) for prompt, answer in scaled)


def _gpustack() -> Iterator[Measured]:
    runs = pd.read_csv(SHARED / "measurements/gpustack-lab/vllm_runs.csv")
    run: Any  # its fields are the columns
    for run in runs.itertuples():
        number = int(run.n)
        fixed = isinstance(run.label, str) and run.label.startswith("random")
        one = (round(run.tin / number), max(1, round(run.tout / number)))
        model = str(run.file).partition("/")[0]
        serve = str(run.cmd)
        if model == "gpt-oss-20b":
            serve = serve.replace("gpt-oss-120b", "gpt-oss-20b")
        load = run.label if fixed or run.conc > 0 else "chats"
        yield Measured(
            source="gpustack-lab",
            label=f"{serve.removeprefix('vllm serve ')}; {load}",
            gpu="a100-80gb-sxm" if "a100" in str(run.file) else "h100-sxm",
            release="0.11",
            engine="vllm-0.11.0",
            model=model + ("-fp8" if "FP8" in serve else "-awq" if "AWQ" in serve else ""),
            serve=serve,
            lengths=(one,) * number if fixed else _drawn(number, int(run.tin), int(run.tout)),
            concurrency=int(run.conc) if run.conc > 0 else None,
            figures={"ttft": run.ttft, "tpot": run.tpot, "throughput": run.tout / run.dur},
        )


def _bursts() -> Iterator[Measured]:
    runs = pd.read_csv(SHARED / "measurements/vllm-0.10-a100-bursts/runs.csv")
    run: Any  # its fields are the columns
    for run in runs.itertuples():
        gib = float(run.test.split()[-1].removesuffix("GiB"))
        blocks = int(gib * 2**30 / _QWEN2_BLOCK)
        yield Measured(
            source="vllm-0.10-a100-bursts",
            label=f"{run.test}; {run.n} at once",
            gpu="a100-80gb-sxm",
            release="0.10",
            engine="vllm-0.10",
            model="qwen2-7b",
            serve=f"vllm serve Qwen/Qwen2.5-7B --num-gpu-blocks-override {blocks}",
            lengths=((int(run.input_tokens), int(run.output_tokens)),) * int(run.n),
            figures={
                "tpot": run.mean_tpot_ms,
                "throughput": run.n * run.output_tokens / run.duration_s,
            },
        )


def measured() -> list[Measured]:
    """Return all measured runs that a `vllm serve` line describes."""
    return [*_gpustack(), *_bursts()]


def _scenario(run: Measured, requests: Path) -> Scenario:
    overrides: dict[str, Any] = {"clients.0.gpu": run.gpu, "clients.0.engine": run.engine}
    found = from_vllm([run.serve], gpu=run.gpu, engine=run.engine, overrides=overrides)
    load: dict[str, Any] = {"trace": {"type": "lengths_csv", "path": str(requests)}}
    if run.concurrency:
        load["arrivals"] = {"type": "closed_loop", "concurrency": run.concurrency}
    else:
        load["arrivals"] = "all_at_once"
    return Scenario.from_dict({}, found.overrides | overrides | {"workload": load})


def _simulated(run: Measured) -> dict[str, Any]:
    """Return simulated means of `METRICS`, their bars, and what failed."""
    requests = KEPT / f"{hashlib.sha256(repr(run.lengths).encode()).hexdigest()[:12]}.csv"
    rows = "\n".join(f"{prompt},{answer}" for prompt, answer in run.lengths)
    requests.write_text(f"num_prefill_tokens,num_decode_tokens\n{rows}\n")
    try:
        result = simulate(_scenario(run, requests))
    except MistError as error:
        return {"fault": str(error)}
    summary = result.summary
    bars = expected_ranges(summary)
    return {
        "ttft": summary["mean_ttft_ms"],
        "tpot": summary["mean_tpot_ms"],
        "throughput": summary["output_throughput"],
        "running": float(result.clients["mean_batch_size"].iloc[0])
        if "mean_batch_size" in result.clients
        else None,
        "bars": {name: bar and list(bar) for name, bar in bars.items()},
    }


@cache
def _package() -> str:
    package = (path for path in (ROOT / "mist_sim").rglob("*") if path.suffix in _SOURCES)
    files = sorted([*package, Path(__file__)])
    joined = hashlib.sha256()
    for path in files:
        joined.update(path.read_bytes())
    return joined.hexdigest()


_SOURCES = (".py", ".toml", ".csv", ".pxd")


def _kept(run: Measured) -> dict[str, Any]:
    """Return the simulation of a run, from the last time if the package is the same."""
    name = hashlib.sha256(f"{asdict(run)}".encode()).hexdigest()[:16]
    file = KEPT / f"{_package()[:16]}-{name}.json"
    if not file.exists():
        file.write_text(json.dumps(_simulated(run)))
    return dict(json.loads(file.read_text()))


def compared(part: str = "", processes: int = 2) -> pd.DataFrame:
    """Return a row for each figure of each run: measured, simulated, error, inside its bar."""
    runs = [run for run in measured() if part in f"{run.source} {run.model} {run.label} {run.gpu}"]
    KEPT.mkdir(exist_ok=True)
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(_kept, runs))
    rows = []
    for run, ours in zip(runs, found, strict=True):
        for metric, value in run.figures.items():
            error = ours[metric] / value - 1 if "fault" not in ours else np.nan
            bar = ours.get("bars", {}).get("ttft" if metric == "ttft" else "tpot")
            inside = bool(bar[0] <= 1 / (1 + error) - 1 <= bar[1]) if bar else None
            rows.append(
                {
                    "source": run.source,
                    "gpu": run.gpu,
                    "release": run.release,
                    "model": run.model,
                    "label": run.label,
                    "metric": metric,
                    "measured": value,
                    "simulated": ours.get(metric),
                    "error": error,
                    "inside": None if metric == "throughput" else inside,
                    "fault": ours.get("fault", ""),
                }
            )
    return pd.DataFrame(rows)


def stages() -> pd.DataFrame:
    """Return the twelve open-loop runs in the same form; their TTFT is a median."""
    found = simulated_stages(
        measured_stages(SHARED / "measurements/vllm-h100-shared-prefix/runs.csv")
    )
    columns = {"ttft": "ttft_median_ms", "tpot": "tpot_mean_ms"}
    return pd.concat(
        pd.DataFrame(
            {
                "source": "vllm-h100-shared-prefix",
                "gpu": "h100-sxm",
                "release": "0.15",
                "model": found["model"].map(MODELS),
                "label": found["run"],
                "metric": metric,
                "error": found[f"simulated_{column}"] / found[column] - 1,
                "inside": None,
                "fault": "",
            }
        )
        for metric, column in columns.items()
    )


def table(figures: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return number, median and 90th percentile of errors, signed median and share inside bars."""
    known = figures[figures["error"].notna()]
    groups = known.groupby([*by, "metric"])
    return pd.DataFrame(
        {
            "number": groups.size(),
            "median": groups["error"].apply(lambda each: each.abs().median()),
            "nine in ten": groups["error"].apply(lambda each: each.abs().quantile(0.9)),
            "signed": groups["error"].median(),
            "inside": groups["inside"].apply(lambda each: each.dropna().astype(float).mean()),
            "barred": groups["inside"].apply(lambda each: each.notna().mean()),
        }
    ).round(3)


def main() -> None:
    """Print errors by source, GPU and model; with --runs those of each run."""
    parser = argparse.ArgumentParser(description="Whole runs of vLLM beside the simulator.")
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--runs", action="store_true")
    asked = parser.parse_args()
    figures = compared(asked.part)
    if not asked.part:
        figures = pd.concat([figures, stages()])
    pd.set_option("display.width", 250, "display.max_rows", 500, "display.max_colwidth", 110)
    if asked.runs:
        wide = figures.pivot_table(
            index=["model", "gpu", "label"], columns="metric", values="error", sort=False
        )
        print(wide.round(2).to_string(), end="\n\n")
    for fault, rows in figures[figures["fault"] != ""].groupby("fault"):
        print(f"{rows['label'].nunique()} not simulated: {fault} ({rows['label'].iloc[0]})\n")
    for by in (("source",), ("source", "model", "gpu")):
        print(table(figures, *by).to_string(), end="\n\n")


if __name__ == "__main__":
    main()
