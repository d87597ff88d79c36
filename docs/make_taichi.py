"""Write tables and pictures of docs/background/taichi.md: `python docs/make_taichi.py`.

Searches goodputs in eight settings of the preset taichi-hybrid, with the paper's sliders and with the
best ones, on two processes. Needs matplotlib, which the project itself does not use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from mist_sim import Scenario, simulate
from mist_sim.scenario.load import as_data
from mist_sim.search.goodput import GoodputOptions, find_goodputs
from mist_sim.search.slider_search import search_sliders
from mist_sim.search.sliders import DESIGNS, Slidable, Sliders

PAGE = Path(__file__).parent / "background" / "taichi.md"
IMAGES = Path(__file__).parent / "images"
BEGIN, END = "<!-- docs/make_taichi.py: {} -->", "<!-- end of {} -->"

JOBS = 2
CHUNKS = {"chat": (128, 256, 512, 1024), "papers": (128, 256, 512, 1024, 2048)}
REQUESTS = {"chat": 800, "papers": 400}
RATES = {"chat": 16, "papers": 1.4}  # requests a second, at which the searches begin
LIMITS = {  # Table 3: TTFT in s, and TPOT in ms, which is 10 more for 32B
    ("chat", 1): (3, 110),
    ("chat", 2): (4, 70),
    ("papers", 1): (4, 70),
    ("papers", 2): (6, 50),
}
PAPER_SLIDERS = {  # the chunk of aggregation, and S_P and S_D; all four have two clients of each kind
    ("chat", 1): (1024, 1024, 512),
    ("chat", 2): (512, 1024, 128),
    ("papers", 1): (512, 1024, 256),
    ("papers", 2): (512, 1024, 128),
}
PAPER_GAINS = {  # over aggregation and over disaggregation, percent
    ("chat", 1): ("9–11", "43–49"),
    ("chat", 2): ("24–25", "29–37"),
    ("papers", 1): ("27–35", "74–77"),
    ("papers", 2): ("26–47", "30–39"),
}
COLORS = dict(zip(DESIGNS, ("#2a6f97", "#e07b39", "#5a8f4e"), strict=True))


class Cell(NamedTuple):
    """One of the eight settings: the workload, the model's size in billions, and Table 3's SLO."""

    work: str
    size: int
    slo: int

    @property
    def limits(self) -> tuple[float, float]:
        """TTFT and TPOT that users ask for, seconds."""
        ttft, tpot = LIMITS[self.work, self.slo]
        return ttft, 1e-3 * (tpot + (10 if self.size == 32 else 0))

    @property
    def name(self) -> str:
        return f"{self.work}, {self.size}B, SLO{self.slo}"


CELLS = [Cell(work, size, slo) for work in REQUESTS for slo in (1, 2) for size in (14, 32)]
ABLATED = Cell("papers", 14, 1)  # of figures 18 and 19


def scenario(cell: Cell, **changes: Any) -> Scenario:
    """Return the hybrid of a setting, whose sliders are moved then."""
    ttft, tpot = cell.limits
    limits = {"ttft": f"{ttft} s", "tpot": f"{tpot} s"}
    overrides: dict[str, Any] = {
        "model": f"qwen2.5-{cell.size}b",
        "slo": limits,
        "router.ttft": limits["ttft"],
        "hand_over.policy.tpot": limits["tpot"],
    }
    for k in (0, 1):
        overrides[f"clients.{k}.tensor_parallel_size"] = 2 if cell.size == 32 else 1
        if cell.work == "papers":
            overrides[f"clients.{k}.max_model_len"] = 16384
    if cell.work == "papers":
        overrides["workload"] = as_data(Scenario.load("taichi-summarisation"))["workload"]
    overrides["workload.lengths.num_requests"] = REQUESTS[cell.work]
    overrides["workload.arrivals.rate"] = f"{RATES[cell.work]} /s"
    return Scenario.load("taichi-hybrid", overrides=overrides | changes)


# --- goodput ------------------------------------------------------------------------------------


class Found(NamedTuple):
    """Goodputs of the three designs in a setting, requests a second, and where the sliders are.

    paper: with the paper's sliders. tuned, names: with the best ones.
    latencies: (P90 of TTFT, P90 of TPOT) over the limits at the goodput of the paper's hybrid.
    """

    paper: dict[str, float]
    tuned: dict[str, float]
    names: dict[str, str]
    latencies: dict[str, tuple[float, float]]
    num_runs: int


def paper_sliders(cell: Cell) -> dict[str, Sliders]:
    """Return where the paper has the sliders of each design."""
    together, s_p, s_d = PAPER_SLIDERS[cell.work, cell.slo]
    return {
        "aggregation": Sliders(num_p=2, num_d=2, s_p=together, s_d=together),
        "disaggregation": Sliders(num_p=2, num_d=2, s_p=s_p, s_d=0),
        "hybrid": Sliders(num_p=2, num_d=2, s_p=s_p, s_d=s_d),
    }


def find(cell: Cell) -> Found:
    """Search the goodputs of a setting."""
    hybrid, options = scenario(cell), GoodputOptions()
    sliders = Slidable(hybrid)
    papers = {design: sliders.at(each) for design, each in paper_sliders(cell).items()}
    goodputs = find_goodputs(list(papers.values()), options, jobs=JOBS)
    paper = {design: each.rate for design, each in zip(papers, goodputs, strict=True)}
    race = search_sliders(hybrid, options, chunks=CHUNKS[cell.work], jobs=JOBS)
    tuned = {design: entry.rate for design, entry in race.best.items()}
    if paper["hybrid"] > tuned["hybrid"]:
        tuned["hybrid"] = paper["hybrid"]
    names = {design: entry.sliders.name for design, entry in race.best.items()}
    rate = {"workload.arrivals.rate": f"{paper['hybrid']} /s"}
    latencies = {}
    for design, each in papers.items():
        requests = simulate(Scenario.from_dict(as_data(each), rate)).requests
        ttft, tpot = cell.limits
        latencies[design] = (
            float(requests["ttft"].quantile(0.9)) / ttft,
            float(requests["tpot"].quantile(0.9)) / tpot,
        )
    num_runs = race.num_runs + sum(each.num_runs for each in goodputs)
    return Found(paper, tuned, names, latencies, num_runs)
