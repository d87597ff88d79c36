"""Demand of engine steps on each GPU: seconds of arithmetic and of memory traffic at its peaks.

The operators are those of the roofline, summed over many runs of steps at once, after a simulation.
A step's utilisation is these seconds divided by its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import GpuSpec
from mist_sim.hardware.power import Array, Demand
from mist_sim.models import operators
from mist_sim.models.moe import MoeSpec
from mist_sim.models.operators import Operator
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """The tokens of runs of equal steps; arrays of one item a run.

    num_steps: steps of a run.
    num_prefill_tokens, num_samples, num_queries: in each of its steps: new prompt tokens,
        sequences that are sampled, tokens that decodes bring in (with drafts more than one each).
    prefill_keys, prefill_pairs: in the whole run: cached and new tokens whose keys prompts read,
        and their (query, key) pairs.
    num_decodes: sequences that decode, in each step.
    decode_keys: in the whole run: tokens whose keys decodes read, their new ones included.
    """

    num_steps: Array
    num_prefill_tokens: Array
    num_samples: Array
    num_queries: Array
    prefill_keys: Array
    prefill_pairs: Array
    num_decodes: Array
    decode_keys: Array

    def shared_out(self, groups: int) -> StepCounts:
        """Return the mean counts of each group of GPUs that share out the tokens of all steps.

        Each of two pieces of a prompt reads all keys before it, so as many keys as without.
        """
        if groups == 1:
            return self
        of_group = {
            each.name: getattr(self, each.name) / groups
            for each in fields(self)
            if each.name not in ("num_steps", "prefill_keys")
        }
        return replace(self, **of_group)


def step_demand(
    model: ModelSpec, cluster: Cluster, counts: StepCounts, expert_rows: int = 0
) -> Demand:
    """Return the demand of runs of steps on each tensor-parallel rank, over all layers.

    In a pipeline the layers are spread over the ranks: this is the sum over a chain of them.
    Sequences of a step have equal contexts where a layer has a sliding window.

    expert_rows: rows that an expert's kernel computes at least (`moe_backends.rows_computed`).
    """
    replicas = cluster.num_sharing_replicas
    num_tokens = counts.num_prefill_tokens + counts.num_queries
    demand = _linear(model, cluster, counts, num_tokens)
    if model.moe is not None:
        routed = num_tokens * replicas
        demand = demand + expert_demand(model, model.moe, cluster, counts, routed, expert_rows)
    if model.layers:
        return demand + differing_demand(model, cluster, counts)
    full = model.num_layers - len(model.window_layers)
    if full:
        demand = demand + attention_demand(model, cluster, counts, full, None)
    if model.window_layers:
        layers = len(model.window_layers)
        demand = demand + attention_demand(model, cluster, counts, layers, model.sliding_window)
    return demand


def _linear(model: ModelSpec, cluster: Cluster, counts: StepCounts, num_tokens: Array) -> Demand:
    """Return the work linear in tokens and samples: all but attention and routed experts."""
    t, replicas = cluster.tensor_parallel_size, cluster.num_sharing_replicas
    found = Demand(np.zeros_like(num_tokens), np.zeros_like(num_tokens))
    parts = (operators.token_operators(model, n, t, False, replicas) for n in (0, 1))
    for (layers, none), (_, one) in zip(*parts, strict=True):
        found = found + demand_of(cluster.gpu, none, one, num_tokens, layers * counts.num_steps)
    none, one = (operators.logits(model, n, t) for n in (0, 1))
    return found + demand_of(cluster.gpu, none, one, counts.num_samples, counts.num_steps)


def demand_of(
    gpu: GpuSpec, none: Sequence[Operator], one: Sequence[Operator], number: Array, times: Array
) -> Demand:
    """Return the demand of operators, given for 0 and 1 token and linear in between."""
    compute = sum(float(at.flops) / peak(gpu, at.dtype) for at in one)
    weights = sum(float(at.bytes) for at in none) / gpu.memory_bandwidth
    traffic = sum(float(at.bytes) for at in one) / gpu.memory_bandwidth - weights
    return Demand(times * number * compute, times * (weights + number * traffic))


def expert_demand(
    model: ModelSpec,
    moe: MoeSpec,
    cluster: Cluster,
    counts: StepCounts,
    routed: Array,
    expert_rows: int = 0,
) -> Demand:
    """Return the demand of a GPU's routed experts, mean over the ranks.

    Arithmetic counts the rows that a kernel adds to fill its tiles; memory does not.
    """
    ranks, t = cluster.expert_parallel_size, cluster.tensor_parallel_size
    touched = _reached(moe, routed) / ranks
    times = counts.num_steps * model.num_moe_layers
    found = Demand(np.zeros_like(routed), np.zeros_like(routed))
    filled = touched * ranks * expert_rows / moe.num_experts_per_token  # in tokens
    for one in operators.routed_experts(model, moe, 1, 0, t, ranks):
        bytes_per_row = float(one.bytes) / cluster.gpu.memory_bandwidth
        flops = float(one.flops) / peak(cluster.gpu, one.dtype)
        computed = np.maximum(routed, filled)
        found = found + Demand(times * computed * flops, times * routed * bytes_per_row)
    for one in operators.routed_experts(model, moe, 0, 1, t, ranks):
        expert = float(one.bytes) / cluster.gpu.memory_bandwidth
        found = found + Demand(np.zeros_like(routed), times * touched * expert)
    return found


def _reached(moe: MoeSpec, routed: Array) -> Array:
    """Return `MoeSpec.distinct_experts` of many numbers of tokens, whole or not."""
    if moe.experts_reached:
        tokens, experts = zip((0, 0.0), *moe.experts_reached, strict=True)
        return np.asarray(np.interp(routed, tokens, experts))
    missed = 1.0 - moe.num_experts_per_token / moe.num_experts
    return np.asarray(moe.num_experts * (1.0 - missed**routed))


def attention_demand(
    model: ModelSpec, cluster: Cluster, counts: StepCounts, layers: int, window: int | None
) -> Demand:
    """Return the demand of attention in some layers, which see all keys or a window."""
    per_sequence = counts.num_steps * np.maximum(counts.num_decodes, 1)
    decode_keys, prefill_pairs = counts.decode_keys, counts.prefill_pairs
    if model.is_encoder:  # texts have no causal mask
        prefill_pairs = 2 * prefill_pairs - counts.num_steps * counts.num_prefill_tokens
    if window is not None:
        decode_keys = np.minimum(decode_keys, per_sequence * window)
        prefill_pairs = np.minimum(
            prefill_pairs, counts.num_steps * counts.num_prefill_tokens * window
        )
    queries_each = counts.num_queries / np.maximum(counts.num_decodes, 1)
    decode_queries = counts.num_steps * counts.num_queries
    new_tokens = counts.num_steps * counts.num_prefill_tokens
    parts = (
        (True, new_tokens, counts.prefill_keys, prefill_pairs),
        (False, decode_queries, decode_keys, decode_keys * queries_each),
    )
    compute, memory = np.zeros_like(decode_keys), np.zeros_like(decode_keys)
    for prefill, queries, keys, pairs in parts:
        one = operators.attention(
            model, queries, keys, pairs, cluster.tensor_parallel_size, prefill
        )
        compute = compute + layers * np.asarray(one.flops) / peak(cluster.gpu, one.dtype)
        memory = memory + layers * np.asarray(one.bytes) / cluster.gpu.memory_bandwidth
    return Demand(compute, memory)


def differing_demand(model: ModelSpec, cluster: Cluster, counts: StepCounts) -> Demand:
    """Return the demand of attention and states of a model with layers of different kinds."""
    gpu, t = cluster.gpu, cluster.tensor_parallel_size
    compute, memory = np.zeros_like(counts.decode_keys), np.zeros_like(counts.decode_keys)
    new_tokens = counts.num_steps * counts.num_prefill_tokens
    queries_each = counts.num_queries / np.maximum(counts.num_decodes, 1)
    decode_queries = counts.num_steps * counts.num_queries
    for each in operators.attends(model, t):
        decode_keys, pairs = counts.decode_keys, counts.prefill_pairs
        if each.reach is not None:
            most = counts.num_steps * np.maximum(counts.num_decodes, 1) * each.reach
            decode_keys = np.minimum(decode_keys, most)
            pairs = np.minimum(pairs, new_tokens * each.reach)
        per = each.per_entry
        parts = (
            (True, new_tokens, counts.prefill_keys, pairs),
            (False, decode_queries, decode_keys, decode_keys * queries_each),
        )
        for prefill, queries, keys, seen in parts:
            one = each.work(queries, keys / per, seen / per, prefill)
            compute = compute + each.layers * np.asarray(one.flops) / peak(gpu, one.dtype)
            memory = memory + each.layers * np.asarray(one.bytes) / gpu.memory_bandwidth
    for state in operators.states(model, t):
        token, decode = state.of_token, state.of_decode
        flops = new_tokens * token.flops + decode_queries * decode.flops
        moved = new_tokens * token.bytes + decode_queries * decode.bytes
        compute = compute + state.layers * flops / peak(gpu, token.dtype)
        memory = memory + state.layers * moved / gpu.memory_bandwidth
    return Demand(compute, memory)


def peak(gpu: GpuSpec, dtype: str) -> float:
    """Return the dense FLOP/s of a type; the 16-bit rate if the GPU lacks the type."""
    return gpu.flops.get(dtype, gpu.flops["bf16"])
