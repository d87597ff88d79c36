"""How wide error bars have to be: ranges of measured over simulated times, by what they are like.

A setting's range is that of the whole runs that are like it, if there are `FEWEST` points of
`FEWEST_SERIES` series at least:

1. of the same source, architecture, kind of model, weights and parallelism;
2. however they are parallel;
3. whatever their weights are.

A setting of which nothing that near was run takes the whole runs of its kind of model on any GPU,
and, where kernels of its own architecture, kind of model and weights were timed, the range of these
as far as it reaches further; with such kernels, whole runs of other kinds of models will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from mist_sim.hardware.setting import Setting
from mist_sim.metrics.expected_errors import ErrorBar

# What makes a group. With 4 to 6 series the bars of docs/validation.md do equally well; 2 and 3 are
# too few for single tokens of 2023, whose errors hardly differ within a series.
FEWEST, FEWEST_SERIES = 8, 4
SHARE = 0.9  # of the measurements lie in a bar
_DIGITS = 3
METRICS = ("ttft", "tpot")
SOURCES = ("roofline", "measured kernels")  # that a client of today can have
_STEPS: tuple[tuple[str, ...], ...] = (
    ("architecture", "model", "weights", "parallel"),
    ("architecture", "model", "weights"),
    ("architecture", "model"),
)
_ANYWHERE: tuple[tuple[str, ...], ...] = (("model",), ())
_PARALLEL = ("one", "NVLink", "spread")
_ARCHITECTURES = {
    "ampere": "Ampere",
    "ada": "Ada",
    "hopper": "Hopper",
    "blackwell": "Blackwell",
    "blackwell-ultra": "Blackwell Ultra",
    "blackwell-rtx": "RTX Blackwell",
}
_PARALLEL_WORDS = {"one": "one GPU", "NVLink": "NVLink", "spread": "spread experts"}


@dataclass(frozen=True, slots=True)
class Point:
    """A measured time beside its simulation.

    metric: "ttft" or "tpot"; of kernels alone, of a prompt or of decodes.
    factor: measured / simulated.
    series: what was measured with it, on the same model, GPUs and load, so that one tells of
        others: they are left out together.
    loads: the kinds of load it tells of (`mist_sim.metrics.load`): the one of a whole run, and of
        kernels all that have steps like it.
    is_whole: of a whole run; otherwise of the kernels of one step.
    run: where it is compared with its bar, a table of docs/validation.md; empty: nowhere.
    widens: whether others' bars are found from it; not so for one that was simulated a second time.
    """

    setting: Setting
    metric: str
    factor: float
    series: str
    loads: tuple[str, ...]
    is_whole: bool = True
    run: str = ""
    widens: bool = True


def error_bar(points: Iterable[Point], setting: Setting, metric: str) -> ErrorBar | None:
    """Return where measurements like a setting lie; None where there are none."""
    like = [
        point
        for point in points
        if point.widens and point.metric == metric and point.setting.source == setting.source
    ]
    whole = [point for point in like if point.is_whole]
    for names in _STEPS:
        if _is_enough(found := _alike(whole, setting, names)):
            return _bar(found, _words(setting, names))
    kernels = [point for point in like if not point.is_whole]
    own = _alike(kernels, setting, ("architecture", "model", "weights"))
    for names in _ANYWHERE if len(own) >= FEWEST else _ANYWHERE[:1]:
        if _is_enough(found := _alike(whole, setting, names)):
            bar = _bar(found, f"{_words(setting, names)}, all GPUs")
            return _wider(bar, own, setting) if len(own) >= FEWEST else bar
    return None


def bars(points: Sequence[Point]) -> Iterator[tuple[Setting, str, ErrorBar]]:
    """Yield the bars of all settings that kernels or whole runs are like, but for parallelism."""
    for metric in METRICS:
        of_metric = [point for point in points if point.metric == metric]
        for setting in sorted(set(_covered(of_metric)), key=str):
            if bar := error_bar(of_metric, setting, metric):
                yield setting, metric, bar


def left_out(points: Sequence[Point]) -> list[tuple[Point, ErrorBar | None]]:
    """Return the points of a `run` with the bars that the other series give."""
    found = []
    for point in points:
        if point.run:
            others = [other for other in points if other.series != point.series]
            found.append((point, error_bar(others, point.setting, point.metric)))
    return found


def is_inside(point: Point, bar: ErrorBar) -> bool:
    """Tell whether a measurement lies in a bar, to the digits that its ends have."""
    return bar.low <= round(point.factor - 1, _DIGITS) <= bar.high


def _covered(points: Iterable[Point]) -> Iterator[Setting]:
    """Yield the settings to tabulate: those of points, however parallel.

    Times around measured kernels differ by the engine alone, so they are taken to be as far off on
    any architecture.
    """
    for own in {point.setting for point in points if point.setting.source in SOURCES}:
        anywhere = own.source == "measured kernels"
        architectures = _ARCHITECTURES if anywhere else (own.architecture,)
        for architecture, parallel in product(architectures, _PARALLEL):
            if parallel != "spread" or own.model != "dense":
                yield Setting(own.source, architecture, own.model, own.weights, parallel)


def _alike(points: Sequence[Point], setting: Setting, names: Sequence[str]) -> list[Point]:
    wanted = [getattr(setting, name) for name in names]
    return [point for point in points if [getattr(point.setting, name) for name in names] == wanted]


def _is_enough(points: Sequence[Point]) -> bool:
    return len(points) >= FEWEST and len({point.series for point in points}) >= FEWEST_SERIES


def _bar(points: Sequence[Point], like: str) -> ErrorBar:
    """Return the range of points; their number + 1 counts, as for one more of their kind.

    So the ends are the smallest and largest where there are fewer than 19.
    """
    ends = ((1 - SHARE) / 2, (1 + SHARE) / 2)
    factors = [point.factor for point in points]
    low, high = np.quantile(factors, ends, method="weibull") - 1
    return ErrorBar(round(float(low), _DIGITS), round(float(high), _DIGITS), len(points), like)


def _wider(bar: ErrorBar, kernels: Sequence[Point], setting: Setting) -> ErrorBar:
    """Return the range that holds a bar and that of kernels."""
    names = ("architecture", "model", "weights")
    more = _bar(kernels, f"{bar.like}; kernels of {_words(setting, names, with_source=False)}")
    return ErrorBar(
        min(bar.low, more.low), max(bar.high, more.high), bar.num_points + len(kernels), more.like
    )


def _words(setting: Setting, names: Sequence[str], *, with_source: bool = True) -> str:
    """Return what points have in common."""
    source = f"{setting.source}, " if with_source else ""
    model = {"experts": "experts", "latent": "latent attention"}.get(setting.model, setting.model)
    kind = " ".join(
        word for name, word in (("model", model), ("weights", setting.weights)) if name in names
    )
    more = [_ARCHITECTURES[setting.architecture]] if "architecture" in names else []
    more += [_PARALLEL_WORDS[setting.parallel]] if "parallel" in names else []
    return source + ", ".join([kind or "all models", *more])
