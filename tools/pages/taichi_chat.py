"""Goodputs of chat in steady state, for docs/background/taichi.md.

`python tools/pages/taichi_chat.py FILE` searches the designs of the page with several seeds,
without and with asynchronous scheduling. Rows are written to FILE as they come, and what is there
is not searched again. With `--page` nothing is searched: tables and picture are made of the rows.
All of It takes some quarter of an hour of a core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from time import process_time

from taichi_runs import Row, Service, append, goodput, mean_and_width, read
from taichi_settings import SOONEST, Cell, paper_sliders, scenario

from mist_sim import Scenario
from mist_sim.core.sliders import Sliders
from mist_sim.search.designs import Slidable

SEEDS = range(3)
NUMBER = 10_000  # requests of a run
GUESS = 16.0  # requests a second, at which searches begin
CELLS = [Cell("chat", size, slo) for size in (14, 32) for slo in (1, 2)]
BEFORE = {  # goodputs of 2,000 requests a run with seed 0, as they stood
    ("chat, 14B, SLO1", "together"): 19.70,
    ("chat, 14B, SLO1", "apart 2:2"): 16.95,
    ("chat, 14B, SLO1", "hybrid"): 16.38,
    ("chat, 14B, SLO1", "hybrid, watermark 0.4"): 19.98,
    ("chat, 14B, SLO2", "together"): 13.93,
    ("chat, 14B, SLO2", "together, 256"): 15.72,
    ("chat, 14B, SLO2", "apart 2:2"): 15.05,
    ("chat, 14B, SLO2", "hybrid"): 14.73,
    ("chat, 14B, SLO2", "hybrid, watermark 0.4"): 16.21,
    ("chat, 32B, SLO1", "together"): 18.46,
    ("chat, 32B, SLO1", "apart 2:2"): 16.76,
    ("chat, 32B, SLO1", "hybrid"): 16.57,
    ("chat, 32B, SLO2", "together"): 14.25,
    ("chat, 32B, SLO2", "together, 256"): 14.88,
    ("chat, 32B, SLO2", "apart 2:2"): 16.38,
    ("chat, 32B, SLO2", "hybrid"): 14.73,
}


def designs(cell: Cell, *, ahead: bool) -> dict[str, Scenario]:
    """Return the designs of a setting: those with the paper's sliders, and better ones.

    ahead: whether engines schedule asynchronously, as the newest version does by default. Without
    that it is vLLM 0.12, with equal results; 0.12 has it, too, but hides hardly any host time.
    """
    sliders = paper_sliders(cell)
    planned: dict[str, object] = {f"clients.{k}.async_scheduling": ahead for k in (0, 1)}
    if ahead:
        planned |= {f"clients.{k}.engine": None for k in (0, 1)}
    paper, late = (Slidable(scenario(cell, **planned, **more)) for more in ({}, SOONEST))
    spread = Sliders(num_p=2, num_d=2, s_p=1024, s_d=512, watermark=0.4)
    found = {
        "together": paper.at(sliders["aggregation"]),
        "apart 2:2": paper.at(sliders["disaggregation"]),
        "hybrid": paper.at(sliders["hybrid"]),
        "hybrid, watermark 0.4": late.at(spread),
    }
    if cell.slo == 2:
        found["together, 256"] = late.at(Sliders(num_p=2, num_d=2, s_p=256, s_d=256))
    return found


Groups = dict[tuple[str, str, bool], dict[int, float]]
"""Goodputs by setting, design and whether steps are planned ahead, and by seed."""


def grouped(rows: list[Row]) -> Groups:
    """Return the goodputs of rows."""
    found: Groups = {}
    for row in rows:
        key = row["cell"], row["design"], row["ahead"]
        found.setdefault(key, {})[row["seed"]] = row["goodput"]
    return found


def search(path: Path) -> None:
    """Search what a file has not."""
    for size, ahead, cell in product((14, 32), (False, True), CELLS):
        if cell.size != size:
            continue
        for name, each in designs(cell, ahead=ahead).items():
            done = grouped(read(path)).get((cell.name, name, ahead), {})
            service, begun = Service(each), process_time()
            found = goodput(service, cell.limits, GUESS, seeds=SEEDS, number=NUMBER, known=done)
            for seed, rate in found:
                row = {"cell": cell.name, "design": name, "ahead": ahead, "seed": seed}
                append(path, row | {"goodput": rate, "seconds": process_time() - begun})


# --- the page -----------------------------------------------------------------------------------


def plus_minus(values: list[float]) -> str:
    """Return goodputs of seeds as their mean and half of its interval."""
    mean, width = mean_and_width(values)
    return f"{mean:.2f} ± {width:.2f}"


def gain(mine: dict[int, float], other: dict[int, float]) -> str:
    """Return by how much one serves more than another, seed by seed, percent."""
    gains = [100 * (mine[seed] / other[seed] - 1) for seed in sorted(mine.keys() & other.keys())]
    if not gains:
        return "–"
    mean, width = mean_and_width(gains)
    return f"{mean:+.1f} ± {width:.1f} %"


def table(groups: Groups) -> Iterator[str]:
    """Yield a row of each design: before, in steady state, and with asynchronous scheduling."""
    yield "| | | 2,000 requests | in steady state | with async scheduling | that gives |"
    yield "|---|---|---|---|---|---|"
    for (cell, design, ahead), rates in groups.items():
        if ahead:
            continue
        before, planned = BEFORE.get((cell, design)), groups.get((cell, design, True), {})
        cells = ["–" if before is None else f"{before:.2f}"]
        cells += [plus_minus([*each.values()]) if each else "–" for each in (rates, planned)]
        yield f"| {cell} | {design} | {' | '.join([*cells, gain(planned, rates)])} |"


def gains(groups: Groups) -> Iterator[str]:
    """Yield what the better hybrid of each setting gains over the pure designs."""
    yield "| | async scheduling | best hybrid | over together | over two and two |"
    yield "|---|---|---|---|---|"
    for cell, ahead in dict.fromkeys((cell, ahead) for cell, _, ahead in groups):
        mine = {name: rates for (c, name, a), rates in groups.items() if (c, a) == (cell, ahead)}
        hybrid, together = (best(mine, kind) for kind in ("hybrid", "together"))
        over = [gain(mine[hybrid], mine[name]) for name in (together, "apart 2:2")]
        yield f"| {cell} | {'yes' if ahead else 'no'} | {hybrid} | {' | '.join(over)} |"


def best(rates: dict[str, dict[int, float]], kind: str) -> str:
    """Return the design of a kind with the largest mean goodput."""
    names = [name for name in rates if name.startswith(kind)]
    return max(names, key=lambda name: mean_and_width([*rates[name].values()])[0])


def write(groups: Groups) -> None:
    """Print the tables."""
    print(*table(groups), "", *gains(groups), sep="\n")


def main() -> None:
    """Search what the file has not, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if not options.page:
        search(options.file)
    elif rows := read(options.file):
        write(grouped(rows))
    else:
        parser.error(f"{options.file} must have rows to make the page of, and has none; search")


if __name__ == "__main__":
    main()
