"""Charts with their own keys for vLLM's arguments, and vLLM's file of arguments.

Sources: vLLM's production stack (`servingEngineSpec.modelSpec` in helm/values.yaml and
helm/templates/deployment-vllm-multi.yaml): `vllmConfig` and `lmcacheConfig`; vLLM's `--config`, a
YAML file of long flags (`load_config_file` in vllm/utils/argparse_utils.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mist_sim.bounds import SCENARIO_BYTES
from mist_sim.inputs import text_of
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.from_vllm.handlers.lmcache import NO_DISK
from mist_sim.scenario.from_vllm.wrappers.command import Surroundings
from mist_sim.scenario.from_vllm.wrappers.node_labels import note_product

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ROLES = {"producer": "kv_producer", "consumer": "kv_consumer"}
_LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
_SAID = ("enabled", "kvRole", "cpuOffloadingBufferSize", "maxLocalCpuSize", "logLevel", "remoteUrl")
_DISKS = ("diskOffloadingBufferSize", "maxLocalDiskSize")
_NO_DISK = f"{NO_DISK}, without the key"
_ROUTERS = {
    "roundrobin": "round_robin",
    "session": "session_affinity",
    "prefixaware": "prefix_affinity",
}
_NOT_FLAGS = ("extraArgs", "v1", "v0", "enable")
_SPELT = {"--enable-lo-ra": "--enable-lora"}


def is_model_spec(part: Mapping[str, Any]) -> bool:
    """Whether a mapping is one model of the production stack's values."""
    return "modelURL" in part


def words_of(part: Mapping[str, Any], around: Surroundings) -> list[str]:
    """Return vLLM's arguments for a model's values, and note its image and variables."""
    repository, tag = part.get("repository", "vllm/vllm-openai"), part.get("tag", "latest")
    around.image = f"{repository}:{tag}"
    note_product("requestGPUType", str(part.get("requestGPUType") or ""), around)
    words = [str(part["modelURL"])]
    config = part.get("vllmConfig")
    if isinstance(config, dict):
        for key, value in config.items():
            if key not in _NOT_FLAGS:
                words += _flag(f"--{_CAPITAL.sub('-', str(key)).lower()}", value)
        if "enablePrefixCaching" not in config:
            words += ["--no-enable-prefix-caching"]
        for key, engine in (("v1", "1"), ("v0", "0")):
            if str(config.get(key)) == "1":
                around.variables["VLLM_USE_V1"] = engine
        extra = config.get("extraArgs")
        words += [str(word) for word in extra] if isinstance(extra, list) else []
    if part.get("enableLoRA"):
        words += ["--enable-lora"]
    if part.get("enableTool"):
        words += ["--enable-auto-tool-choice"]
    if "routingLogic" in part:
        _note_router(str(part["routingLogic"]), around)
    cache = part.get("lmcacheConfig")
    if isinstance(cache, dict) and cache.get("enabled"):
        words += _cache(cache, around)
    return words


def spread(document: Any) -> Any:
    """Return values of the production stack with what all models share written into each.

    `routerSpec.routingLogic` and, as `lmcacheConfig.remoteUrl`, the store of `cacheserverSpec`.
    Other documents are returned unchanged.
    """
    engines = document.get("servingEngineSpec") if isinstance(document, dict) else None
    if not isinstance(engines, dict) or not isinstance(engines.get("modelSpec"), list):
        return document
    router, store = document.get("routerSpec"), document.get("cacheserverSpec")
    shared = {}
    if isinstance(router, dict) and "routingLogic" in router:
        shared["routingLogic"] = router["routingLogic"]
    found = []
    for model in engines["modelSpec"]:
        own = {**model, **shared} if isinstance(model, dict) else model
        cache = own.get("lmcacheConfig") if isinstance(own, dict) else None
        if isinstance(cache, dict) and isinstance(store, dict) and store.get("enabled", store):
            own["lmcacheConfig"] = {"remoteUrl": "cacheserverSpec", **cache}
        found.append(own)
    return {**document, "servingEngineSpec": {**engines, "modelSpec": found}}


def _note_router(logic: str, around: Surroundings) -> None:
    flag = f"routingLogic {logic}"
    if logic in _ROUTERS:
        around.account.assumed(
            flag, f"requests are spread by the scenario's router; --set router={_ROUTERS[logic]}"
        )
    elif logic == "disaggregated_prefill":
        around.account.no_effect(flag, "the roles of the servers say who computes prompts")
    else:
        around.account.assumed(flag, "requests are spread by the scenario's router")


def _cache(cache: Mapping[str, Any], around: Surroundings) -> Iterator[str]:
    """Yield the connector for LMCache's values, and note its variables."""
    role = _ROLES.get(str(cache.get("kvRole", "")).removeprefix("kv_"), _LMCACHE["kv_role"])
    size = cache.get("cpuOffloadingBufferSize", cache.get("maxLocalCpuSize"))
    if size is not None:
        around.variables |= {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": str(size)}
    for key, name in (("logLevel", "LMCACHE_LOG_LEVEL"), ("remoteUrl", "LMCACHE_REMOTE_URL")):
        if key in cache:
            around.variables[name] = str(cache[key])
    for key, value in cache.items():
        if key in _DISKS and value:
            around.account.refused(f"lmcacheConfig.{key}", _NO_DISK)
        elif key not in _SAID:
            around.account.assumed(f"lmcacheConfig.{key}", "LMCache keeps blocks as a tier does")
    yield "--kv-transfer-config"
    yield json.dumps({**_LMCACHE, "kv_role": role})


def is_config(part: Mapping[str, Any]) -> bool:
    """Whether a mapping is a file of vLLM's `--config`: long flags without their dashes."""
    return (
        "model" in part
        and all(isinstance(key, str) for key in part)
        and any(str(key).replace("_", "-") in _TELLING for key in part)
    )


_TELLING = (
    *("tensor-parallel-size", "max-model-len", "gpu-memory-utilization", "max-num-seqs"),
    *("max-num-batched-tokens", "kv-cache-dtype", "served-model-name", "enable-prefix-caching"),
)


def with_config(words: Sequence[str]) -> tuple[list[str], str]:
    """Return arguments with those of the file of `--config` before them, and what is wrong with it.

    The words of `--config` stay; a fault is empty where there is none.
    """
    position = next((i for i, word in enumerate(words) if word.startswith("--config")), None)
    if position is None or words[position].partition("=")[0] != "--config":
        return list(words), ""
    name = words[position].partition("=")[2] or "".join(words[position + 1 : position + 2])
    path = Path(name)
    if not path.is_file():
        return list(words), "there is no such file here; instead: its keys as arguments"
    part = yaml_text.parse(text_of(path, SCENARIO_BYTES), name)
    if not isinstance(part, dict):
        return list(words), "the file must have keys and values"
    return [*flags_from(part), *words], ""


def flags_from(part: Mapping[str, Any]) -> list[str]:
    """Return the words of a file of long flags."""
    return [word for key, value in part.items() for word in _flag(f"--{key}", value)]


def _flag(flag: str, value: Any) -> list[str]:
    """Return the words of a key and its value."""
    flag = _SPELT.get(flag, flag).replace("_", "-")
    if value is True:
        return [flag]
    if value is False:
        return [f"--no-{flag[2:]}"] if not flag.startswith("--no-") else []
    if value is None:
        return []
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
