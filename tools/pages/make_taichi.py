"""Prints tables of which docs/background/taichi.md has some rows.

`python tools/pages/make_taichi.py` makes them.

Searches goodputs in eight settings of the preset taichi-hybrid, with the paper's sliders and with
the best ones: two settings at a time. Needs matplotlib, which the project itself does not use.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import numpy as np
import pandas as pd
from taichi_settings import (
    ABLATED,
    CELLS,
    CHUNKS,
    SOONEST,
    WATERMARKS,
    Cell,
    paper_sliders,
    scenario,
)

from mist_sim import Scenario, simulate
from mist_sim.core.sliders import DESIGNS, Sliders
from mist_sim.scenario.loading import as_data
from mist_sim.search.designs import Slidable
from mist_sim.search.goodput import GoodputOptions, find_goodputs
from mist_sim.search.slider_search import search_sliders

JOBS = 2
PAPER_GAINS = {  # over aggregation and over disaggregation, percent
    ("chat", 1): ("9–11", "43–49"),
    ("chat", 2): ("24–25", "29–37"),
    ("summaries", 1): ("27–35", "74–77"),
    ("summaries", 2): ("26–47", "30–39"),
}
PAPER_ABLATION = (66.6, 66.6, 79.5, 91.2)  # percent


# --- goodput ------------------------------------------------------------------------------------


class Found(NamedTuple):
    """Goodputs of the three designs in a setting, requests a second, and where the sliders are.

    paper: with the paper's sliders; `eased` is the hybrid with the best watermark, where prompts
    that are late go where they are ready soonest. ratio: prefill clients with which the first token
    is soonest, and the goodput there. tuned, names: with the best sliders. latencies: (P90 of TTFT,
    P90 of TPOT) over the limits at the goodput of the paper's hybrid.
    """

    paper: dict[str, float]
    ratio: tuple[int, float]
    tuned: dict[str, float]
    names: dict[str, str]
    latencies: dict[str, tuple[float, float]]


def find(cell: Cell) -> Found:
    """Search the goodputs of a setting."""
    sliders, marks = paper_sliders(cell), WATERMARKS[cell.work]
    paper, late = Slidable(scenario(cell)), Slidable(scenario(cell, **SOONEST))
    at = {design: paper.at(each) for design, each in sliders.items()}
    rates = goodputs(at)
    with_marks = {mark: late.at(replace(sliders["hybrid"], watermark=mark)) for mark in marks}
    rates["eased"], mark = max((rate, mark) for mark, rate in goodputs(with_marks).items())
    at["eased"] = with_marks[mark]
    race = search_sliders(
        late.scenario, GoodputOptions(), chunks=CHUNKS[cell.work], watermarks=marks, jobs=1
    )
    return Found(
        paper=rates,
        ratio=best_ratio(paper, rates["hybrid"], cell),
        tuned={design: entry.rate for design, entry in race.best.items()},
        names={design: entry.sliders.name for design, entry in race.best.items()},
        latencies={name: p90s(each, rates["hybrid"], cell) for name, each in at.items()},
    )


def best_ratio(sliders: Slidable, rate: float, cell: Cell) -> tuple[int, float]:
    """Return with how many prefill clients TTFT is best at a rate, and the goodput of that."""
    splits = {k: sliders.at(Sliders(num_p=k, num_d=4 - k, s_p=1, s_d=0)) for k in (1, 2, 3)}
    soonest = min(splits, key=lambda k: p90s(splits[k], rate, cell)[0])
    return soonest, goodputs({soonest: splits[soonest]})[soonest]


def goodputs(scenarios: dict[Any, Scenario]) -> dict[Any, float]:
    """Return the goodput of each, requests a second."""
    found = find_goodputs(list(scenarios.values()), GoodputOptions(), jobs=1)
    return {name: each.rate for name, each in zip(scenarios, found, strict=True)}


def run_at(scenario: Scenario, rate: float) -> pd.DataFrame:
    """Return the requests of a run at a rate, requests a second."""
    return simulate(
        Scenario.from_dict(as_data(scenario), {"workload.arrivals.rate": f"{rate} /s"})
    ).requests


def p90s(scenario: Scenario, rate: float, cell: Cell) -> tuple[float, float]:
    """Return P90 of TTFT and of TPOT over their limits, at a rate (requests a second)."""
    requests, (ttft, tpot) = run_at(scenario, rate), cell.limits
    tails = requests[["ttft", "tpot"]].quantile(0.9)
    return float(tails["ttft"]) / ttft, float(tails["tpot"]) / tpot


# --- what each part adds, and what it costs -----------------------------------------------------

ABLATION_RATE, SEEDS = 1.75, range(4)  # requests a second
STEP, REQUEST = 0.4e-3, 0.1e-3  # seconds of Algorithm 1 a step, and of Algorithm 2 a prompt
IN_TURN = {"type": "round_robin"}


def without_roles(data: dict[str, Any]) -> dict[str, Any]:
    """Return the same clients with requests in turn, decoded where their prompt was."""
    plain = {key: value for key, value in data.items() if key not in ("network", "hand_over")}
    plain["clients"] = [client | {"role": None} for client in data["clients"]]
    return plain | {"router": IN_TURN}


def ablation() -> dict[str, float]:
    """Return the share of good requests as the parts are added one by one (figure 18), percent."""
    sliders = Slidable(scenario(ABLATED))
    rate = {"workload.arrivals.rate": f"{ABLATION_RATE} /s"}

    def at(s_p: int, s_d: int) -> dict[str, Any]:
        return as_data(sliders.at(Sliders(num_p=2, num_d=2, s_p=s_p, s_d=s_d)))

    mixed = at(1024, 128)
    steps = {
        "CP256": at(256, 256) | {"router": IN_TURN},
        "+ architecture": without_roles(mixed),
        "+ flowing decode": mixed | {"router": IN_TURN},
        "+ length-aware": mixed,
    }
    found = {}
    for name, data in steps.items():
        runs = [simulate(Scenario.from_dict(data, rate | {"seed": seed})) for seed in SEEDS]
        found[name] = 100 * float(np.mean([attained(run.requests, ABLATED) for run in runs]))
    return found


def attained(requests: pd.DataFrame, cell: Cell) -> float:
    """Return the share of the requests that keep both limits."""
    ttft, tpot = cell.limits
    return float(np.mean((requests["ttft"] <= ttft) & ~(requests["tpot"] > tpot)))


def overheads(rate: float) -> dict[str, float]:
    """Return shares of the time of all requests (figure 19), percent.

    rate: requests a second. Scheduling takes the seconds of `STEP` and `REQUEST` in the run.
    """
    around = {"step": f"{1.3e-3 + STEP} s", "request": f"{REQUEST} s"}
    changes = {f"clients.{k}.overhead": around for k in (0, 1)}
    sliders = paper_sliders(ABLATED)["hybrid"]
    hybrid = Slidable(scenario(ABLATED, **changes)).at(sliders)
    result = simulate(Scenario.from_dict(as_data(hybrid), {"workload.arrivals.rate": f"{rate} /s"}))
    requests, moves = result.requests, result.transfers
    seconds = requests["e2el"].sum()
    return {
        "transfer": 100 * float((moves["end"] - moves["start"]).sum() / seconds),
        "prefill scheduling": 100 * len(requests) * REQUEST / float(seconds),
        "decode scheduling": 100 * STEP * float(requests["num_output_tokens"].sum() / seconds),
    }


# --- tables -------------------------------------------------------------------------------------

All = dict[Cell, Found]


def gain(rate: float, over: float) -> str:
    """Return by how many per cent a rate is above another, in words."""
    return f"{100 * (rate / over - 1):+.0f} %"


def paper_table(found: All) -> Iterator[str]:
    """Yield goodputs with the paper's sliders."""
    yield "| | together | apart 2:2 | apart, best TTFT | hybrid | hybrid, eased |"
    yield "|---|---|---|---|---|---|"
    for cell, each in found.items():
        together, apart, hybrid, eased = (f"{rate:.2f}" for rate in each.paper.values())
        num_p, rate = each.ratio
        best = f"{rate:.2f} ({num_p}:{4 - num_p})"
        yield f"| {cell.name} | {together} | {apart} | {best} | {hybrid} | {eased} |"


