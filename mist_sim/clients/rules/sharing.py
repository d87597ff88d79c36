"""Which clients may share a part, or a tier of the KV cache: those that describe it equally."""

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


def check_shared_tiers(clients: Iterable[Client]) -> None:
    """Raise ScenarioError for a shared tier in which blocks of different kinds would lie."""
    known: dict[str, tuple[str, dict[str, str | float | None]]] = {}
    for client in clients:
        traits, form = client.traits, client.traits.entries
        for tier, (num_blocks, block_size) in traits.shared_tiers.items():
            of_blocks = {
                "model": traits.model,
                "block_size": block_size,
                "bytes of a block": form.block_bytes if form else None,
                "blocks": num_blocks,
            }
            other, first = known.setdefault(tier, (client.name, of_blocks))
            for what, value in of_blocks.items():
                if value != first[what]:
                    raise ScenarioError(
                        f"{client.name}: tier {tier} must have the {what} that it has at "
                        f"{other}, {first[what]}, since they share it, got {value}; give one of "
                        "them another name"
                    )
