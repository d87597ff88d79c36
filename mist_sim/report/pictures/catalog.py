"""The pictures by name, each with a description."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.report.pictures.breakdown import breakdown
from mist_sim.report.pictures.distributions import distributions
from mist_sim.report.pictures.engines import batches, memory, queues
from mist_sim.report.pictures.latency import attainment, latency
from mist_sim.report.pictures.load import load
from mist_sim.report.pictures.requests import requests
from mist_sim.report.pictures.run_data import RunData
from mist_sim.report.pictures.single_panel import single_panel
from mist_sim.report.pictures.transfers import power, transfers

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_MISSING = "pictures need Plotly, which is not installed: pip install 'mist-sim[report]'"


@dataclass(frozen=True)
class Picture:
    """A picture of a run.

    title: its heading in a report. draw: returns it; raises ScenarioError if the run lacks the
        data.
    """

    title: str
    draw: Callable[[RunData], Figure]


PICTURES = {
    "latency": Picture("Latency over time", latency),
    "attainment": Picture("Limits over time", attainment),
    "cdf": Picture("Distributions of latencies", distributions),
    "load": Picture("Load", load),
    "queue": Picture("Queues", queues),
    "batch": Picture("Batches", batches),
    "memory": Picture("KV memory", memory),
    "stages": Picture("Where the time goes", breakdown),
    "requests": Picture("Single requests", requests),
    "transfers": Picture("Transfers", transfers),
    "power": Picture("Power", power),
}
"""In the order of a report."""


def draw(run: RunData, name: str) -> Figure:
    """Return a picture of a run. name: of `PICTURES`, or of a panel, such as "latency.ttft".

    Raises ScenarioError for other names, if the run lacks the data, and without Plotly.
    """
    picture, _, panel = name.partition(".")
    if picture not in PICTURES:
        raise ScenarioError(
            f"there is no picture {brief(picture)}{did_you_mean(picture, PICTURES)} "
            f"Known: {', '.join(PICTURES)}"
        )
    require_plotly()
    figure = _drawn(PICTURES[picture], run)
    return single_panel(figure, panel) if panel else figure


def title_of_picture(name: str) -> str:
    """Return the heading of a picture, or of the picture that a panel is of."""
    return PICTURES[name.partition(".")[0]].title


def drawn(run: RunData) -> Iterator[tuple[str, Figure]]:
    """Yield the name and figure of each picture that the run has something for."""
    require_plotly()
    for name, picture in PICTURES.items():
        try:
            figure = _drawn(picture, run)
        except ScenarioError:
            continue
        yield name, figure


def _drawn(picture: Picture, run: RunData) -> Figure:
    """Draw without warnings of overflow: sums of damaged tables may be too large."""
    with np.errstate(over="ignore", invalid="ignore"):
        return picture.draw(run)


def require_plotly() -> None:
    """Raise ScenarioError where Plotly is not installed."""
    from importlib.util import find_spec

    if find_spec("plotly") is None:
        raise ScenarioError(_MISSING)
