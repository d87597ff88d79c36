"""Makes a client that re-shards from its two layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mist_sim.clients import EngineConfig, LlmClient
from mist_sim.clients.resharding import ReshardingClient
from mist_sim.clients.resharding.client import ShardSizes
from mist_sim.clients.resharding_options import HOST_MEMORY
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster
from mist_sim.models import ModelSpec
from mist_sim.models.partition import rank_part

_GIB = 2**30


def resharding(
    config: EngineConfig,
    model: ModelSpec,
    cluster: Cluster,
    parts: Mapping[str, Any],
    make: Callable[[EngineConfig], LlmClient],
) -> Callable[[str], LlmClient]:
    """Return a function that makes a client, by name, with a separate layout for prompts.

    config, cluster, parts: of the layout for answers. make: makes a client of other options. Raises
    ScenarioError if the model does not fit in the layout for prompts, or the buffer cannot hold one
    prompt.
    """
    options = config.resharding
    if options is None:
        raise ScenarioError("resharding must be given")
    tensor, pipeline = options.tensor_parallel_size, options.pipeline_parallel_size
    other = replace(
        config,
        resharding=None,
        async_scheduling=False,
        all_reduce=config.all_reduce if tensor > 1 else None,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
    )
    try:
        prefill = make(other).layout
    except ScenarioError as error:
        raise ScenarioError(
            f"resharding, TP {tensor} x PP {pipeline} for prompts: {error}"
        ) from None
    block_bytes = model.kv_bytes_per_token * config.kv_cache.block_size
    sizes = ShardSizes(
        prefill_weights=_weights(model, tensor, pipeline),
        decode_weights=_weights(
            model, cluster.tensor_parallel_size, cluster.pipeline_parallel_size
        ),
        block_bytes=block_bytes,
        gpus=tensor * pipeline,
        host_memory=(options.host_memory or HOST_MEMORY) * cluster.num_gpus,
        host_bandwidth=options.host_bandwidth or cluster.gpu.from_host,
    )
    if options.buffers:
        _check_buffer(sizes, config, prefill.memory.num_tokens)
    return lambda name: ReshardingClient(
        name, config, options=options, sizes=sizes, prefill=prefill, **parts
    )


def _weights(model: ModelSpec, tensor: int, pipeline: int) -> float:
    """Return the bytes of weights on the GPU that has most of them."""
    parts = [rank_part(model, rank, pipeline) for rank in range(pipeline)]
    return float(max(part.weight_bytes_per_rank(tensor) for part in parts))


def _check_buffer(sizes: ShardSizes, config: EngineConfig, num_tokens: int) -> None:
    """Raise ScenarioError for a buffer that cannot hold the longest prompt.

    num_tokens: that a lane of the layout for prompts holds.
    """
    longest = min(num_tokens, config.max_model_len or num_tokens)
    size = config.kv_cache.block_size
    need = -(-longest // size) * sizes.block_bytes
    if sizes.host_memory < need:
        raise ScenarioError(
            f"resharding.host_memory must hold one prompt: {longest} tokens have "
            f"{need / _GIB:.2f} GiB of KV entries, got {sizes.host_memory / _GIB:.2f} GiB in all; "
            "raise it or lower max_model_len"
        )
