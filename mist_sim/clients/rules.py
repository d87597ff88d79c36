"""Rules about several clients of one run together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from mist_sim.clients.base import Client
from mist_sim.clients.roster import Roster
from mist_sim.clients.traits import FLOWING_ROLES
from mist_sim.core.flowing import FlowPolicy
from mist_sim.core.hand_over import HandOverPolicy
from mist_sim.errors import ScenarioError
from mist_sim.stages import Decode


def check_flows(clients: Iterable[Client], policy: HandOverPolicy | None) -> None:
    """Raise ScenarioError for clients between which answers should flow, and cannot."""
    chunks: dict[str | None, list[int]] = {"p_heavy": [], "d_heavy": []}
    for client in clients:
        role, slider = client.traits.role, client.traits.slider
        if role not in FLOWING_ROLES or slider is None:
            continue
        if not isinstance(policy, FlowPolicy):
            raise ScenarioError(
                f"{client.name}: role must be left out without hand_over.policy: flowing, which "
                "lets answers go from d_heavy clients to p_heavy ones and back, got "
                f"{role}"
            )
        if slider.obstacle:
            raise ScenarioError(
                f"{client.name}: role must be left out with {slider.obstacle}, got {role}; answers "
                "that flow are not simulated there"
            )
        if slider.chunk is not None:
            chunks[role].append(slider.chunk)
    smallest, largest = min(chunks["p_heavy"], default=0), max(chunks["d_heavy"], default=0)
    if smallest and largest > smallest:
        raise ScenarioError(
            "scheduler.max_num_batched_tokens of clients with role d_heavy must be <= that of "
            f"p_heavy ones ({smallest}), got {largest}; swap the roles"
        )


def check_not_stuck(clients: Iterable[Client], policy: HandOverPolicy | None, now: float) -> None:
    """Raise ScenarioError if clients could wait for one another's memory forever.

    This needs clients that both hand over and take over. While an answer leaves a d_heavy client,
    its blocks are kept there: up to (1 - watermark) of all plus one answer's. The rest must hold
    the next request.
    """
    who = ", ".join([text for client in clients for text in _kept(client)])
    if not who or policy is None:
        return
    if isinstance(policy, FlowPolicy):
        raise ScenarioError(
            "kv_cache must have room for two of the longest requests, below the watermark of "
            "hand_over.policy, on every client with role d_heavy: answers that leave one client "
            "wait for memory at another, and it for them, so that nothing happens after "
            f"{now} s ({who})"
        )
    raise ScenarioError(
        "kv_cache must have room for more requests on every client that hand_over.policy "
        f"({type(policy).__name__}) lets both hand over and take over: each waits for memory at "
        f"another, which keeps its own memory until then, so that the run stands still after {now} "
        f"s ({who}); "
        "more memory, a lower rate, or clients with roles prefill and decode, which never wait in "
        "a circle"
    )


def _kept(client: Client) -> Iterator[str]:
    """Yield the reserved memory of a client: entries kept, and places for entries to come."""
    if held := sum(1 for _ in client.held_kv):
        yield f"{client.name} keeps {held}"
    if num_reserved := client.num_reserved:
        yield f"{client.name} has reserved for {num_reserved}"


def let_stay_alone(clients: Iterable[Client], roster: Roster) -> None:
    """Let answers stay where they are while no client is up that would take them."""
    for client in clients:
        if client.flow is not None:
            client.has_taker = partial(_has_taker, client, roster)


def _has_taker(client: Client, roster: Roster) -> bool:
    """Tell whether a client of the other role is there."""
    others = FLOWING_ROLES - {client.view.role}
    candidates = roster.near(Decode.kind, client.name, client.traits.model)
    return any(view.role in others for view in candidates)


def let_flow(clients: Iterable[Client], policy: HandOverPolicy | None) -> None:
    """Tell clients when their answers leave in the run that begins."""
    flowing = policy if isinstance(policy, FlowPolicy) else None
    for client in clients:
        client.has_taker = None
        client.flow = None
        if flowing is not None and client.traits.slider is not None:
            client.flow = flowing.flow(client.traits.role)


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
