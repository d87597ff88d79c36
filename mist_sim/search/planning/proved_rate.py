"""The rate that a scenario's engines are proved not to exceed, before it runs."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.errors import ScenarioError
from mist_sim.hardware.machine import Machine
from mist_sim.scenario import Scenario
from mist_sim.search.planning.demand import own_demand
from mist_sim.search.planning.upper_bounds import Least, Needs, least_of_client, most
from mist_sim.studies.built import Built
from mist_sim.studies.rates import Rates


class Load(NamedTuple):
    """Requests per second that arrive, and that the engines serve at most (infinite: no bound)."""

    arriving: float
    most: float


def proved_load(scenario: Scenario) -> Load | None:
    """Return the arrival rate at a scenario's engines, and a proved bound of the rate they serve.

    None where nothing is proved: without a rate (closed loops), where clients fail, start or change
    during the run, and of engines without a bound (see `upper_bounds`).
    """
    built = Built(scenario)
    simulation = built.simulation
    if simulation.lifecycle is not None or simulation.reconfigure is not None:
        return None
    engines = engines_of(built)
    if engines is None:
        return None
    try:
        rate = Rates(scenario, built).own
    except ScenarioError:
        return None
    least, numbers = engines
    return Load(rate, most(least, own_demand(built, rate), numbers))


def engines_of(built: Built) -> tuple[Least, Needs] | None:
    """Return bounds of a scenario's engines, and their numbers by role.

    Engines of several kinds count as one kind with the best of each. None if one of them has no
    proved bound.
    """
    found: list[tuple[Least, str | None]] = []
    for client in built.simulation.clients:
        machine = client.traits.machine
        if machine is None and client.traits.times is None:
            continue
        if not isinstance(machine, Machine):
            return None
        least = least_of_client(client, machine)
        if least is None:
            return None
        found.append((least, client.traits.role))
    if not found:
        return None
    kinds = [least for least, _ in found]
    best = Least(
        token=min(each.token for each in kinds),
        matrices=min(each.matrices for each in kinds),
        key=min(each.key for each in kinds),
        seats=max(each.seats for each in kinds),
        per_step=max(each.per_step for each in kinds),
    )
    prompts = sum(role != "decode" for _, role in found)
    answers = sum(role != "prefill" for _, role in found)
    return best, Needs(len(found), prompts, answers)
