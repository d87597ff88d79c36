"""An LLM engine: the loop that plans steps, sleeps while they run, and hands back what finished."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from numpy import add
from simpy.events import Event

from mist_sim.clients.engine.flowing_lane import FlowingLane
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.plan_ahead import PlanAhead
from mist_sim.clients.engine.run import Run
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.scheduling.planned_steps import batch_of, growth_of
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch
from mist_sim.environment import PLAN, STEP_END, Environment
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.decode_line import DecodeLine

_accumulate = add.accumulate


class Engine:
    """A lane whose steps a predictor times (several lanes that step together: `LockstepEngine`).

    The loop from `_plan` to `_end` and back is MIST's CLIENT-STEP. Steps that cannot change are one
    run and one event; an arrival that could be admitted cuts the run at the end of the step in
    flight.

    phases: in which its steps end and in which it plans (see `engine_phases`). If steps are planned
    ahead, the lane has a `PlanAhead` (`Lane.ahead`).
    uses_lines: whether steps of decodes alone are timed by the predictor's `DecodeLine`, which has
    the same bits. Not with windows, drafts or adapters, which a line does not know.
    """

    uses_lines = False

    def __init__(
        self,
        env: Environment,
        lanes: Sequence[Lane],
        predictor: Predictor,
        phases: tuple[int, int] = (STEP_END, PLAN),
    ) -> None:
        self.env = env
        self.lanes = lanes
        self._lane = lanes[0] if len(lanes) == 1 else None
        self.predictor = predictor
        self._step_end, self._plan_phase = phases
        self._tells_longest = any(lane.state.clock.tells_longest for lane in lanes)
        shared = None if self._tells_longest else getattr(predictor, "decode_lines", None)
        # by number of decodes
        self._lines: dict[int, DecodeLine | None] = {} if shared is None else shared
        self._run: Run | None = None
        self._idle = True
        self._wake = env.event()
        for lane in lanes:
            lane.engine = self
        self._start_next = self._starts()
        self._wake.callbacks.append(self._plan)  # no sequence is there yet

    @property
    def score(self) -> int:
        """How busy it is, see `Lane.score`."""
        return sum([lane.score for lane in self.lanes])

    # --- the loop -------------------------------------------------------------------------

    def _plan(self, event: Event) -> None:
        """Start the next steps and sleep until they end, or until work comes if there are none.

        event: one that has happened; it happens again when they end.
        """
        env = self.env
        env.note_plan(self._plan_phase)
        self._run = run = self._start_next()
        if run is None:
            self._sleep()
        else:
            self._wake = event
            env.repeat(event, self._end, run.end, self._step_end)

    def _sleep(self) -> None:
        """Plan nothing until work comes."""
        self._idle = True
        self._wake = self.env.event()
        self._wake.callbacks.append(self._plan)

    def _end(self, event: Event) -> None:
        """Account for the steps that have ended, unless they were halted, and plan again."""
        env, run, self._run = self.env, self._run, None
        if run is not None:
            for lane, plan, batch in run.parts:
                lane.end(run, plan, batch)
            if not env.phase_is_last():  # let requests that move at this time enter the queues
                self._wake = env.at(env.now, self._plan_phase)
                self._wake.callbacks.append(self._plan)
                return
        self._plan(event)

    def sleep_until(self, time: float) -> None:
        """Plan nothing before a time in seconds, then plan."""
        self._idle = False
        self._wake = self.env.at(time, self._plan_phase)
        self._wake.callbacks.append(self._plan)

    def stop(self, then: Callable[[], None]) -> None:
        """End with the step in flight and plan no more; call `then` when it is over.

        If no step is in flight, that is at once.
        """
        run = self._run
        if run is None:
            if self._wake.callbacks:  # a plan that is due
                self._wake.callbacks.clear()
            then()
            return
        self._end_after(run, self._num_begun(run))
        self._wake.callbacks[:] = [partial(self._end_for_good, then)]

    def _end_for_good(self, then: Callable[[], None], event: Event) -> None:
        """Account for the last steps."""
        run, self._run = self._run, None
        if run is not None:
            for lane, plan, batch in run.parts:
                lane.end(run, plan, batch)
        then()

    def _starts(self) -> Callable[[], Run | None]:
        """Return the method that starts the next steps, by the options of the engine."""
        start = self._starts_all()
        flows = any(isinstance(lane, FlowingLane) for lane in self.lanes)
        return partial(self._start_until_flow, start) if flows else start

    def _starts_all(self) -> Callable[[], Run | None]:
        """Return the method for lanes whose decodes stay until their answers are complete."""
        (lane,) = self.lanes
        if lane.ahead is not None:
            return partial(self._start_ahead, lane, lane.ahead)
        return partial(self._start, lane)

    def _start(self, lane: Lane) -> Run | None:
        """Return the next steps of the only lane, which start now; None if it is idle."""
        plan = lane.plan()
        if plan is None:
            return None
        batch = batch_of(lane.state, plan)
        if plan.num_steps > 1:
            return self._several(lane, plan, batch)
        now, line = self.env.now, self._line_for(batch)
        seconds = self.predictor.step_time(batch) if line is None else line.step(_keys(batch))
        end = now + (seconds + plan.wait_time)
        return Run(((lane, plan, batch),), now, end, 1, end)

    def _start_until_flow(self, start: Callable[[], Run | None]) -> Run | None:
        """Start the steps that end before a decode may leave for another client."""
        run = start()
        if run is not None and run.num_steps > 1:
            for lane, plan, _ in run.parts:
                if isinstance(lane, FlowingLane):
                    num_steps = lane.steps_until_flow(plan, run)
                    if num_steps < run.num_steps:
                        run.cut(num_steps)
        return run

    def _several(self, lane: Lane, plan: StepPlan, batch: StepBatch) -> Run:
        """Return the run of a plan with several steps."""
        now, num_steps = self.env.now, plan.num_steps
        line = self._line_for(batch)
        if line is not None:
            keys, num_decodes = _keys(batch), batch.num_decodes
            ends = line.ends(now, keys, num_decodes, num_steps, plan.wait_time)
            return Run(((lane, plan, batch),), now, ends, num_steps, ends[-1])
        times = self.predictor.run(batch, growth_of(lane.state, plan), num_steps)
        if plan.wait_time:
            times[0] += plan.wait_time
        times[0] += now
        ends = _accumulate(times, out=times).tolist()  # from the start on, as step by step
        return Run(((lane, plan, batch),), now, ends, num_steps, ends[-1])

    def _line_for(self, batch: StepBatch) -> DecodeLine | None:
        """Return the line of a batch's times; None where the predictor has to be asked."""
        if not self.uses_lines or batch.chunks:
            return None
        lines, num_decodes = self._lines, batch.num_decodes
        return lines[num_decodes] if num_decodes in lines else self._line_of(num_decodes)

    def _line_of(self, num_decodes: int) -> DecodeLine | None:
        """Return the line of times of so many decodes, None if there is none; remember it.

        There is none where its keys alone do not tell the time, since the longest context counts.
        """
        of = None if self._tells_longest else getattr(self.predictor, "decode_line", None)
        self._lines[num_decodes] = line = None if of is None else of(num_decodes)
        return line

    def _start_ahead(self, lane: Lane, ahead: PlanAhead) -> Run | None:
        """Start the steps of a plan that was made one step ahead."""
        plan = ahead.plan()
        if plan is None:
            return None
        now, batch = self.env.now, batch_of(lane.state, plan)
        if ahead.num_steps(plan) > 1:
            ahead.latest = run = self._several(lane, plan, batch)
        else:
            line = self._line_for(batch) if ahead.latest else None
            seconds = ahead.step_time(batch) if line is None else line.step(_keys(batch))
            end = now + (seconds + plan.wait_time)
            ahead.latest = run = Run(((lane, plan, batch),), now, end, 1, end)
        return run

    # --- what happens meanwhile -----------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence at the least loaded lane; cut the run if the sequence could join."""
        sequence.lane = lane = self._lane or self.next_lane()
        if ahead := self._is_ahead(lane):
            ahead.hold_arrival(sequence)
            self._cut_ahead(lane)
        else:
            lane.state.add_request(sequence)
            self._notice(lane, sequence)

    def next_lane(self) -> Lane:
        """Return the lane that the next request gets."""
        return self.lanes[0]

    def num_unwritten(self, lane: Lane) -> int:
        """Return the tokens of a lane's steps that have ended, in a run that has not."""
        run = self._run
        if run is None or run.num_steps == 1:
            return 0  # a single step is written down as it ends
        for member, _, batch in run.parts:
            if member is lane:
                num_over = bisect_right(run.ends, self.env.now, 0, run.num_steps)  # type: ignore[arg-type]
                return unwritten(lane, batch, num_over)
        return 0

    def steps_over(self, lane: Lane) -> tuple[StepPlan | None, int]:
        """Return a lane's plan in the run in flight, and how many of its steps have ended."""
        run = self._run
        if run is None or (plan := run.plan_of(lane)) is None:
            return None, 0
        return plan, run.num_over(self.env.now)

    def steps_begun(self, lane: Lane) -> tuple[StepPlan | None, int]:
        """Return the same, and how many of its steps began before now."""
        run = self._run
        if run is None or (plan := run.plan_of(lane)) is None:
            return None, 0
        return plan, self._num_begun(run)

    def end_load(self, sequence: SequenceState, lane: Lane) -> None:
        """Let a sequence join whose blocks have come; if it was given up, its memory is free."""
        if ahead := self._is_ahead(lane):
            ahead.hold_loaded(sequence)
            self._cut_ahead(lane, always=True)
        else:
            joins = lane.state.coming.finish_load(sequence, in_step=self._steps(lane))
            self._notice(lane, sequence if joins else None)
            self._end_for_forgotten(lane)

    def _steps(self, lane: Lane) -> bool:
        """Tell whether steps of a lane are in flight."""
        return self._run is not None and self._run.has(lane)

    def _end_for_forgotten(self, lane: Lane) -> None:
        """End a run with the step in flight if a sequence was given up with unused memory."""
        if lane.state.coming.forgotten and self._run is not None:
            self._end_after(self._run, self._num_begun(self._run))

    def abort(self, sequence: SequenceState, lane: Lane) -> None:
        """Remove a sequence: at once if it waits, else at the end of the step in flight.

        If steps are planned ahead, the next step is already planned, and the sequence stays for it.
        """
        if lane.ahead is not None and lane.ahead.forget(sequence):
            lane.give_back(sequence)
        elif (ahead := self._is_ahead(lane)) and sequence not in lane.state.coming.loading:
            ahead.hold_abort(sequence)
            self._cut_ahead(lane, always=True)
        elif self._run is not None and sequence in lane.state.running:
            lane.given_up.append(sequence)
            self._end_after(self._run, self._num_begun(self._run))
        else:
            lane.abort(sequence, in_step=self._steps(lane))
            self._end_for_forgotten(lane)
            self._notice(lane, None)  # another may be at the head of the queue now, and fit
            if lane.ahead is not None and sequence in lane.state.coming.abandoned:
                self._cut_ahead(lane, always=True)

    def release(self, sequence: SequenceState, lane: Lane) -> None:
        """Free entries that a lane held of a sequence, at the end of the step in flight."""
        run = self._run
        if run is not None and run.has(lane):
            lane.released.append(sequence)
            self._end_after(run, self._num_begun(run))
        else:
            lane.state.release_held(sequence)
            if lane.state.leaving:
                lane.free_if_idle(is_idle=self._is_ahead(lane) is None)
            self._notice(lane, None)

    def plan_anew(self) -> None:
        """Plan again after the step in flight, because the scheduler has been replaced."""
        if self._run is not None:
            self._end_after(self._run, self._run.num_begun(self.env.now))

    def halt(self) -> None:
        """Stop: steps that ended count, the one in flight is lost (a failure, DESIGN §4).

        The sequences stay where they are; new work starts the engine again.
        """
        if self._idle:
            return
        run, self._run = self._run, None
        self._wake = self.env.put_off(self._wake)
        self._idle = True
        if run is not None and (num_steps := run.num_over(self.env.now)):
            run.went_on = num_steps < run.num_steps
            run.cut(num_steps)
            for lane, plan, batch in run.parts:
                lane.end(run, plan, batch)
        elif run is not None:
            for lane, plan, _ in run.parts:
                lane.lose_step(plan)
        for lane in self.lanes:
            lane.let_go()
            if lane.ahead is not None:
                lane.ahead.halt()

    def _notice(self, lane: Lane, sequence: SequenceState | None) -> None:
        """Wake up, or cut the run if a sequence or the head of the lane's queue could join it."""
        run = self._run
        if self._idle:
            if sequence is None and not (lane.num_waiting or lane.state.leaving):
                return
            self._idle = False
            self.env.trigger(self._wake, self.env.now, self._plan_phase)
        elif run is not None and not isinstance(run.ends, float):
            num_steps = self._num_begun(run)
            if num_steps < run.num_steps and self._could_join(run, lane, sequence, num_steps):
                self._end_after(run, num_steps)

    def _could_join(
        self, run: Run, lane: Lane, sequence: SequenceState | None, num_steps: int
    ) -> bool:
        """Tell whether a sequence, or the head of the queue, could join after steps of a run."""
        return lane.would_admit(sequence, num_steps)

    def _is_ahead(self, lane: Lane) -> PlanAhead | None:
        """Return the lane's `PlanAhead`; None while it computes nothing, so that plans know all."""
        ahead = lane.ahead
        return None if ahead is None or ahead.latest is None else ahead

    def _cut_ahead(self, lane: Lane, *, always: bool = False) -> None:
        """End a run after the next step to start; the plan after it can know of this event.

        Runs are not cut if no seat is free then, unless `always`, because memory may become free.
        """
        run, state = self._run, lane.state
        always = always or state.cadence is not None
        if run is not None and (always or len(state.running) < state.max_num_seqs):
            now = self.env.now
            # also what happens after a step of that time was planned is known to the one after it
            self._end_after(run, run.num_begun(now) + 1 if now > run.start else 1)

    def _num_begun(self, run: Run) -> int:
        """Return how many steps of a run have begun, as if each were planned in its turn."""
        env = self.env
        is_planned = env.planned_at == env.now and env.plan_phase > self._plan_phase
        return run.num_begun(env.now, is_planned=is_planned)

    def _end_after(self, run: Run, num_steps: int) -> None:
        """Let a run end after so many steps, if it has more; a step is never preempted."""
        if num_steps < run.num_steps:
            env = self.env
            run.cut(num_steps)
            run.went_on = run.end == env.now and env.phase > self._step_end
            self._wake = env.move(self._wake, run.end, self._step_end)


def unwritten(lane: Lane, batch: StepBatch, num_over: int) -> int:
    """Return the tokens of steps of a run that have ended, not its last: prompts give none."""
    if batch.num_drafts:
        clock = lane.state.clock
        return clock.context_after(num_over) - clock.context_sum
    return num_over * batch.num_decodes


def _keys(batch: StepBatch) -> int:
    """Return the keys of decodes alone, as a `DecodeLine` counts them."""
    return batch.context_sum + batch.num_decodes - batch.num_read_again
