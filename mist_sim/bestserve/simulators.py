"""BestServe's simulators, Algorithms 2 to 7, one loop each.

Heaps tell which instance is free; the printed algorithms search lists for it;
`tests/reference/bestserve.py` has them as they are printed, and every request's times are equal to
theirs to the bit. Readings and corrections: docs/background/bestserve.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from math import inf

from mist_sim.bestserve.oracle import Times
from mist_sim.bestserve.orders import Order
from mist_sim.errors import InvariantError

Pool = tuple[int, int]
"""Instances, and how many requests each has at a time."""


def pseudo_batches(boxes: int, tau: float) -> list[int]:
    """Return the pseudo batch size of a request that joins 0, 1, ... others (equation 9)."""
    return [max(int((others + 1) / tau), 1) for others in range(boxes)]


def contexts(prompts: Sequence[int], outputs: Sequence[int]) -> list[int]:
    """Return how many tokens the cache holds of each before its last step (table 3b)."""
    return [
        max(prompt + output - 2, prompt) for prompt, output in zip(prompts, outputs, strict=True)
    ]


def prefill(
    arrival: Sequence[float], prompts: Sequence[int], pool: Pool, times: Times
) -> list[float]:
    """Return when each prompt is done (Algorithm 2), seconds.

    Instances are alike, so their order plays no part.
    """
    instances, most = pool
    free_at = [0.0] * instances
    done: list[float] = []
    first, num = 0, len(arrival)
    while first < num:
        now = max(free_at[0], arrival[first])
        last = bisect_right(arrival, now, first, min(first + most, num))
        latency, busy = times.prefill(tuple(prompts[first:last]))
        heapreplace(free_at, now + busy)
        done += [now + latency] * (last - first)
        first = last
    return done


def decode(
    ready: Sequence[float],
    outputs: Sequence[int],
    context: Sequence[int],
    pool: Pool,
    times: Times,
    tau: float,
    order: Order,
) -> list[float]:
    """Return when each answer is complete (Algorithm 3), seconds.

    ready: when each prompt was done, never decreasing. outputs: tokens of each answer. context:
    as in `contexts`. tau: the balance of equation 9.
    """
    instances, boxes = pool
    pseudo = pseudo_batches(boxes, tau)
    busy: list[list[float]] = [[] for _ in range(instances)]
    done: list[float] = []
    now, first, num = 0.0, 0, len(ready)
    while first < num:
        for instance in order.next():
            ends = busy[instance]
            while ends and ends[0] <= now:
                heappop(ends)
            others = len(ends)
            if first < num and others < boxes and ready[first] <= now:
                steps = outputs[first]
                end = now + steps * times.decode(pseudo[others], context[first])
                heappush(ends, end)
                done.append(end)
                order.took(instance)
                first += 1
        if first < num:
            is_free = any(len(ends) < boxes for ends in busy)
            free_at = 0.0 if is_free else min(ends[0] for ends in busy)
            now = max(now, free_at, ready[first])
    return done


def together(
    arrival: Sequence[float],
    prompts: Sequence[int],
    outputs: Sequence[int],
    pools: tuple[Pool, int],
    times: tuple[Times, Times],
    tau: float,
    order: Order,
) -> tuple[list[float], list[float]]:
    """Return when prompts and answers are done on instances that do both (Algorithms 4 to 7).

    A batch of prompts goes first and suspends the answers of its instance, all of which end later
    by as much. pools: instances and prompts of each at a time, and boxes. times: of prompts, and
    of answers.
    """
    (num_instances, most), boxes = pools
    instances = _Instances(num_instances, boxes, len(arrival))
    context, pseudo = contexts(prompts, outputs), pseudo_batches(boxes, tau)
    prefilled = [inf] * len(arrival)
    waiting: list[tuple[float, int]] = []  # (end, request) of each prompt
    now, first, num = 0.0, 0, len(arrival)
    while first < num or waiting:
        to_prefill = max(arrival[first], min(instances.free_at)) if first < num else inf
        if to_prefill > now:
            to_decode = max(waiting[0][0], min(instances.box_at)) if waiting else inf
            now = max(now, min(to_prefill, to_decode))
        if to_prefill <= now:
            last = bisect_right(arrival, now, first, min(first + most, num))
            latency, busy = times[0].prefill(tuple(prompts[first:last]))
            chosen = _first(order.next(), instances.free_at, now)
            instances.suspend(chosen, now, busy)
            for request in range(first, last):
                prefilled[request] = now + latency
                if outputs[request] > 1:
                    heappush(waiting, (now + latency, request))
                else:
                    instances.done[request] = now + latency
            first = last
        else:
            chosen = _first(order.next(), instances.box_at, now)
            _, request = heappop(waiting)
            others = instances.num_answers(chosen, now)
            step = times[1].decode(pseudo[others], context[request])
            instances.put(chosen, now + outputs[request] * step, request)
        order.took(chosen)
    for number in range(num_instances):
        instances.num_answers(number, inf)
    return prefilled, instances.done


def _first(order: Sequence[int], free_at: Sequence[float], now: float) -> int:
    """Return the first instance of an order that is free; one is."""
    for number in order:
        if free_at[number] <= now:
            return number
    raise InvariantError(f"no instance is free at {now} s")


class _Instances:
    """Instances that prefill and decode.

    free_at: when the prompts of each are done. box_at: when each can take an answer: its prompts
    are done, and a box is free. done: when the answers of all requests are complete; in full boxes
    that is still to be written.
    """

    __slots__ = ("_boxes", "_in_boxes", "box_at", "done", "free_at")

    def __init__(self, num: int, boxes: int, num_requests: int) -> None:
        self._boxes = boxes
        self._in_boxes: list[list[tuple[float, int]]] = [[] for _ in range(num)]
        self.free_at, self.box_at = [0.0] * num, [0.0] * num
        self.done = [inf] * num_requests

    def num_answers(self, number: int, now: float) -> int:
        """Empty the boxes of answers that are complete by now; return how many others there are."""
        boxes, done = self._in_boxes[number], self.done
        while boxes and boxes[0][0] <= now:
            end, request = heappop(boxes)
            done[request] = end
        return len(boxes)

    def suspend(self, number: int, now: float, seconds: float) -> None:
        """Begin with prompts, for which all answers wait."""
        self.num_answers(number, now)
        boxes = [(end + seconds, request) for end, request in self._in_boxes[number]]
        self._in_boxes[number] = boxes
        self.free_at[number] = now + seconds
        self._look(number)

    def put(self, number: int, end: float, request: int) -> None:
        """Put an answer into a free box."""
        heappush(self._in_boxes[number], (end, request))
        self._look(number)

    def _look(self, number: int) -> None:
        boxes, free_at = self._in_boxes[number], self.free_at[number]
        is_full = len(boxes) >= self._boxes
        self.box_at[number] = max(free_at, boxes[0][0]) if is_full else free_at
