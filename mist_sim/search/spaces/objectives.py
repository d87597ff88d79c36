"""Figures by which configurations are compared, and constraints: budgets, limits of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Any, Literal

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.metrics.keeping import LimitOnShare
from mist_sim.search.ranking import Better
from mist_sim.studies.verdicts.request_times import check_attainment, percentiles_of
from mist_sim.units import DURATION

Source = Literal["known", "rate", "at goodput", "at rate"]
"""Known before anything runs; the goodput, by itself or over something known; a run at the goodput;
a run at the scenario's own rate."""

PERCENTILES = (50, 90, 95, 99)
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
_SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True)
class Objective:
    """A figure. title, unit: for tables. key: its name in a run's summary.

    per: divisor of a goodput; "": none.
    """

    name: str
    better: Better
    source: Source
    title: str
    unit: str = ""
    key: str = ""
    per: str = ""

    @property
    def takes_prices(self) -> bool:
        """Whether a run has to count its dollars for it."""
        return self.key in (_COST, _GOOD_PER_USD)

    def ahead(self, one: float, other: float) -> bool:
        """Tell whether one value is better than another."""
        return one > other if self.better == "more" else one < other

    def of(self, figures: Mapping[str, Any]) -> float:
        """Return the figure of a run; NaN without one. figures: its summary, or its spending."""
        return float(figures.get(self.key or self.name, nan))

    def scale(self, known: Mapping[str, float]) -> float:
        """Return the divisor of a goodput (requests per second) for this figure."""
        if not self.per:
            return 1.0
        return known[self.per] / (_SECONDS_AN_HOUR if self.per == "usd_per_hour" else 1.0)


_GOOD_PER_USD, _GOOD_PER_JOULE = "good_tokens_per_usd", "good_tokens_per_joule"
_COST, _ENERGY = "cost_per_million_output_tokens_usd", "energy_per_output_token_j"
_COST_THERE = "cost_per_million_output_tokens_at_goodput_usd"
_ENERGY_THERE = "energy_per_output_token_at_goodput_j"

_AT_RATE = [
    (f"p{p}_{key}", "less", "at rate", f"p{p} {title}", "ms", f"p{p}_{key}_ms")
    for key, title in METRICS.items()
    for p in PERCENTILES
]
_ROWS: list[tuple[Any, ...]] = [  # in the order of the fields
    ("goodput", "more", "rate", "goodput", "/s"),
    ("goodput_per_gpu", "more", "rate", "goodput", "/s a GPU", "", "num_gpus"),
    ("goodput_per_usd", "more", "rate", "goodput", "a $", "", "usd_per_hour"),
    ("goodput_per_joule", "more", "at goodput", "goodput", "a J", "requests_per_joule"),
    (f"{_GOOD_PER_JOULE}_at_goodput", "more", "at goodput", "good tokens", "a J", _GOOD_PER_JOULE),
    (f"{_GOOD_PER_USD}_at_goodput", "more", "at goodput", "good tokens", "a $", _GOOD_PER_USD),
    (_COST_THERE, "less", "at goodput", "$ a million", "at goodput", _COST),
    (_ENERGY_THERE, "less", "at goodput", "J a token", "at goodput", _ENERGY),
    ("num_gpus", "less", "known", "GPUs"),
    ("usd_per_hour", "less", "known", "$", "an hour"),
    ("watts", "less", "known", "power", "W"),
    *_AT_RATE,
    ("good_request_fraction", "more", "at rate", "good", "requests"),
    ("output_throughput", "more", "at rate", "output", "tokens/s", "steady_output_throughput"),
    (_COST, "less", "at rate", "$ a million", "output tokens", _COST),
    (_ENERGY, "less", "at rate", "J a token", "", _ENERGY),
]
OBJECTIVES: Mapping[str, Objective] = {row[0]: Objective(*row) for row in _ROWS}
"""What can be asked for. Dollars are those of the GPUs; watts are thermal design power; what is of
a run `at rate` is of the workload as it stands, at the scenario's own rate."""


