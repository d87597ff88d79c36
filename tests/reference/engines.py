"""Engines of a given size and speed, without a model and a GPU."""

from dataclasses import fields
from typing import Any

from mist_sim.clients import EngineConfig, LlmClient
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import EngineMemory, KvCacheConfig
from mist_sim.hardware.predictors import PipelinePredictor, Predictor

_MEMORY = {item.name for item in fields(EngineMemory)}
_RULES = {item.name for item in fields(EngineRules)}
_KV_CACHE = {item.name for item in fields(KvCacheConfig)}


def llm_engine(
    name: str = "llm",
    *,
    predictor: Predictor | PipelinePredictor,
    kind: type[LlmClient] = LlmClient,
    **options: Any,
) -> LlmClient:
    """Return a client from options of its engine, KV cache, memory and rules."""
    memory = {key: options.pop(key) for key in _MEMORY & set(options)}
    kv_cache = {key: options.pop(key) for key in _KV_CACHE & set(options)}
    rules = {key: options.pop(key) for key in _RULES & set(options)}
    num_ranks = len(predictor.ranks) if isinstance(predictor, PipelinePredictor) else 1
    options = {"pipeline_parallel_size": num_ranks, "kv_cache": KvCacheConfig(**kv_cache)} | options
    config = EngineConfig(**options)
    return kind(
        name, config, predictor=predictor, memory=EngineMemory(**memory), rules=EngineRules(**rules)
    )


def assert_nobody_is_inside(*cores: Any) -> None:
    """Of lanes; their blocks are free, but for those of who has ended or gave up and still moves.

    A run does not wait for what moves for nobody, and a move has blocks at both of its ends.
    """
    for core in cores:
        assert not any([core.running, core.queue, core.swapped, core.moved, core.loaded])
    if not any(core.num_abandoned or core.leaving for core in cores):
        assert all(core.blocks.num_free == core.blocks.num_blocks for core in cores)


def assert_all_is_free(client: LlmClient) -> None:
    """Nobody is inside, nothing is on its way, and nothing is kept or promised to anybody."""
    for lane in client.lanes:
        core = lane.core
        assert_nobody_is_inside(core)
        assert core.blocks.num_free == core.blocks.num_blocks
        assert core.num_coming == core.num_abandoned == core.num_promised == 0
        assert not lane.has_moves
        assert not lane.kept
        assert core.host is None or core.host.num_used == 0
