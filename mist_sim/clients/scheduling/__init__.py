"""Batching policies: who computes what in the next engine steps (MIST §III-E1, Fig. 3).

A policy is one method, `schedule`; what it stands on is one idea a file, each built on those above:

- `plan`, `order`: what a policy returns, and the queue of those who wait.
- `members`: `Members`, the sequences of an engine, in queue, prefill, decode or on the way.
- `admission`: `Admitting(Members)`, how the next one gets memory, loads from tiers included.
- `preemption`: `Preempting(Members)`, who gives memory up when the decodes run short.
- `base`: `Scheduler(Admitting, Preempting)`, options, and the account of executed steps.
- `chunked`: `ChunkedScheduler(Scheduler)`.
- `whole_prompts`: `WholePromptScheduler(Scheduler)`, on which `continuous`, `mixed` and `static`
  are built.
"""

from mist_sim.clients.scheduling.base import SCHEDULERS, Scheduler
from mist_sim.clients.scheduling.chunked import ChunkedScheduler
from mist_sim.clients.scheduling.continuous import ContinuousScheduler
from mist_sim.clients.scheduling.mixed import MixedScheduler
from mist_sim.clients.scheduling.plan import StepPlan, Swap
from mist_sim.clients.scheduling.static import StaticScheduler

__all__ = [
    "SCHEDULERS",
    "ChunkedScheduler",
    "ContinuousScheduler",
    "MixedScheduler",
    "Scheduler",
    "StaticScheduler",
    "StepPlan",
    "Swap",
]
