"""Engines that hand over KV entries to one another have to store them alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mist_sim.clients import EngineConfig
from mist_sim.models import load_model
from mist_sim.scenario.client_schemas import ClientPart
from mist_sim.scenario.format.problems import Problem

_SAME = {"bfloat16": "bf16", "float16": "fp16", "fp8_e4m3": "fp8"}  # two names in vLLM
_OPEN = {"auto", "bf16", "fp16"}  # "auto" is one of the others; specs do not say which


class _Stored(NamedTuple):
    """A client and how it stores its KV entries."""

    name: str
    model: str | None
    block_size: int
    kv_cache_dtype: str


def unlike_engines(
    clients: Mapping[int, ClientPart], scenario_model: str | None
) -> Iterable[Problem]:
    """Yield engines that cannot take over what others hand over, at their positions.

    Any two of them may exchange entries, so all are compared with the first. Every client is an
    engine. scenario_model: served by those that name no model.
    """
    first: _Stored | None = None
    for position, client in clients.items():
        engine = client.engine
        if engine is None:
            continue
        model = getattr(client, "model", None) or scenario_model
        stored = _stored(client.name, model, engine)
        first = first or stored
        for key, text in _differences(first, stored):
            yield Problem(("clients", position, *key.split(".")), text)
        if not engine.role and engine.scheduler and not engine.scheduler.takes_over:
            yield Problem(
                ("clients", position, "scheduler"),
                "must not be static beside clients with a role, which may hand over to it: "
                "nobody joins a static batch",
            )


def _stored(name: str, model: str | None, engine: EngineConfig) -> _Stored:
    dtype: str = engine.kv_cache.kv_cache_dtype
    if dtype == "auto" and model is not None:
        dtype = load_model(model).kv_cache_dtype
    return _Stored(name, model, engine.kv_cache.block_size, _SAME.get(dtype, dtype))


def _differences(first: _Stored, other: _Stored) -> Iterable[tuple[str, str]]:
    """Yield (key, what is wrong) for each way in which two clients store entries differently."""
    if other.model != first.model:
        others = "as of the other clients, with which it exchanges KV entries"
        yield "model", f"must be {first.model} {others}, got {other.model}"
        return
    exchange = f"as of {first.name}, with which {other.name} exchanges KV entries"
    size, dtype = first.block_size, first.kv_cache_dtype
    if other.block_size != size:
        yield "kv_cache.block_size", f"must be {size} {exchange}, got {other.block_size}"
    is_open = "auto" in (dtype, other.kv_cache_dtype) and {dtype, other.kv_cache_dtype} <= _OPEN
    if other.kv_cache_dtype != dtype and not is_open:
        yield "kv_cache.kv_cache_dtype", f"must be {dtype} {exchange}, got {other.kv_cache_dtype}"
