"""Which clients may share a tier: those whose blocks are alike."""

from __future__ import annotations

from collections.abc import Iterable

from mist_sim.clients.base import Client
from mist_sim.clients.llm import LlmClient
from mist_sim.errors import ScenarioError


def check_shared_tiers(clients: Iterable[Client]) -> None:
    """Raise ScenarioError for a shared tier in which blocks of different kinds would lie."""
    known: dict[str, tuple[str, dict[str, str | float | None]]] = {}
    for client in clients:
        if not isinstance(client, LlmClient):
            continue
        for tier in client.memory.tiers:
            if not tier.shared:
                continue
            of_blocks = {
                "model": client.served_model,
                "block_size": client.memory.block_size,
                "bytes of a block": client.kv_block_bytes,
                "blocks": tier.num_blocks,
            }
            other, first = known.setdefault(tier.name, (client.name, of_blocks))
            for what, value in of_blocks.items():
                if value != first[what]:
                    raise ScenarioError(
                        f"{client.name}: tier {tier.name} must have the {what} that it has at "
                        f"{other}, {first[what]}, since they share it, got {value}; give one of "
                        "them another name"
                    )
