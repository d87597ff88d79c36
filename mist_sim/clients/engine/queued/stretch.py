"""Stretches: batches of decodes alone, computed ahead without an event for each.

While nobody comes or ends and memory suffices, a pipeline does the same over and over: the oldest
batch returns, and its group, or the next one, is planned again. A stretch computes such batches in
one loop, as `QueueEngine` would one by one, and keeps a row of each. Nothing outside sees them
until the stretch ends, at the first return whose plan does something else, or is cut since
somebody comes or asks: then `settle` enters what has happened by that time, and leaves the state as
if every batch had had its events. The bits are the same (`tests/property/test_exactness.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.engine.queued.form import QueueForm
from mist_sim.clients.engine.queued.groups import Group, Pass
from mist_sim.clients.engine.queued.lane import QueuedLane
from mist_sim.clients.engine.step_records import Row
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.ranks import PipelinePredictor

_FIRST = 64  # batches of the first stretch
_MOST = 65536
_FEWEST = 3  # a shorter stretch costs more than its events

Seconds = Callable[[int], float]
"""Seconds of a batch of certain decodes on a rank, by their tokens in the cache."""


class Ahead(NamedTuple):
    """What is in flight when a stretch begins, and what it finds.

    groups: that take turns, first that of the oldest batch. flight: the batches in flight, oldest
    first. number: of the next plan. rows: of the records, for those in flight and those that are
    computed ahead. ends: when each returns, seconds. rank_ends: when each has left which rank.
    """

    groups: list[Group]
    flight: list[Pass]
    number: int
    rows: list[Row]
    ends: list[float]
    rank_ends: list[tuple[float, ...]]

    @property
    def num_over(self) -> int:
        """Returns whose plans it has computed; what the next one leads to, it does not know."""
        return len(self.ends) - len(self.flight)


class Stretches:
    """Computes stretches of a lane, and enters them in its state.

    predictor: of its ranks.
    """

    def __init__(self, lane: QueuedLane, predictor: PipelinePredictor) -> None:
        self._lane, self._state, self._form = lane, lane.state, lane.form
        self._predictor = predictor
        self._most = _FIRST
        scheduler, state = lane.scheduler, lane.state
        self._scheduler = scheduler if type(scheduler) is ChunkedScheduler else None
        self._is_possible = (
            self._scheduler is not None
            and self._scheduler.long_prefill_token_threshold is None
            and type(state.clock) is DecodeClock
            and not state.clock.tells_longest
            and state.cadence is None
            and state.by_piece
            and all(group.records.takes_rows for group in state.groups)
        )
        self._timed: dict[tuple[int, int], Seconds] = {}

    # --- whether nothing changes ----------------------------------------------------------

    def begin(
        self, flight: Sequence[Pass], number: int, rank_ends: Sequence[float]
    ) -> Ahead | None:
        """Return the batches that follow those in flight; None where something changes soon.

        flight: oldest first. number: of the next plan. rank_ends: of the latest batch, seconds.
        """
        form = self._form
        if not self._is_possible or len(flight) != form.size or not self._is_calm(flight):
            return None
        groups = _in_turn(flight, self._state.groups, number, form)
        if groups is None or not self._are_calm(groups, flight):
            return None
        found = self._found(groups, list(flight), number)
        self._go_on(found, list(rank_ends))
        return found if found.num_over >= _FEWEST else None

    def _is_calm(self, flight: Sequence[Pass]) -> bool:
        """Whether all that is in flight are decodes that go on, and nobody may be admitted."""
        state, lane, scheduler = self._state, self._lane, self._scheduler
        if not all(map(_goes_on, flight)):
            return False
        if state.prefilling or state.awaiting or state.leaving or state.ends_with or state.paused:
            return False
        if state.taken or state.kv_cache.shares_blocks or lane.given_up or state.num_taken:
            return False
        if not state.waiting or not state.has_seat():
            return True
        head = state.head()
        if head is None or scheduler is None or not scheduler.scheduler_reserve_full_isl:
            return False
        return state.kv_cache.blocks_to_admit(head) > state.num_admissible(0)

    def _are_calm(self, groups: list[Group], flight: Sequence[Pass]) -> bool:
        """Whether groups have decodes that all had a token in them, and go on without a gap."""
        ends: dict[Group, float] = {}
        for each in flight:
            group = each.group
            if each.ready != ends.get(group, group.records.last_decode_end):
                return False
            ends[group] = each.end
        return all(
            group.clock.num_decodes and not group.newcomers and group.records.is_settled
            for group in groups
        )

    # --- what follows ---------------------------------------------------------------------

    def _found(self, groups: list[Group], flight: list[Pass], number: int) -> Ahead:
        """Return the rows of the batches in flight."""
        num_waiting = self._lane.load.num_waiting
        rows = [
            _row(each.ready, each.batch, each.busy, num_waiting, each.num_used) for each in flight
        ]
        # when those in flight left which rank matters for none but the last, which the engine has
        return Ahead(groups, flight, number, rows, [each.end for each in flight], [])

    def _go_on(self, found: Ahead, ranks: list[float]) -> None:
        """Compute batch after batch until a plan has something else to do.

        ranks: when each rank has done the latest batch, seconds.
        """
        groups, rows, ends = found.groups, found.rows, found.ends
        pool, stagger, num_waiting = self._state.pool, self._form.stagger, rows[0][9]
        num_free, num_blocks, size = pool.num_free, pool.num_blocks, pool.block_size
        num_flight, num_groups = len(ends), len(groups)
        decodes = [group.clock.num_decodes for group in groups]
        contexts = [group.clock.context_sum for group in groups]
        steps = [group.clock.steps for group in groups]
        last_steps = [group.clock.steps + group.clock.steps_to_change() - 1 for group in groups]
        phases = [group.clock.phases for group in groups]
        delays = [self._predictor.rank_delay(number) for number in decodes]
        times = [self._times(number) for number in decodes]
        for index in range(num_flight, num_flight + self._most):
            now, turn = ends[index - num_flight], index % num_groups
            step, num_decodes, context = steps[turn], decodes[turn], contexts[turn]
            num_free -= phases[turn][step % size]
            if step == last_steps[turn] or num_free < 0:
                return
            ready = now
            if stagger == 1:
                ready = max(now, ranks[-1])
            elif stagger and ends[index - stagger] > now:
                ready = ends[index - stagger]
            if ready != ends[index - num_groups]:  # a gap
                return
            time, busy, delay, rank = ready, 0.0, delays[turn], 0
            for seconds_of in times[turn]:
                if rank:
                    time += delay
                seconds = seconds_of(context)
                time = ranks[rank] = (time if time > ranks[rank] else ranks[rank]) + seconds  # noqa: FURB136
                busy += seconds
                rank += 1  # noqa: SIM113
            steps[turn], contexts[turn] = step + 1, context + num_decodes
            num_used = num_blocks - num_free
            rows.append(
                (ready, 1, 0, 0, num_decodes, context, 0, 0, busy, num_waiting, num_used)
                + (num_decodes, 0)
            )
            ends.append(time)
            found.rank_ends.append(tuple(ranks))
        self._most = min(2 * self._most, _MOST)

    def _times(self, num_decodes: int) -> list[Seconds]:
        """Return what times batches of so many decodes, on every rank."""
        timed = []
        for rank, predictor in enumerate(self._predictor.ranks):
            key = rank, num_decodes
            if key not in self._timed:
                self._timed[key] = _seconds_of(predictor, num_decodes)
            timed.append(self._timed[key])
        return timed

    # --- what has happened ----------------------------------------------------------------

    def settle(self, found: Ahead, num_over: int, num_planned: int) -> list[Pass]:
        """Enter what has happened: so many batches have returned, and so many were planned.

        Returns those that are in flight then, oldest first.
        """
        state, num_flight, num_groups = self._state, len(found.flight), len(found.groups)
        if num_over < found.num_over:
            self._most = max(self._most // 2, _FIRST)
        end = num_flight + num_planned
        made = _Made(found)
        for turn, group in enumerate(found.groups):
            rows = found.rows[turn:num_over:num_groups]
            if rows:
                group.records.rows(rows, found.ends[turn:num_over:num_groups])
            num_steps = len(range(num_flight + (turn - num_flight) % num_groups, end, num_groups))
            group.clock.advance(num_steps)
            of_group = range(turn, end, num_groups)
            group.in_flight = [made[index] for index in of_group if index >= num_over]
            group.last = last = made[of_group[-1]]
            if of_group[-1] >= num_flight:
                last.before = tuple([made[index] for index in made.before(of_group[-1])])
        if num_planned:
            num_used = int(found.rows[end - 1][10])
            state.kv_cache.grow(num_used - state.pool.num_used)
            state.group = found.groups[(end - 1) % num_groups]
            state.clock = state.group.clock
        return [made[index] for index in range(num_over, end)]


class _Made(dict[int, Pass]):
    """By place in a stretch, its batches as those that others ask for; made when asked for."""

    def __init__(self, found: Ahead) -> None:
        super().__init__(enumerate(found.flight))
        self._found = found
        self._steps = [group.clock.steps for group in found.groups]  # before the stretch

    def before(self, index: int) -> range:
        """Return the places of the batches of its group that were in flight when it was planned."""
        num_groups, num_flight = len(self._found.groups), len(self._found.flight)
        first = index - (num_flight - 1) // num_groups * num_groups
        return range(first, index + 1, num_groups)

    def __missing__(self, index: int) -> Pass:
        found, num_flight = self._found, len(self._found.flight)
        turn = index % len(found.groups)
        first = num_flight + (turn - num_flight) % len(found.groups)
        row = found.rows[index]
        batch = StepBatch((), int(row[4]), int(row[5]))
        self[index] = made = Pass.of_decodes(
            found.number + index - num_flight,
            found.groups[turn],
            self._steps[turn] + (index - first) // len(found.groups),
            batch,
        )
        made.ready, made.end, made.busy = row[0], found.ends[index], row[8]
        made.num_used = int(row[10])
        return made


def _in_turn(
    flight: Sequence[Pass], groups: Sequence[Group], number: int, form: QueueForm
) -> list[Group] | None:
    """Return the groups with decodes, in the order in which they take turns; None: they do not."""
    turns = list(dict.fromkeys([each.group for each in flight]))
    num_turns = len(turns)
    if num_turns != (form.stagger or len(groups)):
        return None
    for place, each in enumerate(flight):
        is_next = each.number == number - len(flight) + place
        if not is_next or each.group is not turns[place % num_turns]:
            return None
    if any(group.clock.num_decodes for group in groups if group not in turns):
        return None
    follows = turns[len(flight) % num_turns]
    is_due = groups[number % form.stagger] if form.stagger else flight[0].group
    return turns if follows is is_due else None


def _goes_on(each: Pass) -> bool:
    """Whether a batch has decodes alone, all of whom were there before and go on."""
    plan = each.plan
    return plan.decodes and not (
        plan.prefills
        or plan.preempted
        or plan.dropped
        or plan.paused
        or each.completed
        or each.ending
        or each.joined
        or each.left
        or each.released
        or each.num_gone
    )


def _row(ready: float, batch: StepBatch, busy: float, num_waiting: int, num_used: int) -> Row:
    num_decodes = batch.num_decodes
    return (
        *(ready, 1, 0, 0, num_decodes, batch.context_sum, 0, 0, busy),
        *(num_waiting, num_used, num_decodes, 0),
    )


def _seconds_of(predictor: Predictor, num_decodes: int) -> Seconds:
    """Return what times batches of so many decodes on one rank."""
    line_of = getattr(predictor, "decode_line", None)
    line = line_of(num_decodes) if line_of is not None else None
    if line is None:
        return lambda context: predictor.step_time(StepBatch((), num_decodes, context))
    per_key, fixed, least, beyond = line

    def seconds(context: int) -> float:
        """What `DecodeLine.step` returns."""
        found: float = (context + num_decodes) * per_key + fixed
        return (least if found < least else found) + beyond  # noqa: FURB136

    return seconds