def objectives_of(names: object) -> tuple[Objective, ...]:
    """Return the objectives of a list of names. Raises ScenarioError for unknown or no names."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, list | tuple) or not found:
        raise ScenarioError(
            "objectives must be a list of figures, such as [goodput_per_usd], got "
            f"{brief(names)}; known: {', '.join(OBJECTIVES)}"
        )
    for name in found:
        if not isinstance(name, str) or name not in OBJECTIVES:
            hint = did_you_mean(str(name), OBJECTIVES)
            raise ScenarioError(
                f"objectives must be of {', '.join(OBJECTIVES)}; got {brief(name)}{hint}"
            )
    if len(set(found)) < len(found):
        raise ScenarioError(f"objectives must differ, got {brief(list(found))}")
    return tuple(OBJECTIVES[name] for name in found)


BUDGETS = {"max_gpus": "num_gpus", "max_usd_per_hour": "usd_per_hour", "max_watts": "watts"}
"""Constraints on what is known before anything runs, and the figures that they limit."""

LATENCIES = tuple(f"p{p}_{metric}" for metric in METRICS for p in PERCENTILES)
ATTAINMENT = "attainment"
AT_GOODPUT = "at_goodput"
_KNOWN = (*BUDGETS, *LATENCIES, ATTAINMENT, AT_GOODPUT)


@dataclass(frozen=True)
class Constraints:
    """Constraints that a configuration must keep.

    budgets: by name, as in `BUDGETS`. latencies: by name, such as "p99_ttft", in seconds, of a run
        at the scenario's own rate. attainment: required share of good requests, at the goodput if
        an objective needs one, else at the scenario's own rate; None: not set.
        at_goodput: percentiles to keep at the goodput as well.
    """

    budgets: Mapping[str, float]
    latencies: Mapping[str, float]
    attainment: float | None = None
    at_goodput: tuple[LimitOnShare, ...] = ()

    def broken_before(self, known: Mapping[str, float]) -> dict[str, str]:
        """Return the budgets that are exceeded, each with the reason."""
        return {
            name: f"{_number(known[BUDGETS[name]])} {_UNITS[name]}, more than {_number(most)}"
            for name, most in self.budgets.items()
            if known[BUDGETS[name]] > most
        }

    def broken_after(self, summary: Mapping[str, Any]) -> dict[str, str]:
        """Return the latencies of a run that are above their limits, each with the reason."""
        found = {}
        for name, limit in self.latencies.items():
            value = float(summary.get(f"{name}_ms", inf))
            if isnan(value) or value > 1e3 * limit:
                title = OBJECTIVES[name].title
                found[name] = f"{title} {_number(value)} ms, more than {_number(1e3 * limit)}"
        return found

    @property
    def names(self) -> list[str]:
        """All of them."""
        own = [ATTAINMENT] * (self.attainment is not None) + [AT_GOODPUT] * bool(self.at_goodput)
        return [*self.budgets, *self.latencies, *own]


_UNITS = {"max_gpus": "GPUs", "max_usd_per_hour": "$/h", "max_watts": "W"}


def constraints_of(given: object) -> Constraints:
    """Return the constraints of a mapping.

    Raises ScenarioError for unknown ones, values that limit nothing, and constraints made pointless
    by another.
    """
    if not isinstance(given, Mapping):
        raise ScenarioError(
            f"constraints must be a mapping, such as {{max_gpus: 8}}, got {brief(given)}"
        )
    for name in given:
        if name not in _KNOWN:
            raise ScenarioError(
                f"constraints.{name}: unknown; known: {', '.join(BUDGETS)}, {ATTAINMENT}, "
                f"{AT_GOODPUT}, and "
                f"p50, p90, p95 and p99 of ttft, tpot, itl and e2el{did_you_mean(name, _KNOWN)}"
            )
    budgets = {name: _positive(name, given[name]) for name in BUDGETS if name in given}
    if budgets.get("max_gpus", 1) < 1:
        raise ScenarioError(f"constraints.max_gpus: must be >= 1, got {brief(given['max_gpus'])}")
    latencies: dict[str, float] = {}
    at_goodput: tuple[LimitOnShare, ...] = ()
    for name in [name for name in (*LATENCIES, AT_GOODPUT) if name in given]:
        try:
            if name == AT_GOODPUT:
                at_goodput = percentiles_of(given[name])
            else:
                latencies[name] = DURATION.parse(given[name])
        except ScenarioError as error:
            raise ScenarioError(f"constraints.{name}: {error}") from None
        if latencies.get(name, 1) <= 0:
            raise ScenarioError(f"constraints.{name}: must be > 0 s, got {brief(given[name])}")
    share = given.get(ATTAINMENT)
    if share is not None:
        share = _positive(ATTAINMENT, share)
        check_attainment(share)
    for problem in _contradictions(latencies):
        raise ScenarioError(problem)
    return Constraints(budgets, latencies, share, at_goodput)


def _contradictions(limits: Mapping[str, float]) -> Iterator[str]:
    """Yield which limits cannot both matter."""
    for name, limit in limits.items():
        percentile, _, metric = name.partition("_")
        for other, other_limit in limits.items():
            higher, _, other_metric = other.partition("_")
            above = int(higher[1:]) > int(percentile[1:])
            if metric == other_metric and above and other_limit <= limit:
                yield (
                    f"constraints.{name}: {limit:g} s contradicts {other}: {other_limit:g} s, "
                    f"which is the larger of the two times and has to be below less; raise "
                    f"{other}, or leave {name} out"
                )
            whole = metric == "ttft" and other == f"{percentile}_e2el"
            if whole and other_limit <= limit:
                yield (
                    f"constraints.{name}: {limit:g} s contradicts {other}: {other_limit:g} s, "
                    f"since a request ends after its first token; raise {other}, or leave {name} "
                    "out"
                )


def _positive(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < float(str(value)) < inf:
        raise ScenarioError(f"constraints.{name}: must be a number > 0, got {brief(value)}")
    return float(str(value))


def _number(value: float) -> str:
    return f"{value:.4g}"
