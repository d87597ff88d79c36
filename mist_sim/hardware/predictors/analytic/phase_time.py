"""Seconds of all operators of a step except attention, in the roofline: terms of token counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import NamedTuple, TypeVar

from mist_sim.hardware.expert_exchange import Exchange
from mist_sim.models.moe import MoeSpec

V = TypeVar("V")


class Known(dict[int, V]):
    """Values of a function of a whole number, each found once; reading a known one is no call."""

    __slots__ = ("_find",)

    def __init__(self, find: Callable[[int], V]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, number: int) -> V:
        self[number] = found = self._find(number)
        return found


class Term(NamedTuple):
    """Seconds of a product (`mist_sim.hardware.devices`).

    fixed: independent of the number of tokens. per_token: on top of compute and memory. work:
    compute per token. weights, traffic: memory traffic of the matrix, and per token.
    """

    fixed: float
    per_token: float
    work: float
    weights: float
    traffic: float

    def time(self, num_tokens: int) -> float:
        """Return the seconds for so many tokens."""
        compute = num_tokens * self.work
        memory = self.weights + num_tokens * self.traffic
        overlapped = sqrt(compute * compute + memory * memory)
        return self.fixed + num_tokens * self.per_token + overlapped


@dataclass(frozen=True, slots=True)
class Communication:
    """The collectives of a step, whose time is not linear in its bytes.

    all_reduce: seconds for so many bytes.
    num_all_reduces: of the hidden states of a step's tokens.
    bytes_per_token: size of a hidden state.
    exchange: between the replicas that share experts; None if no others do.
    """

    all_reduce: Callable[[float], float]
    num_all_reduces: int
    bytes_per_token: int
    exchange: Exchange | None

    def time(self, num_tokens: int, shared: int) -> float:
        """Return the seconds of all collectives of a step. shared: tokens of all replicas."""
        size = float(num_tokens * self.bytes_per_token)
        seconds = self.num_all_reduces * self.all_reduce(size)
        if self.exchange is not None:
            seconds += self.exchange.seconds(num_tokens, shared)
        return seconds


class ProductTime(NamedTuple):
    """Seconds of a product, and the seconds of its FLOPs and of its bytes alone."""

    seconds: float
    compute: float
    memory: float


@dataclass(frozen=True, slots=True)
class Experts:
    """The products of routed experts, on the busiest rank.

    terms: their weights are those of one expert.
    padding: tokens that each activated expert computes in vain, by term; half of them where it
        has `padding_from` tokens of its own.
    filled: tokens that all experts of a rank compute in vain, reached or not, by term.
    num_ranks: ranks that the experts are spread over.
    beyond: how many times as long products take with more tokens than a rank has experts.
    """

    moe: MoeSpec
    terms: tuple[Term, ...]
    padding: tuple[float, ...]
    padding_from: tuple[float, ...]
    filled: tuple[float, ...]
    num_ranks: int = 1
    beyond: float = 1.0

    def time(self, routed: int) -> float:
        """Return the seconds of all layers' products for the tokens of all replicas."""
        seconds = 0.0
        for each in self.times(routed):
            seconds += each.seconds
        return seconds

    def times(self, routed: int) -> Iterator[ProductTime]:
        """Yield the seconds of each product in all layers, for the tokens of all replicas."""
        touched = self.moe.on_busiest_rank(routed, self.num_ranks)
        times = self.beyond if routed > -(-self.moe.num_experts // self.num_ranks) else 1.0
        by_term = zip(self.terms, self.padding, self.padding_from, self.filled, strict=True)
        for term, padding, half, filled in by_term:
            in_vain = touched * padding
            if half and routed:
                in_vain *= routed / (routed + touched * half)
            compute = (routed + filled + in_vain) * term.work
            memory = touched * term.weights + routed * term.traffic
            overlapped = sqrt(compute * compute + memory * memory)
            seconds = (term.fixed + routed * term.per_token + overlapped) * times
            yield ProductTime(seconds, compute, memory)


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """Seconds of a step in one phase, grouped by the count that they depend on.

    fixed, per_token: operators without weights. per_other: a token of another replica, whose
        experts' outputs are summed here too.
    by_token, by_sample: products of all tokens of a step, and of those that it samples.
    num_replicas: those that share experts; if it is unknown what the others compute, each is taken
        to have as many tokens as this one.
    """

    fixed: float
    per_token: float
    per_other: float
    by_token: tuple[Term, ...]
    by_sample: tuple[Term, ...]
    experts: Experts | None
    communication: Communication | None
    num_replicas: int = 1
    _by_tokens: Known[float] = field(init=False, compare=False, repr=False)
    _by_samples: Known[list[float]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_tokens", Known(self._alike))
        object.__setattr__(self, "_by_samples", Known(self._of_samples))

    def time(self, num_tokens: int, num_samples: int, shared: int | None = None) -> float:
        """Return the seconds of all operators except attention, communication included.

        shared: tokens of all replicas, if they are known.
        """
        seconds = self._by_tokens[num_tokens] if shared is None else self._time(num_tokens, shared)
        for term in self._by_samples[num_samples]:
            seconds += term
        return seconds

    def _alike(self, num_tokens: int) -> float:
        """Return the seconds that depend on all tokens if each replica has as many."""
        return self._time(num_tokens, num_tokens * self.num_replicas)

    def _of_samples(self, num_samples: int) -> list[float]:
        return [term.time(num_samples) for term in self.by_sample]

    def _time(self, num_tokens: int, shared: int) -> float:
        """Return the seconds that depend on all tokens of a step, and on those of all replicas."""
        seconds = self.fixed + num_tokens * self.per_token
        seconds += (shared - num_tokens) * self.per_other
        if self.communication:
            seconds += self.communication.time(num_tokens, shared)
        for term in self.by_token:
            seconds += term.time(num_tokens)
        if self.experts:
            seconds += self.experts.time(shared)
        return seconds

    def parts(self, num_tokens: int, num_samples: int) -> dict[str, float]:
        """Return the same seconds by kind: products, experts, small kernels, collectives."""
        shared = num_tokens * self.num_replicas
        products = sum([term.time(num_tokens) for term in self.by_token])
        return {
            "products": products + sum([term.time(num_samples) for term in self.by_sample]),
            "experts": self.experts.time(shared) if self.experts else 0.0,
            "small": self.fixed
            + num_tokens * self.per_token
            + (shared - num_tokens) * self.per_other,
            "collectives": (
                self.communication.time(num_tokens, shared) if self.communication else 0.0
            ),
        }
