"""Clients that hand over KV entries to one another have to store them alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from mist_sim.clients.traits import ClientTraits
from mist_sim.core.hand_over import HandOver, HandOverPolicy
from mist_sim.hand_over_rules import are_alike, dtype_name
from mist_sim.scenario.format.families import HAND_OVER_POLICY
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients import NamedTraits
from mist_sim.stages import Decode

HAND_OVER = part_type(
    HandOver, meanings={HandOverPolicy | None: Annotated[Part, HAND_OVER_POLICY] | None}
)


def idle_options(hand_over: Part) -> Iterable[Problem]:
    """Yield options of hand-overs that have no effect because nothing is handed over."""
    for name, value in hand_over.parameters().items():
        if value != getattr(HandOver(), name):
            yield Problem(("hand_over", name), "has no effect: no client has a role")


def unlike_engines(
    clients: Mapping[int, NamedTraits], *, by_model: bool = False
) -> Iterable[Problem]:
    """Yield clients that cannot take over others' entries, at their positions.

    Any two clients may exchange entries, so all are compared with the first engine. Clients whose
    entries never travel are left out. by_model: whether every request names a model, so that only
    clients of the same model exchange entries.
    """
    firsts: dict[str | None, NamedTraits] = {}
    # a client that takes blocks of any size is compared with those that have a size
    for position in sorted(clients, key=lambda k: _block_size(clients[k].traits) is None):
        named = clients[position]
        if named.traits.entries is None:
            continue
        first = firsts.setdefault(named.traits.model if by_model else None, named)
        for key, text in _differences(first, named):
            yield Problem(("clients", position, *key.split(".")), text)
        if _cannot_take_over(named.traits):
            yield Problem(
                ("clients", position, "scheduler"),
                "must not be static beside clients with a role, which may hand over to it: "
                "no request joins a static batch",
            )


def _block_size(traits: ClientTraits) -> int | None:
    return traits.entries.block_size if traits.entries else None


def _cannot_take_over(traits: ClientTraits) -> bool:
    """Tell whether a client without a role can decode only after its own prefills."""
    return traits.role is None and Decode.kind in traits.serves and not traits.takes_entries


def _differences(first: NamedTraits, other: NamedTraits) -> Iterable[tuple[str, str]]:
    """Yield (key, problem) for each way in which two clients store entries differently."""
    mine, theirs = other.traits, first.traits
    if mine.model != theirs.model:
        others = "as of the other clients, with which it exchanges KV entries"
        yield "model", f"must be {theirs.model} {others}, got {mine.model}"
        return
    exchange = f"as of {first.name}, with which {other.name} exchanges KV entries"
    sizes = _block_size(theirs), _block_size(mine)
    if None not in sizes and sizes[0] != sizes[1]:
        yield "kv_cache.block_size", f"must be {sizes[0]} {exchange}, got {sizes[1]}"
    dtypes = [_dtype(traits) for traits in (theirs, mine)]
    if not are_alike(*dtypes):
        key = "kv_cache_dtype" if sizes[1] is None else "kv_cache.kv_cache_dtype"
        yield key, f"must be {dtypes[0]} {exchange}, got {dtypes[1]}"


def _dtype(traits: ClientTraits) -> str:
    return dtype_name((traits.entries and traits.entries.dtype) or "auto")
