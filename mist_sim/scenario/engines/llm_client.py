"""An engine for a language model, put together from model, GPUs, scheduler and predictor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mist_sim.clients import LlmClient
from mist_sim.clients.kv_cache import (
    KvCacheConfig,
    SwapSpace,
    cache_tiers,
    num_gpu_blocks,
    swap_space,
)
from mist_sim.clients.overload import AdmissionControl
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.clients.scheduling.whole_prompts import WholePromptScheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.drafter import drafter, shared_groups
from mist_sim.hardware.predictors import (
    EngineOverhead,
    PipelinePredictor,
    Predictor,
    RooflinePredictor,
    pipeline_predictor,
    ranks_of,
    with_drafting,
)
from mist_sim.hardware.predictors.analytic.cuda_graphs import MOST_CAPTURED
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.scenario.engines.default_overhead import assumed_times, own_time
from mist_sim.scenario.engines.server_defaults import server_limits


def llm_client(
    name: str,
    *,
    model: str | ModelSpec = "llama-3.1-8b",
    gpu: str | GpuSpec = "h100-sxm",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    scheduler: Scheduler | None = None,
    kv_cache: KvCacheConfig | None = None,
    predictor: Predictor | PipelinePredictor | None = None,
    overhead: EngineOverhead | None = None,
    async_scheduling: bool = False,
    max_model_len: int | None = None,
    quantization: str | None = None,
    enable_expert_parallel: bool = False,
    expert_load_imbalance: float = 1.0,
    speculative_config: SpeculativeConfig | None = None,
    admission: AdmissionControl | None = None,
) -> LlmClient:
    """Return a client that serves a language model, for simulations made in Python.

    model, gpu: catalog names, paths of a config.json and a .toml spec, or the specs themselves.
    tensor_parallel_size, pipeline_parallel_size: GPUs that share every layer, and ranks that
        each have some of the layers. data_parallel_size: engines of that kind.
    scheduler: the batching policy; clients may share one. Without it, chunked prefill with the
        limits of vLLM's server on that GPU (see `server_limits`); an object has what it was made
        with.
    predictor: a roofline of model and GPUs without it, in a pipeline one for each rank (see
        `pipeline_predictor`); clients may share one.
    overhead: the engine's own time, by default a measured one (see `EngineOverhead`).
    async_scheduling: whether a step is planned while the step before it runs.
    max_model_len: most tokens of a prompt and its answer, by default the model's own.
    quantization: "fp8", "int8" or "int4" weights instead of those of the checkpoint.
    enable_expert_parallel, expert_load_imbalance: see `Cluster`.
    speculative_config: who drafts tokens that a step verifies; None: nobody.
    admission: which requests are turned away when the engine is too busy; None: none.
    Raises ScenarioError when the model cannot be split that way or does not fit.
    """
    if max_model_len is not None and max_model_len < 1:
        raise ScenarioError(f"max_model_len must be >= 1, got {max_model_len}")
    gpu = load_gpu(gpu) if isinstance(gpu, str) else gpu
    kv_cache = kv_cache or KvCacheConfig()
    spec = stored_as(model, quantization, kv_cache)
    if scheduler is None:
        num_drafts = speculative_config.num_speculative_tokens if speculative_config else 0
        scheduler = ChunkedScheduler(**server_limits(gpu, num_drafts)._asdict())
    cluster = cluster_of(
        gpu,
        spec,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        expert_load_imbalance=expert_load_imbalance,
    )
    max_model_len = max_model_len or spec.max_position_embeddings
    scheduler = _with_token_budget(scheduler, max_model_len)
    if predictor is None:
        predictor = pipeline_predictor(
            lambda part: with_graphs_of(RooflinePredictor(part, cluster), scheduler), spec, cluster
        )
    predictor = ranks_of(predictor)
    _check_ranks(predictor, pipeline_parallel_size)
    overhead = own_time(overhead, predictor, gpu)
    assumed = assumed_times(overhead, predictor, gpu)
    draft = None
    if speculative_config:
        draft = drafter(speculative_config, spec, cluster)
        predictor = with_drafting(predictor, speculative_config, draft)
    first = overhead.around(predictor.ranks[0], overlapped=async_scheduling)
    num_tokens = getattr(scheduler, "max_num_batched_tokens", max_model_len)
    sizes = {"max_num_batched_tokens": num_tokens, "max_num_seqs": scheduler.max_num_seqs}
    client = LlmClient(
        name,
        scheduler=scheduler,
        predictor=predictor.with_first(first),
        data_parallel_size=data_parallel_size,
        lockstep=cluster.num_sharing_replicas > 1,
        num_gpu_blocks=num_gpu_blocks(kv_cache, spec, cluster, **sizes, drafter=draft),
        block_size=kv_cache.block_size,
        watermark=kv_cache.watermark,
        kv_groups=shared_groups(spec, draft) if spec.sliding_window else None,
        enable_prefix_caching=kv_cache.enable_prefix_caching,
        cache_tiers=cache_tiers(kv_cache, spec, cluster),
        swap_space=_swap_space(scheduler, kv_cache, spec, cluster),
        max_model_len=max_model_len,
        request_overhead=overhead.request or 0.0,
        prompt_token_overhead=overhead.prompt_token or 0.0,
        speculative_config=speculative_config,
        async_scheduling=async_scheduling,
        admission=admission,
    )
    client.assumed = assumed
    return client


def _with_token_budget(scheduler: Scheduler, max_model_len: int) -> Scheduler:
    """Return the scheduler with vLLM v0's budget where it takes whole prompts and has none.

    A step takes as many prompt tokens as the longest prompt may have.
    """
    if isinstance(scheduler, WholePromptScheduler) and scheduler.max_num_batched_tokens is None:
        return replace(scheduler, max_num_batched_tokens=max_model_len)
    return scheduler


def _check_ranks(predictor: PipelinePredictor, pipeline_parallel_size: int) -> None:
    num_ranks = len(predictor.ranks)
    if num_ranks != pipeline_parallel_size:
        raise ScenarioError(
            f"pipeline_parallel_size must be {num_ranks}, the ranks that the predictor times, "
            f"got {pipeline_parallel_size}"
        )


def _swap_space(
    scheduler: Scheduler, config: KvCacheConfig, model: ModelSpec, cluster: Cluster
) -> SwapSpace | None:
    """Return the swap space of an engine; None when its scheduler does not swap."""
    if scheduler.preemption == "swap":
        return swap_space(config, model, cluster)
    if config.swap_space is not None:
        raise ScenarioError(
            "kv_cache must have no swap_space, since nothing is swapped with "
            "scheduler.preemption: recompute"
        )
    return None


def cluster_of(gpu: GpuSpec, model: ModelSpec, **split: Any) -> Cluster:
    """Return the GPUs that serve a model. Raises ScenarioError when it cannot be split so."""
    try:
        cluster = Cluster(gpu, **split)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    cluster.check_split(model)
    return cluster


def with_graphs_of(predictor: Predictor, scheduler: Scheduler) -> Predictor:
    """Return a predictor whose largest CUDA graph, where nobody says it, is as vLLM captures it.

    For a roofline 2 max_num_seqs, at most 512 (`_set_cudagraph_sizes` in `vllm/config/vllm.py`).
    """
    size = 2 * scheduler.max_num_seqs
    if not isinstance(predictor, RooflinePredictor) or size >= MOST_CAPTURED:
        return predictor
    if predictor.enforce_eager or predictor.cudagraph_capture_sizes is not None:
        return predictor
    if predictor.max_cudagraph_capture_size is not None:
        return predictor
    return replace(predictor, max_cudagraph_capture_size=size)


def stored_as(
    model: str | ModelSpec, quantization: str | None, kv_cache: KvCacheConfig
) -> ModelSpec:
    """Return a model with weights and KV cache stored as an engine is told to."""
    spec = load_model(model) if isinstance(model, str) else model
    dtype = None if kv_cache.kv_cache_dtype == "auto" else kv_cache.kv_cache_dtype
    try:
        return spec.with_dtypes(weights=quantization, kv_cache=dtype)
    except ValueError as error:
        raise ScenarioError(f"quantization: {error}") from None
