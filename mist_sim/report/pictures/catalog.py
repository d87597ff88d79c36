"""The pictures of a run by name, each with a title."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from mist_sim.core.result_warnings import ResultWarning, of_data, of_points
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.metrics import Result
from mist_sim.report.pictures.breakdown import breakdown
from mist_sim.report.pictures.distributions import distributions
from mist_sim.report.pictures.engines import batches, memory, queues
from mist_sim.report.pictures.latency import attainment, latency
from mist_sim.report.pictures.load import load
from mist_sim.report.pictures.picture import Picture, beside, hides, over
from mist_sim.report.pictures.requests import requests
from mist_sim.report.pictures.run_data import OfResult, RunData, outages_of
from mist_sim.report.pictures.style import COLOURS, require_matplotlib
from mist_sim.report.pictures.transfers import power, transfers

MOST_BESIDE = 4  # columns that can be read


class Drawable(NamedTuple):
    """A picture of a run.

    title: its heading in a report. draw: returns it; raises ScenarioError if the run lacks the
        data.
    """

    title: str
    draw: Callable[[RunData], Picture]


PICTURES = {
    "latency": Drawable("Latency over time", latency),
    "attainment": Drawable("Limits over time", attainment),
    "cdf": Drawable("Distributions of latencies", distributions),
    "load": Drawable("Load", load),
    "queue": Drawable("Queues", queues),
    "batch": Drawable("Batches", batches),
    "memory": Drawable("KV memory", memory),
    "stages": Drawable("Where the time goes", breakdown),
    "requests": Drawable("Single requests", requests),
    "transfers": Drawable("Transfers", transfers),
    "power": Drawable("Power", power),
}
"""In the order of a report."""


def draw(run: RunData, name: str) -> Picture:
    """Return a picture of a run, with outages shaded where it is over time.

    name: of `PICTURES`, or of a panel, such as "latency.ttft".
    Raises ScenarioError for other names, if the run lacks the data, and without Matplotlib.
    """
    name, _, panel = name.partition(".")
    if name not in PICTURES:
        raise ScenarioError(
            f"there is no picture {brief(name)}{did_you_mean(name, PICTURES)} "
            f"Known: {', '.join(PICTURES)}"
        )
    require_matplotlib()
    with np.errstate(over="ignore", invalid="ignore"):  # sums of damaged tables may be too large
        found = PICTURES[name].draw(run).with_spans(outages_of(run.summary))
    return found.panel(panel) if panel else found


def title_of_picture(name: str) -> str:
    """Return the heading of a picture, or of the picture that a panel is of."""
    return PICTURES[name.partition(".")[0]].title


def drawn(run: RunData) -> Iterator[tuple[str, Picture]]:
    """Yield the name and picture of each that the run has something for."""
    require_matplotlib()
    for name in PICTURES:
        try:
            yield name, draw(run, name)
        except ScenarioError:
            continue


def side_by_side(runs: Mapping[str, Result | RunData], name: str = "latency") -> Picture:
    """Return one picture of several runs: a column each, with the same axes.

    runs: by the title of their column, two to four: results, or folders that `mist run` wrote
        (`RunFolder`). name: as of `Result.plot`.
    Raises ScenarioError for another number of runs, and as `Result.plot` does.
    """
    if not 2 <= len(runs) <= MOST_BESIDE:
        raise ScenarioError(
            f"runs must be 2 to {MOST_BESIDE} to stand side by side, got {len(runs)}"
        )
    return beside(_each(runs, name)).warned(warnings_of(runs))


def overlaid(runs: Mapping[str, Result | RunData], name: str = "latency") -> Picture:
    """Return one picture of several runs in the same axes: a colour each.

    runs: by their names, two to as many as there are colours: results, or folders that `mist run`
        wrote (`RunFolder`). name: as of `Result.plot`, of a picture of lines.
    Raises ScenarioError for another number of runs, for pictures of bars, and as `Result.plot`.
    """
    if not 2 <= len(runs) <= len(COLOURS):
        raise ScenarioError(f"runs must be 2 to {len(COLOURS)} in the same axes, got {len(runs)}")
    each = _each(runs, name)
    if any(map(hides, each.values())):
        raise ScenarioError(f"{name} has bars, which would hide one another; draw it side by side")
    return over(each).warned(warnings_of(runs))


def warnings_of(runs: Mapping[str, Result | RunData]) -> tuple[ResultWarning, ...]:
    """Return the warnings of several runs, by their titles."""
    return of_points({title: of_data(run.summary) for title, run in runs.items()})


def _each(runs: Mapping[str, Result | RunData], name: str) -> dict[str, Picture]:
    return {
        title: draw(OfResult(run) if isinstance(run, Result) else run, name)
        for title, run in runs.items()
    }
