"""Data parallelism: replicas of an engine behind one client, and those that step together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.step_records import Run
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.environment import Environment, engine_phases
from mist_sim.hardware.predictors.base import Predictor

_WAITING_WEIGHT = 4  # requests that wait count four times (vLLM, see `least_loaded`)


class Replica(Protocol):
    """What the choice of a replica looks at."""

    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...


class Together:
    """Several of them, seen as one: their counts added up."""

    def __init__(self, parts: Sequence[Replica]) -> None:
        self._parts = parts

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission."""
        return sum([part.num_waiting for part in self._parts])

    @property
    def num_running(self) -> int:
        """Sequences that hold memory."""
        return sum([part.num_running for part in self._parts])


AnyReplica = TypeVar("AnyReplica", bound=Replica)


def least_loaded(replicas: Sequence[AnyReplica]) -> AnyReplica:
    """Return the replica with the smallest 4 x waiting + running, the first of equals.

    Source: vLLM's `DPLBAsyncMPClient.get_core_engine_for_request` in
    `vllm/v1/engine/core_client.py`, whose counts may be 100 ms old; here they are exact.
    """
    if len(replicas) == 1:
        return replicas[0]
    return min(replicas, key=_score)


def _score(replica: Replica) -> int:
    return _WAITING_WEIGHT * replica.num_waiting + replica.num_running


class LockstepEngine(Together):
    """Replicas that share the experts of their layers, so that none can step alone.

    All plan at the same time, and a step lasts as long as the slowest replica's; a replica
    without work takes part with an empty batch (vLLM's `DPEngineCoreProc` runs dummy batches).
    """

    def __init__(self, env: Environment, lanes: Sequence[Lane], predictor: Predictor) -> None:
        super().__init__(lanes)
        self.env = env
        self._step_end, self._planning = engine_phases(lanes[0].load.client_id, 0)
        self.lanes = lanes
        self.predictor = predictor
        self._runs: dict[Lane, Run] = {}
        self._ends: NDArray[np.float64] = np.empty(0)
        self._num_steps = 0
        self._idle = False
        self._wake = env.event()
        for lane in lanes:
            lane.on_load_end = partial(self._end_load, lane)
        env.start(self._serve())

    # --- the loop -------------------------------------------------------------------------

    def _serve(self) -> Generator[Event, object, None]:
        env = self.env
        while True:
            plans = {lane: plan for lane in self.lanes if (plan := lane.plan())}
            if not plans:
                self._idle = True
                self._wake = env.event()
                yield self._wake
                continue
            self._start(plans)
            self._wake = env.at(self._ends.item(-1), self._step_end)
            yield self._wake
            self._end()
            if not env.phase_is_last:  # let requests that move at this time enter the queues
                yield env.at(env.now, self._planning)

    def _start(self, plans: dict[Lane, StepPlan]) -> None:
        """Start as many steps as every plan allows."""
        start = self.env.now
        self._num_steps = num_steps = min(plan.num_steps for plan in plans.values())
        batches = {lane: lane.scheduler.batch(plan) for lane, plan in plans.items()}
        run = self.predictor.run
        times_each = []
        for lane, plan in plans.items():
            times_each.append(run(batches[lane], lane.scheduler.growth(plan), num_steps))
            times_each[-1][0] += plan.swap_time
        if len(plans) < len(self.lanes):
            times_each.append(run(StepBatch(), StepGrowth(), num_steps))
        times = np.maximum.reduce(times_each)
        times[0] += start
        self._ends = np.add.accumulate(times, out=times)
        end = self._ends.item(-1)
        self._runs = {
            lane: Run(plan, batches[lane], start, self._ends, num_steps, end)
            for lane, plan in plans.items()
        }

    def _end(self) -> None:
        """Account for the steps of every replica that had any."""
        runs, self._runs = self._runs, {}
        for lane, run in runs.items():
            run.num_steps = self._num_steps
            run.end = self._ends.item(self._num_steps - 1)
            lane.end(run)

    # --- arrivals and aborts --------------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> Lane:
        """Queue a sequence at the least loaded replica; cut the steps that it could join."""
        lane = least_loaded(self.lanes)
        lane.scheduler.add_request(sequence)
        self._notice(lane, sequence)
        return lane

    def _end_load(self, lane: Lane, sequence: SequenceState) -> None:
        """Let a sequence join whose blocks have come; if it was given up, its memory is free."""
        joins = lane.scheduler.finish_load(sequence)
        self._notice(lane, sequence if joins else None)

    def _notice(self, lane: Lane, sequence: SequenceState | None) -> None:
        """Wake, or cut the steps that a sequence, or the head of the lane's queue, could join."""
        if self._idle:
            self._idle = False
            self.env.trigger(self._wake, self.env.now, self._planning)
        elif self._runs:
            num_steps = self._steps_in_flight()
            if lane not in self._runs or lane.would_admit(sequence, num_steps):
                self._cut(num_steps)

    def abort(self, sequence: SequenceState, lane: Lane) -> None:
        """Let a sequence go: at once while it waits, else at the end of the step in flight."""
        if self._runs and lane.is_running(sequence):
            lane.abort_after_run(sequence)
            self._cut(self._steps_in_flight())
            return
        lane.abort(sequence)
        self._notice(lane, None)

    def _steps_in_flight(self) -> int:
        """Return how many steps have begun."""
        return int(self._ends.searchsorted(self.env.now)) + 1

    def _cut(self, num_steps: int) -> None:
        """End all runs after so many steps, if they have more."""
        if num_steps < self._num_steps:
            self._num_steps = num_steps
            end = self._ends.item(num_steps - 1)
            self._wake = self.env.move(self._wake, end, self._step_end)
