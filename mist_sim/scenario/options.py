"""Options as `mist list options` and the reference show them.

vLLM's names for the options of an engine's parts; a test holds the list complete.

The engine's own options give their vLLM names in `EngineConfig`.

Source: `vllm serve --help` of vLLM 0.12 (`vllm/engine/arg_utils.py`, `vllm/config/`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from mist_sim.clients import EngineConfig
from mist_sim.clients.engine_options import NO_COUNTERPART
from mist_sim.registry import comes_with_package
from mist_sim.scenario.engines.server_defaults import by_gpu
from mist_sim.scenario.format.docstrings import documented_with_bases
from mist_sim.scenario.format.families import Family, Settings
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.sections.clients import CLIENT
from mist_sim.scenario.sections.clients.llm import LlmPart

VLLM_NAMES: Mapping[str, str] = {
    # scheduler
    "scheduler.type": "--enable-chunked-prefill (chunked)",
    "scheduler.max_num_seqs": "--max-num-seqs",
    "scheduler.order": "--scheduling-policy (fcfs, priority)",
    "scheduler.preemption": "--preemption-mode (v0)",
    "scheduler.max_num_batched_tokens": "--max-num-batched-tokens",
    "scheduler.long_prefill_token_threshold": "--long-prefill-token-threshold",
    "scheduler.max_num_partial_prefills": "--max-num-partial-prefills",
    "scheduler.scheduler_reserve_full_isl": "--scheduler-reserve-full-isl (from 0.19)",
    "scheduler.prefill_schedule_interval": "--prefill-schedule-interval (from 0.24)",
    # kv_cache
    "kv_cache.block_size": "--block-size",
    "kv_cache.gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache.kv_cache_dtype": "--kv-cache-dtype",
    "kv_cache.num_gpu_blocks_override": "--num-gpu-blocks-override",
    "kv_cache.context_memory": NO_COUNTERPART,
    "kv_cache.watermark": "--watermark (from 0.24)",
    "kv_cache.swap_space": "--swap-space (v0)",
    "kv_cache.tiers.name": NO_COUNTERPART,
    "kv_cache.tiers.capacity": "--kv-offloading-size (host memory)",
    "kv_cache.tiers.read_bandwidth": NO_COUNTERPART,
    "kv_cache.tiers.latency": NO_COUNTERPART,
    "kv_cache.tiers.at": NO_COUNTERPART,
    "kv_cache.tiers.shared": "--kv-transfer-config (LMCache or Mooncake store)",
    "kv_cache.tiers.loads_in_step": "--kv-transfer-config (null with LMCacheConnectorV1)",
    "kv_cache.tiers.write_policy": NO_COUNTERPART,
    "kv_cache.enable_prefix_caching": "--enable-prefix-caching",
    "kv_cache.mamba_cache_mode": "--mamba-cache-mode (0.15 to 0.32)",
    # sampling
    "sampling.temperature": "--override-generation-config",
    "sampling.top_p": "--override-generation-config",
    "sampling.top_k": "--override-generation-config",
    "sampling.repetition_penalty": "--override-generation-config",
    "sampling.presence_penalty": NO_COUNTERPART,
    "sampling.frequency_penalty": NO_COUNTERPART,
    "sampling.generation_config": "--generation-config (auto, vllm)",
    "sampling.sampler": NO_COUNTERPART,
    # predictor
    "predictor.type": NO_COUNTERPART,
    "predictor.enforce_eager": "--enforce-eager",
    "predictor.max_cudagraph_capture_size": "--max-cudagraph-capture-size",
    "predictor.cudagraph_capture_sizes": "--cudagraph-capture-sizes",
    "predictor.composition": NO_COUNTERPART,
    "predictor.path": NO_COUNTERPART,
    "predictor.format": NO_COUNTERPART,
    "predictor.subset": NO_COUNTERPART,
    "predictor.command": NO_COUNTERPART,
    "predictor.timeout": NO_COUNTERPART,
    "predictor.step": NO_COUNTERPART,
    "predictor.prefill_token": NO_COUNTERPART,
    "predictor.decode": NO_COUNTERPART,
    "predictor.piggyback": NO_COUNTERPART,
    # step_time_scale
    "step_time_scale.prompts": NO_COUNTERPART,
    "step_time_scale.decodes": NO_COUNTERPART,
    # resharding
    **dict.fromkeys(
        (
            "resharding.tensor_parallel_size",
            "resharding.pipeline_parallel_size",
            "resharding.policy",
            "resharding.threshold",
            "resharding.ttft_limit",
            "resharding.to_prefill",
            "resharding.to_decode",
            "resharding.running",
            "resharding.prefetch",
            "resharding.host_memory",
            "resharding.host_bandwidth",
            "resharding.host_copy_bandwidth",
            "resharding.kv_layout_efficiency",
        ),
        NO_COUNTERPART,
    ),
    # speculative_config
    **dict.fromkeys(
        (
            "speculative_config.method",
            "speculative_config.num_speculative_tokens",
            "speculative_config.model",
            "speculative_config.draft_tensor_parallel_size",
        ),
        "--speculative-config",
    ),
    "speculative_config.acceptance_rate": NO_COUNTERPART,
    "speculative_config.text": NO_COUNTERPART,
    "speculative_config.drafting_time": NO_COUNTERPART,
    # images
    "images.mm_encoder_tp_mode": "--mm-encoder-tp-mode",
    # lora
    "lora.max_loras": "--max-loras",
    "lora.max_lora_rank": "--max-lora-rank",
    "lora.max_cpu_loras": "--max-cpu-loras",
    "lora.fully_sharded_loras": "--fully-sharded-loras",
    "lora.storage_bandwidth": NO_COUNTERPART,
    # admission
    "admission.max_num_waiting": NO_COUNTERPART,
    "admission.drop_expired": NO_COUNTERPART,
    "admission.early_rejection": NO_COUNTERPART,
    # overhead
    "overhead.step": NO_COUNTERPART,
    "overhead.prefill_step": NO_COUNTERPART,
    "overhead.sequence": NO_COUNTERPART,
    "overhead.exposed_step": NO_COUNTERPART,
    "overhead.exposed_sequence": NO_COUNTERPART,
    "overhead.request": NO_COUNTERPART,
    "overhead.prompt_token": NO_COUNTERPART,
}


_BY_ENGINE = "by engine"
_OF_THE_ENGINE = ("kv_cache.gpu_memory_utilization",)  # null is what the version takes


@dataclass(frozen=True, slots=True)
class EngineOption:
    """One option of a client of type llm.

    key: below `clients.N`. types: the plugins that have it, if not all of a family do, or if its
        default or meaning differs (each variant is an option of its own).
    default: as written in a file; None if the option is required.
    values: all possible values, if these are words.
    vllm: the flag of `vllm serve`, or why there is none; None if unknown.
    """

    key: str
    types: tuple[str, ...]
    default: str | None
    values: tuple[str, ...]
    vllm: str | None
    meaning: str


def engine_options() -> list[EngineOption]:
    """Return all options of a client that runs a language model, in the order of the schema."""
    found: list[EngineOption] = []
    for field, info in CLIENT.part_type("llm").model_fields.items():
        name = info.alias or field
        if field in LlmPart.model_fields:
            continue
        mark = _mark(info)
        if isinstance(mark, Settings):
            found += _of_part(f"{name}.", mark.model)
        elif isinstance(mark, Family):
            found += _of_family(f"{name}.", mark)
        else:
            default = None if info.is_required() else _default(info)
            found.append(_option(name, default, _words(info), info.description or ""))
    return found


def _mark(found: object) -> Settings | Family | None:
    """Return the marker in a field's annotation that says which part it holds."""
    if isinstance(found, Settings | Family):
        return found
    inner: tuple[object, ...] = get_args(found)
    if isinstance(found, FieldInfo):
        inner = (*found.metadata, *get_args(found.annotation))
    return next((mark for mark in map(_mark, inner) if mark), None)


