"""Pictures of findings that are no run: searches, sweeps, planes, steps, traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan, nan, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.report.elements import labels_of, metric_cell, metric_title, value_text
from mist_sim.report.pictures.picture import (
    Band,
    Bars,
    Cells,
    Line,
    Mark,
    Note,
    Panel,
    Picture,
    Points,
)
from mist_sim.report.pictures.style import COLOURS, WAIT_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mist_sim.traces.statistics import Figures


_WIDE = 30  # the largest value over the smallest, from which on an axis is logarithmic
_MOST_NUMBERS = 12  # of rows on the picture


def front_picture(summary: Mapping[str, Any]) -> Picture:
    """Return the first two objectives: all that keep their limits, and the front.

    summary: `SpaceSearch.summary`.
    """
    x, y = summary["objectives"][:2]
    unknown = summary["statuses"].get("undecided", 0)
    note = f"; not drawn: {unknown} without an upper end" if unknown else ""
    known = [
        row
        for row in summary["rows"]
        if not any(isnan(row["figures"].get(key, nan)) for key in (x, y))
    ]
    rows = sorted(known, key=lambda row: row["figures"][x])
    marks: list[Mark] = []
    for status, name, colour in (
        ("kept", "keep all limits", WAIT_COLOUR),
        ("front", "the front", COLOURS[0]),
    ):
        mine = [row for row in rows if row["status"] == status]
        across, up = ([float(row["figures"][key]) for row in mine] for key in (x, y))
        if status == "front":
            marks.append(Line(across, up, colour=colour))
        if mine:
            texts = [f"row {row['number']}: {row['name']}" for row in mine]
            is_few = status == "front" and len(mine) <= _MOST_NUMBERS
            labels = [f"row {row['number']}" for row in mine] if is_few else ()
            marks.append(Points(across, up, name, colour, texts=texts, labels=labels))
    shown = [row["figures"] for row in rows if row["status"] in ("kept", "front")]
    is_log = []
    for key in (x, y):
        values = [float(figures[key]) for figures in shown] or [0.0]
        is_log.append(min(values) > 0 and max(values) > _WIDE * min(values))
    across_title, up_title = (key.replace("_", " ") for key in (x, y))
    title = f"{up_title} over {across_title}{note}"
    whole, is_both = (None, None), (is_log[0], is_log[1])
    return Picture([Panel(title, marks, across_title, up_title, 4.0, whole, is_both)])


_PLANE_COLOURS = (
    "#2a6f97",
    "#e07b39",
    "#6a994e",
    "#8e6c8a",
    "#c9a227",
    "#bc4749",
    "#577590",
    "#7f5539",
)
_NEUTRAL = {"tie": "#d9d9d9", "nobody": "#f4f4f4"}


def plane_picture(plane: Mapping[str, Any]) -> Picture:
    """Return the winner's colour for each pair of limits, pale where it is not clear.

    plane: `SloPlane.summary`.
    """
    by = " per GPU" if plane["by_gpu"] else ""
    share = f"{100 * plane['attainment_asked']:g} %"
    title = f"Most goodput{by}, {share} of the requests within both limits"
    axes = ("limit on TPOT, ms", "limit on TTFT, ms")
    winners = _Winners(plane)
    names = [
        Points([], [], who, colour, "s")
        for who, colour in winners.colours.items()
        if any(who in row for row in plane["winners"])
    ]
    return Picture([Panel(title, [winners, *names], *axes, 4.0, (None, None), (True, True))])


@dataclass(frozen=True)
class _Winners(Mark):
    """A cell for each pair of limits."""

    plane: Mapping[str, Any]

    @property
    def colours(self) -> dict[str, str]:
        """The colour of each design that may win."""
        names = list(self.plane["goodput"])
        return {
            name: _PLANE_COLOURS[k % len(_PLANE_COLOURS)] for k, name in enumerate(names)
        } | _NEUTRAL

    def draw(self, axes: Axes) -> None:
        """Draw a cell in the colour of its winner, paler where that is not clear."""
        from matplotlib.colors import to_rgb

        plane, colours = self.plane, self.colours
        winners, is_clear = np.array(plane["winners"]), np.array(plane["is_clear"])
        rgb = np.array([[to_rgb(colours[who]) for who in row] for row in plane["winners"]])
        is_pale = ~is_clear & ~np.isin(winners, list(_NEUTRAL))
        rgb[is_pale] = 0.5 + rgb[is_pale] / 2
        axes.pcolormesh(_edges(plane["tpot_limits_s"]), _edges(plane["ttft_limits_s"]), rgb)
        axes.grid(visible=False)


def _edges(limits_s: Sequence[float]) -> Any:
    """Return the borders, in ms, of cells with centres at equal ratios."""
    centres = np.array(limits_s) * 1e3
    half = np.sqrt(centres[1] / centres[0])
    return np.concatenate((centres / half, centres[-1:] * half))


_COLOURS = {"compute": "#bc4749", "memory": "#2a6f97", "latency": "#c9a227"}
_ROOFS = ("-", "--", "-.", ":")


def roofline_picture(summary: Mapping[str, Any]) -> Picture:
    """Return each operator's rate over its FLOPs per byte, with areas by its time.

    summary: `StepExplained.summary`, of a client with a known GPU.
    """
    rows = [row for row in summary["operators"] if row["flops"] and row["bytes"]]
    rows.sort(key=lambda row: -row["share"])
    marks = [*_roofs([row["flops_per_byte"] for row in rows], summary)]
    for number, row in enumerate(rows, 1):
        name = f"{number} {row['operator']}, {row['share']:.0%}, {row['bound']}"
        at = [row["flops_per_byte"]], [row["flops"] / row["seconds"] / 1e12]
        colour, size = _COLOURS.get(row["bound"], "#577590"), sqrt(30 + 1500 * row["share"])
        marks.append(Points(*at, name, colour, texts=[name], labels=[str(number)], size=size))
    title = f"{summary['client']}: {summary['step_ms']:.4g} ms, shares of it as areas"
    axes = ("FLOP a byte", "TFLOP/s on one GPU")
    return Picture([Panel(title, marks, *axes, 4.0, (None, None), (True, True))])


def _roofs(intensities: list[float], summary: Mapping[str, Any]) -> Iterator[Mark]:
    """Yield the data sheet's limit of each type, over the range of the operators."""
    peaks, bandwidth = summary["peak_flops"], summary["memory_bandwidth"]
    ridges = {name: flops / bandwidth for name, flops in peaks.items()}
    places = [*intensities, *ridges.values()]
    left, right = min(places) / 2, max(places) * 4
    for (name, ridge), style in zip(ridges.items(), 2 * _ROOFS, strict=False):
        top = peaks[name] / 1e12
        heights = [left * bandwidth / 1e12, top, top]
        yield Line([left, ridge, right], heights, f"roof of {name}", "#222222", style)


