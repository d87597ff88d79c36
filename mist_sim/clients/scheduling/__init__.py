"""Batching policies: who computes what in the next engine steps."""

from mist_sim.clients.scheduling.base import SCHEDULERS, Scheduler, StepPlan
from mist_sim.clients.scheduling.chunked import ChunkedScheduler
from mist_sim.clients.scheduling.continuous import ContinuousScheduler

__all__ = ["SCHEDULERS", "ChunkedScheduler", "ContinuousScheduler", "Scheduler", "StepPlan"]
