"""The single figures behind docs/validation.md, simulated as the engines ran, for error bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import Predictor, RooflinePredictor
from mist_sim.hardware.setting import Setting, setting_of
from mist_sim.metrics.latency import SHORT_NAMES
from mist_sim.metrics.load import load_of
from mist_sim.models import load_model
from tools.validation.closed_loop import (
    PROMPT_TOKEN,
    PROMPT_TOKEN_ROOFLINE,
    measured_points,
    predictors,
    simulated,
)
from tools.validation.error_bars import SOURCES, Point
from tools.validation.known import (
    CLOSED_LOOP,
    SPLITWISE,
    SPLITWISE_GPUS,
    VLLM_019,
    splitwise_steps,
)
from tools.validation.open_loop import vllm_019, vllm_019_means

_ROOFLINE, _KERNELS = SOURCES
_SPLITWISE_TOKENS = 128  # of the answers that `splitwise_steps` reads
OLD = f"{_ROOFLINE}, engine of 2023"
"""The source of steps of an engine that no version of today is like."""


def page_points(folder: Path) -> list[Point]:
    """Return the figures of the runs that were simulated as they ran.

    folder: of the published measurements.
    """
    return [
        *_open_loop(folder / VLLM_019),
        *_closed_loops(folder / CLOSED_LOOP),
        *_splitwise(folder / SPLITWISE),
    ]


class _OpenLoop(NamedTuple):
    """The end of a run's name, its source of times, and whether it has a scenario's defaults."""

    name: str
    source: str
    by_default: bool = True


_OPEN_LOOPS = (
    _OpenLoop("requests: layer profile", _KERNELS),
    _OpenLoop("requests 60 to 299", _KERNELS, by_default=False),
    _OpenLoop("with async scheduling as it ran", _ROOFLINE),
)


def _open_loop(folder: Path) -> Iterator[Point]:
    """Yield the means of the run; the first 60 requests were fitted on."""
    model, cluster = load_model("llama-3.1-8b"), Cluster(load_gpu("rtx-pro-6000"))
    load = load_of(*vllm_019_means(folder))
    for run in vllm_019(folder):
        for known in _OPEN_LOOPS:
            if not run.name.endswith(known.name):
                continue
            rows = {row.metric: row for row in run.rows()}
            simulated = [rows[f"{name}, mean"].simulated for name in ("TTFT", "E2E")]
            share = (simulated[0] or 0.0) / (simulated[1] or 1.0)
            for metric, name in SHORT_NAMES.items():
                yield Point(
                    setting=setting_of(known.source, model, cluster),
                    metric=metric,
                    factor=1 / (1 + rows[f"{name}, mean"].error),
                    series="open loop",
                    loads=(load,),
                    run=f"open loop, {run.name.partition('requests: ')[2]}",
                    widens=known.by_default,
                    ttft_share=share,
                    model=model.name,
                )


def _closed_loops(file: Path) -> Iterator[Point]:
    """Yield all points with the defaults, and those of the page with the fitted `prompt_token`.

    By default requests come through the front end; the page shows them with the roofline alone,
    and on the points held out.
    """
    model, gpu = load_model("qwen3-32b"), load_gpu("h100-sxm")
    roofline = {ranks: RooflinePredictor(model, Cluster(gpu, ranks)) for ranks in (2, 8)}
    kernels = predictors()
    variants: tuple[tuple[str, Mapping[int, Predictor], float | None], ...] = (
        (_ROOFLINE, roofline, None),
        (_ROOFLINE, roofline, PROMPT_TOKEN_ROOFLINE),
        (_KERNELS, kernels, None),
        (_KERNELS, kernels, PROMPT_TOKEN),
    )
    for source, timed_by, prompt_token in variants:
        for row in _rows(simulated(measured_points(file), timed_by, prompt_token=prompt_token)):
            for metric, factor in _factors(row):
                yield Point(
                    setting=setting_of(source, model, Cluster(gpu, row.tp_size)),
                    metric=metric,
                    factor=factor,
                    series=f"closed loop, {row.tp_size} GPUs, {row.isl} in, {row.osl} out",
                    loads=(load_of(row.isl, row.osl, _closed_loop_batch(row)),),
                    run=_table(source, row.half, prompt_token),
                    widens=not prompt_token,
                    ttft_share=row.ttft_ms / _end_to_end(row.ttft_ms, row.tpot_ms, row.osl),
                    model=model.name,
                )


def _factors(row: Any) -> Iterator[tuple[str, float]]:
    """Yield measured / simulated of a closed loop, by metric."""
    measured, simulated = (row.silicon_ttft_ms, row.silicon_tpot_ms), (row.ttft_ms, row.tpot_ms)
    yield "ttft", measured[0] / simulated[0]
    yield "tpot", measured[1] / simulated[1]
    yield "e2el", _end_to_end(*measured, row.osl) / _end_to_end(*simulated, row.osl)


def _end_to_end(ttft: float, tpot: float, num_tokens: int) -> float:
    """Return the mean E2E of answers of one length, from the means of TTFT and TPOT."""
    return ttft + (num_tokens - 1) * tpot


def _closed_loop_batch(row: Any) -> float:
    """Return how many users' answers were decoded at a time, as measured: by Little's law."""
    decoding = (row.osl - 1) * row.silicon_tpot_ms
    return float(row.concurrency * decoding / (row.silicon_ttft_ms + decoding))


def _table(source: str, half: str, prompt_token: float | None) -> str:
    """Return the table of the page with a point; empty for none."""
    if prompt_token:
        return f"closed loops, {source}, {half}"
    is_shown = source == _ROOFLINE and half == "held out"
    return f"closed loops, {source}, {half}, prompt_token not said" if is_shown else ""


def _splitwise(file: Path) -> Iterator[Point]:
    for gpu, hardware in SPLITWISE_GPUS.items():
        for row in _rows(splitwise_steps(file, gpu, hardware)):
            model = load_model(row.model.replace("llama2", "llama-2"))
            cluster = Cluster(load_gpu(gpu), int(row.tensor_parallel))
            setting: Setting = setting_of(OLD, model, cluster)
            for metric, error in (("ttft", row.prompt_error), ("tpot", row.token_error)):
                yield Point(
                    setting=setting,
                    metric=metric,
                    factor=1 / (1 + error),
                    series=f"splitwise, {row.model} on {row.tensor_parallel} {hardware}",
                    loads=(load_of(row.prompt_size, _SPLITWISE_TOKENS, 1),),
                    run=f"single prompts and tokens of 2023, {hardware}",
                )


def _rows(frame: Any) -> Iterator[Any]:
    rows: Iterator[Any] = frame.itertuples()
    return rows