Values = Mapping[str, Any]
"""The varied keys of a point, with their values."""

_FEWEST = 3  # values of a key from which on its numbers are a scale, if it is no rate


@dataclass(frozen=True)
class Axis:
    """The key along which lines go. unit: of its values; empty for plain numbers."""

    key: str
    unit: str


def axis_of(points: Sequence[Values]) -> Axis | None:
    """Return the axis of a study: its rates, or else the key with most numbers; None without any.

    points: the values of each.
    """
    found = []
    for key in points[0] if points else ():
        numbers = [_number_and_unit(each[key]) for each in points]
        units = {unit for _, unit in numbers}
        distinct = {number for number, _ in numbers}
        is_rate = key.rsplit(".", 1)[-1] == "rate"
        if (
            len(units) == 1
            and not any(map(isnan, distinct))
            and len(distinct) >= (2 if is_rate else _FEWEST)
        ):
            found.append((is_rate, len(distinct), Axis(key, units.pop())))
    return max(found, key=lambda each: each[:2])[2] if found else None


def plane_of(points: Sequence[Values]) -> tuple[str, str] | None:
    """Return the two keys of a study that varies just two, of numbers; None for others.

    points: the values of each. A rate is no side of a plane: load is read along lines.
    """
    keys = [key for key in (points[0] if points else ()) if len({str(p[key]) for p in points}) > 1]
    scales = [key for key in keys if axis_of([{key: point[key]} for point in points])]
    if len(keys) != 2 or scales != keys or any(key.endswith("rate") for key in keys):
        return None
    return keys[0], keys[1]


def lines_over(axis: Axis, points: Sequence[Mapping[str, Any]], metric: str, title: str) -> Picture:
    """Draw a number over the axis of a study, with bands of its intervals.

    points: those of `Study.summary` that have the number.
    """
    labels = labels_of(list(points[0]["values"]))
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    for point in points:
        others = {key: value for key, value in point["values"].items() if key != axis.key}
        name = " ".join(f"{labels[key]}={value_text(value)}" for key, value in others.items())
        mean = point["figures"][metric]
        low, high = point["confidence_intervals"].get(metric) or (nan, nan)
        at = _number_and_unit(point["values"][axis.key])[0]
        series.setdefault(name, []).append((at, mean, low or nan, high or nan))
    marks: list[Mark] = []
    for place, (name, found) in enumerate(series.items()):
        across, means, low, high = zip(*sorted(found), strict=True)
        colour = COLOURS[place % len(COLOURS)]
        if all(map(isfinite, (*low, *high))):
            marks.append(Band(across, low, high, colour))
        marks.append(Line(across, means, name, colour, has_points=True))
    unit = f", {axis.unit}" if axis.unit else ""
    return Picture([Panel(title, marks, across=f"{labels[axis.key]}{unit}", height=3.0)])


def _number_and_unit(value: Any) -> tuple[float, str]:
    """Return the number and the unit of a value; NaN where it is none."""
    if isinstance(value, bool):
        return nan, ""
    text, _, unit = str(value).partition(" ")
    try:
        return float(text), unit.strip()
    except ValueError:
        return nan, ""


_ROW = 0.34  # inches, of a row of cells or a bar


