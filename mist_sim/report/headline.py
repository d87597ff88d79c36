"""What was simulated, in three lines."""

from __future__ import annotations

from mist_sim.scenario import Scenario
from mist_sim.scenario.client_schemas import ClientPart, LlmPart
from mist_sim.scenario.engines.version_origins import engine_line


def headline(scenario: Scenario) -> str:
    """Return where a scenario comes from, and below it its clients, router, seed and engines."""
    clients = ", ".join(_client(client, scenario.model) for client in scenario.clients)
    router = scenario.router.model_dump(by_alias=True)["type"]
    sentence = f"{clients}; router {router}; seed {scenario.seed}"
    engines = engine_line(c.engine_ for c in scenario.clients if isinstance(c, LlmPart))
    return "\n".join(line for line in (scenario.origin.source, sentence, engines) if line)


def _client(client: ClientPart, model: str | None) -> str:
    copies = f"{client.count} x " if client.count > 1 else ""
    if not isinstance(client, LlmPart):
        return f"{copies}{client.name} ({', '.join(client.stages)})"
    ranks = client.tensor_parallel_size
    gpus = f"{ranks} x {client.gpu}" if ranks > 1 else client.gpu
    return f"{copies}{client.name} ({client.model or model} on {gpus})"
