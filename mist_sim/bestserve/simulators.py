"""BestServe's simulators, Algorithms 2 to 7, one loop each: TTFT and TPOT of every request.

Heaps tell which instance is free; the printed algorithms search lists for it;
`tests/reference/bestserve.py` has them as they are printed, and every request's times are equal to
theirs to the bit. Readings and corrections: docs/background/bestserve.md.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from math import inf
from typing import Literal

import numpy as np

from mist_sim.bestserve.drawn_requests import Floats, Requests
from mist_sim.bestserve.oracle import Times
from mist_sim.bestserve.strategy import Strategy
from mist_sim.checks import Positive, check_fields
from mist_sim.errors import InvariantError, ScenarioError, brief
from mist_sim.rng import Streams
from mist_sim.studies.verdicts.request_times import RequestTimes

Routing = Literal["shuffle", "round_robin"]

_BLOCK = 1024  # permutations drawn at a time


class Order:
    """The order of the instances in a pass.

    routing: "shuffle": a new random order in every pass (the `shuffle` of Algorithms 2, 3, 6 and
        7); "round_robin": the instance after the one that took the last batch is asked first.
    Raises ScenarioError for another one.
    """

    def __init__(self, routing: Routing, num_instances: int, rng: np.random.Generator) -> None:
        if routing not in ("shuffle", "round_robin"):
            raise ScenarioError(f"routing must be shuffle or round_robin, got {brief(routing)}")
        numbers = range(num_instances)
        self._turns = [[*numbers[first:], *numbers[:first]] for first in numbers]
        self._first = 0
        self._shuffled = _permutations(num_instances, rng) if routing == "shuffle" else None

    def next(self) -> Sequence[int]:
        """Return the order of the next pass."""
        return self._turns[self._first] if self._shuffled is None else next(self._shuffled)

    def took(self, instance: int) -> None:
        """Hear that an instance took something in this pass."""
        self._first = (instance + 1) % len(self._turns)


def _permutations(num: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield orders without end; one instance needs no luck."""
    if num == 1:
        while True:
            yield [0]
    block = np.tile(np.arange(num), (_BLOCK, 1))
    while True:
        yield from rng.permuted(block, axis=1).tolist()


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


TAU = 2.5
"""The balance of the pseudo batch size: BestServe, section 3.4.2."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """Options of the simulators.

    tau: the balance of equation 9 (> 0): one that joins b others decodes as if in a batch of
        max(floor((b + 1) / tau), 1). routing: order in which instances are asked: "shuffle" as
        printed, or "round_robin".

    Raises ScenarioError for another tau or routing.
    """

    tau: Positive[float] = TAU
    routing: Routing = "shuffle"

    def __post_init__(self) -> None:
        check_fields(self, ScenarioError)
        Order(self.routing, 1, Streams(0).generator("routing"))


@dataclass(frozen=True)
class Served:
    """Times of every request, seconds, in order of arrival.

    prefilled: its first token was out (D1). done: its answer was complete (D2).
    """

    requests: Requests
    prefilled: Floats
    done: Floats

    @property
    def ttft(self) -> Floats:
        """Seconds from arrival to the first token."""
        return self.prefilled - self.requests.arrival

    @property
    def tpot(self) -> Floats:
        """Seconds a token of the answer: (D2 - D1) / s+, waits for a box included; 0 of one."""
        return (self.done - self.prefilled) / self.requests.output

    def times(self, warmup: float = 0.0) -> RequestTimes:
        """Return the latencies of requests that arrive `warmup` seconds after the start or later.

        `Target` judges these.
        """
        rows = self.requests.arrival >= warmup
        e2el = self.done - self.requests.arrival
        return RequestTimes(self.ttft[rows], self.tpot[rows], e2el[rows])


def simulate_strategy(
    strategy: Strategy,
    requests: Requests,
    times: Times | tuple[Times, Times],
    *,
    seed: int = 0,
    method: Method | None = None,
) -> Served:
    """Serve requests by a strategy (the SIMULATE of Algorithm 9).

    times: step times of an instance, such as `Oracle(predictor)`, of the layout that the strategy
    names; two where those that prefill and those that decode differ. seed: of the shuffling.
    """
    method = method or Method()
    both = times if isinstance(times, tuple) else (times, times)
    rng = Streams(seed).generator("bestserve routing")
    if strategy.is_apart:
        return _apart(strategy, requests, both, rng, method)
    order = Order(method.routing, strategy.together, rng)
    prefilled, done = together(
        requests.arrival.tolist(),
        requests.prompt.tolist(),
        requests.output.tolist(),
        ((strategy.together, strategy.prefill_batch), strategy.decode_batch),
        both,
        method.tau,
        order,
    )
    return Served(requests, np.array(prefilled), np.array(done))


def _apart(
    strategy: Strategy,
    requests: Requests,
    times: tuple[Times, Times],
    rng: np.random.Generator,
    method: Method,
) -> Served:
    """Serve in tandem: the end of a prefill is the arrival at a decode instance (section 3.4.3)."""
    prompts, outputs = requests.prompt.tolist(), requests.output.tolist()
    pool = strategy.prefill, strategy.prefill_batch
    prefilled = np.array(prefill(requests.arrival.tolist(), prompts, pool, times[0]))
    in_turn = np.argsort(prefilled, kind="stable")
    in_turn = in_turn[requests.output[in_turn] > 1]
    done = prefilled.copy()
    context = np.array(contexts(prompts, outputs))
    done[in_turn] = decode(
        prefilled[in_turn].tolist(),
        requests.output[in_turn].tolist(),
        context[in_turn].tolist(),
        (strategy.decode, strategy.decode_batch),
        times[1],
        method.tau,
        Order(method.routing, strategy.decode, rng),
    )
    return Served(requests, prefilled, done)
