"""The measured runs that are published elsewhere, read from a folder where they lie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.core.batch import StepBatch
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.models import load_model
from mist_sim.scenario import Scenario
from mist_sim.validation.closed_loop import (
    PROMPT_TOKEN_ROOFLINE,
    measured_points,
    predictors,
    queued,
    simulated,
)
from mist_sim.validation.comparing import Row, request_rows
from mist_sim.validation.runs import MeasuredRun

if TYPE_CHECKING:
    import pandas as pd

VLLM_019 = "vllm-0.19-rtxpro6000-llama3.1-8b"
CLOSED_LOOP = "vllm-0.12-h100-qwen3-32b-closed-loop.csv"
SPLITWISE = "splitwise_perf_model.csv"

_FIT_ON = 60  # of the 300 requests, those that the time of prefill steps was fitted on
_HALVES = {  # of the closed loops' points: every second one of each number of GPUs was fitted
    "fitted": "step and sequence overhead on TPOT, prompt_token on TTFT of these points",
    "held out": "nothing on these points",
}
_POINTS_FROM = "aiconfigurator-core, Apache-2.0; points with TTFT above 4 s in TPOT only"
_FORM = "the form of the law of unsplit decodes was chosen on this run"
_PREFILL_STEP = "4 ms"  # least mean error of their TTFTs, of whole milliseconds


def known_runs(folder: Path) -> list[MeasuredRun]:
    """Return the runs whose files are in a folder. Raises ScenarioError when none is."""
    runs: list[MeasuredRun] = []
    if (folder / VLLM_019).is_dir():
        runs += _vllm_019(folder / VLLM_019)
    if (folder / CLOSED_LOOP).is_file():
        runs += _closed_loop(folder / CLOSED_LOOP)
    if (folder / SPLITWISE).is_file():
        runs += _splitwise(folder / SPLITWISE)
    if not runs:
        raise ScenarioError(
            f"{folder}: holds none of {VLLM_019}, {CLOSED_LOOP}, {SPLITWISE}; name a folder of "
            "measurements with --measurements, or the folder of a run of your own"
        )
    return runs


# --- vLLM 0.19, open loop ---------------------------------------------------------------------


def _vllm_019(folder: Path) -> Iterator[MeasuredRun]:
    measured = _bench_requests(folder / "requests.jsonl")
    table = {"type": "table", "format": "layer_profile", "path": str(folder / "profile")}
    overhead = {"overhead": {"prefill_step": _PREFILL_STEP}}
    rest = slice(_FIT_ON, None)
    variants: list[tuple[str, str, dict[str, Any], slice | None]] = [
        ("layer profile", f"no figure, but {_FORM}", {"predictor": table}, None),
        (
            f"layer profile, prefill_step {_PREFILL_STEP}, all requests",
            f"prefill_step, on the first {_FIT_ON} of the 300 requests; {_FORM}",
            {"predictor": table, **overhead},
            None,
        ),
        (
            f"layer profile, prefill_step {_PREFILL_STEP}, requests {_FIT_ON} to 299",
            f"no figure on these requests, but {_FORM}",
            {"predictor": table, **overhead},
            rest,
        ),
        ("roofline, without async scheduling", "", {"async_scheduling": False}, None),
    ]
    for name, fitted, options, scored in variants:
        yield MeasuredRun(
            name=f"Llama-3.1-8B, RTX PRO 6000, 300 ShareGPT requests: {name}",
            engine="vLLM 0.19.0",
            provenance="LLMServingSim 2.0, MIT",
            fitted=fitted,
            rows=partial(
                _bench_rows, folder, measured, {"async_scheduling": True, **options}, scored
            ),
        )


def _bench_rows(
    folder: Path, measured: pd.DataFrame, options: dict[str, Any], scored: slice | None
) -> Iterator[Row]:
    scheduler = {"type": "chunked", "max_num_seqs": 128, "max_num_batched_tokens": 2048}
    trace = {
        "type": "mooncake",
        "path": str(folder / "workload_block16.jsonl"),
        "hash_block_size": 16,
    }
    client = {"name": "vllm", "gpu": "rtx-pro-6000", "scheduler": scheduler, **options}
    scenario = Scenario.from_dict(
        {"model": "llama-3.1-8b", "workload": {"trace": trace}, "clients": [client]}
    )
    return request_rows(scenario, measured, from_intake=True, scored=scored)


def _bench_requests(path: Path) -> pd.DataFrame:
    """Return latencies in seconds by request, from the times that vLLM's engine core stamped."""
    import pandas as pd

    rows = pd.DataFrame([json.loads(line) for line in path.read_text("utf-8").splitlines()])
    first, last = rows["first_token_ts"], rows["last_token_ts"]
    latencies = pd.DataFrame(
        {
            "ttft": first - rows["queued_ts"],
            "tpot": (last - first) / (rows["output_toks"] - 1),
            "e2el": last - rows["queued_ts"],
        }
    )
    latencies.index = pd.Index(rows["request_id"].str.removeprefix("bench-").astype(int))
    return latencies.sort_index()


