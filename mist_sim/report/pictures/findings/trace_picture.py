"""A trace as a picture: tails of lengths and gaps, the rate over time, and what prompts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.report.pictures.marks import Line, Note
from mist_sim.report.pictures.picture import Panel, Picture
from mist_sim.report.pictures.style import COLOURS

if TYPE_CHECKING:
    from mist_sim.traces.statistics import Figures

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
