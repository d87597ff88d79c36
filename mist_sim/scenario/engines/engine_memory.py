"""The KV cache of an engine: its blocks, the tiers below it, and swap space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mist_sim.clients import EngineConfig
from mist_sim.clients.engine.queued.form import queue_form
from mist_sim.clients.engine_checks import against_loads
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import (
    EngineMemory,
    KvCacheConfig,
    SwapSpace,
    cache_tiers,
    kv_block_bytes,
    num_gpu_blocks,
    swap_space,
)
from mist_sim.clients.kv_cache.lane_memory import LaneMemory, lane_memory
from mist_sim.clients.kv_cache.profile_run import SAMPLER_BYTES, Needs, ProfileRun, num_graphs
from mist_sim.clients.rules.window_rules import page_rules
from mist_sim.clients.scheduling import Scheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec
from mist_sim.hardware.devices.memory import MemoryTier
from mist_sim.hardware.drafter import Drafter, shared_groups
from mist_sim.hardware.kernel_choice import deployment_of
from mist_sim.metrics.assumptions import HOST_COPIES
from mist_sim.models import ModelSpec
from mist_sim.models.adapters import AT_ONCE, AdapterMoves, adapter_moves
from mist_sim.models.expert_padding import is_padded
from mist_sim.models.kv_groups import KvGroups
from mist_sim.models.moe_backends import MoeBackend, expert_format
from mist_sim.scenario.engines.engine_version import EXPERTS, SAMPLER
from mist_sim.scenario.engines.state_caching import MODE, state_caching
from mist_sim.scenario.engines.step_times import StepTimes
from mist_sim.scenario.engines.version_names import version_of


def engine_memory(
    config: EngineConfig,
    model: ModelSpec,
    cluster: Cluster,
    scheduler: Scheduler,
    times: StepTimes,
    longest: int,
) -> EngineMemory:
    """Return the KV cache of an engine. Raises ScenarioError if there is no room.

    longest: tokens of the longest prompt, which a scheduler without a limit takes in one step.
    """
    draft = times.drafter
    kv_cache = config.kv_cache
    num_tokens = getattr(scheduler, "max_num_batched_tokens", longest)
    sizes: dict[str, Any] = {
        "max_num_batched_tokens": num_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
    }
    decodes = scheduler.max_num_seqs * (1 + config.num_drafts)
    needs = Needs(
        profile=_profile(config),
        num_graphs=num_graphs(times.graphs, decodes),
        moe_backend=config.moe_backend or _experts_of(config, model, cluster),
        lora=config.lora,
        images=config.images,
        language_model_only=config.language_model_only,
    )
    blocks = num_gpu_blocks(kv_cache, model, cluster, **sizes, drafter=draft, needs=needs)
    return EngineMemory(
        num_gpu_blocks=blocks,
        kv_groups=_groups(config, model, cluster, draft),
        cache_tiers=cache_tiers(kv_cache, model, cluster),
        swap_space=_swap_space(scheduler, kv_cache, model, cluster),
        kv_block_bytes=kv_block_bytes(kv_cache, model, cluster),
        num_layers=model.num_layers,
        adapter_moves=_adapter_moves(config, model, cluster),
        kv_entries=model.kv_entries,
    )


def _profile(config: EngineConfig) -> ProfileRun:
    """Return what the version's profile finds, with the sampler of the engine."""
    version = version_of(config.engine)
    said = config.sampling.sampler if config.sampling else None
    sampler = said or version.default(SAMPLER)
    return replace(version.profile, sampler_bytes=SAMPLER_BYTES[sampler])


def _experts_of(config: EngineConfig, model: ModelSpec, cluster: Cluster) -> MoeBackend | None:
    """Return the version's kernel of experts that a kernel pads; None for others."""
    if not is_padded(model):
        return None
    choices = version_of(config.engine).default(f"{EXPERTS}{expert_format(model)}")
    chosen: MoeBackend | None = choices.of(deployment_of(model, cluster))
    return chosen


LOADS = "kv_cache.tiers.loads_in_step"


