"""Constraints on a configuration: its budget, and the limits of its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isnan
from typing import Any

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.metrics.keeping import LimitOnShare
from mist_sim.search.spaces.objectives import METRICS, OBJECTIVES, PERCENTILES
from mist_sim.search.verdicts.request_times import check_attainment, percentiles_of
from mist_sim.units import DURATION

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
    budgets = {name: _budget(name, given[name]) for name in BUDGETS if name in given}
    latencies = {name: _limit(name, given[name]) for name in LATENCIES if name in given}
    share = given.get(ATTAINMENT)
    if share is not None:
        share = _positive(ATTAINMENT, share)
        check_attainment(share)
    for problem in _contradictions(latencies):
        raise ScenarioError(problem)
    return Constraints(budgets, latencies, share, _at_goodput(given))


def _at_goodput(given: Mapping[str, Any]) -> tuple[LimitOnShare, ...]:
    if AT_GOODPUT not in given:
        return ()
    try:
        return percentiles_of(given[AT_GOODPUT])
    except ScenarioError as error:
        raise ScenarioError(f"constraints.{AT_GOODPUT}: {error}") from None


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


def _budget(name: str, value: object) -> float:
    number = _positive(name, value)
    if name == "max_gpus" and number < 1:
        raise ScenarioError(f"constraints.max_gpus: must be >= 1, got {brief(value)}")
    return number


def _limit(name: str, value: object) -> float:
    try:
        found = DURATION.parse(value)
    except ScenarioError as error:
        raise ScenarioError(f"constraints.{name}: {error}") from None
    if found <= 0:
        raise ScenarioError(f"constraints.{name}: must be > 0 s, got {brief(value)}")
    return found


def _positive(name: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < float(str(value)) < inf:
        raise ScenarioError(f"constraints.{name}: must be a number > 0, got {brief(value)}")
    return float(str(value))


def _number(value: float) -> str:
    return f"{value:.4g}"
