"""MoeSpec: the routed and shared experts that replace the MLP of a layer."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    dense_layers: frozenset[int] = frozenset()
    router_vector_params: int = 0
    expert_vector_params: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts_per_token <= self.num_experts:
            raise ValueError(
                f"num_experts_per_token must be from 1 to the {self.num_experts} experts, "
                f"got {self.num_experts_per_token}"
            )
        if self.intermediate_size <= 0:
            raise ValueError(f"intermediate_size of an expert must be > 0, got {self}")
        optional = ("shared_intermediate_size", "router_vector_params", "expert_vector_params")
        if any(getattr(self, name) < 0 for name in optional):
            raise ValueError(f"sizes of a mixture of experts must be >= 0, got {self}")

    def distinct_experts(self, num_tokens: int) -> float:
        """Return how many experts of a layer some token of `num_tokens` is sent to, on average.

        E (1 - (1 - k / E)^n): an expert is missed by one token with probability 1 - k / E, and
        tokens choose independently. Uniform routing, which balanced training aims at; skewed
        routing touches fewer.
        """
        missed = 1.0 - self.num_experts_per_token / self.num_experts
        return float(self.num_experts * (1.0 - missed**num_tokens))
