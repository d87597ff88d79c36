"""Twelve open-loop runs of vLLM 0.15.1 on H100s whose prompts share prefixes.

Four models under three loads, in twenty stages of a constant rate. Source: `default_args` of
inference-sim/training (commit ed5c1d2, 2026), which has the figures of each stage alone: requests
are drawn here as they were there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.content_ids import OF_PREFIX, content_id
from mist_sim.hardware.tables.base import read_columns
from mist_sim.metrics.result import Result
from mist_sim.rng import Streams
from mist_sim.scenario import llm_client
from mist_sim.simulation import Simulation
from mist_sim.traces import TraceArrivals, Workload
from mist_sim.traces.base import TraceRow
from mist_sim.traces.workload import Rows
from mist_sim.validation.runs import MeasuredRun, Row
from tools.validation.points import points_row

if TYPE_CHECKING:
    import pandas as pd

SHARED_PREFIXES = "vllm-h100-shared-prefix"
MODELS = {  # theirs, and ours
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "meta-llama/Llama-2-70b-hf": "llama-2-70b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "codellama/CodeLlama-34b-Instruct-hf": "codellama-34b",
}
HALVES = ("fitted", "held out")
_ENGINE = "vllm-0.15"
_LIMITS = ChunkedScheduler(max_num_seqs=128, max_num_batched_tokens=2048)
_MAX_MODEL_LEN = 4096
_PROMPTS_VARY = 15  # tokens up and down, as the figures of the stages say
_TEXTS = ("model", "workload")
_SIZES = (
    "tensor_parallel_size",
    "stage",
    "num_requests",
    "distinct_system_prompts",
    "prompts_per_system_prompt",
    "system_prompt_len",
    "output_len",
)
_FIGURES = ("duration_s", "prompt_len_mean", "ttft_median_ms", "tpot_mean_ms", "e2e_mean_ms")
_METRICS = {
    "TTFT, median of a stage": "ttft_median_ms",
    "TPOT, mean of a stage": "tpot_mean_ms",
    "E2E, mean of a stage": "e2e_mean_ms",
}


def shared_prefixes(folder: Path) -> Iterator[MeasuredRun]:
    """Yield the runs whose median TTFT was used to fit `front_end.request`, and the others."""
    fitted = "front_end.request, on median TTFT of these stages"
    for half, what in zip(HALVES, (fitted, "nothing on these runs"), strict=True):
        yield MeasuredRun(
            name=f"Twelve runs on H100s, shared prefixes: roofline, six runs {half}",
            engine="vLLM 0.15.1",
            provenance="inference-sim/training, figures alone",
            fitted=what,
            rows=partial(_rows, folder / "runs.csv", half),
        )


def measured_stages(file: Path) -> pd.DataFrame:
    """Return the stages; `half` says on which runs the front end was fitted: every second one."""
    stages = read_columns(file, [*_SIZES, *_FIGURES], _TEXTS).astype(dict.fromkeys(_SIZES, int))
    names = stages["model"].map(MODELS) + ", " + stages["workload"]
    order = {name: place for place, name in enumerate(sorted(set(names)))}
    halves = [HALVES[order[name] % 2] for name in names]
    return stages.assign(run=names, half=halves)


def simulated_stages(stages: pd.DataFrame) -> pd.DataFrame:
    """Return the stages with simulated figures, in columns named `simulated_` and theirs.

    lone_step_ms: the shortest step, of a decode alone.
    """
    found = []
    for _, in_any_order in stages.groupby("run"):
        run = in_any_order.sort_values("stage")
        result = _simulated(run)
        requests = result.requests
        at = next(iter(result.data["expected_errors"].values()))["tpot"]["sensitivity"]
        lone = result.data["mean_tpot_ms"] * (1 - at["growing"])
        ends = run["duration_s"].cumsum().to_numpy()
        place = np.searchsorted(ends, requests["arrival_time"].to_numpy() - 1e-6)
        for position in range(len(run)):
            mine = requests[place == position]
            found.append(
                run.iloc[[position]].assign(
                    simulated_ttft_median_ms=1e3 * mine["ttft"].median(),
                    simulated_tpot_mean_ms=1e3 * mine["tpot"].mean(),
                    simulated_e2e_mean_ms=1e3 * mine["e2el"].mean(),
                    lone_step_ms=lone,
                )
            )
    import pandas as pd

    return pd.concat(found, ignore_index=True)


def _rows(file: Path, half: str) -> Iterator[Row]:
    stages = measured_stages(file)
    found = simulated_stages(stages[stages["half"] == half])
    for metric, key in _METRICS.items():
        errors = (found[f"simulated_{key}"] / found[key] - 1).to_numpy(float)
        yield points_row(metric, errors)
    errors = (found["simulated_tpot_mean_ms"] / found["tpot_mean_ms"] - 1).to_numpy(float)
    for name, model in MODELS.items():
        yield points_row(f"TPOT, {model}", errors[(found["model"] == name).to_numpy()])


def _simulated(run: pd.DataFrame) -> Result:
    """Return the simulation of a run, whose stages follow one another without a pause."""
    first: Any = next(run.itertuples())
    client = llm_client(
        "llm",
        model=MODELS[first.model],
        gpu="h100-sxm",
        engine=_ENGINE,
        tensor_parallel_size=int(first.tensor_parallel_size),
        scheduler=_LIMITS,
        max_model_len=_MAX_MODEL_LEN,
    )
    workload = Workload(Rows(list(_requests(run))), TraceArrivals())
    return Simulation(clients=[client], workload=workload).run()


def _requests(run: pd.DataFrame) -> Iterator[TraceRow]:
    """Yield requests: exponential gaps, scaled to the stage, and prompts drawn over and over."""
    rng = Streams(0).generator(f"{SHARED_PREFIXES} {run['run'].iloc[0]}")
    first: Any = next(run.itertuples())
    number = first.distinct_system_prompts * first.prompts_per_system_prompt
    spread = rng.uniform(-_PROMPTS_VARY, _PROMPTS_VARY, number)
    lengths = np.rint(first.prompt_len_mean + spread).astype(int)
    begin = 0.0
    stages: Iterator[Any] = run.itertuples()
    for stage in stages:
        gaps = rng.exponential(size=stage.num_requests)
        times = begin + np.cumsum(gaps) / gaps.sum() * stage.duration_s
        prompts = rng.integers(number, size=stage.num_requests)
        begin += stage.duration_s
        for time, prompt in zip(times.tolist(), prompts.tolist(), strict=True):
            shared = content_id(OF_PREFIX, prompt // first.prompts_per_system_prompt)
            own = content_id(OF_PREFIX, number + prompt)
            tokens, length = first.system_prompt_len, int(lengths[prompt])
            content = ((shared, tokens), (own, length - tokens))
            yield TraceRow(length, stage.output_len, time, content=content)
