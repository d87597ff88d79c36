"""The loop of a pipeline with one scheduler: a queue of batches that go through the ranks.

When the oldest batch has returned, or work comes while there is none, the next batch is planned,
and more as long as the queue has room; then the engine waits for the oldest (vLLM's
`EngineCore.step_with_batch_queue`). If requests have left since the last plan, one more is made
although no request is left; the plan computes nothing (`Scheduler.has_finished_requests`). On the
ranks batches never overtake one another:

    start[r] = max(end[r - 1] + delay between ranks, end of the batch before on r)
    end[r] = start[r] + time of the batch on rank r
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from simpy.events import Event

from mist_sim.clients.engine.queued.groups import Pass
from mist_sim.clients.engine.queued.queued_lane import QueuedLane
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.environment import PLAN, STEP_END, Environment
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.base import traits_of
from mist_sim.hardware.predictors.ranks import PipelinePredictor


class QueueEngine:
    """The lane of a pipeline, and the ranks that compute its batches.

    phases: in which its batches return and in which it plans (see `engine_phases`).
    """

    def __init__(
        self,
        env: Environment,
        lane: QueuedLane,
        predictor: PipelinePredictor,
        phases: tuple[int, int] = (STEP_END, PLAN),
    ) -> None:
        self.env = env
        self.lanes = [lane]
        self.predictor = predictor
        self._lane = lane
        self._form = lane.form
        self._step_end, self._plan_phase = phases
        first = predictor.ranks[0]
        self._on_the_spot = traits_of(first).step_time_on_the_spot or first.step_time
        self._rank_ends = [0.0] * len(predictor.ranks)  # of the latest batch on each rank
        self._queue: deque[Pass | None] = deque()  # None: there was nothing to compute
        self._in_flight: deque[Pass] = deque()
        self._recent: deque[Pass | None] = deque(maxlen=max(self._form.stagger, 1))
        self._number = 0
        self._idle = True
        self._then: Callable[[], None] | None = None
        self._begins_at = 0.0
        self._wake: Event = env.event()
        lane.engine = self

    @property
    def score(self) -> int:
        """How busy it is, see `Lane.score`."""
        return self._lane.score

    # --- the loop -------------------------------------------------------------------------

    def _return(self, event: Event) -> None:
        """Hand out the tokens of the oldest batch, and plan."""
        self._queue.popleft()
        self._lane.give(self._in_flight.popleft())
        if self._then is not None:
            self._look_whether_still()
        elif self.env.phase_is_last():
            self._plan(event)
        else:  # let requests that move at this time enter the queue
            self._wake = self.env.at(self.env.now, self._plan_phase)
            self._wake.callbacks.append(self._plan)

    def _plan(self, event: Event) -> None:
        """Plan until the queue is full or nothing is left to compute; wait for the oldest."""
        self.env.note_plan(self._plan_phase)
        queue, form, state = self._queue, self._form, self._lane.state
        before: object = None
        while True:
            if state.running or state.waiting or (queue and self._lane.some_left):
                found = self._next_batch()
                queue.append(found)
                if len(queue) < form.size:
                    if form.fills and (state.running or state.waiting):
                        continue
                    if found is not None and (form.fills or queue[0] is not None):
                        continue
            elif not queue:
                self._idle = True
                return
            if queue[0] is not None:
                break
            queue.popleft()
            if not self._in_flight:
                members = [*state.waiting, None, *state.running]
                if members == before and not state.group_of:  # nothing changes any more
                    queue.clear()
                    self._idle = True
                    self._lane.check_asleep()
                    return
                before = members
        self._sleep()

    def _sleep(self) -> None:
        """Sleep until the oldest batch returns."""
        self._wake = self.env.at(self._in_flight[0].end, self._step_end)
        self._wake.callbacks.append(self._return)

    def _next_batch(self) -> Pass | None:
        """Plan the next batch and send it through the ranks; None if it is empty."""
        found = self._lane.send(self._number)
        self._number += 1
        if found is not None:
            self._send(found)
            self._in_flight.append(found)
        self._recent.append(found)
        return found

    def _send(self, found: Pass) -> None:
        """Send a batch through all ranks."""
        predictor, batch, ends = self.predictor, found.batch, self._rank_ends
        found.ready = time = self._ready()
        delay = predictor.rank_delay(batch.num_prefill_tokens + batch.num_decode_queries)
        seconds: list[float] = []
        before = None
        for each in predictor.ranks:
            seconds.append(seconds[-1] if each is before else each.step_time(batch))
            before = each
        if self._form.stagger and not self._in_flight:  # nothing overlaps with it
            seconds[0] = self._on_the_spot(batch)
        busy, rank = 0.0, 0
        for more in seconds:
            if rank:
                time += delay
            time = ends[rank] = (time if time > ends[rank] else ends[rank]) + more  # noqa: FURB136
            busy += more
            rank += 1  # noqa: SIM113
        found.end, found.busy = time, busy

    def _ready(self) -> float:
        """Return when the next batch's decodes have their tokens, so that rank 0 may begin."""
        now, stagger, recent = self.env.now, self._form.stagger, self._recent
        if stagger == 1:
            return max(now, self._rank_ends[-1])
        if stagger and len(recent) == stagger:
            before = recent[0]
            if before is not None and before.end > now and before.gives_more:
                return before.end
        return now

    # --- begin and stop -------------------------------------------------------------------

    def sleep_until(self, time: float) -> None:
        """Plan nothing before a time in seconds, then plan."""
        self._begins_at = time
        self._idle = False
        self._wake = self.env.at(time, self._plan_phase)
        self._wake.callbacks.append(self._plan)

    def stop(self, then: Callable[[], None]) -> None:
        """End with the batches in flight and plan no more; call `then` when all are over."""
        self._then = then
        if not self._in_flight:
            if self._wake.callbacks:  # a plan that is due
                self._wake.callbacks.clear()
            self._look_whether_still()

    def _look_whether_still(self) -> None:
        """Call `then` if no batch is in flight any more."""
        self._queue = deque(self._in_flight)
        if self._in_flight:
            self._sleep()
        elif self._then is not None:
            then, self._then = self._then, _nothing
            self._lane.state.gather()
            then()

    # --- arrivals and aborts --------------------------------------------------------------

    def add_request(self, sequence: SequenceState) -> None:
        """Queue a sequence; the next plan may admit it."""
        sequence.lane = self._lane
        self._lane.state.add_request(sequence)
        self._wake_up()

    def _wake_up(self) -> None:
        """Plan, if nothing is in flight."""
        if self._idle and self._then is None:
            self._idle = False
            self._wake = self.env.at(max(self.env.now, self._begins_at), self._plan_phase)
            self._wake.callbacks.append(self._plan)

    def next_lane(self) -> QueuedLane:
        """Return the lane that the next request gets."""
        return self._lane

    def num_unwritten(self, lane: object) -> int:
        """Return 0: a batch is written down as it returns."""
        return 0

    def steps_over(self, lane: object) -> tuple[StepPlan | None, int]:
        """Return that no run is in flight: the lane's state tells all that has happened."""
        return None, 0

    def steps_begun(self, lane: object) -> tuple[StepPlan | None, int]:
        """Return the same."""
        return None, 0

    def end_load(self, sequence: SequenceState, lane: object) -> None:
        """Raise ScenarioError: loads of entries are not simulated with one scheduler."""
        raise ScenarioError(
            "virtual_engines must be true where pipelines take KV entries that were kept elsewhere"
        )

    def release(self, sequence: SequenceState, lane: object) -> None:
        """Nothing is held for other clients."""

    def abort(self, sequence: SequenceState, lane: object) -> None:
        """Remove a sequence: at once if it waits, else when the next batch returns."""
        if self._in_flight and sequence in self._lane.state.running:
            self._lane.given_up.append(sequence)
        else:
            self._lane.abort(sequence)
            self._wake_up()

    def notice(self, lane: object) -> None:
        """Plan, if the engine sleeps."""
        self._wake_up()

    def halt(self) -> None:
        """Stop: batches that returned count, those under way are lost (a failure, DESIGN §4)."""
        self._wake = self.env.put_off(self._wake)
        self._idle = True
        self._queue.clear()
        self._in_flight.clear()
        self._rank_ends = [self.env.now] * len(self._rank_ends)
        self._lane.let_go()


def _nothing() -> None:
    """Do nothing: replaces `then` once `then` was called."""
