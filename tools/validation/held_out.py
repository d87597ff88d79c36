"""Error bars on points that they were not found from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mist_sim.metrics.expected_errors import ErrorBar, end_to_end
from mist_sim.metrics.load import LOADS
from tools.validation.error_bars import (
    Group,
    Point,
    bar_of,
    error_bar,
    groups,
    has_few,
    held_out,
    margin_of,
    models_left_out,
    of_load,
    quantiles,
)

_NOTHING = 1e-9  # of a logarithm: a point on the end of a range lies inside


@dataclass(frozen=True, slots=True)
class Cell:
    """A group under one kind of load, and the coverage of its ranges on held-out series.

    like: common properties of the group's whole runs. num_points, num_series: of that load.
    before: share of held-out points inside the range of all loads.
    after: the same with the range for that load.
    by_model: the same where all series of a model are left out together; None for cells with fewer
        than `FEWEST_MODELS`, and with few points.
    old, new: the ranges of all points, for all loads and for that load.
    few: whether it has too few points for a range of its own.
    """

    like: str
    metric: str
    load: str
    num_points: int
    num_series: int
    before: float
    after: float
    by_model: float | None
    old: tuple[float, float]
    new: tuple[float, float]
    few: bool


def cells(points: Sequence[Point]) -> Iterator[Cell]:
    """Yield the cells that have points, by metric and group; equal groups once."""
    seen = set()
    for _, metric, group in groups(points):
        runs = frozenset(id(point) for point in group.whole)
        if (metric, runs) not in seen:
            seen.add((metric, runs))
            for load in LOADS:
                if of_load(group.whole, load):
                    yield _cell(group, metric, load)


def _cell(group: Group, metric: str, load: str) -> Cell:
    alone = replace(group, kernels=())  # kernels were not whole runs, so they are not scored
    own = of_load(group.whole, load)
    margin = margin_of(group, load)
    after = [out <= margin + _NOTHING for _, out in held_out(group, load)]
    before = [
        quantiles(group.without(point.series).whole).beyond(point) <= _NOTHING for point in own
    ]
    bar, old = bar_of(alone, load), quantiles(group.whole)
    return Cell(
        like=group.like.partition(";")[0],
        metric=metric,
        load=load,
        num_points=len(own),
        num_series=len({point.series for point in own}),
        before=sum(before) / len(before),
        after=sum(after) / len(after),
        by_model=None if has_few(group, load) else _by_model(own, margin),
        old=old.shares,
        new=(bar.low, bar.high),
        few=has_few(group, load),
    )


def _by_model(points: Sequence[Point], margin: float) -> float | None:
    """Return the share of points inside the ranges, with a margin, of the other models' points."""
    inside = [out <= margin + _NOTHING for out in models_left_out(points)]
    return sum(inside) / len(inside) if inside else None


def left_out(points: Sequence[Point]) -> list[tuple[Point, ErrorBar | None]]:
    """Return the points of a `run` with bars computed from the other series.

    The whole rule is applied anew without the series: its group, and the widening.
    """
    found = []
    known: dict[tuple[object, ...], ErrorBar | None] = {}
    for point in points:
        if point.run:
            metrics = ("ttft", "tpot") if point.metric == "e2el" else (point.metric,)
            bars = [_without_series(points, point, metric, known) for metric in metrics]
            found.append((point, _joined(point, bars)))
    return found


def _without_series(
    points: Sequence[Point],
    point: Point,
    metric: str,
    known: dict[tuple[object, ...], ErrorBar | None],
) -> ErrorBar | None:
    key = point.series, point.setting, metric, point.loads
    if key not in known:
        others = [other for other in points if other.series != point.series]
        (load,) = point.loads
        known[key] = error_bar(others, point.setting, metric, load)
    return known[key]


def _joined(point: Point, bars: Sequence[ErrorBar | None]) -> ErrorBar | None:
    """Return the bar of a point; that of an E2E latency combines those of TTFT and TPOT."""
    first, last = bars[0], bars[-1]
    if first is None or last is None or point.metric != "e2el":
        return first
    low, high = end_to_end(first, last, point.ttft_share)
    return replace(last, low=low, high=high)
