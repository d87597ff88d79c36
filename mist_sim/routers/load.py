"""Routers that look at the clients' load."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Annotated, Literal

import numpy as np
from numpy.random import Generator

from mist_sim.checks import Checked, NotNegative, Positive, Range, check_fields
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.routers.base import ROUTERS, group_of

Work = Literal["input_length", "kv_cache", "tokens_remaining"]
"""The three loads of MIST §III-C1; there is none of the true length of an answer."""


def least_loaded(candidates: Candidates, by: Work) -> ClientView:
    """Return the candidate with the least work.

    Ties go to the candidate with the fewest outstanding requests, then to the first. Measuring KV
    memory reads each candidate; measuring remaining tokens reads each outstanding request.
    """
    if by == "input_length":
        tokens = candidates.numbers("num_prompt_tokens")
        equals = np.flatnonzero(tokens == tokens.min())
        outstanding = candidates.numbers("num_outstanding")[equals]
        return candidates[int(equals[outstanding.argmin()])]
    load = kv_load if by == "kv_cache" else _remaining
    return min(candidates, key=lambda view: (load(view), view.num_outstanding))


def kv_load(view: ClientView) -> float:
    """Return the share of a client's KV memory that requests hold, or wait for (may exceed 1)."""
    room = view.num_gpu_blocks * view.block_size
    if not room:
        return 0.0
    return (view.num_kv_blocks * view.block_size + view.num_waiting_tokens) / room


def _remaining(view: ClientView) -> float:
    return view.num_remaining_tokens


def weight(request: Request, candidates: Candidates, by: Work) -> float:
    """Return the weight of a request: tokens of its prompt, of its KV entries, or of its answer.

    KV entries are those of its prompt, and of the answer so far if it brings them. The answer
    counts with its expected length at these candidates; 0 before any answer has ended there.
    """
    kv = request.kv
    if kv is not None and request.to_serve and request.to_serve[0].may_continue:
        kv = None  # they are a part of its prompt
    if by == "input_length" or (by == "kv_cache" and kv is None):
        return request.num_prompt_tokens
    if kv is not None and by == "kv_cache":
        return kv.num_tokens
    return candidates[0].num_answer_tokens(request)


@ROUTERS.register("least_outstanding")
@dataclass
class LeastOutstandingRouter:
    """Send a visit to the candidate with the fewest unfinished visits; the first among equals.

    Source: MIST §III-C1, "Least work outstanding", counted in requests.
    """

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the candidate with the fewest unfinished visits."""
        return candidates.least("num_outstanding").client_id


@ROUTERS.register("power_of_two")
@dataclass
class PowerOfTwoRouter:
    """Draw two candidates at random; send a visit to the one with fewer unfinished visits.

    Ties go to the candidate drawn first.

    Source: M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS
    12(10), 2001; `power_of_two` of SGLang's router.
    """

    def seed(self, rng: Generator) -> None:
        """Draw from this stream."""
        self._rng = rng

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the less loaded of two candidates drawn at random."""
        number = len(candidates)
        first = int(self._rng.random() * number)
        if number == 1:
            return candidates[first].client_id
        second = int(self._rng.random() * (number - 1))
        one, other = candidates[first], candidates[second + (second >= first)]
        return (other if other.num_outstanding < one.num_outstanding else one).client_id


@ROUTERS.register("load")
@dataclass(kw_only=True)
class LoadRouter(Checked):
    """Send a visit to the candidate with the least work, measured in tokens or KV memory.

    by: the measure of work. input_length: prompt tokens of its unfinished visits. kv_cache: the
        share of its KV memory that its requests hold, and that its waiting requests will hold.
        tokens_remaining: tokens that its unfinished visits may still emit, by the running means of
        answers that have ended.

    Source: MIST §III-C1, "Load-based".
    """

    by: Work = "input_length"

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the candidate with the least work."""
        return least_loaded(candidates, self.by).client_id


@ROUTERS.register("heavy_light")
@dataclass(kw_only=True)
class HeavyLightRouter:
    """Reserve some candidates for heavy requests and the rest for light ones.

    In each part a visit goes to the candidate with the least work. A single candidate takes both.

    by: the measure of a request's weight and of work (see `load`): prompt tokens with input_length
        and kv_cache, and with tokens_remaining the expected tokens of the answer.
    threshold: a request that weighs more is heavy (> 0); by default the running median of all
        requests so far, for each kind of stage and model.
    heavy_share: share of the candidates, rounded, that serve heavy requests: the last ones, at
        least one and not all (> 0, < 1).

    Source: MIST §III-C1, "Heavy-Light load split"; the paper gives neither of the two numbers.
    """

    by: Work = "input_length"
    threshold: Positive[float] | None = None
    heavy_share: Annotated[float, Range("(0, 1)")] = 0.5

    def __post_init__(self) -> None:
        check_fields(self)
        self._medians: dict[str, RunningMedian] = {}

    def seed(self, rng: Generator) -> None:
        """Forget the medians of all groups."""
        self._medians = {}

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the candidate with the least work in the request's part."""
        is_heavy = self._is_heavy(weight(request, candidates, self.by), group_of(request, stage))
        number = len(candidates)
        if number > 1:
            num_heavy = min(max(round(self.heavy_share * number), 1), number - 1)
            first_heavy = number - num_heavy
            part = (first_heavy, number) if is_heavy else (0, first_heavy)
            candidates = candidates.part(*part)
        return least_loaded(candidates, self.by).client_id

    def _is_heavy(self, weight: float, group: str) -> bool:
        if self.threshold is not None:
            return weight > self.threshold
        median = self._medians.setdefault(group, RunningMedian())
        median.add(weight)
        return weight > median.value


@dataclass(kw_only=True)
class LoadBound(Checked):
    """Load limit up to which a router prefers a candidate that has a part of the request cached.

    A candidate is too busy when it has more than `balance_abs_threshold` outstanding requests
    above the least busy one, and more than `balance_rel_threshold` times as many.

    Source: names, rule and defaults of `cache_aware` in SGLang's router (Model Gateway,
    "Cache-Aware Policy Tuning") and the vLLM router. These compare the busiest worker with the
    least busy one and, if the gap is too large, send every request to the least busy one. Here each
    candidate is compared on its own, so that one busy client does not keep requests from the caches
    of others.
    """

    balance_abs_threshold: NotNegative[int] = 64
    balance_rel_threshold: Annotated[float, Range("[1, inf)")] = 1.5

    def most_outstanding(self, least: ClientView) -> float:
        """Return how many a candidate may have; `least` is the least busy one."""
        fewest = least.num_outstanding
        return max(fewest + self.balance_abs_threshold, self.balance_rel_threshold * fewest)


class RunningMedian:
    """Numbers in two heaps that meet in the middle; O(log n) a number."""

    def __init__(self) -> None:
        self._below: list[float] = []  # negative, so that the largest is first
        self._above: list[float] = []

    def add(self, value: float) -> None:
        """Take one more number into account."""
        if len(self._below) > len(self._above):
            heappush(self._above, -heappushpop(self._below, -value))
        else:
            heappush(self._below, -heappushpop(self._above, value))

    @property
    def value(self) -> float:
        """The median of one number or more, the lower one of two in the middle."""
        return -self._below[0]
