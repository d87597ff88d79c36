"""A scenario that is built once, for all that is asked of it before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any

from mist_sim.core.result_warnings import ResultWarning
from mist_sim.hardware import gpu_group
from mist_sim.metrics.spending import dollars_an_hour, rent_summary
from mist_sim.scenario import Scenario, build
from mist_sim.simulation import Simulation
from mist_sim.traces import Workload


@dataclass(frozen=True)
class Built:
    """A scenario with its parts. They never run: a run changes them, and has parts of its own."""

    scenario: Scenario

    @cached_property
    def simulation(self) -> Simulation:
        """The parts. Raises ScenarioError as `build` does."""
        return build(self.scenario)

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
        return {
            n: known.assumed_host for n, known in origins.items() if known and known.assumed_host
        }

    @cached_property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of every result of its runs (`Simulation.warnings`)."""
        return self.simulation.warnings

    @property
    def asks_for_spending(self) -> bool:
        """Whether power or cost was set in the scenario."""
        return self.simulation.asks_for_spending

    @property
    def gpu_names(self) -> frozenset[str]:
        """The kinds of GPUs of all clients, by name."""
        machines = [client.traits.machine for client in self.simulation.clients]
        return frozenset(group.gpu.name for each in machines if each for group in each.groups)

    @property
    def gpu_price(self) -> float:
        """Dollars of a GPU an hour, on average; NaN without prices or known GPUs."""
        cost = self.simulation.cost
        if cost is None or not self.num_gpus:
            return nan
        machines = [client.traits.machine for client in self.simulation.clients]
        return dollars_an_hour(machines, cost) / self.num_gpus

    @property
    def rent(self) -> dict[str, Any]:
        """Dollars an hour of all GPUs (`rent_summary`); empty where a GPU has no price."""
        machines = [client.traits.machine for client in self.simulation.clients]
        return rent_summary(machines, self.scenario.cost.make() if self.scenario.cost else None)

    @cached_property
    def num_gpus(self) -> int | None:
        """The GPUs of all clients; None where an engine's are not known."""
        all_traits = [client.traits for client in self.simulation.clients]
        if any(traits.machine is None and traits.times is not None for traits in all_traits):
            return None
        return sum(gpu_group.num_gpus(traits.machine) for traits in all_traits)
