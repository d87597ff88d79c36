"""Plain clients, made of stepwise engines: pipelines and replicas, one pass or step at a time.

Rules of a pipeline with p ranks, which has p lanes (engines with a part of memory and slots):

- A pass of a lane goes through ranks 0 to p - 1. Rank r begins it when rank r - 1 has ended it
  and handed it over, and when it has ended all passes that entered before.
- A lane with requests is ready when its last pass has left the last rank, or, if there was nothing
  to compute then, when a request came, one's blocks were loaded or another one gave up. It plans
  when rank 0 is free; of several, the one ready first, then the one of lower number.
- The lanes of a pipeline share the links to their tiers.
- A request goes to the lane with the fewest unfinished requests, the first of equals.

Of several engines a request goes to the one with the smallest 4 x waiting + running, the first of
equals. Engines in lockstep plan together, lanes of equal number in pipelines. A pass leaves a rank
when the slowest has ended there; those without work compute an empty batch.

With early rejection each prompt without a first token takes its time on its slowest rank, an engine
has an equal share of them all, and then the newcomer's prompt goes through all ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf

from mist_sim.core.batch import StepBatch
from tests.reference.stepwise import (
    EndlessError,
    Live,
    Outcome,
    Rounds,
    Step,
    StepwiseChunked,
    StepwiseEngine,
    TimesSteps,
    prompt,
    time_left,
)


class StepwiseGroup(ABC):
    """Lanes that are coupled in time."""

    def __init__(self, lanes: list[StepwiseEngine]) -> None:
        self.lanes = lanes
        for lane in lanes:
            lane.reset()

    @property
    def num_waiting(self) -> int:
        return sum(lane.num_waiting for lane in self.lanes)

    @property
    def num_running(self) -> int:
        return sum(len(lane.active) for lane in self.lanes)

    @abstractmethod
    def choose(self) -> StepwiseEngine:
        """Return the lane that gets the next arrival."""

    def arrive(self, live: Live, now: float) -> None:
        lane = self.choose()
        lane.enter(live, now)
        self.wake(lane, now)

    @abstractmethod
    def wake(self, lane: StepwiseEngine, now: float) -> None:
        """Something came to a lane, or left it, so that it may have something to compute."""

    @abstractmethod
    def is_computing(self, lane: StepwiseEngine) -> bool:
        """Tell whether a step of a lane is under way."""

    @abstractmethod
    def is_in_pass(self, lane: StepwiseEngine) -> bool:
        """Tell whether a step is under way that computes something of a lane."""

    @abstractmethod
    def next_time(self) -> float:
        """Return when a step ends or a lane can plan, whichever comes first."""

    @abstractmethod
    def can_plan(self, now: float) -> bool:
        """Tell whether a lane may begin something new."""

    @abstractmethod
    def prompt_times(self, live: Live) -> tuple[list[float], float]:
        """Return the seconds of a prompt alone on each rank, and of a hand-over."""

    @abstractmethod
    def end_steps(self, now: float) -> None:
        """End the steps that end now."""

    @abstractmethod
    def plan(self, now: float) -> None:
        """Let lanes plan that can."""

    def end_loads(self, now: float) -> None:
        """Let blocks come that are there now."""
        for lane in self.lanes:
            for time, live in [load for load in lane.loading if load[0] <= now]:
                lane.end_load(time, live)
                self.wake(lane, now)
            for time, live in [copy for copy in lane.copies if copy[0] <= now]:
                lane.end_copy(time, live, in_step=self.is_in_pass(lane))
                self.wake(lane, now)

    def end_move(self, lane: StepwiseEngine, live: Live, now: float) -> None:
        """Let blocks come from another client."""
        lane.end_move(now, live)
        self.wake(lane, now)

    def release(self, lane: StepwiseEngine, live: Live, now: float) -> None:
        """Free what a lane holds of a request that went on elsewhere."""
        if self.is_in_pass(lane):
            lane.releasing.append(live)
        else:
            lane.free_held(live)
            self.wake(lane, now)

    def reach_limits(self, lane: StepwiseEngine, live: Live, now: float) -> None:
        """Let a request give up whose time is up."""
        num_inside = lane.num_inside
        while live.limits and live.limits[0][0] <= now:
            lane.limit_reached(live, now, in_step=self.is_computing(lane))
        if lane.num_inside < num_inside:
            self.wake(lane, now)

    def cancel(self, lane: StepwiseEngine, live: Live, now: float) -> None:
        """Let go of a job that failed elsewhere, as its outcome says."""
        lane.give_up(live, now, in_step=self.is_computing(lane))
        self.wake(lane, now)

    def complete(self, lane: StepwiseEngine, start: float, now: float, busy: float) -> None:
        lane.now = now
        lane.complete(start, busy)

    def begin(self, lane: StepwiseEngine, now: float) -> StepBatch | None:
        """Plan until there is a step or no work is left."""
        lane.now = now
        chunks, decodes = lane.next_plan()
        if chunks or decodes:
            return lane.begin(chunks, decodes)
        if lane.waits_for_ever:
            raise EndlessError
        waits = lane.coming or lane.held or lane.going
        assert waits or not lane.num_inside, "the lane is stuck"
        return None


class StepwisePipeline(StepwiseGroup):
    """One lane a rank, with one rank an ordinary engine; or several such engines in lockstep."""

    def __init__(
        self,
        engines: list[list[StepwiseEngine]],
        ranks: list[TimesSteps],
        hand_over: Callable[[int], float],
    ) -> None:
        super().__init__([lane for engine in engines for lane in engine])
        self.engines = engines
        self.ranks = ranks
        self.hand_over = hand_over
        self.free = [0.0] * len(ranks)  # when each rank is free again
        numbers = range(len(ranks))  # of lanes; those of equal number make a pass together
        self.ready = [0.0 for _ in numbers]
        self.returns = [inf for _ in numbers]  # inf: no pass is under way
        self.asleep = [True for _ in numbers]  # there is nothing to compute
        self.busy = [0.0 for _ in numbers]
        self.is_stopping = False  # before a change of layout: nothing is planned any more
        self.begins_at = 0.0  # no pass enters before
        self.rounds = Rounds()  # of engines in lockstep
        self.shared: tuple[int, ...] | None = None  # tokens that they compute in a step
        self.last_end = -inf
        self.computing: list[list[StepwiseEngine]] = [[] for _ in numbers]
        for engine in engines:
            for lane in engine:
                lane.memory.share_links(engine[0].memory)
                lane.swap_links = engine[0].swap_links
                if len(engines) > 1 and len(ranks) == 1 and isinstance(lane, StepwiseChunked):
                    lane.rounds = self.rounds

    def choose(self) -> StepwiseEngine:
        scores = [
            sum(4 * lane.num_waiting + len(lane.active) for lane in engine)
            for engine in self.engines
        ]
        engine = self.engines[scores.index(min(scores))]
        unfinished = [lane.num_inside for lane in engine]
        return engine[unfinished.index(min(unfinished))]

    def number(self, lane: StepwiseEngine) -> int:
        position = next(k for k, each in enumerate(self.lanes) if each is lane)
        return position % len(self.ranks)

    def is_empty(self, number: int) -> bool:
        lanes = [engine[number] for engine in self.engines]
        return not any(lane.num_inside or lane.late or lane.come for lane in lanes)

    def wake(self, lane: StepwiseEngine, now: float) -> None:
        number = self.number(lane)
        if self.is_empty(number):
            self.asleep[number] = True
        elif self.asleep[number]:
            self.ready[number] = max(now, self.begins_at)
            self.asleep[number] = False
            if now > self.last_end:
                self.rounds.number = 0

    def is_computing(self, lane: StepwiseEngine) -> bool:
        return self.returns[self.number(lane)] < inf

    def is_in_pass(self, lane: StepwiseEngine) -> bool:
        number = self.number(lane)
        in_it = any(each is lane for each in self.computing[number])
        return in_it and self.returns[number] < inf

    def prompt_times(self, live: Live) -> tuple[list[float], float]:
        any_lane, batch = self.lanes[0], prompt(live)
        times = [rank.step_time(batch) for rank in self.ranks]
        times[0] = any_lane.host.around(times[0], batch, overlaps=any_lane.plans_ahead)
        return times, self.hand_over(num_tokens(batch))

    def wanting(self) -> list[tuple[float, int]]:
        """Return (ready since, number) of the lanes that would plan, the next one first."""
        if self.is_stopping:
            return []
        return sorted(
            (self.ready[number], number)
            for number in range(len(self.ranks))
            if self.returns[number] == inf and not self.asleep[number]
        )

    def next_time(self) -> float:
        times = [*self.returns]
        for ready, _ in self.wanting()[:1]:
            times.append(max(ready, self.free[0]))
        return min(times)

    def can_plan(self, now: float) -> bool:
        return any(max(ready, self.free[0]) <= now for ready, _ in self.wanting()[:1])

    def end_steps(self, now: float) -> None:
        for number, returns in enumerate(self.returns):
            if returns == now:
                for lane in self.computing[number]:
                    self.complete(lane, self.ready[number], now, self.busy[number])
                    if self.is_stopping:
                        lane.know_all()
                self.ready[number] = now
                self.returns[number] = inf
                self.rounds.number += 1
                self.last_end = now
                self.asleep[number] = self.is_empty(number)

    def plan(self, now: float) -> None:
        while self.wanting():
            ready, number = self.wanting()[0]
            if max(ready, self.free[0]) > now:
                return
            batches = [self.begin(engine[number], now) for engine in self.engines]
            pairs = zip(self.engines, batches, strict=True)
            self.computing[number] = [engine[number] for engine, batch in pairs if batch]
            if len(self.engines) > 1:
                self.share(batches)
            if self.computing[number]:
                self.pass_through(number, batches, now)
            else:
                self.asleep[number] = True
                self.rounds.number = 0

    def share(self, batches: list[StepBatch | None]) -> None:
        """Tell engines in lockstep how many tokens each computes; idle ones have none."""
        self.shared = tuple(num_tokens(batch) if batch else 0 for batch in batches)
        for batch in batches:
            if batch:
                batch.replicas = self.shared

    def pass_through(self, number: int, batches: list[StepBatch | None], now: float) -> None:
        waits = max(self.hand_over(num_tokens(batch)) for batch in batches if batch)
        self.busy[number] = 0.0
        end = now
        for rank in range(len(self.ranks)):
            start = end if rank == 0 else end + waits
            seconds = max(
                self.seconds(rank, engine[number], batch)
                for engine, batch in zip(self.engines, batches, strict=True)
            )
            end = max(start, self.free[rank]) + seconds
            self.free[rank] = end
            self.busy[number] += seconds
        self.returns[number] = end

    def seconds(self, rank: int, lane: StepwiseEngine, batch: StepBatch | None) -> float:
        """Return how long a rank computes a lane's batch, or an empty one."""
        work = batch or StepBatch(replicas=self.shared)
        seconds = self.ranks[rank].step_time(work)
        if rank == 0:
            overlaps = lane.overlaps if batch else lane.plans_ahead
            seconds = lane.host.around(seconds, work, overlaps=overlaps)
        return seconds + lane.copy_time if batch else seconds


