"""Clients that hand over KV entries to one another have to store them alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

from mist_sim.core.hand_over import HandOver, HandOverPolicy
from mist_sim.hand_over_rules import are_alike, dtype_name
from mist_sim.models import load_model
from mist_sim.scenario.format.families import HAND_OVER_POLICY
from mist_sim.scenario.format.parts import Part, part_type
from mist_sim.scenario.format.problems import Problem
from mist_sim.scenario.sections.clients import AfdPart, ClientPart

HAND_OVER = part_type(
    HandOver, meanings={HandOverPolicy | None: Annotated[Part, HAND_OVER_POLICY] | None}
)


class _Stored(NamedTuple):
    """A client and how it stores its KV entries; one that knows no blocks takes any."""

    name: str
    model: str | None
    block_size: int | None
    kv_cache_dtype: str


def idle_options(hand_over: Part) -> Iterable[Problem]:
    """Yield options of hand-overs that are not the default, where nothing is handed over."""
    for name, value in hand_over.parameters().items():
        if value != getattr(HandOver(), name):
            yield Problem(("hand_over", name), "has no effect: no client has a role")


def unlike_engines(
    clients: Mapping[int, ClientPart], scenario_model: str | None, *, by_model: bool = False
) -> Iterable[Problem]:
    """Yield clients that cannot take over what others hand over, at their positions.

    Any two of them may exchange entries, so all are compared with the first engine. Others than
    engines and bundles are left out. scenario_model: served by those that name no model.
    by_model: whether every request names a model, so that only those exchange that serve the same.
    """
    firsts: dict[str | None, _Stored] = {}
    for position in sorted(clients, key=lambda k: isinstance(clients[k], AfdPart)):
        client = clients[position]
        stored = _stored(client, scenario_model)
        if stored is None:
            continue
        first = firsts.setdefault(stored.model if by_model else None, stored)
        for key, text in _differences(first, stored):
            yield Problem(("clients", position, *key.split(".")), text)
        engine = client.engine
        if engine and not engine.role and engine.scheduler and not engine.scheduler.takes_over:
            yield Problem(
                ("clients", position, "scheduler"),
                "must not be static beside clients with a role, which may hand over to it: "
                "nobody joins a static batch",
            )


def _stored(client: ClientPart, scenario_model: str | None) -> _Stored | None:
    model: str | None = getattr(client, "model", None) or scenario_model
    block_size = None
    if isinstance(client, AfdPart):
        dtype = client.kv_cache_dtype
    elif client.engine:
        block_size = client.engine.kv_cache.block_size
        dtype = client.engine.kv_cache.kv_cache_dtype
    else:
        return None
    if dtype == "auto" and model is not None:
        dtype = load_model(model).kv_cache_dtype
    return _Stored(client.name, model, block_size, dtype_name(dtype))


def _differences(first: _Stored, other: _Stored) -> Iterable[tuple[str, str]]:
    """Yield (key, what is wrong) for each way in which two clients store entries differently."""
    if other.model != first.model:
        others = "as of the other clients, with which it exchanges KV entries"
        yield "model", f"must be {first.model} {others}, got {other.model}"
        return
    exchange = f"as of {first.name}, with which {other.name} exchanges KV entries"
    size, dtype = first.block_size, first.kv_cache_dtype
    if None not in (size, other.block_size) and other.block_size != size:
        yield "kv_cache.block_size", f"must be {size} {exchange}, got {other.block_size}"
    if not are_alike(dtype, other.kv_cache_dtype):
        key = "kv_cache_dtype" if other.block_size is None else "kv_cache.kv_cache_dtype"
        yield key, f"must be {dtype} {exchange}, got {other.kv_cache_dtype}"
