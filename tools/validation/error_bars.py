"""Widths of error bars: ranges of measured over simulated times, by kind of setting.

A setting's group is the whole runs comparable to it, if there are at least `FEWEST` points of
`FEWEST_SERIES` series:

1. of the same source, architecture, kind of model, weights and parallelism;
2. with any parallelism;
3. with any weights.

If no such runs exist, a setting takes the whole runs of its kind of model on any GPU, and, if
kernels of its own architecture, kind of model and weights were timed, the range of these as far as
it is wider; with such kernels, whole runs of other kinds of models are used if needed.

The range for a kind of load is that of its points in the group, if there are as many again. If not,
it is the group's, which reaches as far as the ranges of the other loads there, that of this load in
the nearest wider group with enough of it, and the few points.

Ranges are held out: series by series, the rule is asked without one. Where fewer of the points so
left out lie inside than `SHARE` of them (the nearest whole number, but no less than `LEAST`), both
ends are moved out by the least ratio that brings these in. Where a load has points of
`FEWEST_MODELS` models, the same is done model by model, until `LEAST` of the points are inside:
users mostly ask about a model that was not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, exp, log
from typing import NamedTuple

import numpy as np

from mist_sim.hardware.setting import Setting
from mist_sim.metrics.expected_errors import ANY_LOAD, ErrorBar
from mist_sim.metrics.load import LOADS
from tools.validation.words import ARCHITECTURES, words

# Size of a group. With 4 to 6 series the bars of docs/validation.md do equally well; 2 and 3 are
# too few for single tokens of 2023, whose errors hardly differ within a series.
FEWEST, FEWEST_SERIES = 8, 4
FEWEST_MODELS = 3  # so that two are left, which may differ
SHARE = 0.9  # of the measurements lie in a bar
LEAST, MOST = 0.85, 0.97  # of measurements left out, as chance leaves of nine in ten
_DIGITS = 3
METRICS = ("ttft", "tpot")
SOURCES = ("roofline", "measured kernels")  # that a client of today can have
_STEPS: tuple[tuple[str, ...], ...] = (
    ("architecture", "model", "weights", "parallel"),
    ("architecture", "model", "weights"),
    ("architecture", "model"),
)
_ANYWHERE: tuple[tuple[str, ...], ...] = (("model",), ())
_OWN_KERNELS = ("architecture", "model", "weights")
_PARALLEL = ("one", "NVLink", "spread")


@dataclass(frozen=True, slots=True)
class Point:
    """A measured time beside its simulation.

    metric: "ttft", "tpot" or "e2el"; for kernels alone, of a prompt or of decodes.
    factor: measured / simulated.
    series: points measured together on the same model, GPUs and load; since one predicts the
        others, they are held out together.
    loads: the kinds of load it tells of (`mist_sim.metrics.load`): the one of a whole run, and of
        kernels all that have steps like it.
    is_whole: of a whole run rather than of the kernels of one step.
    run: the table of docs/validation.md that shows it with its bar; empty: none.
    widens: whether others' bars use it; false for a point simulated a second time.
    ttft_share: of an "e2el", the share of TTFT in the simulation.
    model: the measured model; empty: unknown.
    """

    setting: Setting
    metric: str
    factor: float
    series: str
    loads: tuple[str, ...]
    is_whole: bool = True
    run: str = ""
    widens: bool = True
    ttft_share: float = 0.0
    model: str = ""


class Ends(NamedTuple):
    """A range: logarithms of measured / simulated."""

    low: float
    high: float

    @property
    def shares(self) -> tuple[float, float]:
        """Both ends as measured / simulated - 1."""
        return round(exp(self.low) - 1, _DIGITS), round(exp(self.high) - 1, _DIGITS)

    def with_margin(self, margin: float) -> Ends:
        """Return the range with both ends moved out."""
        return Ends(self.low - margin, self.high + margin)

    def beyond(self, point: Point) -> float:
        """Return how far out a point lies; at most 0 inside."""
        at = log(point.factor)
        return max(self.low - at, at - self.high)


@dataclass(frozen=True, slots=True)
class Group:
    """The points that determine a setting's bars.

    whole: points of whole runs. kernels: of the setting's own kernels, empty if comparable whole
        runs exist.
    like: their common properties, in words. wider: the next groups, each less similar.
    """

    whole: tuple[Point, ...]
    kernels: tuple[Point, ...]
    like: str
    wider: tuple[tuple[Point, ...], ...]

    def without(self, series: str) -> Group:
        """Return the group without a series."""
        return replace(
            self,
            whole=_without(self.whole, series),
            wider=tuple(_without(points, series) for points in self.wider),
        )


def error_bar(
    points: Iterable[Point], setting: Setting, metric: str, load: str = ANY_LOAD
) -> ErrorBar | None:
    """Return where measurements like a setting lie under a kind of load; None without any."""
    group = group_of(points, setting, metric)
    return bar_of(group, load) if group else None


def group_of(points: Iterable[Point], setting: Setting, metric: str) -> Group | None:
    """Return the points that decide about a setting; None where there are not enough."""
    like = [
        point
        for point in points
        if point.widens and point.metric == metric and point.setting.source == setting.source
    ]
    whole = [point for point in like if point.is_whole]
    rungs = {names: _alike(whole, setting, names) for names in (*_STEPS, *_ANYWHERE)}
    kernels = _alike((p for p in like if not p.is_whole), setting, _OWN_KERNELS)
    has_kernels = len(kernels) >= FEWEST
    for at, (names, found) in enumerate(rungs.items()):
        if not is_enough(found) or (names == () and not has_kernels):
            continue
        wider = tuple(list(rungs.values())[at + 1 :])
        if names in _STEPS:
            return Group(found, (), words(setting, names), wider)
        told = f"{words(setting, names)}, all GPUs"
        if has_kernels:
            told += f"; kernels of {words(setting, _OWN_KERNELS, with_source=False)}"
        return Group(found, kernels if has_kernels else (), told, wider)
    return None


def bar_of(group: Group, load: str = ANY_LOAD) -> ErrorBar:
    """Return a group's range under a kind of load."""
    few = has_few(group, load)
    ends = ends_of(group, load).with_margin(margin_of(group, load))
    kernels = of_load(group.kernels, load)
    if len(kernels) < FEWEST:
        kernels = group.kernels
    if kernels:
        ends = _hull(ends, quantiles(kernels))
    shown = group.whole if few else of_load(group.whole, load)
    low, high = ends.shares
    return ErrorBar(
        low=low,
        high=high,
        num_points=len(shown) + len(group.kernels if few else kernels),
        like=group.like,
        load=load,
        few_of_load=few,
    )