def num_tokens(batch: StepBatch) -> int:
    """Return how many tokens go from rank to rank."""
    return sum(new for new, _ in batch.chunks) + batch.num_decodes * (1 + batch.num_drafts)


class StepwiseClient:
    """Engines side by side; has the records of all, as a `StepwiseEngine` has its own.

    outcomes: one for each job that came, in the order in which they came.
    gone: those that have left for good, in this order; clients of a cluster share the list.
    role: the part of answers that it computes, prefill or decode; None: both, in one visit;
        p_heavy or d_heavy: both, of which others may do a part.
    block_bytes: size of a block.
    """

    def __init__(
        self,
        groups: list[StepwiseGroup],
        num_engines: int,
        max_num_waiting: int | None,
        role: str | None = None,
        block_bytes: float = 1.0,
    ) -> None:
        self.role = role
        self.block_bytes = block_bytes
        self.groups = groups
        self.num_engines = num_engines
        self.max_num_waiting = inf if max_num_waiting is None else max_num_waiting
        self.outcomes: list[Outcome] = []
        self.gone: list[Live] = []
        self.taken: list[Live] = []  # on arrival
        for lane in self.tracks:
            lane.outcomes = self.outcomes

    def report_to(self, gone: list[Live]) -> None:
        """Let lanes note there who has left."""
        self.gone = gone
        for lane in self.tracks:
            lane.gone = gone

    @property
    def num_outstanding(self) -> int:
        """Jobs that have come and not left."""
        return sum(lane.num_inside for lane in self.tracks)

    @property
    def part_in_use(self) -> float:
        """The part of its blocks that is in use."""
        num_blocks = sum(lane.num_blocks for lane in self.tracks)
        return sum(lane.num_blocks - lane.num_free for lane in self.tracks) / num_blocks

    @property
    def tracks(self) -> list[StepwiseEngine]:
        return [lane for group in self.groups for lane in group.lanes]

    @property
    def steps(self) -> list[Step]:
        return sorted((step for lane in self.tracks for step in lane.steps), key=lambda s: s.end)

    def next_time(self) -> float:
        """Return when a step ends, a lane can plan, blocks come or somebody gives up."""
        times = [group.next_time() for group in self.groups]
        times += [live.limits[0][0] for _, _, live in self.places() if live.limits]
        times += [time for lane in self.tracks for time, _ in lane.loading + lane.copies]
        return min(times)

    def end_steps(self, now: float) -> None:
        for group in self.groups:
            group.end_steps(now)

    def end_loads(self, now: float) -> None:
        for group in self.groups:
            group.end_loads(now)

    def reach_limit(self, now: float) -> bool:
        """Let the first job give up whose time is up; return whether there was one."""
        with_limits = [place for place in self.places() if place[2].limits]
        over = [place for place in with_limits if place[2].limits[0][0] <= now]
        if not over:
            return False
        group, lane, live = min(over, key=lambda place: place[1].arrival(place[2]))
        group.reach_limits(lane, live, now)
        return True

    def places(self) -> list[tuple[StepwiseGroup, StepwiseEngine, Live]]:
        """Return all jobs in the fleet, with where they are."""
        return [
            (group, lane, live)
            for group in self.groups
            for lane in group.lanes
            for live in lane.waiting + lane.active + lane.apart
        ]

    def arrive(self, live: Live, now: float) -> None:
        """Take a job in, or turn it away."""
        self.outcomes.append(live.outcome)
        any_lane = self.groups[0].lanes[0]
        if live.incoming and live.job.num_prompt_tokens < any_lane.longest <= live.num_known:
            live.outcome.status = "finished"  # with all the tokens that the context allows
            live.outcome.started_at = live.outcome.finished_at = now
            any_lane.let_go(live, now)
            return
        num_waiting = sum(group.num_waiting for group in self.groups)
        busy = num_waiting >= self.max_num_waiting or self.comes_too_late(live, now)
        if any_lane.is_hopeless(live) or busy:
            any_lane.reject(live, now)
            return
        if not live.incoming:
            self.taken.append(live)
        scores = [4 * group.num_waiting + group.num_running for group in self.groups]
        self.groups[scores.index(min(scores))].arrive(live, now)

    def comes_too_late(self, live: Live, now: float) -> bool:
        """Tell whether prompts without a first token leave too little time for another one."""
        if live.incoming or not self.tracks[0].early_rejection:
            return False
        group = self.groups[0]  # all take the same time
        self.tracks[0].spare(live, self.taken)
        places = sorted(self.places(), key=lambda place: place[1].arrival(place[2]))
        ahead = [other for _, _, other in places if other.is_ahead]
        waits = sum(max(group.prompt_times(other)[0]) for other in ahead) / self.num_engines
        times, hand_over = group.prompt_times(live)
        alone = sum(times) + (len(times) - 1) * hand_over
        return waits + alone > time_left(live.job, now)
