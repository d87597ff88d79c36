"""The layers of a model on the ranks of a pipeline."""

from __future__ import annotations

from dataclasses import replace

from mist_sim.errors import ScenarioError
from mist_sim.models.layers import num_with_experts
from mist_sim.models.spec import ModelSpec


def layers_per_rank(num_layers: int, pipeline_parallel_size: int) -> list[int]:
    """Return the number of layers of each rank: equal, except for a remainder.

    One layer more goes to each of the ranks before the last, from there backwards, since the
    first and the last have the vocabulary as well.
    Source: vLLM's `get_pp_indices` (`vllm/distributed/utils.py`).

    Raises ScenarioError if a rank would have no layer.
    """
    if not 1 <= pipeline_parallel_size <= num_layers:
        raise ScenarioError(
            f"pipeline_parallel_size must be from 1 to the {num_layers} layers, "
            f"got {pipeline_parallel_size}"
        )
    share, remainder = divmod(num_layers, pipeline_parallel_size)
    layers = [share] * pipeline_parallel_size
    for rank in range(remainder):
        layers[-2 - rank] += 1
    return layers


def rank_part(model: ModelSpec, rank: int, pipeline_parallel_size: int) -> ModelSpec:
    """Return one rank's part of a model as a model.

    The first rank embeds tokens; the last has the final norm and the output head, of a tied
    vocabulary matrix a copy. Raises ScenarioError when a rank would be without a layer.
    """
    layers = layers_per_rank(model.num_layers, pipeline_parallel_size)
    first = sum(layers[:rank])
    here = range(first, first + layers[rank])
    is_first, is_last = rank == 0, rank == pipeline_parallel_size - 1
    window_layers = frozenset(layer - first for layer in here if layer in model.window_layers)
    moe = model.moe
    if moe:
        dense = frozenset(layer - first for layer in here if layer in moe.dense_layers)
        moe = replace(moe, dense_layers=dense) if len(dense) < len(here) else None
    own_layers = model.layers[first : here.stop]
    if own_layers and not num_with_experts(own_layers):
        moe = None
    return replace(
        model,
        num_layers=len(here),
        layers=own_layers,
        moe=moe,
        window_layers=window_layers,
        sliding_window=model.sliding_window if window_layers else None,
        vector_params_outside_layers=model.vector_params_outside_layers if is_last else 0,
        has_embedding=model.has_embedding and is_first,
        has_head=model.has_head and is_last,
    )
