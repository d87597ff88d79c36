"""The rules of vLLM by release, as `versions.toml` has them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from mist_sim.clients.kv_cache.profile_run import BesideTorch
from mist_sim.core import front_end
from mist_sim.models import attention_backends, moe_backends, speculative
from mist_sim.scenario.engines.engine_version import (
    ATTENTION,
    EXPERTS,
    GIB,
    HIDES,
    LARGEST_GRAPH,
    LATEST,
    LIMITS,
    PARSES,
    RELEASES,
    TEMPLATES,
    Default,
    EngineVersion,
    Hidden,
    Lack,
    LargestGraph,
    LimitsByMemory,
    Note,
    Releases,
    ServerLimits,
)

_CONSTANTS: Mapping[str, ModuleType] = {
    ATTENTION: attention_backends,
    PARSES: front_end,
    TEMPLATES: front_end,
    "rules.async_drafts": speculative,
}
"""Modules of values that are a constant's name."""


def _value(key: str, value: Any) -> Any:
    """Return the value of a row: TOML's own, a constant's, or what a table describes."""
    if key.startswith(EXPERTS):
        return getattr(moe_backends, value)[key.removeprefix(EXPERTS)]
    if key in _CONSTANTS and isinstance(value, str):
        return getattr(_CONSTANTS[key], value)
    if key == LIMITS:
        tiers = ((gib * GIB, a100, ServerLimits(*limits)) for gib, a100, *limits in value["tiers"])
        small, always = ServerLimits(*value["small"]), tuple(value.get("always_small", ()))
        return LimitsByMemory(small, tuple(tiers), always)
    if key == LARGEST_GRAPH:
        return LargestGraph(**value)
    if key == HIDES:
        return Hidden(**value)
    if key == "memory.beside_torch":
        return BesideTorch(*(gib * GIB for gib in value))
    return tuple(value) if isinstance(value, list) else value


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(it) if isinstance(it, list) else it for name, it in row.items()}


def _defaults(
    key: str, rows: Iterable[Mapping[str, Any]], places: Mapping[str, str]
) -> Iterator[Default]:
    for row in rows:
        more = {"value": _value(key, row.get("value")), "source": row["source"].format(**places)}
        yield Default(**{**_tuples(row), **more})


def _read() -> Releases:
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return Releases(
        {key: (*_defaults(key, rows, data["places"]),) for key, rows in data["defaults"].items()},
        {key: tuple(Lack(**_tuples(row)) for row in rows) for key, rows in data["lacks"].items()},
        {topic: Note(**row) for topic, row in data["notes"].items()},
    )


TABLE = _read()
"""The rules of all releases."""

VERSIONS: Mapping[str, EngineVersion] = {
    version.name: version for version in (EngineVersion(minor, TABLE) for minor in RELEASES)
}
"""By name, the oldest first."""

NEWEST = VERSIONS[f"vllm-0.{LATEST}"]
"""The engine that is imitated by default: what `pip install vllm` gives."""
