"""Chooses the loop of an engine: the core, or the general one."""

from __future__ import annotations

from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.clients.traits import FLOWING_ROLES


def option_for_general(
    config: EngineConfig, memory: LaneMemory, pipeline: str, lockstep: bool
) -> str:
    """Return the option that the engine core does not serve; empty if there is none.

    memory: of its lanes. pipeline: empty without one, else whether it is one of "virtual engines"
    or has a "queue". lockstep: whether replicas step together, both in the client's present layout.
    """
    scheduler = config.scheduler
    is_chunked = type(scheduler) is ChunkedScheduler
    groups, flows = memory.groups, config.role in FLOWING_ROLES
    keeps_states = groups is not None and groups.num_kept_states > 0
    swaps = memory.swap_space is not None
    for option, is_set in (
        ("pipeline_parallel_size with virtual engines", pipeline == "virtual engines"),
        ("enable_expert_parallel and data_parallel_size", lockstep),
        ("speculative_config", config.speculative_config is not None),
        ("pipeline_parallel_size and a model with sliding windows", bool(groups and pipeline)),
        ("scheduler.preemption swap and a prefix cache that keeps states", keeps_states and swaps),
        ("flowing answers of a model with sliding windows", bool(groups and flows)),
        ("kv_cache.tiers", bool(memory.tiers)),
        (f"scheduler.type {type(scheduler).__name__}", not is_chunked),
    ):
        if is_set:
            return option
    preemptions = ("recompute",) if config.role else ("recompute", "swap")
    if scheduler is not None and scheduler.preemption not in preemptions:
        return f"scheduler.preemption {scheduler.preemption}"
    return ""


def may_use_lines(config: EngineConfig, memory: LaneMemory) -> bool:
    """Tell whether steps of decodes alone may be timed by a line (see `Engine.uses_lines`).

    The general loop asks the predictor for every time where it is asked for by name.
    """
    needs_more = config.speculative_config or config.lora or memory.groups
    return not needs_more and config.step_loop != "general"
