"""A plain client whose layout changes: the lanes of one layout give what they have to the next.

Rules:

- A change is asked for at a time, when steps of that time have ended and before requests move.
- From then on nothing is planned. A pass that has entered rank 0 goes through, no other enters.
- When no pass is under way, and no blocks are on their way here, all go to new lanes, in the order
  in which they came to the client:
  - First who runs: to the lane with the fewest sequences of those that have a seat and blocks for
    the tokens that have entries, the first of equals. Full blocks that others brought there are
    shared. It decodes, or goes on with its prompt.
  - Who waits to go on with blocks that have come, with an answer or a prompt, does so there, if
    there is room beside them for its first step or the rest of its prompt, and for what others
    there wait for.
  - Who found no room has nothing any more, and has been preempted once more, unless it is a prompt
    that has not begun.
  - These, and then who waited, are queued where a newcomer would go. Who has more tokens than fit
    into all of a lane is rejected.
- New lanes have empty memory, and whatever else a lane remembers is new as well. What was planned
  ahead is forgotten; the first plan knows everything.
- No pass enters a new lane before the transition is over. Who has work then is ready then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from mist_sim.hardware.predictors import Predictor
from tests.reference.comparison import EngineOptions
from tests.reference.parallel import StepwiseClient, StepwiseGroup, StepwisePipeline
from tests.reference.stepwise import Live, StepwiseEngine


@dataclass(frozen=True)
class Change:
    """A layout that is asked for at a time, and the seconds of the transition to it."""

    at: float
    options: EngineOptions
    seconds: float


class ChangingClient(StepwiseClient):
    """A client that changes its layout at given times; one that comes too early is left out.

    begun: when each transition began. carried: how many went on with what they had, in all.
    again: who had to be computed again, in all.
    """

    def __init__(
        self, options: EngineOptions, predictor: Predictor, changes: Sequence[Change]
    ) -> None:
        first = options.stepwise_client(predictor)
        super().__init__(
            first.groups,
            first.num_engines,
            options.max_num_waiting,
            options.role,
            options.block_bytes,
        )
        self.predictor = predictor
        self.changes = list(changes)
        self.asked: Change | None = None
        self.past: list[StepwiseEngine] = []
        self.begun: list[float] = []
        self.num_carried = 0
        self.num_again = 0

    @property
    def tracks(self) -> list[StepwiseEngine]:
        """Return the lanes of all layouts so far."""
        return [*getattr(self, "past", ()), *super().tracks]

    def next_time(self) -> float:
        times = [change.at for change in self.changes[:1]]
        return min([super().next_time(), *times])

    def end_steps(self, now: float) -> None:
        super().end_steps(now)
        self.look(now)
        while self.changes and self.changes[0].at <= now:
            change = self.changes.pop(0)
            if self.asked is None:
                self.asked = change
                for group in self.pipelines:
                    group.is_stopping = True
                self.look(now)

    def end_loads(self, now: float) -> None:
        super().end_loads(now)
        self.look(now)

    @property
    def pipelines(self) -> list[StepwisePipeline]:
        return [group for group in self.groups if isinstance(group, StepwisePipeline)]

    def look(self, now: float) -> None:
        """Begin the transition if nothing is under way."""
        is_over = all(returns == inf for group in self.pipelines for returns in group.returns)
        comes = any(lane.moving or lane.loading for lane in self.tracks)
        if self.asked is not None and is_over and not comes:
            self.change(self.asked, now)
            self.asked = None

    def change(self, change: Change, now: float) -> None:
        before = [lane for group in self.groups for lane in group.lanes]
        self.past += before
        self.begun.append(now)
        new = change.options.stepwise_client(self.predictor)
        self.groups, self.num_engines = new.groups, new.num_engines
        after = [lane for group in self.groups for lane in group.lanes]
        for lane in after:
            lane.now = now
            lane.outcomes, lane.gone = self.outcomes, self.gone
            lane.fetch, lane.flow = before[0].fetch, before[0].flow
            lane.elsewhere = before[0].elsewhere
        for lane in before:
            lane.know_all()
        self.carry_all(before, after, now)
        for group in self.pipelines:
            group.begins_at = now + change.seconds
            group.free = [group.begins_at for _ in group.ranks]
            for lane in group.lanes:
                group.wake(lane, now)

    def carry_all(
        self, before: list[StepwiseEngine], after: list[StepwiseEngine], now: float
    ) -> None:
        arrival = before[0].arrival
        running = sorted((live for lane in before for live in lane.running), key=arrival)
        moved = sorted((live for lane in before for live in lane.moved), key=arrival)
        loaded = sorted((live for lane in before for live in lane.loaded), key=arrival)
        waiting = sorted((live for lane in before for live in lane.queue), key=arrival)
        both = sorted([*running, *moved, *loaded], key=arrival)
        come = [*moved, *loaded]
        again = [live for live in both if not self.carry(live, after, has_come=live in come)]
        self.num_carried += len(both) - len(again)
        self.num_again += len(again)
        for live in again:
            live.num_cached, live.decoding, live.incoming = 0, False, None
            if live in loaded:
                live.outcome.num_fetched_in_vain = live.outcome.num_fetched_tokens
                live.num_elsewhere = live.outcome.num_fetched_tokens = 0
            else:
                live.outcome.preempted_at.append(now)
        for live in [*again, *waiting]:
            live.blocks, live.num_entered = [], 0
            lane = self.least_loaded().choose()
            if lane.outgrows_pool(live):
                lane.reject(live, now)
            else:
                lane.queue.append(live)
        for lane in before:
            for place in (lane.running, lane.moved, lane.loaded, lane.queue, lane.decodes):
                place.clear()

    def carry(self, live: Live, lanes: list[StepwiseEngine], *, has_come: bool) -> bool:
        """Give a request a place in a new lane; return False where there is none."""
        for lane in sorted(lanes, key=lambda each: len(each.running) + len(each.moved)):
            if has_come:
                is_prompt = live.num_elsewhere > 0
                num_tokens = live.num_elsewhere if is_prompt else live.num_known - 1
                slots = live.num_known if is_prompt else lane.next_slots(live)
                first = lane.blocks_for(slots) - lane.blocks_for(num_tokens)
                num_more = first + lane.promised() + lane.decode_need()
                if lane.memory.carry_in(live, num_tokens, num_more):
                    (lane.loaded if is_prompt else lane.moved).append(live)
                    return True
                continue
            has_seat = len(lane.running) < lane.max_num_seqs
            if has_seat and lane.memory.carry_in(live, live.num_cached):
                lane.memory.enter(live, live.num_cached)
                lane.running.append(live)
                if live.decoding:
                    lane.decodes.append(live)
                return True
        return False

    def least_loaded(self) -> StepwiseGroup:
        scores = [4 * group.num_waiting + group.num_running for group in self.groups]
        return self.groups[scores.index(min(scores))]
