"""A scenario in three lines."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.scenario.engines.version_origins import engine_line
from mist_sim.scenario.sections.clients import ClientPart


def headline(
    source: str, clients: Sequence[ClientPart], model: str | None, router: str, seed: int
) -> str:
    """Return where a scenario comes from, and below it its clients, router and seed."""
    serving = ", ".join(_client(client, model) for client in clients)
    sentence = f"{serving}; router {router}; seed {seed}"
    return "\n".join(line for line in (source, sentence) if line)


def imitated(clients: Sequence[ClientPart]) -> str:
    """Return which engines the options of clients imitate; empty if no client has a model."""
    return engine_line(client.engine for client in clients if client.engine is not None)


def _client(client: ClientPart, model: str | None) -> str:
    copies = f"{client.count} x " if client.count > 1 else ""
    return f"{copies}{client.title(model)}"
