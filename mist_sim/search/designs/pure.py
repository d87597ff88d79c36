"""Engines that do both, and prompts and answers apart."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from mist_sim.errors import ScenarioError
from mist_sim.scenario import Scenario
from mist_sim.search.designs.chunks import chunks_to_try
from mist_sim.search.designs.design_fleet import Client, Fleet, Side
from mist_sim.search.designs.proposal import Proposal

_NOTHING_HANDED_OVER = {
    "first_token": "prefill",
    "transfer": "pull",
    "pools": "global",
    "policy": None,
}


def together(fleet: Fleet) -> Iterator[Proposal]:
    """Yield the engines without roles: as given, and with other chunk sizes."""
    own = set(fleet.chunks)
    if len(own) != 1:
        yield Proposal("together", partial(without_sides, fleet, None))
    for chunk in chunks_to_try(own) if own else ():
        is_own = {chunk} == own and not fleet.has_roles
        make = partial(without_sides, fleet, None if is_own else chunk)
        yield Proposal(f"together {chunk}", make)


def without_sides(fleet: Fleet, chunk: int | None) -> Scenario:
    """Return the scenario without roles, and without a network if it is then unused.

    chunk: tokens of a step; None: as the engines have.
    """
    both = Side(None, chunk)
    clients = fleet.divided(fleet.num_clients, both, both)
    if not fleet.has_network:
        return fleet.having(clients)
    try:
        return fleet.having(clients, hand_over=_NOTHING_HANDED_OVER)
    except ScenarioError:  # the network is unused, and then no client has a place in it
        unplaced = [_unplaced(client) for client in clients]
        return fleet.having(unplaced, hand_over=_NOTHING_HANDED_OVER, network=None)


def _unplaced(client: Client) -> Client:
    return client | ({"place": None} if "place" in client else {})


def apart(fleet: Fleet) -> Iterator[Proposal]:
    """Yield every ratio of engines for prompts and for answers."""
    for num_p in range(1, fleet.num_clients):
        name = f"{num_p} prefill + {fleet.num_clients - num_p} decode"
        yield Proposal(name, partial(in_two, fleet, num_p))


def in_two(fleet: Fleet, num_p: int) -> Scenario:
    """Return the engines with a given number for prompts and the rest for answers."""
    clients = fleet.divided(num_p, prefill_side(fleet), Side("decode"))
    return fleet.having(clients, network=fleet.network, hand_over=fleet.hand_over)


def prefill_side(fleet: Fleet) -> Side:
    """Return the engines for prompts.

    They have the chunk of the scenario's prompt engines, or else the largest one tried, since no
    decode waits there.
    """
    own = set(fleet.chunks)
    if not own:
        return Side("prefill")
    if fleet.has_roles:
        return Side("prefill", own.pop() if len(own) == 1 else None)
    return Side("prefill", max(*own, *chunks_to_try(own)))
