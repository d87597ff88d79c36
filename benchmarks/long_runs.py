"""Long runs by which searches for goodput are judged: does a scenario attain a rate?

They are judged as they stand, with a seed of their own, and end as soon as too many requests have
missed, so that hopeless ones cost a tenth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mist_sim.scenario import Scenario, build
from mist_sim.scenario.loading import as_data
from mist_sim.search.binding import relaxed
from mist_sim.search.goodput import GoodputOptions
from mist_sim.studies.built import Rates
from mist_sim.studies.verdicts.trials import Trial, run_workload

LONG, LONGER = 30_000, 120_000  # requests
SEED = 20_000  # another one than that of any search
MORE = 0.1  # of a resource, as a share
FINE = 0.005  # to which a goodput is found
_ROUNDING = 1e-9
OPTIONS = GoodputOptions()
TOLERANCE = OPTIONS.tolerance


@dataclass(frozen=True)
class LongRuns:
    """Long runs. num_requests: of each. resource: that there is a tenth more of (`relaxed`)."""

    num_requests: int = LONG
    resource: str | None = None

    def attains(self, scenario: Scenario, rate: float) -> bool:
        """Tell whether a scenario attains a rate, requests per second."""
        return self.run(scenario, rate).attained is True

    def run(self, scenario: Scenario, rate: float) -> Trial:
        """Run a scenario at a rate, requests per second; a hopeless run ends early."""
        changes = Rates(scenario).at(rate) | {
            "workload.lengths.num_requests": self.num_requests,
            "seed": SEED,
            "replications": 1,
        }
        made = Scenario.from_dict(as_data(scenario), changes)
        more = made if self.resource is None else relaxed(made, self.resource, MORE)
        target = OPTIONS.target(scenario)
        return run_workload(build(more or made), target, self.num_requests, rate, SEED)

    def goodput(self, scenario: Scenario, near: float, fine: float = FINE) -> tuple[float, float]:
        """Return a rate that is attained and one that is missed, and as near as `fine`."""
        low, high = near, near
        if self.attains(scenario, near):
            while self.attains(scenario, high := low * (1 + TOLERANCE)):
                low = high
        else:
            while not self.attains(scenario, low := high / (1 + TOLERANCE)):
                high = low
        while high / low > 1 + fine + _ROUNDING:
            middle = (low + high) / 2
            low, high = (middle, high) if self.attains(scenario, middle) else (low, middle)
        return low, high

    def attained_below(self, scenario: Scenario, rate: float) -> float:
        """Return the first rate that is attained, down from a rate in steps of two percent."""
        while not self.attains(scenario, rate):
            rate /= 1 + TOLERANCE
        return rate

    def attaining(self, scenarios: Mapping[str, Scenario], rate: float) -> list[str]:
        """Return the names of the scenarios that attain a rate."""
        return [name for name, each in scenarios.items() if self.attains(each, rate)]