def ends_of(group: Group, load: str, *, few: bool | None = None) -> Ends:
    """Return the range of the whole runs under a kind of load, before any margin.

    few: whether to take it for a load with too few points; None: if it has.
    """
    own = of_load(group.whole, load)
    if not (has_few(group, load) if few is None else few):
        return quantiles(own)
    parts = [quantiles(group.whole).with_margin(margin_of(group, ANY_LOAD))]
    for other in LOADS:
        if other != load and is_enough(of_load(group.whole, other)):
            found = quantiles(of_load(group.whole, other))
            parts.append(found.with_margin(margin_of(group, other)))
    nearest = (of_load(points, load) for points in group.wider)
    parts += [quantiles(found) for found in nearest if is_enough(found)][:1]
    factors = [log(point.factor) for point in own]
    return _hull(*parts, *(Ends(at, at) for at in factors))


def margin_of(group: Group, load: str) -> float:
    """Return by which ratio, as a logarithm, both ends have to be moved out; 0 mostly."""
    margin = _to_hold([beyond for _, beyond in held_out(group, load)], SHARE)
    if has_few(group, load):
        return margin
    return max(margin, _to_hold(list(models_left_out(of_load(group.whole, load))), LEAST))


def _to_hold(beyond: list[float], share: float) -> float:
    """Return the margin with which a share of points, that lie so far out, is inside."""
    if not beyond:
        return 0.0
    inside = max(round(share * len(beyond)), ceil(LEAST * len(beyond)))
    return max(0.0, sorted(beyond)[inside - 1])


