"""Chooses the loop of an engine: the plain one for the common case, or the general one."""

from __future__ import annotations

from typing import Literal, get_args

from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.clients.scheduling.cadence import Cadence

StepLoop = Literal["auto", "plain", "general"]
STEP_LOOPS: tuple[str, ...] = get_args(StepLoop)


def option_for_general(scheduler: Scheduler, cadence: Cadence | None) -> str:
    """Return the scheduler's option that the plain loop does not support; empty if none.

    cadence: of its lanes; None: every step may carry prompts.
    """
    if type(scheduler) is not ChunkedScheduler:
        return f"scheduler.type {type(scheduler).__name__}"
    if scheduler.order != "fcfs":
        return f"scheduler.order {scheduler.order}"
    if scheduler.preemption != "recompute":
        return f"scheduler.preemption {scheduler.preemption}"
    if scheduler.long_prefill_token_threshold is not None:
        return "scheduler.long_prefill_token_threshold"
    if cadence is not None:
        return "scheduler.prefill_schedule_interval"
    return ""