def gain_table(found: All) -> Iterator[str]:
    """Yield what the hybrid and the eased one gain with the paper's sliders, beside the paper's."""
    yield "| | over together | eased | the paper | over apart 2:2 | eased | the paper |"
    yield "|---|---|---|---|---|---|---|"
    for cell, each in found.items():
        together, apart, *hybrids = each.paper.values()
        over = [[gain(rate, other) for rate in hybrids] for other in (together, apart)]
        papers = [f"{gains} %" for gains in PAPER_GAINS[cell.work, cell.slo]]
        cells = [*over[0], papers[0], *over[1], papers[1]]
        yield f"| {cell.name} | {' | '.join(cells)} |"


def tuned_table(found: All) -> Iterator[str]:
    """Yield the best sliders of each design, and the hybrid over the best of the others."""
    yield "| | together | apart | hybrid | hybrid over the best other |"
    yield "|---|---|---|---|---|"
    for cell, each in found.items():
        cells = [f"{each.tuned[design]:.2f} ({each.names[design]})" for design in DESIGNS]
        best = max(each.tuned[design] for design in DESIGNS[:2])
        yield f"| {cell.name} | {' | '.join(cells)} | {each.tuned['hybrid'] / best:.2f} |"


def latency_table(found: All) -> Iterator[str]:
    """Yield by how much P90s are lower in the hybrid (figure 17)."""
    yield "| | P90 TTFT, apart over hybrid | P90 TPOT, together over hybrid |"
    yield "|---|---|---|"
    yield "| the paper | 2.42–13.20 | 1.11–1.69 |"
    for cell, each in found.items():
        together, apart, hybrid, _ = each.latencies.values()
        yield f"| {cell.name} | {apart[0] / hybrid[0]:.2f} | {together[1] / hybrid[1]:.2f} |"


