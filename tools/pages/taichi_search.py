"""Where does a hybrid win by most? For docs/background/taichi.md.

`python tools/pages/taichi_search.py FILE` tries some hundred settings (lengths, bursts, limits, two
or four GPUs) with short runs, and goes on with those in which hybrids look best, with more hybrids
and longer runs (successive halving: Jamieson and Talwalkar, AISTATS 2016). What a round has found
is written to FILE, and not searched again. With `--page` nothing is searched: the tables are made
of FILE. It takes a quarter of an hour of a core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice, product
from math import exp, inf, log
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
from taichi_designs import MORE, Designs, by_length, hybrids, pures, served
from taichi_runs import Limits, Row, Service, append, crossing, goodput, mean_and_width, read

from mist_sim import Scenario
from mist_sim.errors import ScenarioError

COUNTS = (2, 4)
PROMPTS, ANSWERS = (256, 1024, 4096), (100, 400)  # means, tokens; as wide as they are long
BURSTS = (1, 2)  # coefficient of variation of the gaps between requests
SLOWER = (5, 25), (1.5, 2.5, 4)  # limits on TTFT and TPOT, over those of a request that is alone
STEP = 1.15  # between rates of short runs, which all limits share
ROUNDS = ((600, 3, 12), (1500, 12, 4))  # requests of a run, hybrids tried, settings that go on
MIDDLE = 4000  # requests of a run of the third round, of the best few designs
NUMBER, SEEDS, LAST = 10_000, range(3), 1  # of the last one, and its settings


class Setting(NamedTuple):
    """Lengths, arrivals and limits. prompt, answer: (mean, standard deviation), tokens."""

    count: int
    prompt: tuple[int, int]
    answer: tuple[int, int]
    burst: float
    limits: Limits
    model: str = "qwen2.5-14b"

    @property
    def name(self) -> str:
        """The setting in words, which are its key in the file."""
        ttft, tpot = self.limits
        burst = "" if self.burst == 1 else f", CV {self.burst:g}"
        return (
            f"{self.count} A100s, {self.model}, {self.prompt[0]} + {self.answer[0]} tokens{burst}, "
            f"TTFT {1e3 * ttft:.0f} ms, TPOT {1e3 * tpot:.1f} ms"
        )

    @property
    def workload(self) -> Setting:
        """The same without limits."""
        return self._replace(limits=(inf, inf))

    def scenario(self, *, ahead: bool) -> Scenario:
        """Return the clients that do both."""
        prompt, answer = (
            {"type": "lognormal", "mean": mean, "std": std} for mean, std in self[1:3]
        )
        lengths = {"type": "synthetic", "num_requests": 400, "prompt": prompt, "output": answer}
        arrivals: dict[str, Any] = {"type": "poisson", "rate": "1 /s"}
        if self.burst != 1:
            arrivals = {"type": "gamma", "rate": "1 /s", "burstiness": self.burst**-2}
        return served(lengths, arrivals, self.count, ahead=ahead, model=self.model)


NUMBER_47 = Setting(2, (259, 255), (336, 312), 2.0, (0.179, 0.069), "qwen3-14b")
"""Of the random settings of docs/background/verdicts.md: the one in which a hybrid won."""


def settings() -> Iterator[Setting]:
    """Yield all settings of the first round."""
    for count, prompt, answer, burst in product(COUNTS, PROMPTS, ANSWERS, BURSTS):
        lone = Setting(count, (prompt, prompt), (answer, answer), burst, (inf, inf))
        times = Service(lone.scenario(ahead=True)).times(0.01, 0, 100)
        ttft, tpot = (float(np.median(each)) for each in times)
        for first, each in product(*SLOWER):
            yield lone._replace(limits=(round(first * ttft, 3), round(each * tpot, 4)))


# --- rounds -------------------------------------------------------------------------------------


@cache
def pure_services(workload: Setting, ahead: bool) -> dict[str, Service]:
    """Return the pure designs of a workload, whose runs all limits share."""
    made = pures(workload.scenario(ahead=ahead))
    return {name: Service(scenario) for name, scenario in made.items()}


def goodput_of_pures(setting: Setting, number: int, ahead: bool) -> dict[str, float]:
    """Return the goodput of each pure design from runs of so many requests; 0: none."""
    found: dict[str, float] = {}
    for name, service in pure_services(setting.workload, ahead).items():

        def margin(rate: float, service: Service = service) -> float:
            return service.times(float(f"{rate:.5g}"), 0, number).margin(setting.limits)

        near = max(found.values(), default=0.0) or 1.0
        on_grid = STEP ** round(log(near, STEP))  # all limits share runs at these rates
        found[name] = rate_or_none(lambda margin=margin, at=on_grid: crossing(margin, at, STEP))
    return found


def rate_or_none(find: Callable[[], float]) -> float:
    """Return a goodput; 0 where no rate keeps the limits, or memory is too small for any."""
    try:
        return find()
    except (ValueError, ScenarioError):
        return 0.0


class Entry(NamedTuple):
    """A setting in the race. pures: their goodputs. gains: of hybrids, a part.

    In short runs a gain is the time to spare at the best pure goodput: by how much the quantile of
    time over limit could be higher. Else it is that of the goodput.
    """

    setting: Setting
    pures: dict[str, float]
    gains: dict[str, float]

    @property
    def gain(self) -> float:
        """What the best hybrid gains, as far as it is known."""
        return max(self.gains.values(), default=-inf)


def tried(setting: Setting, number: int, most: int, ahead: bool = True) -> Entry:
    """Return what a few hybrids have to spare, each in one run at the best pure goodput."""
    rates = goodput_of_pures(setting, number, ahead)
    rate, gains = max(rates.values()), {}
    if rate:
        made = hybrids(setting.scenario(ahead=ahead), setting.limits)
        for name, scenario in islice(made, most):
            try:
                margin = Service(scenario).times(rate, 0, number).margin(setting.limits)
            except ScenarioError:  # its memory is too small for two of the longest requests
                continue
            gains[name] = exp(-margin) - 1
    return Entry(setting, rates, gains)


def searched(entry: Entry, ahead: bool = True) -> Entry:
    """Return the best few designs of a setting with goodputs from longer runs."""
    scenario, limits = entry.setting.scenario(ahead=ahead), entry.setting.limits
    rate = max(entry.pures.values())
    small = pures(scenario, MORE)
    pure = {name: pures(scenario)[name] for name in top(entry.pures, 2)}
    pure |= {f"together {chunk}": small[f"together {chunk}"] for chunk in MORE}
    pure |= by_length(scenario, limits)
    made = dict(hybrids(scenario, limits))

    def rates_of(designs: Designs) -> dict[str, float]:
        options: dict[str, Any] = {"seeds": [0], "number": MIDDLE}
        return {
            name: rate_or_none(
                lambda each=each: next(goodput(Service(each), limits, rate, **options))[1]
            )
            for name, each in designs.items()
        }

    found = rates_of(pure)
    mine = rates_of({name: made[name] for name in top(entry.gains, 3)})
    best = max(found.values())
    return Entry(entry.setting, found, {name: each / best - 1 for name, each in mine.items()})


def top(values: dict[str, float], number: int) -> list[str]:
    """Return the names with the largest values."""
    return sorted(values, key=lambda name: -values[name])[:number]


def decided(entry: Entry, path: Path) -> None:
    """Write goodputs of the best designs of a setting from long runs of several seeds."""
    limits, near = entry.setting.limits, max(entry.pures.values())
    names = [*top({name: rate for name, rate in entry.pures.items() if rate}, 2)]
    names += top(entry.gains, 2)
    for ahead, name in product((True, False), names):
        scenario = entry.setting.scenario(ahead=ahead)
        made = pures(scenario) | pures(scenario, MORE) | by_length(scenario, limits)
        made |= dict(hybrids(scenario, limits))
        done = {
            row["seed"]: row["goodput"]
            for row in read(path)
            if (row["round"], row["setting"]) == ("long", entry.setting.name)
            and (row["design"], row["ahead"]) == (name, ahead)
        }
        found = goodput(Service(made[name]), limits, near, seeds=SEEDS, number=NUMBER, known=done)
        for seed, rate in found:
            row = {"round": "long", "setting": entry.setting.name, "design": name, "ahead": ahead}
            append(path, row | {"seed": seed, "goodput": rate})


def best_of(entries: Sequence[Entry], number: int) -> list[Entry]:
    """Return the settings in which hybrids gain most."""
    return sorted(entries, key=lambda entry: -entry.gain)[:number]


def step(path: Path, name: str, setting: Setting, find: Callable[[], Entry]) -> Entry:
    """Return what a round found in a setting, from the file where that has it."""
    for row in read(path):
        if (row["round"], row["setting"]) == (name, setting.name):
            return Entry(setting, row["pures"], row["gains"])
    begun = process_time()
    entry = find()
    row = {"round": name, "setting": setting.name, "pures": entry.pures, "gains": entry.gains}
    append(path, row | {"seconds": process_time() - begun})
    return entry


def search(path: Path) -> None:
    """Do all rounds, but for what the file has."""
    left = [*settings()]
    for number, most, stay in ROUNDS:
        entries = [
            step(path, f"{number}", each, partial(tried, each, number, most)) for each in left
        ]
        best = best_of(entries, stay)
        left = [entry.setting for entry in best]
    best = [step(path, "middle", each.setting, partial(searched, each)) for each in best]
    last = best_of(best, LAST)
    known = step(path, f"{ROUNDS[-1][0]}", NUMBER_47, partial(tried, NUMBER_47, *ROUNDS[-1][:2]))
    for entry in (*last, step(path, "middle", NUMBER_47, partial(searched, known))):
        decided(entry, path)


# --- the page -----------------------------------------------------------------------------------


def rounds(rows: list[Row]) -> Iterator[str]:
    """Yield how many settings each round had, and what the best hybrids had to spare or gained."""
    yield "| requests a run | settings | of the best hybrid | median | most |"
    yield "|---|---|---|---|---|"
    for name in dict.fromkeys(row["round"] for row in rows if row["round"] != "long"):
        found = [
            100 * max(row["gains"].values())
            for row in rows
            if row["round"] == name and row["gains"]
        ]
        is_last = name == "middle"
        kind = f"{MIDDLE:,} | {len(found)} | gain" if is_last else f"{name} | {len(found)} | spare"
        yield f"| {kind} | {np.median(found):+.0f} % | {max(found):+.0f} % |"


def long_runs(rows: list[Row]) -> Iterator[str]:
    """Yield goodputs of long runs, with and without asynchronous scheduling."""
    yield "| | | with async scheduling | over the best pure | without | over the best pure |"
    yield "|---|---|---|---|---|---|"
    found: dict[tuple[str, str, bool], dict[int, float]] = {}
    for row in rows:
        if row["round"] == "long":
            key = row["setting"], row["design"], row["ahead"]
            found.setdefault(key, {})[row["seed"]] = row["goodput"]
    for setting, design in dict.fromkeys(key[:2] for key in found):
        cells = []
        for ahead in (True, False):
            mine = {d: rates for (s, d, a), rates in found.items() if (s, a) == (setting, ahead)}
            if design not in mine:
                cells += ["–", "–"]
                continue
            pure = {d: np.mean([*r.values()]) for d, r in mine.items() if "hybrid" not in d}
            best = mine[max(pure, key=lambda name, pure=pure: pure[name])]
            rates = mine[design]
            mean, width = mean_and_width([*rates.values()])
            cells.append(f"{mean:.2f} ± {width:.2f}")
            gains = [100 * (rates[k] / best[k] - 1) for k in rates]
            mean, width = mean_and_width(gains)
            cells.append("–" if rates is best else f"{mean:+.1f} ± {width:.1f} %")
        yield f"| {setting} | {design} | {' | '.join(cells)} |"


def write(rows: list[Row]) -> None:
    """Print the tables."""
    print(*rounds(rows), "", *long_runs(rows), sep="\n")


def main() -> None:
    """Search what the file has not, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if not options.page:
        search(options.file)
    elif rows := read(options.file):
        write(rows)
    else:
        parser.error(f"{options.file} must have rows to make the page of, and has none; search")


if __name__ == "__main__":
    main()
