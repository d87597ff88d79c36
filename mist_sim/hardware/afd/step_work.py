"""Demand of decode steps on one GPU of a bundle, by attention and FFN workers.

The operators are those of `hardware/work.py`, divided as in arXiv 2601.21351v3, appendix B: norms,
projections and attention itself belong to attention, the MLP or the experts to the FFN. The paper
leaves out the vocabulary. Here the attention workers, which hold the requests, embed and sample
tokens. Routers, shared experts and the sum over experts belong to the FFN.
"""

from __future__ import annotations

import numpy as np

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.power import Array, Demand
from mist_sim.hardware.work import StepCounts, attention_demand, demand_of, expert_demand
from mist_sim.models import operators
from mist_sim.models.spec import ModelSpec


def attention_work(
    model: ModelSpec, cluster: Cluster, counts: StepCounts, num_workers: Array
) -> Demand:
    """Return the demand of runs on a GPU of an attention worker, mean over active workers.

    cluster: GPUs of one worker. counts: of whole batches. num_workers: workers with requests of
        them.
    """
    gpu, t, steps = cluster.gpu, cluster.tensor_parallel_size, counts.num_steps
    num_tokens = counts.num_queries / num_workers
    found = Demand(np.zeros_like(num_tokens), np.zeros_like(num_tokens))
    none, one = ([parts[0], parts[-1]] for parts in _of_tokens(model, t))
    for (layers, at_none), (_, at_one) in zip(none, one, strict=True):
        found = found + demand_of(gpu, at_none, at_one, num_tokens, layers * steps)
    at_none, at_one = (operators.logits(model, n, t) for n in (0, 1))
    found = found + demand_of(gpu, at_none, at_one, num_tokens, steps)
    windows = len(model.window_layers)
    for layers, window in ((model.num_layers - windows, None), (windows, model.sliding_window)):
        if layers:
            of_all = attention_demand(model, cluster, counts, layers, window)
            found = found + Demand(of_all.compute / num_workers, of_all.memory / num_workers)
    return found


def ffn_work(model: ModelSpec, cluster: Cluster, counts: StepCounts, num_tokens: Array) -> Demand:
    """Return the demand of runs on a GPU of an FFN worker, mean over its experts' GPUs.

    cluster: GPUs of one worker, over which whole experts are spread. num_tokens: per step.
    """
    gpu, t, steps = cluster.gpu, cluster.tensor_parallel_size, counts.num_steps
    found = Demand(np.zeros_like(num_tokens), np.zeros_like(num_tokens))
    none, one = (parts[1:-1] for parts in _of_tokens(model, t))
    for (layers, at_none), (_, at_one) in zip(none, one, strict=True):
        found = found + demand_of(gpu, at_none, at_one, num_tokens, layers * steps)
    if model.moe is not None:
        found = found + expert_demand(model, model.moe, cluster, counts, num_tokens)
    return found


def _of_tokens(
    model: ModelSpec, t: int
) -> tuple[list[tuple[int, list[operators.Operator]]], list[tuple[int, list[operators.Operator]]]]:
    """Return the work linear in tokens, for 0 and 1 token: projections, FFNs, vocabulary."""
    none, one = (operators.token_operators(model, n, t, False) for n in (0, 1))
    return none, one
