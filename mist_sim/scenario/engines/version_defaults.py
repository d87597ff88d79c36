"""Defaults by an engine's version: in Python, and in a scenario file.

Without `engine` those of the newest version hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mist_sim.clients import EngineConfig
from mist_sim.hardware import GpuSpec, device_of
from mist_sim.scenario.engines.engine_version import LARGEST_GRAPH, EngineVersion, LargestGraph
from mist_sim.scenario.engines.server_defaults import inherited_options
from mist_sim.scenario.engines.version_names import version_of
from mist_sim.scenario.format.families import SCHEDULER

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


def scheduler_by_version(said: object, version: EngineVersion) -> object:
    """Return a file's scheduler section, with the version's defaults for options of its class."""
    spelt: object = {"type": said} if isinstance(said, str) else said
    name = str(spelt.get("type", SCHEDULER.default)) if isinstance(spelt, Mapping) else ""
    if not isinstance(spelt, Mapping) or name not in SCHEDULER.registry:
        return said
    return {**scheduler_options(SCHEDULER.registry[name], version), **spelt}


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


def async_by_version(data: Mapping[str, Any]) -> bool:
    """Return whether a client plans ahead, of whose file the other options were read."""
    ahead: bool = version_of(data.get("engine_")).default("async_scheduling")
    pipeline = data.get("pipeline_parallel_size", 1) > 1
    if data.get("resharding") or data.get("virtual_engines"):
        return False
    if pipeline and not _may_plan_pipelines_ahead(data):
        return False
    drafts = data.get("speculative_config")
    if drafts is None:
        return ahead
    methods = version_of(data.get("engine_")).rules.async_drafts
    return ahead and not pipeline and drafts.method in methods


def _may_plan_pipelines_ahead(data: Mapping[str, Any]) -> bool:
    """Return whether a pipeline plans ahead, of whose file the other options were read."""
    scheduler, kv_cache = data.get("scheduler"), data.get("kv_cache")
    lockstep = data.get("enable_expert_parallel") and data.get("data_parallel_size", 1) > 1
    by_piece = getattr(getattr(scheduler, "plugin", None), "by_piece", True)
    swaps = getattr(scheduler, "preemption", "recompute") != "recompute"
    tiers = getattr(kv_cache, "tiers", ())
    rules = version_of(data.get("engine_")).rules
    others = data.get("role") or lockstep or swaps or tiers
    return rules.async_pipelines and by_piece and not others
