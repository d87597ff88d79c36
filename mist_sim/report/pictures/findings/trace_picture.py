"""A trace as a picture: tails of lengths and gaps, the rate over time, and what prompts share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.errors import printable
from mist_sim.report.pictures.printed import verbatim
from mist_sim.report.pictures.style import COLOURS

if TYPE_CHECKING:
    from mist_sim.traces.statistics import Figures

MISSING = "--plot needs matplotlib, which is not installed; pip install 'mist-sim[plot]'"

Floats = NDArray[np.float64]

_WINDOWS = 100  # of time, in which requests are counted
_MOST_POINTS = 2_000  # of a line


def draw(found: Figures, title: str, path: Path) -> None:
    """Write a PNG of the figures of a trace. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(9.6, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(verbatim(printable(title)))
    lengths, rate, gaps, shared = figure.subplots(2, 2).ravel()
    _tails(lengths, {"prompts": found.prompts, "answers": found.outputs})
    lengths.set(title="Tail of lengths", xlabel="tokens", ylabel="share of requests above")
    lengths.legend()
    _rate(rate, found.times)
    _gaps(gaps, found.times)
    _shared(shared, found)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def _tails(axes: Any, values_of: dict[str, Any]) -> None:
    for (name, values), colour in zip(values_of.items(), COLOURS, strict=False):
        ordered = np.sort(values)
        above = 1 - np.arange(len(ordered)) / len(ordered)
        chosen = _thinned(len(ordered))
        axes.loglog(ordered[chosen], above[chosen], color=colour, lw=1.4, label=name)
    axes.grid(alpha=0.3)


def _thinned(number: int) -> NDArray[np.int64]:
    """Return places of points to draw, all of the last ones among them."""
    fine = np.unique(number - np.geomspace(1, number, _MOST_POINTS).astype(np.int64))
    return np.asarray(np.union1d(fine, np.linspace(0, number - 1, _MOST_POINTS).astype(np.int64)))


def _rate(axes: Any, times: Floats) -> None:
    axes.set(title="Rate", xlabel="time, s", ylabel="requests/s")
    if len(times) < 2 or times[-1] == times[0]:
        _none(axes, _no_gaps(times))
        return
    counts, edges = np.histogram(times, bins=_WINDOWS)
    axes.stairs(counts / np.diff(edges), edges, color=COLOURS[0], lw=1.2)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def _no_gaps(times: Floats) -> str:
    return "all at once" if len(times) else "no times"


def _gaps(axes: Any, times: Floats) -> None:
    axes.set(title="Tail of gaps", xlabel="seconds between arrivals", ylabel="share of gaps above")
    gaps = np.diff(times)
    gaps = gaps[gaps > 0]
    if len(gaps) < 2:
        _none(axes, _no_gaps(times))
        return
    poisson = -gaps.mean() * np.log(1 - (np.arange(len(gaps)) + 0.5) / len(gaps))
    _tails(axes, {"trace": gaps, "Poisson, same mean": poisson})
    axes.legend()


def _shared(axes: Any, found: Figures) -> None:
    axes.set(
        title="Prompt tokens that an earlier request began with",
        xlabel="requests so far",
        ylabel="share of all so far",
        ylim=(0, 1),
    )
    if not found.known.any():
        _none(axes, "nothing known in common")
        return
    share = np.cumsum(found.known) / np.cumsum(found.prompts)
    chosen = np.linspace(0, len(share) - 1, min(len(share), _MOST_POINTS)).astype(np.int64)
    axes.plot(chosen + 1, share[chosen], color=COLOURS[2], lw=1.4)
    axes.grid(alpha=0.3)


def _none(axes: Any, why: str) -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color="gray")
    axes.set(xticks=[], yticks=[])
