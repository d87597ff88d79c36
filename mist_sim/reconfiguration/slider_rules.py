"""Rules for clients whose sliders move during a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mist_sim.clients import Client
from mist_sim.errors import ScenarioError
from mist_sim.reconfiguration.reconfiguration_options import Reconfigure


def sliding(clients: Iterable[Client]) -> list[Client]:
    """Return the clients with variable role and chunk, in order."""
    return [client for client in clients if client.traits.slider is not None]


def check_reconfigure(options: Reconfigure, clients: Sequence[Client]) -> None:
    """Raise ScenarioError for positions that the clients cannot have."""
    members = sliding(clients)
    if not members:
        raise ScenarioError("has no effect: no client has role p_heavy or d_heavy")
    for position, change in enumerate(options.schedule):
        if change.num_p >= len(members):
            raise ScenarioError(
                f"schedule.{position}.num_p must be < {len(members)}, the clients with role "
                f"p_heavy or d_heavy, of which one stays d_heavy, got {change.num_p}"
            )
    for key, chunk in _chunks(options):
        for client in members:
            _check_chunk(client, key, chunk)


def _chunks(options: Reconfigure) -> Iterable[tuple[str, int]]:
    """Yield the keys of chunks that clients may get, and their tokens."""
    for position, change in enumerate(options.schedule):
        yield f"schedule.{position}.s_d", change.s_d
    if options.on_change is not None:
        yield "on_change.chunks", min(options.on_change.chunks)


def _check_chunk(client: Client, key: str, chunk: int) -> None:
    slider = client.traits.slider
    if slider is None or slider.chunk is None:
        found = slider.scheduler if slider else "none"
        raise ScenarioError(
            f"{client.name}: scheduler must be chunked with reconfigure, got {found}"
        )
    if chunk < slider.max_num_seqs:
        raise ScenarioError(
            f"{key} must be >= max_num_seqs of {client.name} ({slider.max_num_seqs}), since "
            f"every running request may need one token of a step, got {chunk}; lower max_num_seqs"
        )
