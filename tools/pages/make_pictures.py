"""Draws the pictures of the documentation from real runs.

    python tools/pages/make_pictures.py

Needs matplotlib, which the project itself does not use: `pip install matplotlib`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy import diff

from mist_sim import Result, Scenario, Simulation, TraceArrivals, Workload, llm_client, simulate
from mist_sim.clients.scheduling import (
    ChunkedScheduler,
    ContinuousScheduler,
    MixedScheduler,
    Scheduler,
    StaticScheduler,
)
from mist_sim.traces import TraceRow
from tools.pages.pictures import PICTURES, picture_folder

IMAGES = PICTURES
QUEUE, PREFILL, TOKEN = "#bbbbbb", "#e07b39", "#2a6f97"
WINDOW = (20.2, 22.0)  # seconds of the run that are shown
NUM_REQUESTS = 16


def run(scheduler: object) -> Result:
    """Serve conversation lengths on one GPU."""
    scenario: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "workload": {
            "lengths": {"type": "profile", "name": "azure-conv-2023", "num_requests": 400},
            "arrivals": {"type": "poisson", "rate": "10 /s"},
        },
        "clients": [{"name": "llm", "gpu": "h100-sxm", "scheduler": scheduler}],
    }
    return simulate(Scenario.from_dict(scenario))


def draw(axes: Axes, result: Result, first: int, num_requests: int, size: float = 5) -> None:
    """Draw a line a request: waiting, prefill, and a mark for every token after it."""
    bar = {"lw": size, "solid_capstyle": "butt"}
    shown = result.requests.iloc[first : first + num_requests]
    for row, request in enumerate(shown.itertuples()):
        started = request.arrival_time + request.queued
        axes.plot([request.arrival_time, started], [row, row], color=QUEUE, **bar)
        axes.plot([started, request.first_token_at], [row, row], color=PREFILL, **bar)
        tokens = result.token_times(int(request.request_id))
        axes.plot(tokens, [row] * len(tokens), "|", color=TOKEN, ms=size, mew=0.7)
    axes.set(ylim=(num_requests, -1), yticks=[])
    axes.spines[["top", "right", "left"]].set_visible(False)


def legend(figure: Figure) -> None:
    """Say what the marks mean, below the picture."""
    marks = [
        Patch(color=QUEUE, label="waits"),
        Patch(color=PREFILL, label="prefill"),
        Line2D([], [], color=TOKEN, marker="|", ls="", label="a token"),
    ]
    figure.legend(handles=marks, ncols=3, frameon=False, fontsize=9, loc="outside lower right")


def save(figure: Figure, name: str) -> None:
    """Write a picture of the documentation."""
    figure.savefig(IMAGES / name, dpi=110, metadata={"Software": None})


def draw_load() -> None:
    """Draw many requests under two schedulers, for the README."""
    figure, rows = plt.subplots(2, figsize=(8.4, 5.4), sharex=True, layout="constrained")
    chunked = {"type": "chunked", "max_num_batched_tokens": 512}
    runs = {
        "Continuous batching": run("continuous"),
        "Chunked prefill, 512 tokens a step": run(chunked),
    }
    for axes, (title, result) in zip(rows, runs.items(), strict=True):
        first = int(result.requests["arrival_time"].searchsorted(WINDOW[0]))
        draw(axes, result, first, NUM_REQUESTS)
        itl, ttft = (result.summary[f"p99_{name}_ms"] for name in ("itl", "ttft"))
        text = f"{title}: p99 of ITL {itl:.0f} ms, p99 of TTFT {ttft:.0f} ms"
        axes.set_title(text, loc="left", fontsize=10)
        axes.set(xlim=WINDOW, ylabel="requests")
    rows[1].set_xlabel("simulated time, s")
    legend(figure)
    save(figure, "schedulers.png")


class ThreeRequests:
    """The requests of MIST's Fig. 3: two with long prompts come while the first one decodes."""

    def rows(self) -> Iterator[TraceRow]:
        """Yield (prompt tokens, output tokens, seconds)."""
        yield TraceRow(2_000, 20, 0.0)
        yield TraceRow(6_000, 12, 0.11)
        yield TraceRow(4_000, 10, 0.15)


def serve_three(scheduler: Scheduler) -> Result:
    """Serve the three requests on one GPU."""
    client = llm_client("llm", model="llama-3.1-8b", scheduler=scheduler)
    workload = Workload(ThreeRequests(), TraceArrivals())
    return Simulation(clients=[client], workload=workload).run()


def draw_strategies() -> None:
    """Draw three requests under each batching strategy, for the page on batching."""
    strategies = {
        "Static: who comes late waits for the whole batch": StaticScheduler(),
        "Continuous: prompts stop the decodes": ContinuousScheduler(),
        "Mixed: decodes ride along with whole prompts": MixedScheduler(),
        "Chunked: 1,024 tokens a step": ChunkedScheduler(max_num_batched_tokens=1_024),
    }
    figure, rows = plt.subplots(4, figsize=(8.4, 5.2), sharex=True, layout="constrained")
    for axes, (title, scheduler) in zip(rows, strategies.items(), strict=True):
        result = serve_three(scheduler)
        draw(axes, result, 0, 3, size=11)
        gap = max(diff(result.token_times(number)).max() for number in range(3))
        last = result.requests["finished_at"].max()
        text = f"{title} (longest gap {gap * 1e3:.0f} ms, all done at {last * 1e3:.0f} ms)"
        axes.set_title(text, loc="left", fontsize=10)
        axes.set(yticks=range(3), yticklabels=["1", "2", "3"], xlim=(0, 0.56))
        axes.tick_params(axis="y", length=0)
    rows[3].set_xlabel("simulated time, s")
    legend(figure)
    save(figure, "strategies.png")


def main() -> None:
    """Draw both pictures."""
    draw_load()
    draw_strategies()


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main()
