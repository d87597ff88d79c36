"""The measured runs that are published elsewhere, read from a folder where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.tables.base import read_columns
from mist_sim.models import load_model
from mist_sim.validation.runs import MeasuredRun, Row
from tools.validation.closed_loop import (
    GPUS,
    PROMPT_TOKEN_ROOFLINE,
    measured_points,
    predictors,
    queued,
    simulated,
)
from tools.validation.open_loop import vllm_019
from tools.validation.points import points_row
from tools.validation.shared_prefixes import SHARED_PREFIXES, shared_prefixes

if TYPE_CHECKING:
    import pandas as pd

VLLM_019 = "vllm-0.19-rtxpro6000-llama3.1-8b"
CLOSED_LOOP = "vllm-0.12-h100-qwen3-32b-closed-loop.csv"
SPLITWISE = "splitwise_perf_model.csv"
SPLITWISE_GPUS = {"a100-80gb-sxm": "a100-80gb", "h100-sxm": "h100-80gb"}  # ours, and theirs

_HALVES = {  # of the closed loops' points: every second one of each number of GPUs was fitted
    "fitted": "step and sequence overhead on TPOT, prompt_token on TTFT of these points",
    "held out": "nothing on these points",
}
_LESS_KNOWN: dict[str, dict[str, Any]] = {  # the roofline with less of the protocol
    "prompt_token not said": {"prompt_token": None},
    "a plain scenario (8,192 tokens a step, no think time, no prompt_token)": {
        "prompt_token": None,
        "max_num_batched_tokens": lambda prompt: 8192,
    },
}
_OF_SILICON = ("mist_sim_silicon", "aiconfigurator_core")
_POINTS_FROM = "aiconfigurator-core, Apache-2.0"


@dataclass(frozen=True, kw_only=True)
class PublishedRun(MeasuredRun):
    """A run whose measurements are published. missing: what to install before; empty: nothing."""

    missing: str = ""


def known_runs(folder: Path) -> list[MeasuredRun]:
    """Return the runs with files in a folder. Raises ScenarioError without any."""
    runs: list[MeasuredRun] = []
    if (folder / VLLM_019).is_dir():
        runs += vllm_019(folder / VLLM_019)
    if (folder / CLOSED_LOOP).is_file():
        runs += _closed_loop(folder / CLOSED_LOOP)
    if (folder / SHARED_PREFIXES).is_dir():
        runs += shared_prefixes(folder / SHARED_PREFIXES)
    if (folder / SPLITWISE).is_file():
        runs += _splitwise(folder / SPLITWISE)
    if not runs:
        raise ScenarioError(
            f"{folder}: holds none of {VLLM_019}, {CLOSED_LOOP}, {SHARED_PREFIXES}, {SPLITWISE}; "
            "name the folder of measurements with --measurements"
        )
    return runs


# --- vLLM 0.12, closed loop -------------------------------------------------------------------


def _closed_loop(file: Path) -> Iterator[MeasuredRun]:
    missing = "" if all(map(find_spec, _OF_SILICON)) else "plugins/silicon"
    for half, fitted in _HALVES.items():
        known = {"prompt_token": PROMPT_TOKEN_ROOFLINE}
        yield _loop(f"roofline, {half}", fitted, partial(_roofline_rows, file, half, known))
    for name, options in _LESS_KNOWN.items():
        rows = partial(_roofline_rows, file, "held out", options)
        yield _loop(f"roofline, held out, {name}", _HALVES["held out"], rows)
    for half, fitted in _HALVES.items():
        rows = partial(_silicon_rows, file, half)
        yield _loop(f"measured kernels, {half}", fitted, rows, missing)


def _loop(
    name: str, fitted: str, rows: Callable[[], Iterator[Row]], missing: str = ""
) -> MeasuredRun:
    return PublishedRun(
        name=f"Qwen3-32B, H100 x TP 2 and 8, closed loop, 30 points: {name}",
        engine="vLLM 0.12.0",
        provenance=_POINTS_FROM,
        fitted=fitted,
        rows=rows,
        missing=missing,
    )


def _roofline_rows(file: Path, half: str, options: dict[str, Any]) -> Iterator[Row]:
    points = measured_points(file)
    model, gpu = load_model("qwen3-32b"), load_gpu("h100-sxm")
    timed_by = {ranks: RooflinePredictor(model, Cluster(gpu, ranks)) for ranks in GPUS}
    return _closed_loop_errors(simulated(points[points["half"] == half], timed_by, **options))


def _silicon_rows(file: Path, half: str) -> Iterator[Row]:
    points = measured_points(file)
    return _closed_loop_errors(simulated(points[points["half"] == half], predictors()))


def _closed_loop_errors(found: pd.DataFrame) -> Iterator[Row]:
    """Yield errors of TTFT, without and with a queue for memory, and of TPOT."""
    waiting = queued(found)
    yield from _by_ranks("TTFT", found[~waiting])
    if waiting.any():
        yield points_row("TTFT, points above 4 s", _errors(found[waiting], "TTFT"))
    yield from _by_ranks("TPOT", found)


def _by_ranks(name: str, points: pd.DataFrame) -> Iterator[Row]:
    yield points_row(f"{name}, mean of a point", _errors(points, name))
    for ranks, some in points.groupby("tp_size"):
        yield points_row(f"{name}, TP {ranks}", _errors(some, name))


def _errors(points: pd.DataFrame, name: str) -> NDArray[np.float64]:
    return points[f"{name.lower()}_error"].to_numpy(float) / 100


# --- Splitwise: prompts one at a time ---------------------------------------------------------


def _splitwise(file: Path) -> Iterator[MeasuredRun]:
    for gpu, hardware in SPLITWISE_GPUS.items():
        yield MeasuredRun(
            name=f"Llama-2-70B and BLOOM-176B, {hardware}, single prompts and tokens: roofline",
            engine="vLLM of 2023",
            provenance="splitwise-sim, MIT",
            fitted="",
            rows=partial(_splitwise_rows, file, gpu, hardware),
        )


def _splitwise_rows(file: Path, gpu: str, hardware: str) -> Iterator[Row]:
    steps = splitwise_steps(file, gpu, hardware)
    yield points_row("prompt, batch 1", steps["prompt_error"].to_numpy(float))
    yield points_row("token, batch 1", steps["token_error"].to_numpy(float))


def splitwise_steps(file: Path, gpu: str, hardware: str) -> pd.DataFrame:
    """Return single prompts and tokens of a GPU: model, tensor_parallel, prompt_size and errors."""
    names = ["prompt_size", "batch_size", "token_size", "tensor_parallel"]
    rows = read_columns(file, [*names, "prompt_time", "token_time"], ["model", "hardware"])
    rows = rows[(rows["hardware"] == hardware) & (rows["batch_size"] == 1)]
    rows = rows[rows["token_size"] == 128].astype({"tensor_parallel": int})
    medians = rows.groupby(["model", "tensor_parallel", "prompt_size"]).median(numeric_only=True)
    errors = []
    for measured in medians.reset_index().to_dict("records"):
        model = load_model(measured["model"].replace("llama2", "llama-2"))
        ranks, size = measured["tensor_parallel"], measured["prompt_size"]
        roofline = RooflinePredictor(model, Cluster(load_gpu(gpu), int(ranks)))
        prompt = roofline.step_time(StepBatch(((int(size), 0),)))
        token = roofline.step_time(StepBatch((), 1, int(size)))
        prompt_error = 1e3 * prompt / measured["prompt_time"] - 1
        errors.append((prompt_error, 1e3 * token / measured["token_time"] - 1))
    found = medians.reset_index()[["model", "tensor_parallel", "prompt_size"]]
    return found.assign(
        prompt_error=[prompt for prompt, _ in errors], token_error=[token for _, token in errors]
    )


def missing(run: MeasuredRun) -> str:
    """Return what to install before a run can be simulated; empty: nothing."""
    return run.missing if isinstance(run, PublishedRun) else ""