def _of_family(prefix: str, family: Family) -> Iterator[EngineOption]:
    """Yield the options of a family's plugins; one that several plugins have comes once."""
    plugins = {
        name: family.part_type(name)
        for name, plugin in family.registry.usable().items()
        if comes_with_package(plugin)
    }
    meaning = f"the {family.registry.member} of the engine"
    yield _option(prefix + "type", family.default, tuple(plugins), meaning)
    types: dict[EngineOption, list[str]] = {}
    for name, model in plugins.items():
        for option in _of_part(prefix, model):
            types.setdefault(option, []).append(name)
    keys = list(dict.fromkeys(option.key for option in types))
    for option, names in sorted(types.items(), key=lambda item: keys.index(item[0].key)):
        yield option if len(names) == len(plugins) else replace(option, types=tuple(names))


def _of_part(prefix: str, model: type[Part]) -> Iterator[EngineOption]:
    infos = {info.alias or "": info for info in model.model_fields.values()}
    names = [name for name in infos if name != "type"]
    _, meanings = documented_with_bases(model.plugin, names)
    defaults = model.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    for name in names:
        mark = _mark(infos[name])
        if isinstance(mark, Settings):
            yield from _of_part(f"{prefix}{name}.", mark.model)
        else:
            default = None
            if name in defaults:
                default = by_gpu(prefix + name, defaults[name]) or _written(defaults[name])
                default = _BY_ENGINE if prefix + name in _OF_THE_ENGINE else default
            yield _option(prefix + name, default, _words(infos[name]), meanings.get(name, ""))


def _option(key: str, default: str | None, values: tuple[str, ...], meaning: str) -> EngineOption:
    return EngineOption(key, (), default, values, _vllm_name(key), meaning)


def _vllm_name(key: str) -> str | None:
    """Return vLLM's flag, from the config's field or from the table of names."""
    field = EngineConfig.__dataclass_fields__.get(key)
    return field.metadata.get("vllm") if field else VLLM_NAMES.get(key)


def _default(info: FieldInfo) -> str:
    """Return a default as written in a file, or a text on what it depends on."""
    made = info.default_factory is not None
    return _BY_ENGINE if made else _written(info.default)


def _words(found: object) -> tuple[str, ...]:
    """Return the words that a field may have as its value."""
    inner: tuple[object, ...] = get_args(found)
    if get_origin(found) is Literal:
        return tuple(word for word in inner if isinstance(word, str))
    if isinstance(found, FieldInfo):
        inner = (found.annotation,)
    return tuple(word for part in inner for word in _words(part))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
