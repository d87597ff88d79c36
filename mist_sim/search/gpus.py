"""What is known of a scenario's clients before it runs: their GPUs, and expected errors."""

from __future__ import annotations

from typing import Any

from mist_sim.metrics.expected_errors import expected_errors
from mist_sim.scenario import Scenario, build


def expected_errors_of(scenario: Scenario) -> dict[str, Any]:
    """Return how far TTFT and TPOT of its clients may be from what a real engine would show."""
    clients = build(scenario).clients
    return expected_errors({c.name: c.settings for c in clients if c.estimate is not None})


def num_gpus(scenario: Scenario) -> int | None:
    """Return the GPUs of all clients; None where an engine's are not known."""
    clients = build(scenario).clients
    if any(client.machine is None and client.estimate is not None for client in clients):
        return None
    return sum(client.machine.cluster.num_gpus for client in clients if client.machine)
