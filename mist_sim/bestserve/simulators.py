"""BestServe's simulators, Algorithms 2 to 7, one loop each.

Who is free is known from heaps, and what the printed algorithms look for in lists is where it is
found in one step; `tests/reference/bestserve.py` has them as they are printed, and every request's
times are equal to theirs to the bit. Readings and corrections: docs/background/bestserve.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from math import inf

from mist_sim.bestserve.oracle import Times
from mist_sim.bestserve.orders import Order

Pool = tuple[int, int]
"""Instances, and how many requests each has at a time."""


def pseudo_batches(boxes: int, tau: float) -> list[int]:
    """Return the pseudo batch size of one that joins 0, 1, ... others (equation 9)."""
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


class _Instance:
    """One that does both. free_at: when its prompts are done. boxes: (end, request) of answers."""

    __slots__ = ("boxes", "free_at")

    def __init__(self) -> None:
        self.free_at = 0.0
        self.boxes: list[tuple[float, int]] = []


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
    context, pseudo = contexts(prompts, outputs), pseudo_batches(boxes, tau)
    instances = [_Instance() for _ in range(num_instances)]
    num = len(arrival)
    prefilled, done = [inf] * num, [inf] * num
    waiting: list[tuple[float, int]] = []
    now, first = 0.0, 0
    while first < num or waiting:
        to_prefill = inf
        if first < num:
            to_prefill = max(arrival[first], min([each.free_at for each in instances]))
        if to_prefill > now:
            to_decode = inf
            if waiting:
                free_at = min([_free_box_at(each, boxes) for each in instances])
                to_decode = max(waiting[0][0], free_at)
            now = max(now, min(to_prefill, to_decode))
        if to_prefill <= now:
            last = bisect_right(arrival, now, first, min(first + most, num))
            latency, busy = times[0].prefill(tuple(prompts[first:last]))
            number = next(k for k in order.next() if instances[k].free_at <= now)
            instance = instances[number]
            instance.free_at = now + busy
            _free(instance, now, done)
            instance.boxes = [(end + busy, request) for end, request in instance.boxes]
            for request in range(first, last):
                prefilled[request] = now + latency
                if outputs[request] > 1:
                    heappush(waiting, (now + latency, request))
                else:
                    done[request] = now + latency
            first = last
        else:
            number = next(k for k in order.next() if _free_box_at(instances[k], boxes) <= now)
            instance = instances[number]
            _free(instance, now, done)
            _, request = heappop(waiting)
            others = len(instance.boxes)
            step = times[1].decode(pseudo[others], context[request])
            heappush(instance.boxes, (now + outputs[request] * step, request))
        order.took(number)
    for instance in instances:
        _free(instance, inf, done)
    return prefilled, done


def _free_box_at(instance: _Instance, boxes: int) -> float:
    """Return from when on an instance takes an answer: no prompts, and a box is free."""
    if len(instance.boxes) < boxes:
        return instance.free_at
    return max(instance.free_at, instance.boxes[0][0])


def _free(instance: _Instance, now: float, done: list[float]) -> None:
    """Empty the boxes of answers that are complete by now, and write down when they were."""
    boxes = instance.boxes
    while boxes and boxes[0][0] <= now:
        end, request = heappop(boxes)
        done[request] = end
