"""Batching policies: which sequences compute what in a step (MIST §III-E1, Fig. 3).

A policy never changes, and says its options alone; the engine core knows the rules. One of your own
may say some of them (`chunked`, with the view of the lane in `lane_view`).
"""

from mist_sim.clients.scheduling.base import SCHEDULERS, Scheduler
from mist_sim.clients.scheduling.chunked import ChunkedScheduler
from mist_sim.clients.scheduling.lane_view import Inside, LaneView
from mist_sim.clients.scheduling.order import Ranked, WaitingQueue
from mist_sim.clients.scheduling.whole_prompts import (
    ContinuousScheduler,
    MixedScheduler,
    StaticScheduler,
    WholePromptScheduler,
)

__all__ = [
    "SCHEDULERS",
    "ChunkedScheduler",
    "ContinuousScheduler",
    "Inside",
    "LaneView",
    "MixedScheduler",
    "Ranked",
    "Scheduler",
    "StaticScheduler",
    "WaitingQueue",
    "WholePromptScheduler",
]
