"""How many GPUs a scenario has."""

from __future__ import annotations

from mist_sim.scenario import Scenario, build


def num_gpus(scenario: Scenario) -> int | None:
    """Return the GPUs of all clients; None where an engine's are not known."""
    clients = build(scenario).clients
    if any(client.machine is None and client.estimate is not None for client in clients):
        return None
    return sum(client.machine.cluster.num_gpus for client in clients if client.machine)
