"""The rhythm of a pipeline: how plans and returns take turns while its groups stay the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mist_sim.clients.engine.queued.form import QueueForm


class Rhythm(NamedTuple):
    """The order of plans and returns while the groups stay the same.

    num_plans: after each return. place: of the plan that computes something, from 0. last: for
    returns of each group in turn, the number of the group that is planned last.
    """

    num_plans: int
    place: int
    last: tuple[int, ...]


def rhythm_of(
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
