"""Goodput in steady state from few long runs, for the studies of docs/background/taichi.md.

All designs of a setting get the same requests at the same times, so that a difference between two
is known better than either. A run has a given number of requests; those of the ramp and of the end
do not count. The margin of a run is the logarithm of (time over limit) at the quantile of the share
that is asked for, of the worse limit of each request: below 0 the limits are kept. A goodput is
where that is 0, on a line between two rates that are a few per cent apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, inf, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from mist_sim import Scenario, simulate
from mist_sim.metrics.latency import Array
from mist_sim.scenario.loading import as_data

SHARE = 0.9  # of the requests that has to be good, as in the paper
RAMP, END = 0.2, 0.05  # of the requests, which do not count: clients fill up, and run empty
STEP = 1.04  # between the two rates around a goodput, at most
_FURTHEST = log(100)  # of a margin, which nobody needs to know better
_MOST_RUNS = 20  # of a search: factors 1.04, 1.08, 1.17 ... pass any goodput long before

Limits = tuple[float, float]
"""On TTFT and TPOT, seconds."""


class Times(NamedTuple):
    """TTFT and TPOT of the requests of a run that count, seconds; infinite if one failed."""

    ttft: Array
    tpot: Array

    def margin(self, limits: Limits) -> float:
        """Return the margin of a run under some limits."""
        return self.margins(limits)[2]

    def margins(self, limits: Limits) -> tuple[float, float, float]:
        """Return the margins of TTFT alone, of TPOT alone, and of both."""
        ttft, tpot = self.ttft / limits[0], self.tpot / limits[1]
        first, each, both = (_margin(ratios) for ratios in (ttft, tpot, np.maximum(ttft, tpot)))
        return first, each, both


def _margin(ratios: Array) -> float:
    ratio = float(np.quantile(ratios, SHARE, method="inverted_cdf"))
    return min(max(log(max(ratio, 1e-9)), -_FURTHEST), _FURTHEST)


class Service:
    """A scenario that is run at several rates, each once for a seed and a number of requests.

    num_run: requests of all its runs.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._data = as_data(scenario)
        self._times: dict[tuple[float, int, int], Times] = {}
        self.num_run = 0

    def times(self, rate: float, seed: int, number: int) -> Times:
        """Return the times of a run. rate: requests a second; number: of them."""
        key = rate, seed, number
        if key not in self._times:
            self._times[key] = self._run(*key)
        return self._times[key]

    def _run(self, rate: float, seed: int, number: int) -> Times:
        changes = {
            "workload.arrivals.rate": f"{rate!r} /s",
            "workload.lengths.num_requests": number,
            "seed": seed,
        }
        self.num_run += number
        found = simulate(Scenario.from_dict(self._data, changes)).requests
        found = found.sort_values("arrival_time")[int(RAMP * number) : int((1 - END) * number)]
        tpot = found["tpot"].where(found["num_output_tokens"] > 1, 0.0)
        return Times(*(times.fillna(inf).to_numpy(float) for times in (found["ttft"], tpot)))


def crossing(margin_at: Callable[[float], float], guess: float, step: float = STEP) -> float:
    """Return the rate at which a margin passes 0, near a guess, requests a second.

    step: largest ratio of the two rates between which it lies on a line.
    Raises ValueError where no rate keeps the limits, or every one does.
    """
    low, high, factor, rate = (0.0, inf), (inf, inf), step, guess  # (rate, margin)
    for _ in range(_MOST_RUNS):
        found = margin_at(rate)
        if found <= 0:
            low = rate, found
        else:
            high = rate, found
        if low[0] and high[0] < inf:
            if high[0] <= low[0] * step * (1 + 1e-9):
                part = -low[1] / (high[1] - low[1])
                return exp(log(low[0]) + part * log(high[0] / low[0]))
            rate = sqrt(low[0] * high[0])
        else:
            rate = rate * factor if found <= 0 else rate / factor
            factor *= factor
    end = "at all of them" if low[0] else "at none of them"
    raise ValueError(f"rates from {guess:g} requests a second on keep the limits {end}")


def goodput(
    service: Service,
    limits: Limits,
    guess: float,
    *,
    seeds: Sequence[int],
    number: int,
    known: Mapping[int, float] | None = None,
) -> Iterator[tuple[int, float]]:
    """Yield seeds and goodputs, requests a second; short runs with the first tell where to look.

    known: goodputs of seeds that were found before.
    """
    found = dict(known or {})

    def search(seed: int, number: int, near: float, step: float) -> float:
        return crossing(lambda rate: service.times(rate, seed, number).margin(limits), near, step)

    for seed in seeds:
        if seed in found:
            continue
        if found:
            near = fmean(found.values())
        else:
            near = search(seeds[0], max(number // 4, 400), guess, 1.1)
        found[seed] = search(seed, number, near / sqrt(STEP), STEP)
        yield seed, found[seed]


_T = (12.71, 4.30, 3.18, 2.78, 2.57)  # of Student's t, 97.5 %, for 2 values on


def mean_and_width(values: Sequence[float]) -> tuple[float, float]:
    """Return a mean, and half of its 95 % interval; infinite for one value."""
    if len(values) < 2:
        return fmean(values), inf
    t = _T[min(len(values) - 2, len(_T) - 1)]
    return fmean(values), t * stdev(values) / sqrt(len(values))


Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """Return the rows of a file; none where there is no file.

    Raises SystemExit for a line that is no row, with its number.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise SystemExit(
                f"{path}, line {number}: must be a row of JSON, got {line[:40]!r}; remove it, and "
                "what it had is searched again"
            ) from None
    return rows


def append(path: Path, row: Row) -> None:
    """Add a row to a file at once."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
