"""A scenario in three lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mist_sim.scenario.engines.version_origins import engine_line
from mist_sim.scenario.sections.clients import ClientPart


def headline(
    source: str,
    clients: Sequence[ClientPart],
    model: str | None,
    router: str,
    seed: int,
    varied: Collection[str] = (),
) -> str:
    """Return where a scenario comes from, and below it its clients, router and seed.

    varied: dotted keys that a study varies: what the scenario says of them is left out.
    """
    tops = {key.partition(".")[0] for key in varied}
    serving = ", ".join(_client(n, client, model, varied) for n, client in enumerate(clients))
    parts = [serving]
    parts += [] if tops & {"router", "routers"} else [f"router {router}"]
    parts += [] if "seed" in tops else [f"seed {seed}"]
    return "\n".join(line for line in (source, "; ".join(parts)) if line)


def imitated(clients: Sequence[ClientPart]) -> str:
    """Return which engines the options of clients imitate; empty if no client has a model."""
    return engine_line(client.engine for client in clients if client.engine is not None)


def _client(position: int, client: ClientPart, model: str | None, varied: Collection[str]) -> str:
    place = f"clients.{position}."
    mine = {key.removeprefix(place).partition(".")[0] for key in varied if key.startswith(place)}
    mine |= {"model"} & {*varied}
    copies = f"{client.count} x " if client.count > 1 and "count" not in mine else ""
    return f"{copies}{client.title(model, mine)}"
