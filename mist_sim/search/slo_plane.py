"""Winners by limits: goodput over the plane of limits on TTFT and TPOT.

Latencies of a run answer every pair of limits at once, so that each scenario runs once a rate. The
goodput under a pair is read off these runs: attainment ends between two of the rates, and in
between it is taken to fall on a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.checks import Range, check_fields
from mist_sim.core.result_warnings import ResultWarning, of_data, of_points, over_runs
from mist_sim.errors import ScenarioError
from mist_sim.metrics.run_warnings import record_warnings
from mist_sim.output import json_text
from mist_sim.scenario import build
from mist_sim.studies.built import Built, check_rates
from mist_sim.studies.driver import Driver
from mist_sim.studies.subjects import one_run, seeds_from
from mist_sim.studies.tabled import Content
from mist_sim.studies.task import Failure, Task
from mist_sim.studies.verdicts.request_times import (
    Array,
    RequestTimes,
    asked_share,
    check_attainment,
)

if TYPE_CHECKING:
    import pandas as pd

_AROUND = (1 / 8, 4.0)  # times the workload's own rate, by default
_MOST = 200  # limits of a kind, and rates
NOBODY, TIE = "nobody", "tie"


@dataclass(frozen=True, kw_only=True)
class PlaneOptions:
    """The limits over which goodput is compared, and the rates that are run for it.

    ttft, tpot: lowest and highest limit, seconds. num_points: limits of each kind. rates: the
    lowest and the highest, requests per second; without them from an eighth to four times the
    scenarios' own. num_rates: the more, the finer the goodput. All lie apart by equal ratios.
    attainment: share of the requests that has to keep both limits (> 0, <= 1); None: the largest
        that a scenario's slo asks for, or 0.9.

    Raises ScenarioError for fewer than 2 or more than 200 limits or rates, and ends out of order.
    """

    ttft: tuple[float, float] = (0.1, 10.0)
    tpot: tuple[float, float] = (0.01, 0.2)
    num_points: Annotated[int, Range(f"[2, {_MOST}]")] = 12
    rates: tuple[float, float] | None = None
    num_rates: Annotated[int, Range(f"[2, {_MOST}]")] = 12
    attainment: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            low, high = getattr(self, name)
            if not 0 < low < high < np.inf:
                raise ScenarioError(
                    f"{name} must be LOW:HIGH with 0 < LOW < HIGH, got {low:g} s:{high:g} s"
                )
        check_fields(self, ScenarioError)
        if self.rates is not None:
            check_rates(self.rates)
        if self.attainment is not None:
            check_attainment(self.attainment)

    @property
    def limits(self) -> tuple[Array, Array]:
        """The limits on TTFT and on TPOT, seconds."""
        return np.geomspace(*self.ttft, self.num_points), np.geomspace(*self.tpot, self.num_points)


@dataclass(frozen=True)
class Reading:
    """Goodput over the plane, requests per second; shape (limits on TTFT, limits on TPOT).

    low: the largest rate up to which all rates run are attained, 0 where the lowest is missed.
    high: the next rate, infinite where all are attained. value: in between, on a line; the highest
    rate run where all are attained, 0 where the lowest is missed.
    """

    low: Array
    high: Array
    value: Array


def attainment(times: RequestTimes, ttft: Array, tpot: Array) -> Array:
    """Return the share of the requests that keep each pair of limits; limits ascend, seconds."""
    rows = np.searchsorted(ttft, times.ttft)
    columns = np.searchsorted(tpot, times.tpot)
    counts = np.zeros((len(ttft) + 1, len(tpot) + 1))
    np.add.at(counts, (rows, columns), 1)
    kept = counts.cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
    return np.asarray(kept / len(times))


def read_goodput(rates: Array, shares: Array, asked: float) -> Reading:
    """Return where attainment ends for each pair of limits.

    rates: ascending. shares: attainment, shape (rates, limits on TTFT, limits on TPOT). asked: the
    share that attains.
    """
    attained = np.logical_and.accumulate(shares >= asked - 1e-12, axis=0)
    num = attained.sum(axis=0)
    padded = np.concatenate(([0.0], rates, [np.inf]))
    low, high = padded[num], padded[num + 1]
    upper = np.minimum(num, len(rates) - 1)
    lower = np.maximum(num - 1, 0)
    above = np.take_along_axis(shares, lower[None], axis=0)[0] - asked
    drop = above + asked - np.take_along_axis(shares, upper[None], axis=0)[0]
    part = np.divide(above, drop, out=np.zeros_like(above), where=drop > 0)
    inside = (num > 0) & (num < len(rates))
    value = np.where(inside, low + part * (np.where(inside, high, 0.0) - low), low)
    return Reading(low, high, value)


@dataclass(frozen=True)
class SloPlane:
    """Goodput of scenarios under every pair of limits, and the times behind it.

    times: by scenario, the latencies of its requests at each rate. rates: requests per second.
    ttft, tpot: limits, seconds. asked: the share of the requests that has to keep both.
    num_gpus: by scenario; where all are known, goodput is compared by GPU. warnings: of its runs.
    """

    times: Mapping[str, Sequence[RequestTimes]]
    rates: Array
    ttft: Array
    tpot: Array
    asked: float
    num_gpus: Mapping[str, int | None]
    warnings: tuple[ResultWarning, ...] = ()

    def with_limits(self, ttft: Array, tpot: Array) -> SloPlane:
        """Return the same runs under other limits, ascending, seconds; without new runs."""
        return replace(self, ttft=ttft, tpot=tpot)

    @cached_property
    def goodput(self) -> dict[str, Reading]:
        """The goodput of each scenario."""
        found = {}
        for name, runs in self.times.items():
            shares = np.array([attainment(times, self.ttft, self.tpot) for times in runs])
            found[name] = read_goodput(self.rates, shares, self.asked)
        return found

    @property
    def by_gpu(self) -> bool:
        """Whether goodput is compared by GPU."""
        return all(self.num_gpus.values())

    @cached_property
    def winners(self) -> NDArray[np.str_]:
        """Name of the design with most goodput under each pair of limits; "tie" or "nobody"."""
        names = np.array([*self.goodput, TIE, NOBODY])
        values = np.array([self._scaled(name, r.value) for name, r in self.goodput.items()])
        best = values.max(axis=0)
        who = values.argmax(axis=0)
        who = np.where((values == best).sum(axis=0) > 1, len(values), who)
        return np.asarray(names[np.where(best > 0, who, len(values) + 1)])

    @cached_property
    def is_clear(self) -> NDArray[np.bool_]:
        """Where the winner attains a rate that all others miss, if there are others."""
        found = np.zeros(self.winners.shape, dtype=bool)
        for name, reading in self.goodput.items():
            others = [self._scaled(k, r.high) for k, r in self.goodput.items() if k != name]
            beaten = self._scaled(name, reading.low) >= np.max(
                [np.zeros(found.shape), *others], axis=0
            )
            found |= (self.winners == name) & beaten
        return found

    @property
    def num_open(self) -> int:
        """Pairs whose best designs attain every rate that was run: their tie is open."""
        all_attained = np.any([np.isinf(r.high) for r in self.goodput.values()], axis=0)
        return int(np.count_nonzero(all_attained & (self.winners == TIE)))

    def _scaled(self, name: str, rates: Array) -> Array:
        return rates / (self.num_gpus[name] or 1) if self.by_gpu else rates

    @property
    def table(self) -> pd.DataFrame:
        """A row for each pair of limits and scenario."""
        import pandas as pd

        rows, columns = np.indices(self.winners.shape).reshape(2, -1)
        parts = [
            pd.DataFrame(
                {
                    "ttft_limit_s": self.ttft[rows],
                    "tpot_limit_s": self.tpot[columns],
                    "scenario": name,
                    "goodput": reading.value[rows, columns],
                    "attained_rate": reading.low[rows, columns],
                    "missed_rate": reading.high[rows, columns],
                    "winner": self.winners[rows, columns],
                    "is_clear": self.is_clear[rows, columns],
                }
            )
            for name, reading in self.goodput.items()
        ]
        order = ["ttft_limit_s", "tpot_limit_s"]
        return pd.concat(parts).sort_values(order, kind="stable", ignore_index=True)

    @property
    def request_times(self) -> pd.DataFrame:
        """A row per request, scenario and rate: times that decide any other pair of limits."""
        import pandas as pd

        parts = [
            pd.DataFrame({"scenario": name, "rate": rate, **times.latencies})
            for name, runs in self.times.items()
            for rate, times in zip(self.rates.tolist(), runs, strict=True)
        ]
        return pd.concat(parts, ignore_index=True)

    @property
    def summary(self) -> dict[str, Any]:
        """The plane as plain data; a row a limit on TTFT, in it a value a limit on TPOT."""
        return {
            "ttft_limits_s": self.ttft.tolist(),
            "tpot_limits_s": self.tpot.tolist(),
            "rates": self.rates.tolist(),
            "attainment_asked": self.asked,
            "by_gpu": self.by_gpu,
            "winners": self.winners.tolist(),
            "is_clear": self.is_clear.tolist(),
            "num_open": self.num_open,
            "goodput": {name: reading.value.tolist() for name, reading in self.goodput.items()},
        }

    @property
    def files(self) -> dict[str, Content]:
        """Its files in a folder: the summary, its tables and the picture."""
        from mist_sim.report.pictures.findings import plane_picture

        return {
            "slo_plane.json": json_text(self.summary),
            "slo_plane.csv": self.table,
            "request_times.parquet": self.request_times,
            "slo_plane.png": partial(plane_picture, self.summary),
        }


def run_plane(
    builts: Mapping[str, Built], options: PlaneOptions, driver: Driver
) -> tuple[SloPlane, dict[str, Failure]]:
    """Run each scenario at every rate, to its end; return the plane, and the scenarios that failed.

    With replications the requests of all seeds count.
    """
    first = next(iter(builts.values())).rates.own
    ends = options.rates or (first * _AROUND[0], first * _AROUND[1])
    check_rates(ends)
    rates = np.geomspace(*ends, options.num_rates)
    tasks = []
    for name, built in builts.items():
        seeds = seeds_from(built.scenario.seed, built.scenario.replications)
        tasks += [
            Task((name, rate), times_data, (built.data, built.rates.at(rate), seeds))
            for rate in rates.tolist()
        ]
    times: dict[str, list[RequestTimes]] = {name: [] for name in builts}
    told: dict[str, list[tuple[ResultWarning, ...]]] = {name: [] for name in builts}
    failed: dict[str, Failure] = {}
    for row in driver.run(tasks, keep_errors=True):
        name, rate = str(row.key[0]), row.key[1]
        if row.failure is not None:
            failed.setdefault(name, row.failure)
            continue
        told[name].append(of_data(row.result))
        latencies = {kind: each for kind, each in row.result.items() if kind != "warnings"}
        found = RequestTimes(**{kind: np.array(each) for kind, each in latencies.items()})
        if not len(found):
            raise ScenarioError(f"warmup must end before the last request arrives; at {rate:g} /s")
        times[name].append(found)
    whole = {name: runs for name, runs in times.items() if name not in failed}
    gpus = {name: builts[name].num_gpus for name in whole}
    slos = [built.scenario.slo.make() for built in builts.values()]
    asked = max(asked_share(slo, options.attainment) for slo in slos)
    warnings = tuple(
        replace(each, text=f"plane of limits: {each.text}")
        for each in of_points({name: over_runs(told[name]) for name in whole})
    )
    return SloPlane(whole, rates, *options.limits, asked, gpus, warnings), failed


def times_data(
    data: dict[str, Any], changes: dict[str, Any], seeds: Sequence[int]
) -> dict[str, Any]:
    """Run a scenario with changes once a seed, as a task of a study.

    Returns the latencies of all requests as lists, and the `warnings` that need no summary.
    """
    parts, told = [], []
    for seed in seeds:
        simulation = build(one_run(data, seed, changes))
        recorder = simulation.run().recorder
        parts.append(RequestTimes.of(recorder, simulation.warmup).latencies)
        told.append(tuple(record_warnings(recorder, simulation.warmup)))
    latencies = {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}
    found = {name: values.tolist() for name, values in latencies.items()}
    return found | {"warnings": [each.data for each in over_runs(told)]}
