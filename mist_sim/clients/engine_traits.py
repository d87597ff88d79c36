"""The traits of a client with engines: those of its options, with memory and step times."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from mist_sim.clients.engine.lanes import lane_shares
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.options.engine_config import EngineConfig
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.clients.stores import store_of
from mist_sim.clients.traits import ClientTraits, KvForm, TimesOrigin
from mist_sim.core.batch import StepLimits
from mist_sim.hardware.machine import Machine


def engine_traits(
    config: EngineConfig,
    memory: LaneMemory,
    form: KvForm,
    machine: Machine | None,
    times: TimesOrigin,
) -> ClientTraits:
    """Return the traits of a client whose engines have these options.

    memory: of each lane. form: bytes of a block and layers of its KV entries. machine: its GPUs;
    None: unknown. times: where its step times come from.
    """
    traits, tiers, slider = config.traits, memory.tiers, config.traits.slider
    if machine is not None and traits.entries is not None:
        form = replace(traits.entries, block_bytes=form.block_bytes, num_layers=form.num_layers)
    if slider is not None and memory.groups:
        slider = replace(slider, obstacle="a model with sliding windows")
    return replace(
        traits,
        entries=form,
        longest_prompt=_longest_prompt(config, memory),
        slider=slider,
        stores={tier.name: store_of(tier) for tier in tiers},
        shared_tiers={
            tier.name: (tier.num_blocks, memory.block_size) for tier in tiers if tier.shared
        },
        machine=machine,
        times=times,
        step_limits=_step_limits(config, memory),
    )


def _longest_prompt(config: EngineConfig, memory: LaneMemory) -> tuple[float, str]:
    """Return the tokens of the longest prompt that can be answered, and the limiting option."""
    limits, longest = [(inf, "whose layers have windows")], config.max_model_len
    if longest is not None:
        limits.append((longest - 1, f"by max_model_len={longest}"))
    if memory.groups is None:
        limits.append((memory.num_tokens, "by its KV cache"))
    return min(limits)


def _step_limits(config: EngineConfig, memory: LaneMemory) -> StepLimits | None:
    """Return the limits of steps, to compute how much room they had.

    memory: of each of their lanes. None for schedulers other than the chunked one: whole prompts
        wait for a batch, or for a step in which they fit, so the content of a step does not show
        its room.
    """
    scheduler = config.scheduler
    if not isinstance(scheduler, ChunkedScheduler):
        return None
    groups = memory.groups
    num_groups = groups.num_groups if groups else 1
    num_ranks, most = config.pipeline_parallel_size, scheduler.max_num_seqs
    shares = lane_shares(max(most, num_ranks), config.data_parallel_size, num_ranks)
    return StepLimits(
        tokens=scheduler.max_num_batched_tokens,
        tokens_a_decode=1 + config.num_drafts,
        sequences=tuple(shares),
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        blocks_each=num_groups,
        adapters=0 if config.lora is None else config.lora.max_loras,
    )
