"""Batching policies: which sequences compute what in the next steps (MIST §III-E1, Fig. 3).

A policy never changes. The engine core knows the rules; `schedule(lane, limit)` says them to the
general loop. One idea a file:

- `lane_state`: `LaneState`, the sequences of a lane and the memory that they hold.
- `plan`, `order`: a policy's result, and the queue of waiting sequences.
- `admission`: how the next sequence gets memory, loads from tiers included.
- `preemption`: which sequence gives up memory when the decodes run short.
- `update`: the account of executed steps.
- `base`: `Scheduler`, the options of every policy.
- `chunked`: decodes first, pieces of prompts beside them.
- `whole_prompts/`: `WholePromptScheduler`, on which `continuous`, `mixed` and `static` are built.
"""

from mist_sim.clients.scheduling.admission import (
    admit,
    admit_next,
    fits,
    next_to_admit,
    steps_until_join,
    tokens_to_compute,
)
from mist_sim.clients.scheduling.base import SCHEDULERS, Scheduler
from mist_sim.clients.scheduling.chunked import ChunkedScheduler, own_methods_of
from mist_sim.clients.scheduling.lane_state import LaneState
from mist_sim.clients.scheduling.lane_view import Inside, LaneView
from mist_sim.clients.scheduling.order import Ranked, WaitingQueue
from mist_sim.clients.scheduling.plan import StepPlan
from mist_sim.clients.scheduling.preemption import add_prefill, make_room, preempt, take_in_turn
from mist_sim.clients.scheduling.whole_prompts.base import WholePromptScheduler, decode_steps
from mist_sim.clients.scheduling.whole_prompts.continuous import ContinuousScheduler
from mist_sim.clients.scheduling.whole_prompts.mixed import MixedScheduler
from mist_sim.clients.scheduling.whole_prompts.static import StaticScheduler

__all__ = [
    "SCHEDULERS",
    "ChunkedScheduler",
    "ContinuousScheduler",
    "Inside",
    "LaneState",
    "LaneView",
    "MixedScheduler",
    "Ranked",
    "Scheduler",
    "StaticScheduler",
    "StepPlan",
    "WaitingQueue",
    "WholePromptScheduler",
    "add_prefill",
    "admit",
    "admit_next",
    "decode_steps",
    "fits",
    "make_room",
    "next_to_admit",
    "own_methods_of",
    "preempt",
    "steps_until_join",
    "take_in_turn",
    "tokens_to_compute",
]
