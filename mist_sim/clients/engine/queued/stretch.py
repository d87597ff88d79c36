"""Stretches: batches of decodes alone, computed ahead without an event for each.

While plans find no prompt, no answer ends and memory suffices, a pipeline repeats itself:
the oldest batch returns, and the next one is planned. A stretch computes such batches in one loop,
as `QueueEngine` would one by one, and keeps a row of each. Batches that were in flight before may
give first and last tokens; each of their returns is an event, and the stretch goes on behind it.
Nothing outside sees the other returns until the stretch ends, when a plan does something else, or
is cut by an arrival or a query. Then `settled.py` enters what has happened by that time, as if
every batch had had its own events. The bits are the same (`tests/property/test_exactness.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mist_sim.clients.engine.queued.form import QueueForm
from mist_sim.clients.engine.queued.groups import Group, Pass
from mist_sim.clients.engine.step_records import Row
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.ranks import PipelinePredictor


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


class Rhythm(NamedTuple):
    """The order of plans and returns while the groups stay the same.

    num_plans: after each return. place: of the plan that computes something, from 0. last: for
    returns of each group in turn, the number of the group that is planned last.
    """

    num_plans: int
    place: int
    last: tuple[int, ...]


@dataclass(slots=True)
class Stretch:
    """The batches in flight when a stretch begins, and those that follow.

    A batch is identified by its place: first those in flight, oldest first, then those computed
    ahead. The batch at a place has the group at the same place of `groups`, which take turns.

    before: the queue at the beginning. flight: the batches in it. num_waiting: requests that wait.
    ends: when each batch returns (seconds). rows, rank_ends: of each batch computed ahead, its row
    in the records, and when it leaves each rank.
    num_given: returns of the flight that are in the state already, unlike their plans.
    """

    before: EngineQueue
    rhythm: Rhythm
    flight: list[Pass]
    groups: list[Group]
    num_waiting: int
    ends: list[float]
    rows: list[Row]
    rank_ends: list[tuple[float, ...]]
    num_given: int = 0

    @property
    def num_over(self) -> int:
        """Returns whose plans it includes; after the next return something else happens."""
        return len(self.rank_ends)

    def behind(self, place: int, now: EngineQueue) -> Stretch:
        """Return the part whose first return is that of a place, which happens now.

        now: the queue before that.
        """
        turn = place % len(self.groups)
        groups, last = self.groups, self.rhythm.last
        return Stretch(
            now,
            self.rhythm._replace(last=last[turn:] + last[:turn]),
            now.in_flight,
            groups[turn:] + groups[:turn],
            self.num_waiting,
            self.ends[place:],
            self.rows[place:],
            self.rank_ends[place:],
            num_given=1,
        )


_Line = tuple[float, float, float, float, float, float, Callable[[StepBatch], float] | None]
"""Of a rank: the delay before it, its `DecodeLine`, and its `step_time` where it has no line."""

_Turn = tuple[int, int, int, int, list[int], list[_Line]]
"""Of a group: decodes, context, steps so far, steps to come before an answer's last, blocks that
these take by phase, lines."""


class StretchLoop:
    """Computes stretches of a pipeline.

    predictor: of its ranks.
    """

    def __init__(self, predictor: PipelinePredictor, form: QueueForm) -> None:
        self._predictor, self._form = predictor, form
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
            self._rhythms[key] = _rhythm(shape, decoding, now.number, self._form)
        rhythm = self._rhythms[key]
        if rhythm is None:
            return None
        return Stretch(
            now, rhythm, flight, turns, num_waiting, [each.end for each in flight], [], []
        )

    def extend(
        self, found: Stretch, free: tuple[int, int], freed: Sequence[int], most: int
    ) -> None:
        """Compute what follows `most` returns, or fewer if a plan does something else.

        free: the number of free blocks, and of all blocks. freed: blocks that the return of each
        batch in flight frees.
        """
        groups, rows, ends, rank_ends = found.groups, found.rows, found.ends, found.rank_ends
        (num_free, num_blocks), stagger = free, self._form.stagger
        num_flight, num_groups, num_waiting = len(ends), len(groups), found.num_waiting
        block_size, num_used = groups[0].clock.block_size, num_blocks - num_free
        ranks, frees = list(found.before.rank_ends), any(freed)
        # of each group, as they are planned
        turns = [self._turn_of(groups[(num_flight + n) % num_groups]) for n in range(num_groups)]
        for more in range(-(most // -num_groups)):
            for number, context, step, num_steps, phases, lines in turns:
                num_used += phases[(step + more) % block_size]
                if frees and len(rows) < num_flight:
                    num_used -= freed[len(rows)]
                ready, before = ends[-num_flight], ends[-num_groups]
                if stagger == 1:
                    ready = ready if ready > ranks[-1] else ranks[-1]  # noqa: FURB136
                elif stagger and before > ready:
                    ready = before
                if more == num_steps or num_used > num_blocks or ready != before:  # or with a gap
                    return
                time, busy, rank = ready, 0.0, 0
                keys = context + (more + 1) * number
                for delay, per_key, fixed, least, beyond, launch, step_time in lines:
                    if step_time is None:  # as `DecodeLine.step` does, without a call
                        seconds = keys * per_key + fixed + launch
                        seconds = (seconds if seconds > least else least) + beyond  # noqa: FURB136
                    else:
                        seconds = step_time(StepBatch((), number, keys - number))
                    time, free_at = time + delay, ranks[rank]
                    ranks[rank] = time = (time if time > free_at else free_at) + seconds  # noqa: FURB136
                    busy += seconds
                    rank += 1  # noqa: SIM113
                own = keys - number
                rows.append(
                    (ready, 1, 0, 0, number, own, 0, 0, busy, num_waiting, num_used, number, 0)
                )
                ends.append(time)
                rank_ends.append((*ranks,))

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
            for rank in self._predictor.ranks:
                line_of = getattr(rank, "decode_line", None)
                line: DecodeLine | None = line_of(num_decodes) if line_of is not None else None
                step_time = rank.step_time if line is None else None
                lines.append((delay, *(line or DecodeLine(0.0, 0.0)), step_time))
                delay = self._predictor.rank_delay(num_decodes)
            self._lines[num_decodes] = lines
        return self._lines[num_decodes]


def _rhythm(
    shape: tuple[int, ...], decoding: tuple[bool, ...], number: int, form: QueueForm
) -> Rhythm | None:
    """Return how plans follow one another; None if they do not keep the queue as it is.

    shape: the groups of the batches in the queue, oldest first; -1: nothing was to compute.
    decoding: whether each group has decodes. number: of the next plan.
    """
    turns = list(dict.fromkeys([each for each in shape if each >= 0]))
    flight, queue = [each for each in shape if each >= 0], deque(shape)
    if len(turns) != sum(decoding):
        return None
    plans, last, start = set(), [], number
    for turn in range(len(turns)):
        if queue.popleft() != turns[turn] or flight.pop(0) != turns[turn]:
            return None
        planned = []
        while True:
            group = number % form.stagger if form.stagger else _free(flight, decoding)
            if group is None or (form.stagger and not flight and decoding[group]):
                return None  # groups would join, or it would be planned on the spot
            number += 1
            planned.append(decoding[group])
            queue.append(group if decoding[group] else -1)
            flight += [group] if decoding[group] else []
            is_next = form.fills or (decoding[group] and queue[0] >= 0)
            if len(queue) < form.size and is_next:
                continue
            if queue[0] >= 0:
                break
            queue.popleft()
            if not flight:
                return None
        if sum(planned) != 1:
            return None
        last.append(group)
        plans.add((len(planned), planned.index(True)))
        follows = {each: turns[(place + turn + 1) % len(turns)] for place, each in enumerate(turns)}
        if list(queue) != [follows.get(each, -1) for each in shape]:
            return None
    if len(plans) != 1 or (form.stagger and (number - start) % form.stagger):
        return None
    (num_plans, place) = plans.pop()
    return Rhythm(num_plans, place, tuple(last))


def _free(flight: Sequence[int], decoding: Sequence[bool]) -> int | None:
    """Return the group that is planned next if no step is planned ahead.

    That is the one with no batch in flight; None if several of these would join.
    """
    free = [each for each in range(len(decoding)) if each not in flight]
    able = [each for each in free if decoding[each]]
    if len(able) > 1:
        return None
    return able[0] if able else free[0]
