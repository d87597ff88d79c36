"""Chooses the loop of an engine: the core, or the general one."""

from __future__ import annotations

from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.clients.scheduling.cadence import interval_of


def option_for_general(
    config: EngineConfig, rules: EngineRules, memory: LaneMemory, pipeline: str, lockstep: bool
) -> str:
    """Return the option that the engine core does not serve; empty if there is none.

    rules: of the engine's version. memory: of its lanes. pipeline: empty without one, else whether
    it is one of "virtual engines" or has a "queue". lockstep: whether replicas step together, both
    in the client's present layout.
    """
    scheduler = config.scheduler
    is_chunked = type(scheduler) is ChunkedScheduler
    for option, is_set in (
        ("pipeline_parallel_size with virtual engines", pipeline == "virtual engines"),
        ("enable_expert_parallel and data_parallel_size", lockstep),
        ("speculative_config", config.speculative_config is not None),
        ("a model with sliding windows", memory.groups is not None),
        ("kv_cache.tiers", bool(memory.tiers)),
        (f"scheduler.type {type(scheduler).__name__}", not is_chunked),
    ):
        if is_set:
            return option
    preemptions = ("recompute",) if config.role else ("recompute", "swap")
    if scheduler is not None and scheduler.preemption not in preemptions:
        return f"scheduler.preemption {scheduler.preemption}"
    if pipeline and isinstance(scheduler, ChunkedScheduler):
        for option, is_set in (
            ("order", scheduler.order != "fcfs"),
            ("long_prefill_token_threshold", scheduler.long_prefill_token_threshold is not None),
            ("prefill_schedule_interval", rules.local_cadence and interval_of(scheduler) > 1),
        ):
            if is_set:
                return f"pipeline_parallel_size and scheduler.{option}"
    return ""


def may_use_lines(config: EngineConfig, memory: LaneMemory) -> bool:
    """Tell whether steps of decodes alone may be timed by a line (see `Engine.uses_lines`).

    The general loop asks the predictor for every time where it is asked for by name.
    """
    needs_more = config.speculative_config or config.lora or memory.groups
    return not needs_more and config.step_loop != "general"