def sweep_picture(summary: Mapping[str, Any]) -> Picture:
    """Return the figure of a sweep over its keys. summary: `Sweep.summary`."""
    metric, labels, title = summary["metric"], summary["labels"], sweep_title(summary)
    if len(summary["keys"]) == 2:
        cells = {tuple(point["values"]): point["mean"] for point in summary["points"]}
        return heat_map(cells, metric, labels, title)
    points = [point for point in summary["points"] if not isnan(point["mean"])]
    texts, means = ([p["values"][0] for p in points], [p["mean"] for p in points])
    at = [_number_and_unit(text)[0] for text in texts]
    if any(isnan(each) for each in at):
        shown = [metric_cell(metric, mean) for mean in means]
        bars = Bars(range(len(means)), means, texts=shown)
        return Picture([Panel(title, [bars], height=_ROW * len(texts), rows=texts)])
    marks: list[Mark] = []
    low, high = ([point[name] for point in points] for name in ("low", "high"))
    if all(map(isfinite, (*low, *high))):
        marks.append(Band(at, low, high))
    marks.append(Line(at, means, has_points=True))
    return Picture([Panel(title, marks, across=labels[0], height=3.0)])


def sweep_title(summary: Mapping[str, Any]) -> str:
    """Return the data of a sweep's picture."""
    what = ", ".join(filter(None, metric_title(summary["metric"])))
    return f"{what} over {' and '.join(summary['labels'])}"


def heat_map(
    means: Mapping[tuple[str, ...], float], metric: str, labels: Sequence[str], title: str
) -> Picture:
    """Return a cell for each pair of values, with its figure; empty where a run failed.

    means: by the values of the two keys. labels: of the keys, the first one down.
    """
    down, across = (list(dict.fromkeys(each[place] for each in means)) for place in (0, 1))
    values = np.array([[means.get((row, one), np.nan) for one in across] for row in down])
    texts = [["-" if isnan(v) else metric_cell(metric, v) for v in row] for row in values.tolist()]
    first, second = labels
    height = _ROW * len(down)
    panel = Panel(title, [Cells(values, texts)], second, first, height, rows=down, columns=across)
    return Picture([panel])


Floats = NDArray[np.float64]

_WINDOWS = 100  # of time, in which requests are counted
_MOST_POINTS = 2_000  # of a line
_HEIGHT = 2.4  # inches
_BOTH: tuple[bool, bool] = (True, True)


def trace_picture(found: Figures) -> Picture:
    """Return the picture of the figures of a trace."""
    lengths = _tails({"prompts": found.prompts, "answers": found.outputs})
    above, whole = "share of requests above", (None, None)
    panels = [
        Panel("Tail of lengths", lengths, "tokens", above, _HEIGHT, whole, _BOTH),
        Panel("Rate", [_rate(found.times)], "time, s", "requests/s", _HEIGHT),
        _gaps(found.times),
        Panel(
            "Prompt tokens that an earlier request began with", [_shared(found)],
            "requests so far", "share of all so far", _HEIGHT, (0.0, 1.0),
        ),
    ]  # fmt: skip
    return Picture(panels, num_columns=2)


def _tails(values_of: dict[str, Any]) -> list[Line]:
    lines = []
    for (name, values), colour in zip(values_of.items(), COLOURS, strict=False):
        ordered = np.sort(values)
        above = 1 - np.arange(len(ordered)) / len(ordered)
        chosen = _thinned(len(ordered))
        lines.append(Line(ordered[chosen], above[chosen], name, colour))
    return lines


def _thinned(number: int) -> NDArray[np.int64]:
    """Return places of points to draw, all of the last ones among them."""
    fine = np.unique(number - np.geomspace(1, number, _MOST_POINTS).astype(np.int64))
    return np.asarray(np.union1d(fine, np.linspace(0, number - 1, _MOST_POINTS).astype(np.int64)))


def _rate(times: Floats) -> Line | Note:
    if len(times) < 2 or times[-1] == times[0]:
        return _no_gaps(times)
    counts, edges = np.histogram(times, bins=_WINDOWS)
    rates = counts / np.diff(edges)
    return Line(edges, [*rates, rates[-1]], is_stepped=True)


def _no_gaps(times: Floats) -> Note:
    return Note("all at once" if len(times) else "no times")


def _gaps(times: Floats) -> Panel:
    gaps = np.diff(times)
    gaps = gaps[gaps > 0]
    title = "Tail of gaps"
    if len(gaps) < 2:
        return Panel(title, [_no_gaps(times)], height=_HEIGHT)
    poisson = -gaps.mean() * np.log(1 - (np.arange(len(gaps)) + 0.5) / len(gaps))
    lines = _tails({"gaps of the trace": gaps, "gaps of Poisson, same mean": poisson})
    across, up = "seconds between arrivals", "share of gaps above"
    return Panel(title, lines, across, up, _HEIGHT, (None, None), _BOTH)


def _shared(found: Figures) -> Line | Note:
    if not found.known.any():
        return Note("nothing known in common")
    share = np.cumsum(found.known) / np.cumsum(found.prompts)
    chosen = np.linspace(0, len(share) - 1, min(len(share), _MOST_POINTS)).astype(np.int64)
    return Line(chosen + 1, share[chosen], colour=COLOURS[2])
