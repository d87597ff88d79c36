"""What was simulated, in two lines."""

from __future__ import annotations

from mist_sim.scenario import Scenario
from mist_sim.scenario.client_schemas import ClientPart, LlmPart


def headline(scenario: Scenario) -> str:
    """Return where a scenario comes from, and below it its clients, router and seed."""
    clients = ", ".join(_client(client, scenario.model) for client in scenario.clients)
    router = scenario.router.model_dump(by_alias=True)["type"]
    sentence = f"{clients}; router {router}; seed {scenario.seed}"
    return "\n".join(line for line in (scenario.origin.source, sentence) if line)


def _client(client: ClientPart, model: str | None) -> str:
    copies = f"{client.count} x " if client.count > 1 else ""
    if not isinstance(client, LlmPart):
        return f"{copies}{client.name} ({', '.join(client.stages)})"
    ranks = client.tensor_parallel_size
    gpus = f"{ranks} x {client.gpu}" if ranks > 1 else client.gpu
    return f"{copies}{client.name} ({client.model or model} on {gpus})"
