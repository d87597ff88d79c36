"""A plan over a day: how many engines each hour needs, and dollars with and without scaling.

The busiest hour says what to buy: the engines and their settings. At the rate of another hour fewer
of them may keep the limits; the fewest are found as the cheapest of any plan, among candidates that
differ in their counts alone. More load needs no fewer engines, so that hours whose rates lie
between two with equal counts need no search.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, inf, pi
from pathlib import Path
from typing import Any

from mist_sim.errors import ScenarioError, brief
from mist_sim.inputs import check_columns, opened
from mist_sim.metrics.spending import HOURS_A_MONTH
from mist_sim.scenario import Scenario
from mist_sim.search.planning.candidates import Candidate
from mist_sim.search.planning.hunt import Confidence, Tried
from mist_sim.search.planning.question import HOURS
from mist_sim.traces.arrivals import DailyArrivals, ScheduledArrivals
from mist_sim.traces.base import TRACE_READERS
from mist_sim.traces.readers.opening import reader_of

_HOUR = 3600.0
_DAY = HOURS * _HOUR
_COLUMNS = ("hour", "rate")
_LINE = 4096  # bytes of a first line that may be a header
_LONG_RUN = 3000  # requests of a workload at one rate; runs draw as many as they need


@dataclass(frozen=True)
class Need:
    """What a rate needs.

    tried: the fewest engines that are seen to keep the limits, at this rate or a higher one.
    confidence: that they keep them. is_fewest: whether fewer are known to miss.
    """

    tried: Tried
    confidence: Confidence
    is_fewest: bool

    @property
    def candidate(self) -> Candidate:
        """The engines, and how they are set."""
        return self.tried.candidate


@dataclass(frozen=True)
class Day:
    """What each hour of a day needs. rates: requests per second, by hour. needs: likewise."""

    rates: Sequence[float]
    needs: Sequence[Need]

    @property
    def fixed(self) -> float:
        """Dollars of a day if the engines of the busiest hour stay up."""
        return HOURS * max(need.candidate.dollars for need in self.needs)

    @property
    def by_hour(self) -> float:
        """Dollars of a day if each hour has what it needs, and starts and ends take no time."""
        return sum(need.candidate.dollars for need in self.needs)

    @property
    def data(self) -> dict[str, Any]:
        """It as plain data."""
        days = HOURS_A_MONTH / HOURS
        return {
            "hours": [
                {
                    "hour": hour,
                    "rate": rate,
                    "name": need.candidate.name,
                    "design": need.candidate.setting,
                    "num_engines": need.candidate.num_engines,
                    "num_gpus": need.candidate.num_gpus,
                    "usd_per_hour": need.candidate.dollars,
                    "confidence": need.confidence,
                    "is_fewest": need.is_fewest,
                }
                for hour, (rate, need) in enumerate(zip(self.rates, self.needs, strict=True))
            ],
            "fixed_usd_per_day": self.fixed,
            "fixed_usd_per_month": days * self.fixed,
            "by_hour_usd_per_day": self.by_hour,
            "by_hour_usd_per_month": days * self.by_hour,
            "saved": max(1 - self.by_hour / self.fixed, 0.0),
        }


def day_of(rates: Sequence[float], busiest: Need, look: Callable[[float, int, Need], Need]) -> Day:
    """Return what each hour needs.

    rates: requests per second, by hour. busiest: the need of the highest. look: finds that of a
    rate, from so many engines up to those of a need that is known to do. An hour without requests
    keeps what the lowest rate of another needs.
    """
    steps = sorted({*rates} - {0.0})
    known = {steps[-1]: busiest}
    if len(steps) > 1:
        known[steps[0]] = look(steps[0], 1, busiest)
        _fill(steps, known, look)
    known[0.0] = known[steps[0]]
    return Day(rates, [known[rate] for rate in rates])


def _fill(
    steps: Sequence[float], known: dict[float, Need], look: Callable[[float, int, Need], Need]
) -> None:
    """Note the needs of rates between the first and the last, which are known; halve and go on."""
    between, low, high = steps[1:-1], known[steps[0]], known[steps[-1]]
    if not between:
        return
    least = low.candidate.num_engines if low.is_fewest else 1
    if least == high.candidate.num_engines:
        known.update(dict.fromkeys(between, high))
        return
    middle = len(steps) // 2
    known[steps[middle]] = look(steps[middle], least, high)
    _fill(steps[: middle + 1], known, look)
    _fill(steps[middle:], known, look)


def at_one_rate(scenario: Scenario) -> Scenario:
    """Return a scenario whose requests come as in one hour: Poisson, where its rate varies.

    Of a workload as long as its day only so many requests are left as runs take.
    """
    workload = scenario.workload
    if not isinstance(workload.arrivals.make(), DailyArrivals | ScheduledArrivals):
        return scenario
    changes: dict[str, Any] = {"workload.arrivals": {"type": "poisson", "rate": "1 /s"}}
    if workload.trace is None and (workload.num_requests or 0) > _LONG_RUN:
        changes["workload.lengths.num_requests"] = _LONG_RUN
    return scenario.changed(changes)


def own_day(scenario: Scenario) -> tuple[float, ...]:
    """Return the highest rate of each hour from midnight on, requests per second.

    Raises ScenarioError for arrivals that are no day of 24 hours.
    """
    arrivals = scenario.workload.arrivals.make()
    if getattr(arrivals, "period", None) == _DAY:
        if isinstance(arrivals, DailyArrivals):
            return tuple(_highest(arrivals, hour) for hour in range(HOURS))
        if isinstance(arrivals, ScheduledArrivals):
            return tuple(_highest_of(arrivals, hour) for hour in range(HOURS))
    raise ScenarioError(
        "day must be a file unless workload.arrivals are of type day, or of type schedule with a "
        "period of 24 h; give a CSV with the columns hour and rate, or a trace of a day"
    )


def _highest(arrivals: DailyArrivals, hour: int) -> float:
    """Return the highest rate of an hour of a cosine: at its peak, or at an end of the hour."""
    begin = (hour * _HOUR - arrivals.peak_at) % _DAY
    turns = [0.0] if begin + _HOUR >= _DAY else [begin / _DAY, (begin + _HOUR) / _DAY]
    highest = max((1 + cos(2 * pi * turn)) / 2 for turn in turns)
    return arrivals.low + (arrivals.peak - arrivals.low) * highest


def _highest_of(plan: ScheduledArrivals, hour: int) -> float:
    begin, end = hour * _HOUR, (hour + 1) * _HOUR
    ends = (*plan.at[1:], _DAY)
    pieces = zip(plan.at, ends, plan.rates, strict=True)
    return max(rate for start, stop, rate in pieces if start < end and stop > begin)


def day_in(file: str, form: str | None = None) -> tuple[float, ...]:
    """Return the rate of each hour in a file, requests per second.

    file: a CSV with the columns hour (0 to 23, each once) and rate (>= 0); or a trace of a day or
    more, whose requests are counted by the hour since its first, on average over its days. form: of
    a trace; None: by its first line.
    Raises ScenarioError and TraceError for other files.
    """
    path = Path(file)
    with opened(path) as opened_file:
        first = opened_file.readline(_LINE).decode("utf-8-sig", "replace")
    header = [name.strip() for name in first.split(",")]
    if {*_COLUMNS} & {*header}:
        check_columns(header, _COLUMNS, str(path))
        return _of_table(path)
    return _of_trace(file, form)


def _of_table(path: Path) -> tuple[float, ...]:
    with opened(path) as file:
        lines = file.read().decode("utf-8-sig", "replace").splitlines()
    found: dict[int, float] = {}
    for number, row in enumerate(csv.DictReader(lines, skipinitialspace=True), start=2):
        given: Mapping[str, Any] = {(k or "").strip(): v for k, v in row.items()}
        where = f"{path}, line {number}"
        hour, rate = (_number(given[name], name, where) for name in _COLUMNS)
        if hour not in range(HOURS) or hour in found:
            raise ScenarioError(
                f"{where}: hour must be from 0 to {HOURS - 1}, each once, got {hour:g}"
            )
        if not 0 <= rate < inf:
            raise ScenarioError(f"{where}: rate must be finite and >= 0 /s, got {rate:g}")
        found[int(hour)] = rate
    if missing := [hour for hour in range(HOURS) if hour not in found]:
        raise ScenarioError(
            f"{path}: must have a row for each hour from 0 to {HOURS - 1}, got none for "
            f"{', '.join(map(str, missing))}"
        )
    return tuple(found[hour] for hour in range(HOURS))


def _number(text: object, name: str, where: str) -> float:
    try:
        return float(str(text))
    except ValueError:
        raise ScenarioError(f"{where}: {name} must be a number, got {brief(text)}") from None


def _of_trace(file: str, form: str | None) -> tuple[float, ...]:
    TRACE_READERS.find_entry_points()
    counts: Counter[int] = Counter()
    end = 0.0
    for row in reader_of(file, form).rows():
        if row.arrival_time is None:
            raise ScenarioError(f"{file}: its requests must have times for --day, got none")
        counts[int(row.arrival_time // _HOUR) % HOURS] += 1
        end = max(end, row.arrival_time)
    if round(end / _HOUR) < HOURS:
        raise ScenarioError(
            f"{file}: must cover {HOURS} hours for --day, got {end / _HOUR:.3g}; give a longer "
            "trace, or a CSV with the columns hour and rate"
        )
    return tuple(counts[hour] / _covered(hour, end) for hour in range(HOURS))


def _covered(hour: int, end: float) -> float:
    """Return the seconds that a trace has of an hour, over all its days. end: of the trace."""
    begins = (day * _DAY + hour * _HOUR for day in range(int(end // _DAY) + 1))
    return sum(min(max(end - begin, 0.0), _HOUR) for begin in begins)
