"""A plain pipeline of vLLM v1: one scheduler whose batches follow one another through the ranks.

Beside the rules of `stepwise` and `parallel`:

- There is one lane, with all memory and seats. It keeps a queue of at most so many batches.
- Whenever the oldest batch has returned, or a request comes while nothing is in the queue, it plans
  the next one. It goes on to plan while there is room in the queue; otherwise it waits for the
  oldest. After a plan that computes nothing it waits, too, or (`fills`) not before such plans have
  filled the queue. Behind a request that leaves it plans once, though none is left. Plans that
  compute nothing take a place in the queue, and return with the batch before them; one that is the
  oldest leaves it (without `fills`) before anything else is planned.
- What a batch computes counts as computed when it is planned, so the next chunk of a prompt is
  planned without waiting for it. Blocks that it fills can be found then, as far as their tokens
  have come. Tokens come when it returns.
- A decode is planned when its last token has come; or, where plans are made ahead, before:
  `stagger` plans after its last one. No more is planned of an answer of which one token is to come
  and on its way, or which reaches the longest context. Tokens behind the last are discarded.
- The first rank begins a batch that was planned ahead when the tokens of another have come: those
  of the batch `stagger` plans before, where that gave any that are followed by others.
- Who runs may be preempted although a batch computes it. The tokens on their way come all the
  same. Without `drains`, where plans are made ahead, it may be admitted before, as it would if
  these were never to come: its first piece ends with the tokens that have come, and later ones go
  on with those that have not, unless that is its last. Otherwise it is not admitted before, and
  neither is a request behind it; or, with `drains`, others pass it, and it waits for batches that
  give it none, too. One whose last token is on its way just gives its blocks back then.
- Who gives up while it runs leaves when the next batch has returned.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from mist_sim.core.batch import StepBatch
from tests.reference.page_memory import PageMemory
from tests.reference.parallel import StepwiseGroup, num_tokens
from tests.reference.state_memory import StateMemory
from tests.reference.stepwise import Live, Step, StepwiseChunked, StepwiseEngine, TimesSteps, prompt


@dataclass(eq=False)
class Pass:
    """A batch on its way: who is computed, and who gets a token at its end.

    vain: requests that get one behind their last.
    planned, ready: when it was planned, and when the first rank may begin it.
    """

    members: list[Live]
    given: list[Live]
    batch: StepBatch
    planned: float
    ready: float = 0.0
    end: float = 0.0
    busy: float = 0.0
    num_used: int = 0
    decodes: list[Live] = field(default_factory=list)
    vain: list[Live] = field(default_factory=list)
    chunks: list[tuple[Live, int]] = field(default_factory=list)

    def num_computed(self, live: Live) -> int:
        """Tokens of a request that it computes."""
        return (live in self.decodes) + sum(new for other, new in self.chunks if other is live)


@dataclass(kw_only=True)
class QueuedLane(StepwiseChunked):
    """What is decided about requests; `BatchQueue` says when.

    stagger: plans from one of a decode to its next one; 0: when its token has come.
    most_batches: in the queue.
    """

    stagger: int = 0
    drains: bool = False
    most_batches: int = 1

    @property
    def num_batches(self) -> int:
        return self.most_batches

    def reset(self) -> None:
        super().reset()
        self.number = 0  # of plans
        self.some_left = False  # since the last plan
        self.passes: list[Pass] = []  # in flight
        self.eligible: dict[Live, int] = {}  # number of the plan that may have a decode again
        self.entered: dict[Live, int] = {}  # tokens of who runs that others find
        self.all_decodes: list[Live] = []
        self.to_recompute: dict[Live, int] = {}  # tokens of those that gave way, with those due
        self.decoded_in: dict[Step, list[Live]] = {}

    def forget_after(self, time: float) -> None:
        """Forget batches that return after a time: nobody waits for them."""
        for step in [each for each in self.steps if each.end > time]:
            self.steps.remove(step)
            for live in self.decoded_in[step]:
                live.outcome.num_decode_tokens -= 1

    # --- what is on its way -------------------------------------------------------------------

    def num_due(self, live: Live) -> int:
        """Tokens on their way."""
        return sum(live in each.given for each in self.passes)

    def num_vain(self, live: Live) -> int:
        """Tokens on their way behind its last one."""
        return sum(live in each.vain for each in self.passes)

    def num_to_come(self, live: Live) -> int:
        """Tokens on their way."""
        return self.num_due(live) + self.num_vain(live)

    @property
    def readmits(self) -> bool:
        """Tell whether one may be admitted again while its tokens are on their way."""
        return self.stagger > 0 and not self.drains

    def is_over(self, live: Live) -> bool:
        """Tell whether no more of it is planned."""
        is_longest = live.num_cached + 1 >= self.longest
        return self.is_ending(live) and (self.num_due(live) == 1 or is_longest)

    def is_ending(self, live: Live) -> bool:
        """Tell whether its last token is on its way."""
        num_due = self.num_due(live)
        num_emitted, num_known = live.num_emitted + num_due, live.num_known + num_due
        is_complete = num_emitted == live.job.num_output_tokens or num_known >= self.longest
        return num_due > 0 and is_complete

    def is_stale(self, live: Live) -> bool:
        """Tell whether a waiting request has to wait for what is in flight."""
        if self.readmits:
            return False
        in_flight = any(live in each.members for each in self.passes)
        return in_flight if self.drains else self.num_due(live) > 0

    def is_in_flight(self, live: Live) -> bool:
        return live.decoding and live not in self.decodes

    def is_ready(self, live: Live) -> bool:
        if not self.stagger:
            return self.num_due(live) == 0
        return not self.is_over(live) and self.number >= self.eligible[live]

    # --- a plan -------------------------------------------------------------------------------

    def next_batch(self) -> Pass | None:
        """Plan once; None where that computes nothing."""
        self.number += 1
        self.some_left = False
        self.decodes = [
            live for live in self.running if live in self.all_decodes and self.is_ready(live)
        ]
        chunks, decodes = self.plan()
        if not (chunks or decodes):
            return None
        batch = StepBatch(
            tuple((num_new, live.num_cached) for live, num_new in chunks),
            len(decodes),
            sum(live.num_cached for live in decodes),
        )
        if self.windows and decodes:
            seen = self.windows.size - 1
            batch.window_sum = sum(min(live.num_cached, seen) for live in decodes)
        if self.needs_longest_context and decodes:
            batch.longest_context = max(live.num_cached for live in decodes)
        given = [live for live in decodes if not self.is_ending(live)]
        vain = [live for live in decodes if live not in given]
        for live in decodes:
            live.num_cached += 1
        for live, num_new in chunks:
            live.num_cached += num_new
            if live.num_cached == live.num_known + self.num_to_come(live):
                (vain if self.is_ending(live) else given).append(live)
                live.decoding = True
                self.all_decodes.append(live)
        for live in [*given, *vain]:
            self.eligible[live] = self.number + self.stagger
        members = [*decodes, *(live for live, _ in chunks)]
        found = Pass(members, given, batch, self.now, decodes=decodes, vain=vain, chunks=chunks)
        found.num_used = self.num_blocks - self.num_free
        self.memory.check(live.blocks for live in self.running)
        self.passes.append(found)
        return found

    def begin_loads(self, first_piece: int | None = None) -> bool:
        return bool(self.fresh) and not self.is_stale(self.head())

    def first_piece(self, budget: int) -> int | None:
        return super().first_piece(budget) if self.fresh else None

    @property
    def fresh(self) -> list[Live]:
        """Those among whom the next one is looked for."""
        if not self.drains:
            return self.queue
        return [live for live in self.queue if not self.is_stale(live)]

    def head(self) -> Live:
        if self.order == "fcfs":
            return self.fresh[0]
        return min(self.fresh, key=lambda live: (self.rank(live), self.arrival(live)))

    def rank(self, live: Live) -> float:
        """Where one that gave way stands does not change as its tokens come."""
        if self.order == "least_work_left" and live in self.to_recompute:
            return self.to_recompute[live]
        return super().rank(live)

    def head_fits(self, first_piece: int | None = None) -> bool:
        return self.begin_loads() and super().head_fits(first_piece)

    def next_slots(self, live: Live) -> int:
        if live.decoding:
            return live.num_cached + 1
        return live.num_known + self.num_due(live)

    def outgrows_pool(self, live: Live) -> bool:
        return self.blocks_alone(live.num_known + self.num_due(live)) > self.num_blocks

    def num_on_their_way(self, live: Live) -> int:
        return self.num_to_come(live) if live in self.running else 0

    def to_compute(self, live: Live) -> int:
        return super().to_compute(live) + self.num_on_their_way(live)

    def running_piece(self, live: Live, budget: int) -> int:
        if (number := self.num_to_come(live)) and not live.decoding:
            num_final = live.job.num_prompt_tokens + live.job.num_output_tokens
            is_over = live.num_cached + 2 - number >= min(num_final, self.longest)
            if is_over or self.number < self.eligible[live]:
                return 0
        return super().running_piece(live, budget)

    def take(
        self, served: list[tuple[Live, int, int]]
    ) -> tuple[list[tuple[Live, int]], list[Live]]:
        decodes = [live for live in self.decodes if live in [each for each, _, _ in served]]
        for live in decodes:
            self.memory.grow([(live, self.next_slots(live), self.next_blocks(live))])
            self.enter_known(live, live.num_cached + 1)
        chunks = []
        for live, num_new, need in served:
            if not live.decoding and num_new:
                self.memory.grow([(live, live.num_cached + num_new, need)])
                chunks.append(self.chunk(live, num_new))
        return chunks, decodes

    def num_processed(self, live: Live) -> int:
        in_flight = sum(each.num_computed(live) for each in self.passes)
        return live.num_cached - (in_flight if self.returns_unseen else 0)

    def give_turn(self, memory: PageMemory, live: Live, num_new: int) -> None:
        memory.give_behind(live, self.num_processed(live))
        num_slots = self.next_slots(live) if live.decoding else live.num_cached + num_new
        memory.extend(live, num_slots)
        if isinstance(memory, StateMemory):
            memory.extend_states(live, live.num_cached, num_slots)
        self.enter_known(live, live.num_cached + num_new)

    def enter_known(self, live: Live, num_tokens: int) -> None:
        """Let others find blocks with so many tokens, as far as these have come."""
        number = min(num_tokens, live.num_known)
        self.memory.enter(live, number)
        self.entered[live] = max(number, self.entered.get(live, 0))

    def chunk(self, live: Live, num_new: int) -> tuple[Live, int]:
        self.enter_known(live, live.num_cached + num_new)
        return live, num_new

    def stop(self, live: Live) -> None:
        for several in (self.decodes, self.all_decodes):
            if live in several:
                several.remove(live)
        live.decoding = False

    def preempt(self, victim: Live, *, was_served: bool = False) -> None:
        is_ending, outgrows = self.is_ending(victim), self.outgrows_pool(victim)
        self.stop(victim)
        self.running.remove(victim)
        number = self.entered.pop(victim, 0)
        if was_served:
            number = max(number, min(victim.num_cached, victim.num_known))
        self.memory.leave(victim, number, preempted=self.readmits or not is_ending)
        victim.num_cached = 0
        if is_ending and not self.readmits:
            victim.outcome.gave_way = True
        elif outgrows and not is_ending:
            self.reject(victim, self.now)
        else:
            victim.outcome.preempted_at.append(self.now)
            on_their_way = 0 if is_ending else self.num_due(victim)
            self.to_recompute[victim] = victim.num_known + on_their_way
            self.queue.insert(0, victim)

    @property
    def apart(self) -> list[Live]:
        """Those that gave way while their last token is on its way, and do not come back."""
        on_their_way = [live for found in self.passes for live in found.given]
        gone = [live for live in on_their_way if live.outcome.gave_way and not self.readmits]
        return [live for live in dict.fromkeys(gone) if not live.has_given_up]

    # --- a batch returns ----------------------------------------------------------------------

    def give(self, found: Pass) -> None:
        """Hand out the tokens of a batch that returns now."""
        self.passes.remove(found)
        used, planned = found.num_used, found.planned
        self.steps.append(Step(found.ready, self.now, found.batch, used, used, planned, found.busy))
        self.decoded_in[self.steps[-1]] = found.decodes
        complete = []
        for live in found.decodes:
            live.outcome.num_decode_steps += 1
            live.outcome.num_decode_tokens += 1
        for live in found.given:
            outcome = live.outcome
            if outcome.left_at == outcome.left_at:
                continue  # it has left, and nobody gets the token
            outcome.chunk_times.append(self.now)
            live.emit(self.now)
            if live in self.running:
                self.enter_known(live, live.num_cached - self.num_to_come(live))
            if live.is_complete(self.longest):
                complete.append(live)
        for live in complete:
            self.finish(live)
        for live in self.leaving:
            if live not in complete:
                self.leave(live)
        self.leaving.clear()

    def leave(self, live: Live) -> None:
        self.stop(live)
        self.some_left = True
        if live in self.running:
            self.running.remove(live)
            is_complete = live.is_complete(self.longest)
            number = self.entered.get(live, 0)
            if is_complete:
                number = max(number, live.num_cached - self.num_vain(live))
            self.memory.leave(live, number, preempted=False)
        elif live in self.queue:
            self.queue.remove(live)
            if live.is_complete(self.longest):  # was preempted by a plan that did not know
                live.outcome.preempted_at.pop()
                live.outcome.gave_way = True
        if live.has_given_up:
            self.let_go(live, self.now)


class BatchQueue(StepwiseGroup):
    """The queue of batches of one pipeline, and its ranks.

    size: batches in it at most. fills: whether plans that compute nothing fill it.
    """

    def __init__(
        self,
        lane: QueuedLane,
        ranks: list[TimesSteps],
        hand_over: Callable[[int], float],
        size: int,
        *,
        fills: bool,
    ) -> None:
        super().__init__([lane])
        self.lane: QueuedLane = lane
        self.ranks = ranks
        self.hand_over = hand_over
        self.size = size
        self.fills = fills
        self.queue: deque[Pass | None] = deque()  # None: nothing was to compute
        self.planned: list[Pass | None] = []
        self.free = [0.0] * len(ranks)
        self.is_asleep = True
        self.plans_at = inf

    def choose(self) -> StepwiseEngine:
        return self.lane

    def wake(self, lane: StepwiseEngine, now: float) -> None:
        if self.is_asleep and self.lane.num_inside:
            self.is_asleep = False
            self.plans_at = now

    def is_computing(self, lane: StepwiseEngine) -> bool:
        return any(self.queue)

    def is_in_pass(self, lane: StepwiseEngine) -> bool:
        return any(self.queue)

    def next_time(self) -> float:
        oldest = self.queue[0] if self.queue else None
        return min(self.plans_at, oldest.end if oldest else inf)

    def can_plan(self, now: float) -> bool:
        return self.plans_at <= now

    def prompt_times(self, live: Live) -> tuple[list[float], float]:
        batch = prompt(live)
        times = [rank.step_time(batch) for rank in self.ranks]
        times[0] = self.lane.host.around(times[0], batch, overlaps=self.lane.stagger > 0)
        return times, self.hand_over(num_tokens(batch))

    def end_steps(self, now: float) -> None:
        if self.queue and (oldest := self.queue[0]) and oldest.end == now:
            self.queue.popleft()
            self.lane.now = now
            self.lane.give(oldest)
            self.plans_at = now

    def plan(self, now: float) -> None:
        self.plans_at = inf
        lane = self.lane
        lane.now = now
        before = None
        while True:
            if lane.num_inside or (self.queue and lane.some_left):
                number_in_flight = len(lane.passes)
                found = lane.next_batch()
                if found:
                    self.pass_through(found, now, alone=not number_in_flight)
                self.queue.append(found)
                self.planned.append(found)
                goes_on = found and (self.fills or self.queue[0])
                if len(self.queue) < self.size and (goes_on or (self.fills and lane.num_inside)):
                    continue
            elif not self.queue:
                self.is_asleep = True
                return
            if self.queue[0]:
                return
            self.queue.popleft()
            if not any(self.queue):
                if lane.members == before and not lane.all_decodes:  # nothing changes any more
                    self.queue.clear()
                    self.is_asleep = True
                    return
                before = lane.members

    def pass_through(self, found: Pass, now: float, *, alone: bool) -> None:
        ahead = self.lane.stagger
        found.ready = now
        if ahead and len(self.planned) >= ahead:
            before = self.planned[-ahead]
            if ahead == 1:  # whatever that gave
                before = next((each for each in reversed(self.planned) if each), None)
            if before and (ahead == 1 or self.goes_on(before)):
                found.ready = max(now, before.end)
        waits, time = self.hand_over(num_tokens(found.batch)), found.ready
        for rank, predictor in enumerate(self.ranks):
            seconds = predictor.step_time(found.batch)
            if rank == 0:
                overlaps = ahead > 0 and not alone
                seconds = self.lane.host.around(seconds, found.batch, overlaps=overlaps)
            start = time + waits if rank else time
            time = self.free[rank] = max(start, self.free[rank]) + seconds
            found.busy += seconds
        found.end = time

    def goes_on(self, found: Pass) -> bool:
        """Tell whether tokens of a batch are needed for others."""
        jobs, longest = [live.job for live in found.given], self.lane.longest
        return bool(found.decodes) or any(
            job.num_output_tokens > 1 and longest > job.num_prompt_tokens + 1 for job in jobs
        )
