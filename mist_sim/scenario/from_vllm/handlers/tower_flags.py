"""Flags that leave out a model's towers of images and sound.

Source: `MultiModalConfig` in vllm/config/multimodal.py and `_mark_tower_model` in
vllm/model_executor/models/interfaces.py, for every model since vllm-project/vllm#32757 (January
2026, after 0.14); before it vllm-project/vllm#22299 for models that exist with a tower alone.
"""

from __future__ import annotations

import json

from mist_sim.models import ModelSpec
from mist_sim.scenario.engines.versions import VERSIONS
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers.json_values import entries_of
from mist_sim.scenario.from_vllm.handlers.model_flags import spec_of
from mist_sim.scenario.from_vllm.server import Server

_KEY = "language_model_only"
_LAST_WITH_FEW = "vllm-0.14"
_FEW = ("llama4", "mistral")
_OF_IMAGES = ("gemma3", "kimi", "llama4", "mistral")  # other towers read videos, too


def language_only(flag: Flag, server: Server) -> None:
    """Leave out the towers."""
    spec = spec_of(server)
    if not flag.is_on:
        server.account.no_effect(flag.written, "towers are loaded anyway")
    elif spec is not None and not _has_tower(spec):
        server.account.no_effect(flag.written, "no tower of the model is known")
    else:
        server.set(_KEY, True, flag)


def limits(flag: Flag, server: Server) -> None:
    """Leave out the towers where a server takes nothing that they read."""
    spec = spec_of(server)
    said = _counts(flag, server)
    if not any(count == 0 for count in said.values()):
        server.account.no_effect(flag.written, "requests say what they bring (workload.images)")
    elif spec is None or not _has_tower(spec):
        server.account.no_effect(flag.written, "no tower of the model is known")
    elif missing := [name for name in _read_by(spec) if said.get(name) != 0]:
        server.account.no_effect(
            flag.written, f"its tower is loaded while {missing[0]} is not 0, too"
        )
    elif _is_old(server.engine) and not spec.architecture.startswith(_FEW):
        server.account.no_effect(
            flag.written, f"{server.engine} loads this model's tower all the same"
        )
    else:
        server.set(_KEY, True, flag)


def _has_tower(spec: ModelSpec) -> bool:
    return bool(spec.vision or spec.tower_parameters or spec.unsized_towers)


def _read_by(spec: ModelSpec) -> tuple[str, ...]:
    """Return the kinds of input that the model's towers read."""
    if spec.architecture.startswith(_OF_IMAGES):
        return ("image",)
    return ("image", "video") if spec.vision else ("image", "video", "audio")


def _is_old(engine: str | None) -> bool:
    order = list(VERSIONS)
    return engine in order and order.index(engine) <= order.index(_LAST_WITH_FEW)


def _counts(flag: Flag, server: Server) -> dict[str, object]:
    """Return the limit of each kind; `image=0,video=0` is how vLLM before 0.9 wrote it."""
    if "=" in flag.value and not flag.value.lstrip().startswith("{"):
        pairs = (each.partition("=") for each in flag.value.split(","))
        text = json.dumps({k.strip(): int(n) if n.strip().isdecimal() else n for k, _, n in pairs})
        flag = Flag(flag.name, (text,))
    return {
        kind: limit.get("count") if isinstance(limit, dict) else limit
        for kind, limit in entries_of(flag, server).items()
    }
