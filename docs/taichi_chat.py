"""Goodputs of chat in steady state, for docs/background/taichi.md.

`python docs/taichi_chat.py FILE` searches the designs of the page, with several seeds. Rows are
written to FILE as they come, and what is there is not searched again. With `--page` nothing is
searched: table and picture are made of the rows. A search takes half a minute to two minutes of a
core.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Any

from taichi_settings import SOONEST, Cell, paper_sliders, scenario

from mist_sim import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.goodput import find_goodput
from mist_sim.search.sliders import Slidable, Sliders

Row = dict[str, Any]
SEEDS = range(3)
HERE = Path(__file__).parent
PAGE, IMAGE = HERE / "background" / "taichi.md", HERE / "images" / "taichi_chat.png"
BEGIN, END = "<!-- docs/taichi_chat.py: chat -->", "<!-- end of chat -->"
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
}


def designs(cell: Cell) -> dict[str, Scenario]:
    """Return the designs of a setting: those with the paper's sliders, and better ones."""
    sliders = paper_sliders(cell)
    paper, late = Slidable(scenario(cell)), Slidable(scenario(cell, **SOONEST))
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


def search(cell: Cell, name: str, seed: int) -> Row:
    """Return the goodput of a design with a seed, and how many requests the runs had."""
    begun = process_time()
    found = find_goodput(Scenario.from_dict(as_data(designs(cell)[name]), {"seed": seed}), jobs=1)
    (of_seed,) = found.searches
    ends = [of_seed.at(rate) for rate in (of_seed.bracket.low, of_seed.bracket.high)]
    return {
        "cell": cell.name,
        "design": name,
        "seed": seed,
        "goodput": found.rate,
        "interval": list(found.interval),
        "requests": max(trial.num_requests for trial in ends if trial),
        "first limit": found.first_limit,
        "seconds": process_time() - begun,
    }


def read(path: Path) -> list[Row]:
    """Return the rows of a file; none where there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


Groups = dict[tuple[str, str], list[Row]]


def grouped(rows: list[Row]) -> Groups:
    """Return the rows of each setting and design, one a seed."""
    found: Groups = {}
    for row in rows:
        found.setdefault((row["cell"], row["design"]), []).append(row)
    return found


def means(rows: list[Row]) -> tuple[float, float, float]:
    """Return the goodput and the ends of its interval, means over seeds."""
    low, high = (fmean(row["interval"][k] for row in rows) for k in (0, 1))
    return fmean(row["goodput"] for row in rows), low, high


def table(groups: Groups) -> Iterator[str]:
    """Yield a row of each design: before, and in steady state with the interval."""
    head = "2,000 requests", "in steady state", "95 % interval", "misses first", "requests", "seeds"
    yield f"| | | {' | '.join(head)} |"
    yield "|---" * (2 + len(head)) + "|"
    for (cell, design), rows in groups.items():
        rate, low, high = means(rows)
        before = BEFORE.get((cell, design))
        limits = " or ".join(sorted({row["first limit"].upper() for row in rows}))
        most = max(row["requests"] for row in rows)
        yield (
            f"| {cell} | {design} | {'–' if before is None else f'{before:.2f}'} | {rate:.2f} "
            f"| {low:.2f} to {high:.2f} | {limits} | {most:,} | {len(rows)} |"
        )


def draw(groups: Groups) -> None:
    """Draw goodputs before, and in steady state with intervals."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    cells = list(dict.fromkeys(cell for cell, _ in groups))
    figure, row = plt.subplots(
        1, len(cells), figsize=(5.5 * len(cells), 3.2), layout="constrained", squeeze=False
    )
    for axes, cell in zip(row[0], cells, strict=True):
        names = [name for each, name in groups if each == cell]
        for place, name in enumerate(reversed(names)):
            rate, low, high = means(groups[cell, name])
            axes.barh(place + 0.2, BEFORE.get((cell, name), 0.0), 0.35, color="#c9c9c9")
            axes.barh(place - 0.2, rate, 0.35, color="#2a6f97")
            axes.errorbar(rate, place - 0.2, xerr=[[rate - low], [high - rate]], color="#111111")
        axes.set_yticks(range(len(names)), list(reversed(names)))
        axes.set_xlabel("requests a second")
        axes.set_title(f"{cell} (grey: 2,000 requests a run)", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGE, dpi=110, metadata={"Software": None})


def write(groups: Groups) -> None:
    """Put the table into the page, and draw."""
    text = PAGE.read_text("utf-8")
    whole = "\n".join([BEGIN, *table(groups), END])
    pattern = f"{re.escape(BEGIN)}.*?{re.escape(END)}"
    PAGE.write_text(re.sub(pattern, lambda _: whole, text, flags=re.DOTALL), "utf-8")
    draw(groups)


def main() -> None:
    """Search what the file has not, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        write(grouped(read(options.file)))
        return
    done = {(row["cell"], row["design"], row["seed"]) for row in read(options.file)}
    for seed in SEEDS:
        for cell in (Cell("chat", size, slo) for size in (14, 32) for slo in (1, 2)):
            for name in designs(cell):
                if (cell.name, name, seed) not in done:
                    line = json.dumps(search(cell, name, seed))
                    with options.file.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
