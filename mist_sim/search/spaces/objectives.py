"""Figures by which configurations are compared: where each comes from, and which is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any, Literal

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.search.ranking import Better

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

    def scale(self, known: Mapping[str, float]) -> float:
        """Return the divisor of a goodput (requests per second) for this figure."""
        if not self.per:
            return 1.0
        return known[self.per] / (_SECONDS_AN_HOUR if self.per == "usd_per_hour" else 1.0)


_GOOD_PER_USD = "good_tokens_per_usd"
_COST, _ENERGY = "cost_per_million_output_tokens_usd", "energy_per_output_token_j"

OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        Objective("goodput", "more", "rate", "goodput", "/s"),
        Objective("goodput_per_gpu", "more", "rate", "goodput", "/s a GPU", per="num_gpus"),
        Objective("goodput_per_usd", "more", "rate", "goodput", "a $", per="usd_per_hour"),
        Objective(
            "goodput_per_joule", "more", "at goodput", "goodput", "a J", "requests_per_joule"
        ),
        Objective(
            "good_tokens_per_joule_at_goodput",
            "more",
            "at goodput",
            "good tokens",
            "a J",
            "good_tokens_per_joule",
        ),
        Objective(
            "good_tokens_per_usd_at_goodput",
            "more",
            "at goodput",
            "good tokens",
            "a $",
            _GOOD_PER_USD,
        ),
        Objective(
            "cost_per_million_output_tokens_at_goodput_usd",
            "less",
            "at goodput",
            "$ a million",
            "at goodput",
            _COST,
        ),
        Objective(
            "energy_per_output_token_at_goodput_j",
            "less",
            "at goodput",
            "J a token",
            "at goodput",
            _ENERGY,
        ),
        Objective("num_gpus", "less", "known", "GPUs"),
        Objective("usd_per_hour", "less", "known", "$", "an hour"),
        Objective("watts", "less", "known", "power", "W"),
        *(
            Objective(f"p{p}_{key}", "less", "at rate", f"p{p} {title}", "ms", f"p{p}_{key}_ms")
            for key, title in METRICS.items()
            for p in PERCENTILES
        ),
        Objective("good_request_fraction", "more", "at rate", "good", "requests"),
        Objective(
            "output_throughput",
            "more",
            "at rate",
            "output",
            "tokens/s",
            "steady_output_throughput",
        ),
        Objective(_COST, "less", "at rate", "$ a million", "output tokens", _COST),
        Objective(_ENERGY, "less", "at rate", "J a token", "", _ENERGY),
    )
}
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


def at_rate(objective: Objective, summary: Mapping[str, Any]) -> float:
    """Return the figure of a run; NaN without one. summary: of the run."""
    return float(summary.get(objective.key or objective.name, nan))


def at_goodput(objective: Objective, spending: Mapping[str, float]) -> float:
    """Return the figure of a run at the goodput; NaN without one. spending: `spending_at`."""
    return float(spending.get(objective.key, nan))
