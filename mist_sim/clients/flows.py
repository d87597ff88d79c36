"""Clients between which answers flow (TaiChi), and what each of them has to be like."""

from __future__ import annotations

from collections.abc import Iterable

from mist_sim.clients.base import Client
from mist_sim.clients.engine_config import FLOWING_ROLES
from mist_sim.clients.llm import LlmClient
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.flow import FlowPolicy
from mist_sim.core.hand_over import HandOverPolicy
from mist_sim.errors import ScenarioError


def check_flows(clients: Iterable[Client], policy: HandOverPolicy | None) -> None:
    """Raise ScenarioError for clients between which answers should flow, and cannot."""
    chunks: dict[str | None, list[int]] = {"p_heavy": [], "d_heavy": []}
    for client in clients:
        if not isinstance(client, LlmClient) or client.role not in FLOWING_ROLES:
            continue
        if not isinstance(policy, FlowPolicy):
            raise ScenarioError(
                f"{client.name}: role must be left out without hand_over.policy: flowing, which "
                "lets answers go from d_heavy clients to p_heavy ones and back, got "
                f"{client.role}"
            )
        if client.memory.tiers or client.memory.groups:
            what = "kv_cache.tiers" if client.memory.tiers else "a model with sliding windows"
            raise ScenarioError(
                f"{client.name}: role must be left out with {what}, got {client.role}; answers "
                "that flow are not simulated there"
            )
        if isinstance(client.scheduler, ChunkedScheduler):
            chunks[client.role].append(client.scheduler.max_num_batched_tokens)
    smallest, largest = min(chunks["p_heavy"], default=0), max(chunks["d_heavy"], default=0)
    if smallest and largest > smallest:
        raise ScenarioError(
            "scheduler.max_num_batched_tokens of clients with role d_heavy must be <= that of "
            f"p_heavy ones ({smallest}), got {largest}; swap the roles"
        )


def check_not_stuck(clients: Iterable[Client], policy: HandOverPolicy | None, now: float) -> None:
    """Raise ScenarioError where clients wait for room at one another when nothing else is left.

    While an answer leaves a d_heavy client, its blocks are kept there, up to (1 - watermark) of all
    and those of one answer more. What is left has to hold the next request. Other policies may let
    answers go both ways as well.
    """
    if policy is None:
        return
    held = [
        f"{client.name} keeps {num_kept}"
        for client in clients
        if isinstance(client, LlmClient) and (num_kept := _num_kept(client))
    ]
    if held:
        needed = "more room, or hand_over.policy must send answers one way"
        if isinstance(policy, FlowPolicy):
            needed = (
                "room for two of the longest requests, below the watermark of hand_over.policy, on "
                "every client with role d_heavy"
            )
        raise ScenarioError(
            f"kv_cache must have {needed}: requests that leave one client wait for memory at "
            f"another, and it for them, so that nothing goes on after {now} s ({', '.join(held)})"
        )


def _num_kept(client: LlmClient) -> int:
    """Return for how many requests that are elsewhere a client keeps entries, or room for them."""
    return len(list(client.held_kv)) + sum([len(state.loading) for state in client.lane_states])


def let_flow(clients: Iterable[Client], policy: HandOverPolicy | None) -> None:
    """Tell clients when their answers leave in the run that begins."""
    for client in clients:
        if isinstance(client, LlmClient):
            client.flow = policy.flow(client.role) if isinstance(policy, FlowPolicy) else None
