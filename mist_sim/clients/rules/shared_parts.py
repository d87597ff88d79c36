"""Which clients may share a part: those that describe it equally."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mist_sim.clients.base import Client
from mist_sim.errors import ScenarioError


def check_shared_parts(clients: Iterable[Client]) -> None:
    """Raise ScenarioError for a part, such as a card or a store, that two clients see otherwise."""
    known: dict[str, tuple[str, Mapping[str, object]]] = {}
    for client in clients:
        for part, said in client.traits.shared_parts.items():
            other, first = known.setdefault(part, (client.name, said))
            for what in {**first, **said}:
                if said.get(what) != first.get(what):
                    raise ScenarioError(
                        f"{client.name}: {part} must have the {what} that it has at {other}, "
                        f"{first.get(what)}, since they share it, got {said.get(what)}; give one "
                        "of them another name"
                    )