def models_left_out(points: Sequence[Point]) -> Iterator[float]:
    """Yield how far each point lies outside the range of all other models; of few models nothing.

    Another format counts as another model.
    """
    models = {point.model for point in points}
    if len(models) < FEWEST_MODELS:
        return
    ends = {
        model: quantiles([point for point in points if point.model != model]) for model in models
    }
    for point in points:
        yield ends[point.model].beyond(point)


def held_out(group: Group, load: str) -> Iterator[tuple[Point, float]]:
    """Yield the points of a load, and how far each lies outside the range of all other series."""
    own, few = of_load(group.whole, load), has_few(group, load)
    for series in dict.fromkeys(point.series for point in own):
        ends = ends_of(group.without(series), load, few=few)
        for point in own:
            if point.series == series:
                yield point, ends.beyond(point)


def bars(points: Sequence[Point]) -> Iterator[tuple[Setting, str, ErrorBar]]:
    """Yield the bars of all settings that kernels or whole runs are like, but for parallelism."""
    for setting, metric, group in groups(points):
        for load in (ANY_LOAD, *LOADS):
            yield setting, metric, bar_of(group, load)


def groups(points: Sequence[Point]) -> Iterator[tuple[Setting, str, Group]]:
    """Yield the groups of the same."""
    for metric in METRICS:
        of_metric = [point for point in points if point.metric == metric]
        for setting in sorted(set(_covered(of_metric)), key=str):
            if group := group_of(of_metric, setting, metric):
                yield setting, metric, group


def _covered(points: Iterable[Point]) -> Iterator[Setting]:
    """Yield the settings to tabulate: those of points, with any parallelism.

    Times from measured kernels have only the engine's error, assumed equal on all architectures.
    """
    for own in {point.setting for point in points if point.setting.source in SOURCES}:
        anywhere = own.source == "measured kernels"
        architectures = ARCHITECTURES if anywhere else (own.architecture,)
        for architecture, parallel in product(architectures, _PARALLEL):
            if parallel != "spread" or own.model != "dense":
                yield Setting(own.source, architecture, own.model, own.weights, parallel)


def is_inside(point: Point, bar: ErrorBar) -> bool:
    """Tell whether a measurement lies in a bar, rounded to the digits of its ends."""
    return bar.low <= round(point.factor - 1, _DIGITS) <= bar.high


def is_enough(points: Sequence[Point]) -> bool:
    """Tell whether points make a range of their own."""
    return len(points) >= FEWEST and len({point.series for point in points}) >= FEWEST_SERIES


def has_few(group: Group, load: str) -> bool:
    """Tell whether a group has too few runs of a kind of load for a range of their own."""
    return load != ANY_LOAD and not is_enough(of_load(group.whole, load))


def of_load(points: Sequence[Point], load: str) -> tuple[Point, ...]:
    """Return the points that tell of a kind of load."""
    return tuple(point for point in points if load == ANY_LOAD or load in point.loads)


def _without(points: Sequence[Point], series: str) -> tuple[Point, ...]:
    return tuple(point for point in points if point.series != series)


def _alike(points: Iterable[Point], setting: Setting, names: Sequence[str]) -> tuple[Point, ...]:
    wanted = [getattr(setting, name) for name in names]
    return tuple(p for p in points if [getattr(p.setting, name) for name in names] == wanted)


def quantiles(points: Sequence[Point]) -> Ends:
    """Return the range of points; their number + 1 counts, as for one more of their kind.

    So the ends are the smallest and largest where there are fewer than 19.
    """
    shares = ((1 - SHARE) / 2, (1 + SHARE) / 2)
    low, high = np.quantile([point.factor for point in points], shares, method="weibull")
    return Ends(log(low), log(high))


def _hull(*parts: Ends) -> Ends:
    return Ends(min(part.low for part in parts), max(part.high for part in parts))
