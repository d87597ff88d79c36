"""MoeSpec: the routed and shared experts that replace the MLP of a layer."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from mist_sim.checks import NotNegative, Positive, check_fields

_SHARES = 1024  # of a rank's experts that are reached, between which the busiest rank's are linear


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A mixture of experts; every expert is an MLP of its own.

    num_experts: routed experts of a layer.
    num_experts_per_token: experts that one token is sent to, all of them different.
    intermediate_size: inner size of one routed expert.
    shared_intermediate_size: inner size of all shared experts together, which see every token.
    dense_layers: layers, counted from 0, that have an ordinary MLP instead.
    router_vector_params: parameters of a layer's router beside its matrix (a bias for each
        expert, the gate of the shared expert).
    expert_vector_params: parameters of one routed expert beside its matrices (biases).
    hidden_size: values that go into a routed expert and come out, where matrices that every token
        meets bring the hidden state to that size and back (Nemotron-3, Kimi-K3); None: the model's.
    has_gelu: whether their gate is a GELU (Gemma 4) in place of a SiLU, which some kernels lack.
    experts_reached: measured (tokens, experts of a layer that they are sent to), by rising
        tokens; empty: uniform routing.
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: Positive[int]
    shared_intermediate_size: NotNegative[int] = 0
    dense_layers: frozenset[int] = frozenset()
    router_vector_params: NotNegative[int] = 0
    expert_vector_params: NotNegative[int] = 0
    hidden_size: Positive[int] | None = None
    has_gelu: bool = False
    experts_reached: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts_per_token <= self.num_experts:
            raise ValueError(
                f"num_experts_per_token must be from 1 to the {self.num_experts} experts, "
                f"got {self.num_experts_per_token}"
            )
        check_fields(self)
        self._check_reached()

    def _check_reached(self) -> None:
        points = ((0, 0.0), *self.experts_reached)
        for (before, fewer), (tokens, experts) in pairwise(points):
            most = min(self.num_experts, tokens * self.num_experts_per_token)
            if tokens <= before or not fewer <= experts <= most:
                raise ValueError(
                    "experts_reached must rise with the tokens, up to the "
                    f"{self.num_experts_per_token} experts of each and all {self.num_experts}, "
                    f"got {experts:g} experts of {tokens} tokens after {fewer:g} of {before}"
                )

    def distinct_experts(self, num_tokens: int) -> float:
        """Return how many experts of a layer some token of `num_tokens` is sent to, on average.

        As counted where `experts_reached` says it, else E (1 - (1 - k / E)^n): an expert is missed
        by one token with probability 1 - k / E, and tokens choose independently. Uniform routing,
        which balanced training aims at; skewed routing touches fewer.
        """
        if self.experts_reached:
            return self._interpolated(num_tokens)
        missed = 1.0 - self.num_experts_per_token / self.num_experts
        return float(self.num_experts * (1.0 - missed**num_tokens))

    def on_busiest_rank(self, num_tokens: int, num_ranks: int) -> float:
        """Return how many experts of a layer that rank reads which reads most, on average.

        Each rank has as many experts, and each of them is reached as often as another
        (`distinct_experts`), whatever the others are: the largest of binomial numbers. All ranks
        wait for that one before they gather the outputs. Tests draw routes beside it.
        """
        distinct = self.distinct_experts(num_tokens)
        if num_ranks == 1:
            return distinct
        held = -(-self.num_experts // num_ranks)
        most, place = _most_reached(held, num_ranks), _SHARES * distinct / self.num_experts
        below = min(int(place), _SHARES - 1)
        number = most[below] + (most[below + 1] - most[below]) * (place - below)
        least = -(-self.num_experts_per_token // num_ranks)  # of one token, all different
        return max(number, float(least)) if num_tokens >= 1 else number

    def _interpolated(self, num_tokens: int) -> float:
        """Return a measured value, interpolated between two points; constant beyond the last."""
        points = ((0, 0.0), *self.experts_reached)
        place = bisect_left(points, (num_tokens, 0.0))
        if place == len(points):
            return points[-1][1]
        if place == 0:
            return 0.0
        (before, fewer), (after, more) = points[place - 1 : place + 1]
        return fewer + (more - fewer) * (num_tokens - before) / (after - before)


@cache
def _most_reached(held: int, num_ranks: int) -> tuple[float, ...]:
    """Return the mean of the most experts that a rank has reached, by the share that is reached.

    sum over j of 1 - F(j)^ranks, where F is the binomial distribution of the experts that it holds.
    """
    share = np.linspace(0.0, 1.0, _SHARES + 1)[:-1]
    mass = (1 - share) ** held
    below, most = mass.copy(), 1 - mass**num_ranks
    for j in range(1, held):
        mass = mass * (held - j + 1) / j * share / (1 - share)
        below += mass
        most += 1 - np.minimum(below, 1.0) ** num_ranks
    return (*most.tolist(), float(held))
