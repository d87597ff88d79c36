"""Which design wins under which limits? Chat in steady state, for docs/background/taichi.md.

`python tools/pages/taichi_plane.py FILE` compares pure designs and hybrids on four A100s under
pairs of limits, with and without asynchronous scheduling. Latencies of a run of a pure design
answer all limits at once. Hybrids have a router and flows that keep limits, and clients that do
both are also tried behind that router: they run once a pair, 2 % below the best goodput of the
others, and are searched only where they keep the limits there. Rows are written to FILE as they
come, and what is there is not run again. With `--page` nothing is run: the picture is drawn. It
takes some six minutes of a core.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice, product
from math import inf, log
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from taichi_designs import by_length, hybrids, pures, served
from taichi_runs import Limits, Row, Service, append, crossing, read

from mist_sim import Scenario
from mist_sim.errors import ScenarioError
from tools.pages.pictures import PICTURES, picture_folder

IMAGES = PICTURES
TTFT = (0.25, 0.5, 1.0, 2.0, 4.0)  # limits, seconds
TPOT = (0.035, 0.05, 0.07, 0.09, 0.12)
NUMBER, SEED = 5000, 0  # requests of a run
GRID = 1.06  # between rates that all limits share
GUESS = 15.0  # requests a second
HYBRIDS = 3  # of each pair of limits: every ratio
LEVEL = 0.02  # designs that are nearer than this are level: one seed tells no more
COLORS = {"together": "#2a6f97", "apart": "#e07b39", "hybrid": "#5a8f4e", "none": "#ffffff"}


def chat(*, ahead: bool) -> Scenario:
    """Return four A100s with the chats of the paper, without limits."""
    lengths = {"type": "profile", "name": "sharegpt-2048", "num_requests": NUMBER}
    return served(lengths, {"type": "poisson", "rate": f"{GUESS} /s"}, 4, ahead=ahead)


def found_at(service: Service, limits: Limits, near: float) -> float:
    """Return a goodput, requests a second; 0 where no rate keeps the limits."""

    def margin(rate: float) -> float:
        return service.times(float(f"{rate:.5g}"), SEED, NUMBER).margin(limits)

    try:
        return crossing(margin, GRID ** round(log(near, GRID)), GRID)
    except (ValueError, ScenarioError):
        return 0.0


def compare(path: Path) -> None:
    """Write the goodputs of each pair of limits, but for those that a file has."""
    for ahead in (True, False):
        scenario = chat(ahead=ahead)
        services = {name: Service(each) for name, each in pures(scenario).items()}
        for limits in product(TTFT, TPOT):
            known = {(row["ahead"], row["ttft"], row["tpot"]) for row in read(path)}
            if (ahead, *limits) in known:
                continue
            begun = process_time()
            rates = {}
            for name, service in services.items():
                rates[name] = found_at(service, limits, max(rates.values(), default=0) or GUESS)
            rates |= rates_of_others(scenario, limits, max(rates.values()))
            row = {"ahead": ahead, "ttft": limits[0], "tpot": limits[1], "rates": rates}
            append(path, row | {"seconds": process_time() - begun})


def rates_of_others(scenario: Scenario, limits: Limits, best: float) -> dict[str, float]:
    """Return goodputs of designs whose router knows the limits, if `LEVEL` behind or less; or 0."""
    found: dict[str, float] = {}
    made = by_length(scenario, limits) | dict(islice(hybrids(scenario, limits), HYBRIDS))
    for name, each in made.items() if best else ():
        service = Service(each)
        try:
            keeps = service.times((1 - LEVEL) * best, SEED, NUMBER).margin(limits) <= 0
        except ScenarioError:  # its memory is too small for two of the longest requests
            keeps = False
        found[name] = found_at(service, limits, best) if keeps else 0.0
    return found


# --- the picture --------------------------------------------------------------------------------


def winner(rates: dict[str, float]) -> tuple[str, float]:
    """Return the kind of the best design, and how far the best of the other kinds is behind.

    The kind is `none` where no design keeps the limits at any rate. How far a hybrid is behind is
    known only where it is hardly so.
    """
    kinds: dict[str, float] = {}
    for name, rate in rates.items():
        kind = name.split()[0]
        kinds[kind] = max(rate, kinds.get(kind, 0.0))
    first, second, *_ = sorted(kinds.values(), reverse=True)
    if not first:
        return "none", 0.0
    best = max(kinds, key=lambda kind: kinds[kind])
    return best, first / second - 1 if second else inf


def draw(rows: list[Row]) -> None:
    """Draw who wins where, and by how much; pale where that is less than `LEVEL`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, pair = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", sharey=True)
    for axes, ahead in zip(pair, (False, True), strict=True):
        for row in rows:
            if row["ahead"] == ahead:
                cell(axes, row)
        axes.set_xticks(range(len(TPOT)), [f"{1e3 * limit:g}" for limit in TPOT])
        axes.set_yticks(range(len(TTFT)), [f"{limit:g}" for limit in TTFT])
        axes.set(xlim=(-0.5, len(TPOT) - 0.5), ylim=(-0.5, len(TTFT) - 0.5))
        axes.set_xlabel("limit on TPOT, ms")
        said = "with" if ahead else "without"
        axes.set_title(f"Chat, 14B, {said} async scheduling", loc="left", fontsize=10)
    pair[0].set_ylabel("limit on TTFT, s")
    figure.savefig(IMAGES / "taichi_plane.png", dpi=110, metadata={"Software": None})


def cell(axes: Any, row: Row) -> None:
    """Draw one pair of limits: the best design, its goodput, and how far the others are behind."""
    x, y = TPOT.index(row["tpot"]), TTFT.index(row["ttft"])
    kind, lead = winner(row["rates"])
    shade = 0.85 if lead >= LEVEL else 0.3
    axes.bar(x, 0.96, 0.96, bottom=y - 0.48, color=COLORS[kind], alpha=shade)
    if kind == "none":
        axes.text(x, y, "–", ha="center", va="center")
        return
    rate = max(row["rates"].values())
    by = f"+{100 * lead:.0f} %" if np.isfinite(lead) else "alone"
    axes.text(x, y, f"{kind}\n{rate:.1f} /s\n{by}", ha="center", va="center", fontsize=7.5)


def summary(rows: list[Row]) -> Iterator[str]:
    """Yield in how many pairs each kind wins, and by how much a hybrid does at most."""
    for ahead in (False, True):
        found = [winner(row["rates"]) for row in rows if row["ahead"] == ahead]
        sure = [(kind, lead) for kind, lead in found if kind != "none" and lead >= LEVEL]
        counts = {k: sum(kind == k for kind, _ in sure) for k in ("together", "apart", "hybrid")}
        most = max((lead for kind, lead in sure if kind == "hybrid"), default=0.0)
        level = sum(kind != "none" for kind, _ in found) - len(sure)
        yield f"async scheduling {ahead}: {counts}, level {level}, a hybrid by {100 * most:.0f} %"


def main() -> None:
    """Compare what the file has not, or draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if not options.page:
        compare(options.file)
    elif rows := read(options.file):
        draw(rows)
        print(*summary(rows), sep="\n")
    else:
        parser.error(f"{options.file} must have rows to draw, and has none; run it without --page")


if __name__ == "__main__":
    IMAGES = picture_folder(__doc__)
    main()
