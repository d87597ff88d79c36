"""A scenario that is built once, for all that is asked of it before it runs, and its rates.

At other rates the requests and random streams are the same; only their arrivals scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any, ClassVar
from weakref import ref

import numpy as np

from mist_sim.bounds import QUANTITIES
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError
from mist_sim.hardware import gpu_group
from mist_sim.metrics.keeping import USERS
from mist_sim.metrics.spending import dollars_an_hour, rent_summary
from mist_sim.rng import Streams
from mist_sim.scenario import Scenario, build
from mist_sim.scenario.loading import as_data
from mist_sim.simulation import Simulation
from mist_sim.traces import (
    AllAtOnce,
    ArrivalProcess,
    BurstyArrivals,
    ClosedLoop,
    DailyArrivals,
    ScheduledArrivals,
    TraceArrivals,
    Workload,
)


@dataclass(frozen=True)
class Built:
    """A scenario with its parts. They never run: a run changes them, and has parts of its own."""

    scenario: Scenario

    @cached_property
    def simulation(self) -> Simulation:
        """The parts. Raises ScenarioError as `build` does."""
        return build(self.scenario)

    @cached_property
    def data(self) -> dict[str, Any]:
        """The scenario as plain mappings, as tasks have it."""
        return as_data(self.scenario)

    @cached_property
    def rates(self) -> Rates:
        """The rates at which its requests can be sent. Raises ScenarioError as `Rates` does."""
        return Rates(self.scenario, ref(self))

    @cached_property
    def load(self) -> Rates | Users:
        """Its users, if it is a closed loop, or else its rates. Raises ScenarioError as these."""
        is_loop = isinstance(self.simulation.workload.arrivals, ClosedLoop)
        return Users(self.scenario) if is_loop else self.rates

    def at(self, rate: float) -> Scenario:
        """Return the scenario at a rate (requests per second)."""
        return Scenario.from_dict(self.data, self.rates.at(rate))

    @property
    def workload(self) -> Workload:
        """The requests and their arrivals."""
        return self.simulation.workload

    @cached_property
    def expected_errors(self) -> dict[str, Any]:
        """Expected errors of its clients' TTFT and TPOT against a real engine."""
        return self.simulation.expected_errors

    @property
    def assumed_host(self) -> dict[str, Mapping[str, Any]]:
        """Effect of an assumed host of GPUs, by client; empty where all are named."""
        origins = {client.name: client.traits.times for client in self.simulation.clients}
        return {n: at.assumed_host for n, at in origins.items() if at and at.assumed_host}

    @cached_property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of every result of its runs (`Simulation.warnings`)."""
        return self.simulation.warnings

    @property
    def asks_for_spending(self) -> bool:
        """Whether power or cost was set in the scenario."""
        return self.simulation.asks_for_spending

    @property
    def machines(self) -> list[Any]:
        """The machine of each client; None where it has none."""
        return [client.traits.machine for client in self.simulation.clients]

    @property
    def gpu_names(self) -> frozenset[str]:
        """The kinds of GPUs of all clients, by name."""
        return frozenset(group.gpu.name for each in self.machines if each for group in each.groups)

    @property
    def gpu_price(self) -> float:
        """Dollars of a GPU an hour, on average; NaN without prices or known GPUs."""
        cost = self.simulation.cost
        if cost is None or not self.num_gpus:
            return nan
        return dollars_an_hour(self.machines, cost) / self.num_gpus

    @property
    def rent(self) -> dict[str, Any]:
        """Dollars an hour of all GPUs (`rent_summary`); empty where a GPU has no price."""
        cost = self.scenario.cost.make() if self.scenario.cost else None
        return rent_summary(self.machines, cost)

    @cached_property
    def num_gpus(self) -> int | None:
        """The GPUs of all clients; None where an engine's are not known."""
        all_traits = [client.traits for client in self.simulation.clients]
        if any(traits.machine is None and traits.times is not None for traits in all_traits):
            return None
        return sum(gpu_group.num_gpus(traits.machine) for traits in all_traits)


_BY_TIMES = TraceArrivals | ScheduledArrivals | DailyArrivals  # rates over the workload's requests

_FOR_USERS = "mist goodput tells how many users it may have, mist plan what so many need"
_ALONE = 2.0**-20  # times the scenario's own rate


RATE, USER_COUNT = "/s", "users"
"""Units of a load."""


def unit_of(load: float) -> str:
    """Return the unit of a load: an int is a number of users, a float a rate."""
    return USER_COUNT if isinstance(load, int) else RATE


def load_in_words(load: float) -> str:
    """Return a load with its unit; requests per second with four digits."""
    if isinstance(load, int):
        return f"{load} user{'s' * (load != 1)}"
    return f"{load:.4g} {RATE}"


