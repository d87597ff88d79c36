"""An open loop of vLLM 0.19 on one RTX PRO 6000: 300 requests of ShareGPT, from LLMServingSim."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mist_sim.bounds import TABLE_BYTES
from mist_sim.inputs import of_a_form, text_of
from mist_sim.scenario import Scenario
from mist_sim.validation.runs import MeasuredRun, Row, request_rows

if TYPE_CHECKING:
    import pandas as pd

_FIT_ON = 60  # of the 300 requests, those used to fit the time of prefill steps
_FORM = "the form of the law of unsplit decodes was chosen on this run"
_PREFILL_STEP = 4  # ms, least mean error of their TTFTs, of whole milliseconds
_TRIED = (2, 3, 4, 5, 6)  # ms
_MEANS = ("TTFT, mean", "TPOT, mean", "E2E, mean")


def vllm_019(folder: Path) -> Iterator[MeasuredRun]:
    """Yield the run as its layer profile and the roofline time it, and variants of it."""
    measured = _bench_requests(folder / "requests.jsonl")
    table = {"predictor": _table(folder)}
    fitted = {**table, "overhead": {"prefill_step": f"{_PREFILL_STEP} ms"}}
    assumed = "no figure on this machine (prefill_step is 3 ms on all)"
    variants: list[tuple[str, str, dict[str, Any], slice | None]] = [
        ("layer profile", f"{assumed}, but {_FORM}", table, None),
        (
            f"layer profile, prefill_step {_PREFILL_STEP} ms, all requests",
            f"prefill_step, on the first {_FIT_ON} of the 300 requests; {_FORM}",
            fitted,
            None,
        ),
        (
            f"layer profile, prefill_step {_PREFILL_STEP} ms, requests {_FIT_ON} to 299",
            f"no figure on these requests, but {_FORM}",
            fitted,
            slice(_FIT_ON, None),
        ),
        ("roofline, with async scheduling as it ran", "", {}, None),
        ("roofline, without async scheduling", "", {"async_scheduling": False}, None),
    ]
    for name, what, options, scored in variants:
        rows = partial(_bench_rows, folder, measured, options, scored)
        yield _run(name, what, rows)
    tried = f"layer profile, requests 0 to {_FIT_ON - 1} with several times of prefill_step"
    yield _run(tried, "prefill_step, here", partial(_tried_rows, folder, measured))
    yield _run(
        "layer profile, one part left out",
        f"no figure, but {_FORM}",
        partial(_left_out_rows, folder, measured),
    )


def vllm_019_means(folder: Path) -> tuple[float, float, float]:
    """Return mean tokens of prompts and of answers, and the mean number of decoding requests.

    The last follows from Little's law, from the first token of the run to its last.
    """
    path = folder / "requests.jsonl"
    with of_a_form(path, "timed requests"):
        rows = _timed_requests(path)
    first, last = rows["first_token_ts"], rows["last_token_ts"]
    batch = (last - first).sum() / (last.max() - first.min())
    return float(rows["input_toks"].mean()), float(rows["output_toks"].mean()), float(batch)


def _run(name: str, fitted: str, rows: Any) -> MeasuredRun:
    return MeasuredRun(
        name=f"Llama-3.1-8B, RTX PRO 6000, 300 ShareGPT requests: {name}",
        engine="vLLM 0.19.0",
        provenance="LLMServingSim 2.0, MIT",
        fitted=fitted,
        rows=rows,
    )


def _table(folder: Path) -> dict[str, str]:
    return {"type": "table", "format": "layer_profile", "path": str(folder / "profile")}


def _tried_rows(folder: Path, measured: pd.DataFrame) -> Iterator[Row]:
    """Yield mean TTFT of the requests that the time of prefill steps was fitted on."""
    for milliseconds in _TRIED:
        own = {"overhead": {"prefill_step": f"{milliseconds} ms"}, "predictor": _table(folder)}
        for row in _bench_rows(folder, measured, own, slice(0, _FIT_ON)):
            if row.metric == "TTFT, mean":
                yield replace(row, metric=f"{row.metric}, with {milliseconds} ms")


def _left_out_rows(folder: Path, measured: pd.DataFrame) -> Iterator[Row]:
    """Yield the means without a part of the engine that the run had."""
    table = {"predictor": _table(folder)}
    no_launches = {**table, "overhead": {"prefill_step": "0 ms"}}
    yield from _means("prefill_step", folder, measured, no_launches)
    yield from _means("async scheduling", folder, measured, {**table, "async_scheduling": False})
    no_cache = {**table, "kv_cache": {"enable_prefix_caching": False}}
    yield from _means("prefix caching", folder, measured, no_cache)
    with TemporaryDirectory() as copy:
        even = Path(copy, "profile")
        shutil.copytree(folder / "profile", even, ignore=shutil.ignore_patterns("skew*.csv"))
        yield from _means("skew.csv", folder, measured, {"predictor": _table(even.parent)})


def _means(
    part: str, folder: Path, measured: pd.DataFrame, options: dict[str, Any]
) -> Iterator[Row]:
    for row in _bench_rows(folder, measured, options, None):
        if row.metric in _MEANS:
            yield replace(row, metric=f"{row.metric}, no {part}")


def _bench_rows(
    folder: Path, measured: pd.DataFrame, options: dict[str, Any], scored: slice | None
) -> Iterator[Row]:
    scheduler = {"type": "chunked", "max_num_seqs": 128, "max_num_batched_tokens": 2048}
    trace = {
        "type": "mooncake",
        "path": str(folder / "workload_block16.jsonl"),
        "hash_block_size": 16,
    }
    engine = {
        "name": "vllm",
        "engine": "vllm-0.19",
        "gpu": "rtx-pro-6000",
        "scheduler": scheduler,
        "sampling": {"temperature": 0},  # as its profile's sampler, which takes 0.1 ms or less
    }
    client = {**engine, **options}
    scenario = Scenario.from_dict(
        {"model": "llama-3.1-8b", "workload": {"trace": trace}, "clients": [client]}
    )
    return request_rows(scenario, measured, from_intake=True, scored=scored)


def _bench_requests(path: Path) -> pd.DataFrame:
    """Return latencies in seconds by request, from the times that vLLM's engine core stamped."""
    with of_a_form(path, "timed requests"):
        return _latencies(_timed_requests(path))


def _timed_requests(path: Path) -> pd.DataFrame:
    import pandas as pd

    lines = text_of(path, TABLE_BYTES).splitlines()
    return pd.DataFrame([json.loads(line) for line in lines])


def _latencies(rows: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

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
