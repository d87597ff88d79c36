"""An LLM engine: the loop that plans steps, sleeps while they run, and hands back what finished."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from simpy.events import Event

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.step_records import Run
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.environment import Environment, engine_phases
from mist_sim.hardware.predictors.base import Predictor


class Engine:
    """A lane timed by a predictor.

    The loop is MIST's CLIENT-STEP. Steps that cannot change are one run and one event; an
    arrival that could be admitted cuts the run at the end of the step in flight.

    number: its place among the client's engines; it orders what they do at the same time.
    """

    def __init__(self, env: Environment, lane: Lane, predictor: Predictor, number: int = 0) -> None:
        self.env = env
        self._step_end, self._planning = engine_phases(lane.load.client_id, number)
        self.lane = lane
        self.predictor = predictor
        lane.on_load_end = self._end_load
        self._run: Run | None = None
        self._idle = False
        self._wake = env.event()
        env.start(self._serve())

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for admission."""
        return self.lane.num_waiting

    @property
    def num_running(self) -> int:
        """Sequences that hold memory."""
        return self.lane.num_running

    # --- the loop -------------------------------------------------------------------------

    def _serve(self) -> Generator[Event, object, None]:
        env, lane = self.env, self.lane
        while True:
            plan = self._plan()
            if plan is None:
                self._idle = True
                self._wake = env.event()
                yield self._wake
                continue
            self._run = run = self._start(plan)
            self._wake = env.at(run.end, self._step_end)
            yield self._wake
            self._run = None
            lane.end(run)
            if not env.phase_is_last:  # let requests that move at this time enter the queues
                yield env.at(env.now, self._planning)

    def _plan(self) -> StepPlan | None:
        """Return the next steps, which start now; None when there is nothing to do."""
        return self.lane.plan()

    def _start(self, plan: StepPlan) -> Run:
        """Return the steps of a plan that start now."""
        now, num_steps, scheduler = self.env.now, plan.num_steps, self.lane.scheduler
        batch = scheduler.batch(plan)
        if num_steps == 1:
            end = now + (self.predictor.step_time(batch) + plan.swap_time)
            return Run(plan, batch, now, end, 1, end)
        times = self.predictor.run(batch, scheduler.growth(plan), num_steps)
        if plan.swap_time:
            times[0] += plan.swap_time
        times[0] += now
        ends = np.add.accumulate(times, out=times)
        return Run(plan, batch, now, ends, num_steps, ends.item(-1))

    # --- arrivals and aborts --------------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> Lane:
        """Queue a sequence at the lane; wake the engine, or cut the run that it could join."""
        self.lane.scheduler.add_request(sequence)
        self._notice(sequence)
        return self.lane

    def _end_load(self, sequence: SequenceState) -> None:
        """Let a sequence join whose blocks have come; if it was given up, its memory is free."""
        joins = self.lane.scheduler.finish_load(sequence)
        self._notice(sequence if joins else None)

    def _notice(self, sequence: SequenceState | None) -> None:
        """Wake, or cut the run that a sequence, or the head of the queue, could join."""
        if self._idle:
            self._idle = False
            self.env.trigger(self._wake, self.env.now, self._planning)
        elif self._run is not None:
            self._cut(self._run, sequence)

    def abort(self, sequence: SequenceState, lane: Lane) -> None:
        """Let a sequence go: at once while it waits, else at the end of the step in flight."""
        run = self._run
        if run is not None and lane.is_running(sequence):
            lane.abort_after_run(sequence)
            self._cut(run, always=True)
        else:
            lane.abort(sequence)
            self._notice(None)  # another may be at the head of the queue now, and fit

    def _cut(
        self, run: Run, sequence: SequenceState | None = None, *, always: bool = False
    ) -> None:
        """End a run with the step in flight if a sequence, or the head, could be admitted then."""
        if isinstance(run.ends, float):
            return  # a single step is never preempted
        num_steps = int(run.ends.searchsorted(self.env.now)) + 1
        if num_steps < run.num_steps and (always or self.lane.would_admit(sequence, num_steps)):
            self._end_after(run, num_steps, run.ends.item(num_steps - 1))

    def _end_after(self, run: Run, num_steps: int, end: float) -> None:
        """Let a run end sooner, after so many steps."""
        run.num_steps = num_steps
        run.end = end
        self._wake = self.env.move(self._wake, run.end, self._step_end)