@dataclass(frozen=True)
class Rates:
    """The rates at which a scenario's requests can be sent.

    Every arrival process draws gaps in proportion to the inverse of its rate, from a stream of its
    own, so that at another rate the same requests come in the same order, closer together or
    further apart.

    built: the scenario's parts, if already built; weak, since these keep their rates.
    Raises ScenarioError for arrivals without a rate, and a trace without one.
    """

    scenario: Scenario
    built: ref[Built] | None = None

    def __post_init__(self) -> None:
        has_none = isinstance(self._arrivals, ClosedLoop | AllAtOnce)
        has_own = isinstance(self._arrivals, _BY_TIMES | BurstyArrivals)
        if has_none or not (has_own or isinstance(getattr(self._arrivals, "rate", None), float)):
            of_users = isinstance(self._arrivals, ClosedLoop)
            raise ScenarioError(
                f"workload.arrivals must have a rate that can be changed, got {self._written}; "
                "choose poisson, gamma, constant, uniform, normal, bursty, schedule, day or a "
                "trace's own times" + of_users * f"; {_FOR_USERS}"
            )
        if not 0 < self.own < np.inf:
            raise ScenarioError(
                "workload.trace must last some time for a rate, got "
                f"{self.num_requests} requests in {self._times[-1] - self._times[0]:g} s; "
                "give arrivals a rate, such as {type: poisson, rate: 2 /s}"
            )

    @cached_property
    def own(self) -> float:
        """Requests per second on average, as the scenario says.

        Of a trace, and where the rate changes: on average over the workload's requests.
        """
        arrivals: Any = self._arrivals
        if isinstance(arrivals, _BY_TIMES):
            span = self._times[-1] - self._times[0]
            return float((self.num_requests - 1) / span) if span else 0.0
        if isinstance(arrivals, BurstyArrivals):
            return arrivals.rate_on * arrivals.on / (arrivals.on + arrivals.off)
        return float(arrivals.rate)

    @property
    def lone(self) -> float:
        """A rate at which a request is long over before the next, requests per second."""
        return self.own * _ALONE

    @property
    def num_requests(self) -> int:
        """Number of requests of the workload."""
        return len(self._times)

    def at(self, rate: float) -> dict[str, Any]:
        """Return the scenario settings for a rate (requests per second, > 0)."""
        arrivals: Any = self._arrivals
        factor = rate / self.own
        if isinstance(arrivals, TraceArrivals):
            found: dict[str, Any] = {"speedup": arrivals.speedup * factor}
        elif isinstance(arrivals, BurstyArrivals):
            found = {"rate_on": arrivals.rate_on * factor}
            found |= {"on": arrivals.on / factor, "off": arrivals.off / factor}
        elif isinstance(arrivals, ScheduledArrivals | DailyArrivals):
            found = arrivals.scaled(factor)
        else:
            found = {"rate": rate}
        return {
            f"workload.arrivals.{name}": _with_unit(value, self._written[name])
            for name, value in found.items()
        }

    @cached_property
    def _arrivals(self) -> ArrivalProcess | TraceArrivals | ClosedLoop:
        found: ArrivalProcess | TraceArrivals | ClosedLoop = self.scenario.workload.arrivals.make()
        return found

    @cached_property
    def _written(self) -> dict[str, Any]:
        written: dict[str, Any] = as_data(self.scenario)["workload"]["arrivals"]
        return written

    @cached_property
    def _times(self) -> list[float]:
        """Arrivals of requests as the scenario stands, seconds."""
        built = None if self.built is None else self.built()
        workload = (built or Built(self.scenario)).workload
        requests = workload.requests(Streams(self.scenario.seed))
        return [request.arrival_time or 0.0 for request in requests]


@dataclass(frozen=True)
class Users:
    """The numbers of users that a closed loop can have; they send the same requests, in turn.

    Raises ScenarioError for users who go through sessions.
    """

    scenario: Scenario
    lone: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self._loop.sessions:
            raise ScenarioError(
                "workload.arrivals.sessions must be false for a search over users, whose requests "
                f"come in turn, got true; mist run --vary {USERS}=... runs numbers of them"
            )

    @property
    def own(self) -> int:
        """Users of the scenario."""
        return self._loop.concurrency

    @cached_property
    def num_requests(self) -> int:
        """Number of requests of the workload."""
        workload = build(self.scenario).workload
        return sum(1 for _ in workload.requests(Streams(self.scenario.seed)))

    def at(self, users: float) -> dict[str, Any]:
        """Return the scenario settings for a number of users (>= 1), rounded."""
        return {USERS: max(round(users), 1)}

    @cached_property
    def _loop(self) -> ClosedLoop:
        found: ClosedLoop = self.scenario.workload.arrivals.make()
        return found


def check_rates(rates: tuple[float, float]) -> None:
    """Raise ScenarioError unless two rates are an interval that scenarios can have."""
    smallest, largest = QUANTITIES["rate"]
    low, high = rates
    if not smallest <= low < high <= largest:
        raise ScenarioError(
            f"rates must be LOW:HIGH in requests per second, {smallest:g} <= LOW < HIGH <= "
            f"{largest:g}, got {low:g}:{high:g}"
        )


def _with_unit(value: Any, written: object) -> object:
    """Return a value with the unit that a resolved scenario writes behind one of its kind."""
    if isinstance(written, list):
        return [_with_unit(each, unit) for each, unit in zip(value, written, strict=True)]
    return f"{float(value)!r} {written.split()[1]}" if isinstance(written, str) else float(value)
