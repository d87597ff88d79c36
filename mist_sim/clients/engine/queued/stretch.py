"""Stretches: batches of decodes alone, computed ahead without an event for each.

While plans find no prompt, no answer ends and memory suffices, a pipeline repeats itself:
the oldest batch returns, and the next one is planned. A stretch computes such batches in one loop,
as `QueueEngine` would one by one, and keeps a row of each. Batches that were in flight before may
give first and last tokens, or those of sequences that gave way; each of these returns is an event,
and the stretch goes on behind it. So it does where a request comes that waits behind others: later
rows tell of one more. Nothing outside sees the other returns until the stretch ends, when a plan
does something else, or is cut by another arrival or a query. Then `settled.py` enters what has
happened by that time, as if every batch had had its own events. The bits are the same
(`tests/property/test_exactness.py`, `tests/property/test_stretches.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Literal

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.engine.queued.form import QueueForm
from mist_sim.clients.engine.queued.groups import Group, Pass
from mist_sim.clients.engine.queued.rank_times import RankTimes
from mist_sim.clients.engine.queued.rhythm import Rhythm, rhythm_of
from mist_sim.clients.engine.step_records import Row
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.ranks import PipelinePredictor

Until = Literal["before_end", "end", "any"]
"""How far a stretch goes: up to the plan that gives an answer its last token, up to the return of
that batch, or on and on."""

_FIRST = 32  # batches that are computed at first; then twice as many, and so on
_FIRST_IF_SOME_WAIT = 512  # then an arrival seldom cuts the stretch


@dataclass(slots=True)
class EngineQueue:
    """The engine's view of its batches.

    queue: oldest first; None: there was nothing to compute. recent: the latest plans. number: of
    the next plan. rank_ends: when each rank is done with the latest batch, in seconds.
    """

    queue: deque[Pass | None]
    recent: deque[Pass | None]
    number: int
    rank_ends: list[float]

    @property
    def in_flight(self) -> list[Pass]:
        """The batches on their way, oldest first."""
        return [each for each in self.queue if each is not None]


@dataclass(slots=True)
class Stretch:
    """The batches in flight when a stretch begins, and those that follow.

    A batch is identified by its place: first those in flight, oldest first, then those computed
    ahead. The batch at a place has the group at the same place of `groups`, which take turns.

    before: the queue at the beginning; shape: which of its places had a batch. flight: these.
    waits: requests that wait, each number with the place of the first return that finds so many.
    ends: when each batch returns (seconds). rows, rank_ends: of each batch computed ahead, its row
    in the records, and when it leaves each rank. steps: of the clock of each group, before it.
    endings: places of batches computed ahead that give the last tokens of answers.
    more: computes more of it, each time that it is advanced, as long as there is more.
    num_given, num_planned: returns and plans that are in the state already. made: batches computed
    ahead, by place, as far as the engine had to have them.
    sums: of the tokens of the first 0, 1, 2, ... batches computed ahead, as far as was asked.
    """

    before: EngineQueue
    shape: tuple[int, ...]
    rhythm: Rhythm
    flight: list[Pass]
    groups: list[Group]
    waits: list[tuple[int, int]]
    ends: list[float]
    rows: list[Row]
    rank_ends: list[tuple[float, ...]]
    steps: list[int]
    made: dict[int, Pass]
    endings: list[int]
    more: Iterator[None]
    num_given: int = 0
    num_planned: int = 0
    sums: list[int] = field(default_factory=lambda: [0])

    @property
    def num_over(self) -> int:
        """Returns whose plans it includes; after the next return another event follows."""
        return len(self.rank_ends)

    def num_waiting_at(self, place: int) -> int:
        """Return how many requests wait when the batch at a place returns."""
        number = 0
        for first, later in self.waits:
            if first <= place:
                number = later
        return number

    def rows_between(self, begin: int, end: int) -> list[Row]:
        """Return the rows of batches computed ahead, from one place up to another."""
        num_flight = len(self.flight)
        rows = self.rows[begin - num_flight : end - num_flight]
        stop = end
        for first, number in reversed(self.waits[1:]):
            for place in range(max(first, begin), stop):
                row = rows[place - begin]
                rows[place - begin] = (*row[:9], number, *row[10:])
            stop = min(first, stop)
        return rows

    def num_tokens(self, end: int) -> int:
        """Return the tokens of the batches up to a place that are not in the state already."""
        begin, num_flight, sums = self.num_given, len(self.flight), self.sums
        number = sum([each.num_tokens for each in self.flight[begin:end]])
        if end <= num_flight:
            return number
        more = [row[4] for row in self.rows[len(sums) - 1 : end - num_flight]]
        sums.extend(accumulate(more, initial=sums.pop()))
        return number + sums[end - num_flight] - sums[max(begin - num_flight, 0)]

    def goes_on(self) -> bool:
        """Compute more of it; return whether there is more."""
        num_over = self.num_over
        next(self.more, None)
        return self.num_over > num_over

    def step_at(self, place: int) -> int:
        """Return the steps of its group's clock before the batch at a place computed ahead."""
        num_groups = len(self.groups)
        return self.steps[place % num_groups] + (place - len(self.flight)) // num_groups

    def in_flight(self, num_over: int, num_planned: int) -> list[Pass]:
        """Return the batches on their way after so many returns and plans."""
        places = range(max(num_over, len(self.flight)), len(self.flight) + num_planned)
        return self.flight[num_over:] + [self.pass_at(place) for place in places]

    def pass_at(self, place: int) -> Pass:
        """Return the batch at a place, as the engine has it."""
        num_ahead = place - len(self.flight)
        if num_ahead < 0:
            return self.flight[place]
        if place in self.made:
            return self.made[place]
        group, row = self.groups[place % len(self.groups)], self.rows[num_ahead]
        made = Pass.of_decodes(group, self.step_at(place), row, self.ends[place])
        rhythm = self.rhythm
        made.number = self.before.number + num_ahead * rhythm.num_plans + rhythm.place
        self.made[place] = made
        return made