def ablation_table(parts: dict[str, float]) -> Iterator[str]:
    """Yield what each part adds (figure 18)."""
    yield "| | " + " | ".join(parts) + " |"
    yield "|---|" + "---|" * len(parts)
    yield "| the paper | " + " | ".join(f"{share} %" for share in PAPER_ABLATION) + " |"
    yield "| here | " + " | ".join(f"{share:.1f} %" for share in parts.values()) + " |"


def overhead_table(shares: dict[str, float]) -> Iterator[str]:
    """Yield shares of a request's time (figure 19)."""
    yield "| | " + " | ".join(shares) + " |"
    yield "|---|" + "---|" * len(shares)
    yield "| the paper | 0.20 % | 0.01 % | 0.89 % |"
    yield "| here | " + " | ".join(f"{share:.2f} %" for share in shares.values()) + " |"


def write(found: All, parts: dict[str, float], shares: dict[str, float]) -> None:
    """Print the tables."""
    tables = {
        "paper": paper_table(found),
        "gains": gain_table(found),
        "tuned": tuned_table(found),
        "latency": latency_table(found),
        "ablation": ablation_table(parts),
        "overhead": overhead_table(shares),
    }
    for name, lines in tables.items():
        print(name, "", *lines, "", sep="\n")


def main() -> None:
    """Find the goodputs of every cell, and print the tables."""
    with ProcessPoolExecutor(JOBS) as pool:
        found = dict(zip(CELLS, pool.map(find, CELLS), strict=True))
    write(found, ablation(), overheads(found[ABLATED].paper["hybrid"]))


if __name__ == "__main__":
    main()
