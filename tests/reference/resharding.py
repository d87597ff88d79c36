"""Clients that re-shard, of a given size and speed, without a model and GPUs."""

from typing import Any

from mist_sim.clients.options.resharding_options import Resharding
from mist_sim.clients.resharding.client import ReshardingClient, ShardSizes
from mist_sim.hardware.predictors import PipelinePredictor, Predictor
from tests.reference.engines import llm_engine

BLOCK_BYTES = 8.0  # over all GPUs


def resharding_engine(
    prefill: Predictor | PipelinePredictor,
    decode: Predictor | PipelinePredictor,
    *,
    num_host_blocks: int = 0,
    host_bandwidth: float = 1e30,
    weights: float | tuple[float, float] = 0.0,
    prefill_blocks: int | None = None,
    options: dict[str, Any] | None = None,
    **more: Any,
) -> ReshardingClient:
    """Return a client with the times of two predictors, one for each layout, on one GPU.

    num_host_blocks: of the buffer. host_bandwidth: bytes/s. weights: bytes of each layout, or
    of that for prompts and that for answers.
    prefill_blocks: KV blocks of the layout for prompts; None: as many. options: of `Resharding`.
    more: of the engine for answers; also those of the other one.
    """
    chosen = Resharding(**(options or {}))
    blocks = more["num_gpu_blocks"] if prefill_blocks is None else prefill_blocks
    other = llm_engine("other", predictor=prefill, **{**more, "num_gpu_blocks": blocks}).layout
    before, after = weights if isinstance(weights, tuple) else (weights, weights)
    sizes = ShardSizes(
        prefill_weights=before,
        decode_weights=after,
        block_bytes=BLOCK_BYTES,
        gpus=1,
        host_memory=num_host_blocks * BLOCK_BYTES,
        host_bandwidth=host_bandwidth,
    )

    def made(*args: Any, **kwargs: Any) -> ReshardingClient:
        return ReshardingClient(*args, options=chosen, sizes=sizes, prefill=other, **kwargs)

    client = llm_engine("llm", predictor=decode, kind=made, **more)  # type: ignore[arg-type]
    assert isinstance(client, ReshardingClient)
    return client
