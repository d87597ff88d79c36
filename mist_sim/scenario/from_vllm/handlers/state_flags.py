"""Flags that say which states of a model a prefix cache keeps.

Source: `MambaModelConfig.verify_and_update_config` in `vllm/model_executor/models/config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.errors import MistError
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.kv_groups import STATE_CACHES
from mist_sim.models.layers import mixers_of
from mist_sim.models.mixers import LinearMixer
from mist_sim.scenario.engines.version_names import version_of
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.handlers.model_flags import spec_of
from mist_sim.scenario.from_vllm.server import Server

_CACHING = "--enable-prefix-caching"


def cache_mode(flag: Flag, server: Server) -> None:
    """Set which states are kept; vLLM heeds it where prefixes are cached."""
    spec = spec_of(server)
    if flag.value not in STATE_CACHES:
        server.account.refused(flag.written, f"must be one of {', '.join(STATE_CACHES)}")
    elif spec is not None and not _kinds(spec):
        server.account.no_effect(flag.written, "no layer of the model keeps a state")
    elif _CACHING not in server.said or not server.said[_CACHING].is_on:
        server.account.no_effect(flag.written, f"it takes effect with {_CACHING} alone")
    elif flag.value == "all" and spec is not None and _kinds(spec) != {"mamba2"}:
        server.set("kv_cache.mamba_cache_mode", "align", flag)  # so vLLM falls back
    elif flag.value != "none":
        server.set("kv_cache.mamba_cache_mode", flag.value, flag)
    else:
        server.account.no_effect(flag.written, "vLLM then takes the model's own mode")


def with_state_cache(client: Mapping[str, Any], engine: str | None) -> dict[str, Any]:
    """Return a server's client with the states that its version keeps where it is to cache.

    From 0.33 on that is the default.
    """
    kv_cache, rules = client.get("kv_cache", {}), version_of(engine).rules
    if rules.states_go_on or not kv_cache.get("enable_prefix_caching"):
        return {**client}
    if "mamba_cache_mode" in kv_cache:
        return {**client}
    try:
        kinds = _kinds(load_model(str(client.get("model"))))
    except MistError:
        return {**client}
    mode = "all" if kinds == {"mamba2"} else "align" if rules.states_wait else None
    if not kinds or mode is None:
        return {**client}
    return {**client, "kv_cache": {**kv_cache, "mamba_cache_mode": mode}}


def _kinds(spec: ModelSpec) -> set[str]:
    """Return the kinds of layers that keep a state."""
    mixers = mixers_of(spec.layers) if spec.layers else ()
    return {mixer.kind for mixer in mixers if isinstance(mixer, LinearMixer)}
