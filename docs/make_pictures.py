"""Draws the pictures of the documentation from real runs.

    python docs/make_pictures.py

Needs matplotlib, which the project itself does not use: `pip install matplotlib`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mist_sim import Result, Scenario, simulate

IMAGES = Path(__file__).parent / "images"
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


def draw(axes: Axes, result: Result, title: str) -> None:
    """Draw a line a request: waiting, prefill, and a mark for every token after it."""
    requests = result.requests
    shown = requests[requests["arrival_time"] >= WINDOW[0]].head(NUM_REQUESTS)
    bar = {"lw": 5, "solid_capstyle": "butt"}
    for row, request in enumerate(shown.itertuples()):
        started = request.arrival_time + request.queued
        axes.plot([request.arrival_time, started], [row, row], color=QUEUE, **bar)
        axes.plot([started, request.first_token_at], [row, row], color=PREFILL, **bar)
        tokens = result.token_times(int(request.request_id))
        axes.plot(tokens, [row] * len(tokens), "|", color=TOKEN, ms=5, mew=0.7)
    itl, ttft = (result.summary[f"p99_{name}_ms"] for name in ("itl", "ttft"))
    text = f"{title}: p99 of ITL {itl:.0f} ms, p99 of TTFT {ttft:.0f} ms"
    axes.set_title(text, loc="left", fontsize=10)
    axes.set(xlim=WINDOW, ylim=(NUM_REQUESTS, -1), yticks=[], ylabel="requests")
    axes.spines[["top", "right", "left"]].set_visible(False)


def main() -> None:
    figure, (top, bottom) = plt.subplots(2, figsize=(8.4, 5.4), sharex=True, layout="constrained")
    draw(top, run("continuous"), "Continuous batching")
    chunked = {"type": "chunked", "max_num_batched_tokens": 512}
    draw(bottom, run(chunked), "Chunked prefill, 512 tokens a step")
    bottom.set_xlabel("simulated time, s")
    marks = [
        Patch(color=QUEUE, label="waits"),
        Patch(color=PREFILL, label="prefill"),
        Line2D([], [], color=TOKEN, marker="|", ls="", label="a token"),
    ]
    place = {"loc": "upper right", "bbox_to_anchor": (1, 1.16)}
    top.legend(handles=marks, ncols=3, frameon=False, fontsize=9, **place)
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / "schedulers.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