# --- vLLM 0.12, closed loop -------------------------------------------------------------------


def _closed_loop(file: Path) -> Iterator[MeasuredRun]:
    for ranks, (half, fitted) in product((2, 8), _HALVES.items()):
        yield MeasuredRun(
            name=f"Qwen3-32B, H100 x TP {ranks}, closed loop, 15 points: roofline, {half}",
            engine="vLLM 0.12.0",
            provenance=_POINTS_FROM,
            fitted=fitted,
            rows=partial(_closed_loop_rows, file, ranks, half),
        )

    missing = "" if find_spec("aiconfigurator_core") else "mist-sim[silicon]"
    for half, fitted in _HALVES.items():
        yield MeasuredRun(
            name=f"Qwen3-32B, H100 x TP 2 and 8, closed loop, 30 points: measured kernels, {half}",
            engine="vLLM 0.12.0",
            provenance=_POINTS_FROM,
            fitted=fitted,
            rows=partial(_silicon_rows, file, half),
            missing=missing,
        )


def _closed_loop_rows(file: Path, ranks: int, half: str) -> Iterator[Row]:
    points = measured_points(file)
    chosen = points[(points["tp_size"] == ranks) & (points["half"] == half)]
    roofline = RooflinePredictor(load_model("qwen3-32b"), Cluster(load_gpu("h100-sxm"), ranks))
    found = simulated(chosen, {ranks: roofline}, prompt_token=PROMPT_TOKEN_ROOFLINE)
    return _closed_loop_errors(found)


def _silicon_rows(file: Path, half: str) -> Iterator[Row]:
    points = measured_points(file)
    return _closed_loop_errors(simulated(points[points["half"] == half], predictors()))


def _closed_loop_errors(found: pd.DataFrame) -> Iterator[Row]:
    for name, kept in (("TTFT", found[~queued(found)]), ("TPOT", found)):
        errors = kept[f"{name.lower()}_error"].to_numpy()
        yield _points_row(f"{name}, mean of a point", errors / 100)


# --- Splitwise: prompts one at a time ---------------------------------------------------------


def _splitwise(file: Path) -> Iterator[MeasuredRun]:
    for gpu, hardware in (("a100-80gb-sxm", "a100-80gb"), ("h100-sxm", "h100-80gb")):
        fitted = gpu.startswith("a100")
        yield MeasuredRun(
            name=f"Llama-2-70B and BLOOM-176B, {hardware}, single prompts and tokens: roofline",
            engine="vLLM of 2023",
            provenance="splitwise-sim, MIT",
            fitted="prefill.mfu, on prompts of Llama-2-70B at TP 2" if fitted else "",
            rows=partial(_splitwise_rows, file, gpu, hardware),
        )


def _splitwise_rows(file: Path, gpu: str, hardware: str) -> Iterator[Row]:
    import pandas as pd

    rows = pd.read_csv(file)
    rows = rows[(rows["hardware"] == hardware) & (rows["batch_size"] == 1)]
    rows = rows[rows["token_size"] == 128]
    medians = rows.groupby(["model", "tensor_parallel", "prompt_size"]).median(numeric_only=True)
    errors: dict[str, list[float]] = {"prompts": [], "tokens": []}
    for measured in medians.reset_index().to_dict("records"):
        model = load_model(measured["model"].replace("llama2", "llama-2"))
        ranks, size = measured["tensor_parallel"], measured["prompt_size"]
        roofline = RooflinePredictor(model, Cluster(load_gpu(gpu), int(ranks)))
        prompt = roofline.step_time(StepBatch(((int(size), 0),)))
        token = roofline.step_time(StepBatch((), 1, int(size)))
        errors["prompts"].append(1e3 * prompt / measured["prompt_time"] - 1)
        errors["tokens"].append(1e3 * token / measured["token_time"] - 1)
    yield _points_row("prompt, batch 1", np.array(errors["prompts"]))
    yield _points_row("token, batch 1", np.array(errors["tokens"]))


def _points_row(metric: str, errors: np.ndarray[Any, np.dtype[np.float64]]) -> Row:
    return Row(metric, "", None, None, float(np.median(errors)), float(np.abs(errors).mean()))
