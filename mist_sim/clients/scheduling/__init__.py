"""Batching policies: who computes what in the next engine steps (MIST §III-E1, Fig. 3)."""

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