def with_loads(config: EngineConfig) -> EngineConfig:
    """Return an engine whose tiers say whether a step waits for loads.

    A step does where the tiers leave it open, unless an option or a topology rules it out. Tiers
    have a place (`MemoryTier.at`) on a topology only.
    """
    tiers = config.kv_cache.tiers
    if all(tier.loads_in_step is not None for tier in tiers):
        return config
    in_step = not against_loads(config) and all(tier.at is None for tier in tiers)
    decided = tuple(replace(tier, loads_in_step=in_step) for tier in tiers)
    return replace(config, kv_cache=replace(config.kv_cache, tiers=decided))


def host_copies(tiers: Sequence[MemoryTier], gpu: GpuSpec) -> Iterator[str]:
    """Yield the tiers that are read at the full rate of a GPU's host link, as results have it."""
    for tier in tiers:
        if tier.read_bandwidth is None and tier.at in (None, "host"):
            yield f"{HOST_COPIES}{tier.name} at {gpu.from_host / 1e9:g} GB/s a GPU"


def _adapter_moves(config: EngineConfig, model: ModelSpec, cluster: Cluster) -> AdapterMoves:
    if config.lora is None:
        return AT_ONCE
    bandwidth = cluster.gpu.from_host
    return adapter_moves(model, config.lora, cluster.tensor_parallel_size, bandwidth)


def _groups(
    config: EngineConfig, model: ModelSpec, cluster: Cluster, draft: Drafter | None
) -> KvGroups | None:
    """Return the groups of layers that share pages; None if all layers share a page."""
    if not model.layers:
        return shared_groups(model, draft) if model.sliding_window else None
    layout = model.cache_layout(cluster.tensor_parallel_size)
    if not layout.has_groups:
        return None
    if not layout.has_states:
        return layout.groups
    caching = state_caching(config, model, cluster, layout)
    return replace(layout.groups, state_cache=caching.mode, saves_inside=caching.saves_inside)


def with_state_pages(config: EngineConfig, model: ModelSpec, cluster: Cluster) -> EngineConfig:
    """Return an engine whose blocks are as long as the states of its model require.

    A block's entries take at least the bytes of a state (see `CacheLayout`). Prefixes are cached
    where states are kept.
    """
    layout = model.cache_layout(cluster.tensor_parallel_size) if model.layers else None
    if layout is None or not layout.has_states:
        if config.kv_cache.mamba_cache_mode is not None:
            raise ScenarioError(
                f"{MODE} must be left out for {model.name}, no layer of which keeps a state, got "
                f"{config.kv_cache.mamba_cache_mode}"
            )
        return config
    caching = state_caching(config, model, cluster, layout)
    kv_cache = replace(
        config.kv_cache,
        block_size=caching.block_size,
        enable_prefix_caching=caching.mode != "none",
        mamba_cache_mode=caching.mode,
    )
    return replace(config, kv_cache=kv_cache)


def with_longer_blocks(config: EngineConfig) -> EngineConfig:
    """Return an engine whose blocks hold the tokens of all ranks that share out a context.

    On each of them a block has `block_size` of these (vLLM: `KVCacheManager` multiplies the block
    size by `dcp_world_size`).
    """
    size, kv_cache = config.decode_context_parallel_size, config.kv_cache
    if size == 1:
        return config
    return replace(config, kv_cache=replace(kv_cache, block_size=size * kv_cache.block_size))


def of_a_lane(memory: EngineMemory, config: EngineConfig, rules: EngineRules) -> LaneMemory:
    """Return the part of an engine's KV cache into which each request has to fit."""
    num_ranks, ahead = config.pipeline_parallel_size, bool(config.async_scheduling)
    form = queue_form(rules, memory, num_ranks, config.no_batch_queue, ahead=ahead)
    return lane_memory(
        memory,
        config.kv_cache,
        1 if form else num_ranks,
        drafting=config.speculative_config,
        swaps=memory.swap_space is not None,
        page_rules=page_rules(config, rules, form),
    )


def _swap_space(
    scheduler: Scheduler, config: KvCacheConfig, model: ModelSpec, cluster: Cluster
) -> SwapSpace | None:
    """Return the swap space of an engine; None if its scheduler does not swap."""
    if scheduler.swaps:
        return swap_space(config, model, cluster)
    if config.swap_space is not None:
        raise ScenarioError(
            "kv_cache must have no swap_space, since nothing is swapped with "
            "scheduler.preemption: recompute"
        )
    return None
