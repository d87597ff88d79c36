"""An LLM engine: the loop that plans steps, sleeps while they run, and hands back what finished."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from mist_sim.clients.kv_cache import BlockPool
from mist_sim.clients.scheduling import Scheduler, StepPlan
from mist_sim.clients.sequence import Sequence
from mist_sim.clients.step_records import Run, StepRecords
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.events import Visit
from mist_sim.core.views import ClientState
from mist_sim.environment import PLAN, STEP_END, Environment
from mist_sim.errors import InvariantError
from mist_sim.hardware.predictors.base import Predictor

_FIRST_RUN = 512  # steps computed ahead; doubles while nothing changes (DESIGN §5)
_LONGEST_RUN = 65536

Leave = Callable[[Visit, str | None], None]
"""Takes a visit that is over, and why it was rejected (None: it was served)."""


class Engine:
    """A batching policy on paged memory, timed by a predictor.

    The loop is MIST's CLIENT-STEP. Steps that cannot change are one run and one event; an
    arrival that could be admitted cuts the run at the end of the step in flight.

    pool: the KV blocks. load: the counts that routers see, which the engine keeps.
    """

    def __init__(
        self,
        env: Environment,
        scheduler: Scheduler,
        predictor: Predictor,
        pool: BlockPool,
        *,
        records: StepRecords,
        load: ClientState,
        leave: Leave,
    ) -> None:
        self.env = env
        self.scheduler = scheduler
        self.predictor = predictor
        self.load = load
        self._records = records
        self._leave = leave
        scheduler.start(pool)
        self._run: Run | None = None
        self._run_limit = _FIRST_RUN
        self._idle = False
        self._wake = env.event()
        env.process(self._serve())

    # --- the loop -------------------------------------------------------------------------

    def _serve(self) -> Generator[Event, object, None]:
        env = self.env
        while True:
            plan = self.scheduler.schedule(self._run_limit)
            if plan is None:
                self._sleep_check()
                self._idle = True
                self._wake = env.event()
                yield self._wake
                continue
            self._begin(plan)
            if self._run is None:  # nothing but dropped sequences: plan again
                continue
            yield self._wake
            self._end(self._run)
            if not env.phase_is_last:  # let requests that move at this time enter the queues
                yield env.at(env.now, PLAN)

    def _begin(self, plan: StepPlan) -> None:
        """Start the steps of a plan."""
        now = self.env.now
        for sequence in plan.admitted:
            if not sequence.visit.num_preemptions:
                sequence.visit.started_at = now
        if plan.preempted or plan.dropped:
            self._evict(plan)
        self.load.num_waiting += len(plan.preempted) - len(plan.admitted)
        self.load.num_running = len(self.scheduler.running)
        if not plan.prefills and not plan.decodes:
            if not plan.dropped:
                raise InvariantError(
                    f"{type(self.scheduler).__name__} planned a step of nothing at {now} s"
                )
            return
        batch = self.scheduler.batch(plan)
        ends = self._time(batch, plan, now)
        end = ends if isinstance(ends, float) else ends.item(-1)
        self._run = Run(plan, batch, now, ends, plan.num_steps, end)
        self._wake = self.env.at(end, STEP_END)

    def _evict(self, plan: StepPlan) -> None:
        """Note what lost its memory, and hand back what can never have enough."""
        for sequence in plan.preempted:
            self._records.evict(sequence)
            sequence.visit.num_preemptions += 1
        for sequence in plan.dropped:
            self._records.evict(sequence)
            sequence.visit.num_output_tokens = sequence.num_output_tokens
            self._leave(sequence.visit, self.scheduler.outgrown(sequence) or "dropped")

    def _time(self, batch: StepBatch, plan: StepPlan, now: float) -> NDArray[np.float64] | float:
        """Return when each step of a plan ends."""
        if plan.num_steps == 1:
            return now + self.predictor.step_time(batch)
        growth = StepGrowth(batch.num_decodes)
        times = self.predictor.run(batch, growth, plan.num_steps)
        times[0] += now
        return np.add.accumulate(times, out=times)

    def _end(self, run: Run) -> None:
        """Account for the executed steps and hand back what finished."""
        self._run = None
        emitted, finished = self.scheduler.update(run.plan, run.num_steps)
        self._records.run(run, self.load.num_waiting, self.scheduler.num_peak_blocks)
        for sequence in emitted:
            self._records.emit(sequence, run.end)
        for sequence in finished:
            self._records.finish(sequence)
            sequence.visit.num_output_tokens = sequence.num_output_tokens
            self._leave(sequence.visit, None)
        unchanged = not emitted and not finished and run.num_steps == self._run_limit
        self._run_limit = min(2 * self._run_limit, _LONGEST_RUN) if unchanged else _FIRST_RUN
        self.load.num_running = len(self.scheduler.running)

    def _sleep_check(self) -> None:
        if self.scheduler.waiting:
            raise InvariantError(
                f"{self.load.name} sleeps at {self.env.now} s with {len(self.scheduler.waiting)} "
                f"requests waiting, the first is {self.scheduler.waiting.head().visit.request}"
            )

    # --- arrivals -------------------------------------------------------------------------

    def add_request(self, sequence: Sequence) -> None:
        """Queue a sequence; wake the engine, or cut the run that it could join."""
        self.scheduler.add_request(sequence)
        if self._idle:
            self._idle = False
            self.env.trigger(self._wake, self.env.now, PLAN)
        elif self._run is not None:
            self._cut(self._run, sequence)

    def _cut(self, run: Run, sequence: Sequence) -> None:
        """End a run with the step in flight if the new sequence could be admitted then."""
        if isinstance(run.ends, float):
            return  # a single step is never preempted
        num_steps = int(run.ends.searchsorted(self.env.now)) + 1
        if num_steps < run.num_steps and self.scheduler.would_admit(sequence, num_steps):
            run.num_steps = num_steps
            run.end = run.ends.item(num_steps - 1)
            self._wake = self.env.move(self._wake, run.end, STEP_END)