_Line = tuple[float, float, float, float, float, float, Callable[[StepBatch], float] | None]
"""Of a rank: the delay before it, its `DecodeLine`, and its `step_time` where it has no line."""

_Turn = tuple[int, int, int, int, list[int], list[_Line]]
"""Of a group: decodes, context, steps so far, steps to come before an answer's last, blocks that
these take by phase, lines."""


class StretchLoop:
    """Computes stretches of a pipeline.

    predictor, times: of its ranks.
    """

    def __init__(self, predictor: PipelinePredictor, form: QueueForm, times: RankTimes) -> None:
        self._predictor, self._form, self._times = predictor, form, times
        self._rhythms: dict[tuple[object, ...], Rhythm | None] = {}
        self._lines: dict[int, list[_Line]] = {}  # by number of decodes

    def begin(self, now: EngineQueue, groups: Sequence[Group], num_waiting: int) -> Stretch | None:
        """Return a stretch without batches so far; None if plans have no rhythm."""
        flight = now.in_flight
        turns = list(dict.fromkeys([each.group for each in flight]))
        shape = tuple([-1 if each is None else each.group.number for each in now.queue])
        decoding = tuple([group.clock.num_decodes > 0 for group in groups])
        key = shape, decoding, now.number % (self._form.stagger or 1)
        if key not in self._rhythms:
            self._rhythms[key] = rhythm_of(shape, decoding, now.number, self._form)
        rhythm = self._rhythms[key]
        if rhythm is None or not self._is_gapless(now, len(flight), len(turns)):
            return None
        ends, steps = [each.end for each in flight], [group.clock.steps for group in turns]
        return Stretch(
            now,
            shape,
            rhythm,
            flight,
            turns,
            [(0, num_waiting)],
            ends,
            [],
            [],
            steps,
            {},
            [],
            iter(()),
        )

    def _is_gapless(self, now: EngineQueue, num_flight: int, num_groups: int) -> bool:
        """Tell whether each batch begins as soon as the one before of its group has returned."""
        stagger = self._form.stagger
        if not stagger:  # it begins when it is planned
            return num_flight == num_groups
        latest = now.recent[-1]  # whose tokens the next one waits for, if `stagger` is 1
        is_back = latest is not None and now.rank_ends[-1] == latest.end
        return stagger > 1 or (num_groups == 1 and is_back)

    def extend(
        self, found: Stretch, free: tuple[int, int], freed: Sequence[int], until: Until
    ) -> Iterator[None]:
        """Compute the following batches, some at a time, until a plan is not of decodes alone.

        free: the number of free blocks, and of all blocks. freed: blocks that the return of each
        batch in flight frees.
        """
        groups, rows, ends, rank_ends = found.groups, found.rows, found.ends, found.rank_ends
        num_flight, num_groups, num_waiting = len(ends), len(groups), found.waits[0][1]
        (num_free, num_blocks), block_size = free, groups[0].clock.block_size
        num_used, ranks = num_blocks - num_free, list(found.before.rank_ends)
        frees = dict(enumerate(freed)) if any(freed) else {}
        endings, steps = found.endings, found.steps
        del found  # which holds this generator, and would be kept by it
        # of each group, as they are planned
        turns = [self._turn_of(groups[(num_flight + n) % num_groups]) for n in range(num_groups)]
        place, last, enough = 0, -1, _FIRST_IF_SOME_WAIT if num_waiting else _FIRST
        if until == "before_end":
            last = min([each[3] * num_groups + turn for turn, each in enumerate(turns)])
        for more in count():
            if place >= enough:
                yield
                enough *= 2
            for turn, (number, context, step, num_steps, phases, lines) in enumerate(turns):
                num_used += phases[(step + more) % block_size]
                if frees:
                    num_used -= frees.pop(place, 0)
                if num_used > num_blocks or place == last:
                    return
                ready = time = ends[place - num_groups + num_flight]
                busy, rank, own = 0.0, 0, context + more * number
                keys = own + number
                for delay, per_key, fixed, least, beyond, launch, step_time in lines:
                    if step_time is None:  # as `DecodeLine.step` does, without a call
                        seconds = keys * per_key + fixed + launch
                        seconds = (seconds if seconds > least else least) + beyond  # noqa: FURB136
                    else:
                        seconds = step_time(StepBatch((), number, own))
                    time, free_at = time + delay, ranks[rank]
                    ranks[rank] = time = (time if time > free_at else free_at) + seconds  # noqa: FURB136
                    busy += seconds
                    rank += 1  # noqa: SIM113
                rows.append(
                    (ready, 1, 0, 0, number, own, 0, 0, busy, num_waiting, num_used, number, 0)
                )
                ends.append(time)
                rank_ends.append((*ranks,))
                if more == num_steps:
                    end = place + num_flight
                    endings.append(end)
                    if until == "end" and last < 0:
                        last = end  # its return is the last
                    clock = groups[end % num_groups].clock
                    left, frees[end] = self._behind_ends(
                        clock, turns[turn], more, steps[end % num_groups] + more + 1
                    )
                    if left is None:
                        return
                    turns[turn] = left
                place += 1

    def _behind_ends(
        self, clock: DecodeClock, turn: _Turn, more: int, end: int
    ) -> tuple[_Turn | None, int]:
        """Return a group's turn behind a batch that gives the last tokens of answers.

        more: its batches before that one. end: steps of its clock up to that one. Returns None
        where it has no decodes any more, and the blocks that the return of the batch frees.
        """
        number, context, step, _, phases, _ = turn
        phases, size, num_freed, later = phases.copy(), clock.block_size, 0, []
        context += (more + 1) * number  # behind that batch
        for over, ticket, sequence in clock.heap:
            if sequence.ticket == ticket and over > end:
                later.append(over)
            elif sequence.ticket == ticket and over == end:
                number, num_tokens = number - 1, sequence.num_final_tokens - 1
                context -= num_tokens
                phases[sequence.block_phase] -= 1
                num_freed -= num_tokens // -size
        if not later:
            return None, num_freed
        context -= (more + 1) * number
        num_steps = more + min(later) - end
        return (number, context, step, num_steps, phases, self._lines_of(number)), num_freed

    def _turn_of(self, group: Group) -> _Turn:
        """Return what batches of a group have in common from now on."""
        clock = group.clock
        number, num_steps = clock.num_decodes, clock.steps_to_change() - 1
        lines = self._lines_of(number)
        return number, clock.context_sum, clock.steps, num_steps, clock.phases, lines

    def _lines_of(self, num_decodes: int) -> list[_Line]:
        """Return how long batches of so many decodes take on every rank."""
        if num_decodes not in self._lines:
            delay, lines = 0.0, list[_Line]()
            of_ranks = zip(self._predictor.ranks, self._times.lines(num_decodes), strict=True)
            for rank, line in of_ranks:
                step_time = rank.step_time if line is None else None
                lines.append((delay, *(line or DecodeLine(0.0, 0.0)), step_time))
                delay = self._predictor.rank_delay(num_decodes)
            self._lines[num_decodes] = lines
        return self._lines[num_decodes]
