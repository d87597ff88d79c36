"""A lane of a pipeline, and the run of passes that it is in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.run import Run
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.scheduling.planned_steps import batch_of, growth_of
from mist_sim.core.batch import StepBatch, StepGrowth, share_experts
from mist_sim.hardware.predictors.ranks import PipelinePredictor

Times = NDArray[np.float64]
"""Seconds of each step on each rank, shape (steps, ranks)."""


class PipelineLane:
    """Lanes whose batches go through the ranks together, and their run of passes.

    members: one lane, or the lanes of equal number of pipelines in lockstep. They plan together,
    and a rank is busy until the slowest is done; a lane with nothing to compute takes part with an
    empty batch.
    ready: when its latest pass returned or its work arrived, and it may enter rank 0.
    idle: whether it has nothing to do.
    run: the planned steps, `num_steps` of which are carried out; None between two runs.
    has_entered: whether all passes of the run have entered rank 0; True between two runs.
    times, rows: seconds of each step on each rank, as an array and as lists.
    rank_delay: seconds between two ranks.
    entries, ends: when the passes known so far entered rank 0 and returned.
    """

    def __init__(self, number: int, members: Sequence[Lane]) -> None:
        self.number = number
        self.members = members
        self.ready = 0.0
        self.idle = True
        self.run: Run | None = None
        self.num_steps = 0
        self.has_entered = True
        self.times: Times = np.empty((0, 0))
        self.rows: list[list[float]] = []
        self.rank_delay = 0.0
        self.entries: list[float] = []
        self.ends: list[float] = []

    @property
    def key(self) -> tuple[float, int]:
        """The order of lanes at rank 0: when they were ready, then their numbers."""
        return self.ready, self.number

    @property
    def num_unfinished(self) -> int:
        """Sequences that wait or run."""
        return sum(map(num_unfinished, self.members))

    def plan(self, predictor: PipelinePredictor) -> bool:
        """Begin the next run; return whether there is anything to compute."""
        plans = [(member, plan) for member in self.members if (plan := member.plan())]
        if plans:
            self._start(plans, predictor)
        return bool(plans)

    def _start(self, plans: list[tuple[Lane, StepPlan]], predictor: PipelinePredictor) -> None:
        """Begin as many steps as every plan allows."""
        self.num_steps = num_steps = min(plan.num_steps for _, plan in plans)
        self.has_entered = False
        parts = tuple((member, plan, batch_of(member.state, plan)) for member, plan in plans)
        idle = StepBatch()
        if len(self.members) > 1:
            idle = share_experts([batch for _, _, batch in parts], len(self.members))
        self.run = Run(parts, self.ready, inf, num_steps, inf)
        self.rank_delay = max(
            predictor.rank_delay(batch.num_prefill_tokens + batch.num_decode_queries)
            for _, _, batch in parts
        )
        times = []
        for member, plan, batch in parts:
            growth = growth_of(member.state, plan)
            times.append(_times(predictor, batch, growth, num_steps))
            times[-1][0] += plan.wait_time  # every rank copies its part
        if len(plans) < len(self.members):
            times.append(_times(predictor, idle, StepGrowth(), num_steps))
        self.times = times[0] if len(times) == 1 else np.maximum.reduce(times)
        self.rows = self.times.tolist()

    def end(self) -> None:
        """Account for its run."""
        run, self.run = self.run, None
        if run is None:
            return
        run.num_steps = num_steps = self.num_steps
        run.end = self.ends[-1]
        run.ends = run.end if num_steps == 1 else list(self.ends)
        run.busy = float(self.times[:num_steps].sum())
        self.entries.clear()
        self.ends.clear()
        for member, plan, batch in run.parts:
            member.end(run, plan, batch)

    def halt(self, now: float) -> None:
        """Account for the passes that have returned by now, and drop the rest."""
        if self.run is not None:
            del self.ends[bisect_right(self.ends, now) :]
            if self.ends:
                self.num_steps = len(self.ends)
                self.end()
            else:
                for member, plan, _ in self.run.parts:
                    member.lose_step(plan)
        self.run = None
        self.entries.clear()
        self.ends.clear()
        self.idle = self.has_entered = True
        for member in self.members:
            member.let_go()


def num_unfinished(lane: Lane) -> int:
    """Return how many sequences wait or run in a lane."""
    return lane.num_waiting + lane.num_running


def _times(
    predictor: PipelinePredictor, batch: StepBatch, growth: StepGrowth, num_steps: int
) -> Times:
    """Return the times of steps; equal ranks are asked once."""
    if num_steps == 1:
        return np.array([[rank.step_time(batch) for rank in predictor.ranks]])
    times = np.empty((num_steps, len(predictor.ranks)))
    known: dict[int, NDArray[np.float64]] = {}
    for column, rank in enumerate(predictor.ranks):
        if id(rank) not in known:
            known[id(rank)] = rank.run(batch, growth, num_steps)
        times[:, column] = known[id(rank)]
    return times
