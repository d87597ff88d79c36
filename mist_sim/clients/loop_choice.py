"""Chooses the loop of an engine: the core, or the general one."""

from __future__ import annotations

from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache.lane_memory import LaneMemory
from mist_sim.clients.scheduling import (
    ChunkedScheduler,
    ContinuousScheduler,
    MixedScheduler,
    Scheduler,
    StaticScheduler,
)

WHOLE = ContinuousScheduler, MixedScheduler, StaticScheduler


def option_for_general(config: EngineConfig, memory: LaneMemory, rules: EngineRules) -> str:
    """Return the option that the engine core does not serve; empty if there is none.

    memory: of its lanes, in the client's present layout.
    """
    scheduler = config.scheduler
    is_whole = type(scheduler) in WHOLE
    is_other = not (is_whole or isinstance(scheduler, ChunkedScheduler))
    own_swaps = bool(own_methods_of(scheduler) and scheduler and scheduler.swaps_overlap)
    kind = f"scheduler.type {type(scheduler).__name__}"
    for option, is_set in (
        (kind, is_other),
        ("methods of its own and scheduler.preemption async_swap", own_swaps),
    ):
        if is_set:
            return option
    return ""


def own_methods_of(scheduler: Scheduler | None) -> frozenset[str]:
    """Return the methods of a scheduler's own that the core asks."""
    if isinstance(scheduler, ChunkedScheduler):
        return scheduler.own_methods
    return frozenset()


def may_use_lines(config: EngineConfig, memory: LaneMemory) -> bool:
    """Tell whether steps of decodes alone may be timed by a line (see `Engine.uses_lines`).

    The general loop asks the predictor for every time where it is asked for by name.
    """
    needs_more = config.speculative_config or config.lora or memory.groups
    return not needs_more and config.step_loop != "general"
