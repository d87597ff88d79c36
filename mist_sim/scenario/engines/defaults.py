"""Defaults by an engine's version and GPU: in Python, and in a scenario file.

Without `engine` those of the newest version hold. Source of the limits of `vllm serve`
(`UsageContext.OPENAI_API_SERVER`): `get_batch_defaults` and
`_set_default_max_num_seqs_and_batched_tokens_args` in `vllm/engine/arg_utils.py`; the figures of
each version are in `versions.toml`. vLLM has other figures for TPUs, which are not taken here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mist_sim.clients import EngineConfig
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.hardware import GpuSpec, device_of
from mist_sim.scenario.engines.versions import (
    LARGEST_GRAPH,
    LIMITS,
    NEWEST,
    EngineVersion,
    LargestGraph,
    ServerLimits,
    version_of,
)
from mist_sim.scenario.format.families import SCHEDULER


def server_limits(
    gpu: GpuSpec, num_drafts: int = 0, version: EngineVersion = NEWEST
) -> ServerLimits:
    """Return the limits of vLLM's server on a GPU.

    GPUs of 70 GiB or more have larger limits, except those with "a100" in their name. A GPU based
    on a catalog entry keeps that entry's limits, even if its memory was changed.

    num_drafts: tokens that every sequence verifies in a step besides its own. The number of
    sequences is limited by the tokens of a step (vLLM's limits ignore drafts; it then verifies
    fewer).
    """
    device = device_of(gpu)
    limits: ServerLimits = version.default(LIMITS).of(device.memory, device.name)
    most = _most_verified(limits.max_num_batched_tokens, num_drafts)
    return limits._replace(max_num_seqs=min(limits.max_num_seqs, most))


def _most_verified(num_tokens: int, num_drafts: int) -> int:
    """Return how many sequences can verify so many drafts each in a step; at least 1."""
    return max(1, num_tokens // (1 + num_drafts))


def scheduler_by_version(
    scheduler: object, gpu: GpuSpec, num_drafts: int, version: EngineVersion
) -> object:
    """Return a file's scheduler, with the version's defaults for what it leaves out.

    An option gets the version's default if the scheduler's class inherits it from `Scheduler` or
    `ChunkedScheduler`; a class that declares it itself keeps its own. As in vLLM, no more sequences
    run by default than a step has tokens; with chunked prefill, no more than it has tokens to
    verify `num_drafts` for. Any value but a known name or a mapping is returned unchanged.
    """
    said: object = {"type": scheduler} if isinstance(scheduler, str) else scheduler
    name = str(said.get("type", SCHEDULER.default)) if isinstance(said, dict) else ""
    if not isinstance(said, dict) or name not in SCHEDULER.registry:
        return scheduler
    plugin = SCHEDULER.registry[name]
    inherited = inherited_options(plugin)
    limits = {
        key: value
        for key, value in server_limits(gpu, version=version)._asdict().items()
        if key not in said and key in inherited
    }
    own = getattr(plugin, "max_num_batched_tokens", None)
    tokens = {"max_num_batched_tokens": own, **said, **limits}["max_num_batched_tokens"]
    if "max_num_seqs" in limits and isinstance(tokens, int) and tokens >= 1:
        most = _most_verified(tokens, num_drafts if issubclass(plugin, ChunkedScheduler) else 0)
        limits["max_num_seqs"] = min(limits["max_num_seqs"], most)
    return {**scheduler_options(plugin, version), **said, **limits}


def by_gpu(key: str, default: object) -> str | None:
    """Return both defaults of a limit that depends on the GPU; None for any other option.

    key: below a client, such as "scheduler.max_num_seqs". default: that of the scheduler's class.
    """
    part, _, name = key.partition(".")
    if part != "scheduler" or name not in ServerLimits._fields or default is None:
        return None
    limits = NEWEST.default(LIMITS)
    figures = {getattr(each, name) for each in (limits.small, *(tier[2] for tier in limits.tiers))}
    return f"{' or '.join(map(str, sorted(figures)))}, by GPU"


def inherited_options(scheduler: type[Any]) -> set[str]:
    """Return the options that a class inherits from our schedulers and does not declare itself."""
    ours = {field.name: field for base in (Scheduler, ChunkedScheduler) for field in fields(base)}
    theirs = fields(scheduler) if is_dataclass(scheduler) else ()
    return {field.name for field in theirs if field is ours.get(field.name)}


_SHARE = "kv_cache.gpu_memory_utilization"


def with_version_defaults(config: EngineConfig) -> EngineConfig:
    """Return a config whose open options have the defaults of the version."""
    version = version_of(config.engine)
    ahead = config.async_scheduling
    if ahead is None:
        ahead = version.default("async_scheduling") and not config.no_planning_ahead
        if config.speculative_config is not None:
            ahead = ahead and config.speculative_config.method in version.rules.async_drafts
        if config.pipeline_parallel_size > 1:
            ahead = ahead and version.rules.async_pipelines
    kv_cache = config.kv_cache
    if kv_cache.gpu_memory_utilization is None and kv_cache.num_gpu_blocks_override is None:
        kv_cache = replace(kv_cache, gpu_memory_utilization=version.default(_SHARE))
    return replace(config, async_scheduling=ahead, kv_cache=kv_cache)


def largest_graph(
    version: EngineVersion, gpu: GpuSpec, max_num_seqs: int, num_drafts: int = 0
) -> int:
    """Return the most tokens of a step that a version replays on a GPU as a CUDA graph.

    num_drafts: tokens that every sequence verifies in a step beside its own.
    """
    graph: LargestGraph = version.default(LARGEST_GRAPH)
    return graph.of(device_of(gpu).name, max_num_seqs, num_drafts)


def kv_cache_by_version(said: object, version: EngineVersion) -> object:
    """Return a file's KV cache section, with the version's share of memory if it names none.

    Where it says how many blocks there are, no memory is counted.
    """
    if not isinstance(said, Mapping):
        return said
    counted = said.get("num_gpu_blocks_override") is not None
    if counted or said.get("gpu_memory_utilization") is not None:
        return said
    return {**said, "gpu_memory_utilization": version.default(_SHARE)}


def scheduler_options(plugin: type[Any], version: EngineVersion) -> dict[str, Any]:
    """Return a version's defaults of the options that a scheduler's class inherits, but for limits.

    An option that the class declares itself keeps its default.
    """
    options = inherited_options(plugin)
    named = {key.removeprefix("scheduler."): key for key in version.defaults}
    return {name: version.default(key) for name, key in named.items() if name in options}


def predictor_by_version(
    said: object, version: EngineVersion, gpu: GpuSpec, max_num_seqs: int, num_drafts: int = 0
) -> object:
    """Return a file's roofline section, with the version's largest CUDA graph if it names none."""
    spelt: object = {"type": said} if isinstance(said, str) else said
    if not isinstance(spelt, Mapping) or spelt.get("type", "roofline") != "roofline":
        return said
    sizes = ("max_cudagraph_capture_size", "cudagraph_capture_sizes")
    if spelt.get("enforce_eager") or any(spelt.get(key) is not None for key in sizes):
        return said
    return {**spelt, sizes[0]: largest_graph(version, gpu, max_num_seqs, num_drafts)}
