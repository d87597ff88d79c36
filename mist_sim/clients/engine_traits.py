"""The traits of a client with engines: those of its options, with memory and step times."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.step_limits import step_limits
from mist_sim.clients.stores.tiers import store_of
from mist_sim.clients.traits import ClientTraits, KvForm, TimesOrigin
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
        step_limits=step_limits(config, memory),
    )


def _longest_prompt(config: EngineConfig, memory: LaneMemory) -> tuple[float, str]:
    """Return the tokens of the longest prompt that can be answered, and the limiting option."""
    limits, longest = [(inf, "whose layers have windows")], config.max_model_len
    if longest is not None:
        limits.append((longest - 1, f"by max_model_len={longest}"))
    if memory.groups is None:
        limits.append((memory.num_tokens, "by its KV cache"))
    return min(limits)
