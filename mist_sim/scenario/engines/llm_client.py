"""An engine for a language model, put together from model, GPUs, scheduler and predictor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ParamSpec, Protocol, cast, overload

from mist_sim.clients import EngineConfig, LlmClient
from mist_sim.clients.engine_config import AUTO_LENGTH, ROLES, PredictorFactory
from mist_sim.clients.kv_cache import (
    EngineMemory,
    KvCacheConfig,
    SwapSpace,
    cache_tiers,
    kv_block_bytes,
    num_gpu_blocks,
    swap_space,
)
from mist_sim.clients.kv_cache.lane_memory import LaneMemory, lane_memory
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.clients.scheduling.whole_prompts.base import WholePromptScheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.collectives.spans import ONE_NODE, Spans
from mist_sim.hardware.drafter import Drafter, drafter, shared_groups
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.power_cap import check_follows_clock, with_power_limit
from mist_sim.hardware.predictors import (
    PipelinePredictor,
    Predictor,
    RooflinePredictor,
    pipeline_predictor,
    with_drafting,
)
from mist_sim.hardware.predictors.analytic.cuda_graphs import MOST_CAPTURED
from mist_sim.hardware.predictors.ranks import ranks_of
from mist_sim.hardware.setting import Setting, setting_of
from mist_sim.models import ModelSpec, load_model
from mist_sim.scenario.engines.all_reduce import check_sums_over_links, with_all_reduce
from mist_sim.scenario.engines.context_length import context_length
from mist_sim.scenario.engines.default_overhead import (
    assumed_times,
    own_time,
    with_exposed_time,
)
from mist_sim.scenario.engines.hosts import assumed_host, check_times_links, with_host
from mist_sim.scenario.engines.server_defaults import server_limits
from mist_sim.scenario.engines.version_defaults import (
    largest_graph,
    scheduler_options,
    with_version_defaults,
)
from mist_sim.scenario.engines.version_names import version_of
from mist_sim.scenario.engines.version_origins import imitated
from mist_sim.stages import Decode, Prefill

P = ParamSpec("P")


class _Maker(Protocol[P]):
    """A client of a name, from a config or from its options."""

    @overload
    def __call__(self, name: str, config: EngineConfig, /) -> LlmClient: ...
    @overload
    def __call__(self, name: str, /, *args: P.args, **kwargs: P.kwargs) -> LlmClient: ...


def _taking(
    config_type: Callable[P, EngineConfig],
) -> Callable[[Callable[..., LlmClient]], _Maker[P]]:
    """Tell type checkers and `help` that a function takes the options of a config."""

    def signed(function: Callable[..., LlmClient]) -> _Maker[P]:
        first = list(inspect.signature(function).parameters.values())[:2]
        options = inspect.signature(config_type).parameters.values()
        signature = inspect.Signature([*first, *options], return_annotation="LlmClient")
        function.__signature__ = signature  # type: ignore[attr-defined]
        return cast("_Maker[P]", function)

    return signed


@_taking(EngineConfig)
def llm_client(name: str, config: EngineConfig | None = None, /, **options: Any) -> LlmClient:
    """Return a client that serves a language model, for simulations made in Python.

    config: what the engine is. options: those of `EngineConfig`, whose docstring says what each
        means, in place of a config.

    Models and GPUs may be given as names, as paths or as the specs themselves. Clients may share a
    scheduler and a predictor.

    Raises ScenarioError when the model cannot be split that way or does not fit.
    """
    if config is not None and options:
        raise TypeError(f"llm_client takes a config or options, got {', '.join(options)} as well")
    return llm_clients([name], config or EngineConfig(**options))[0]


def llm_clients(
    names: Sequence[str], config: EngineConfig, spans: Spans = ONE_NODE
) -> list[LlmClient]:
    """Return clients with equal engines; they share predictor and scheduler.

    spans: the groups of ranks that lie on several nodes.
    Raises ScenarioError when the model cannot be split that way or does not fit.
    """
    as_said = config
    config = with_version_defaults(config)
    model = stored_as(config.model, config.quantization, config.kv_cache)
    gpu = load_gpu(config.gpu) if isinstance(config.gpu, str) else config.gpu
    gpu = with_all_reduce(gpu, config.all_reduce, config.tensor_parallel_size)
    gpu = with_host(gpu, config)
    gpu = with_power_limit(gpu, config.power_limit)
    cluster = replace(cluster_of(gpu, model, config), spans=spans)
    own_len = model.max_position_embeddings
    longest = own_len if config.max_model_len in (None, AUTO_LENGTH) else config.max_model_len
    scheduler = _with_token_budget(config.scheduler or _of_the_server(config, gpu), longest)
    predictor = _predictor(config, model, cluster, scheduler)
    if config.power_limit is not None:
        if config.predictor is not None and not callable(config.predictor):
            raise ScenarioError("power_limit must be null with a predictor that is given whole")
        check_follows_clock(predictor)
    if config.all_reduce is not None:
        check_sums_over_links(predictor)
    check_times_links(predictor, config)
    overhead = own_time(config.overhead, predictor, gpu)
    planned_ahead = version_of(config.engine) if config.async_scheduling else None
    assumed = assumed_times(overhead, predictor, gpu, planned_ahead)
    num_tokens = getattr(scheduler, "max_num_batched_tokens", None) or longest
    worth = assumed_host(predictor, config, model, cluster, min(num_tokens, longest))
    if worth:
        assumed += ("host",)
    if planned_ahead:
        overhead = with_exposed_time(overhead, predictor, planned_ahead)
    config = replace(config, scheduler=scheduler, overhead=overhead)
    draft = None
    if config.speculative_config:
        draft = drafter(config.speculative_config, model, cluster)
        predictor = with_drafting(predictor, config.speculative_config, draft)
    first = overhead.around(predictor.ranks[0], overlapped=bool(config.async_scheduling))
    predictor = predictor.with_first(first)
    memory = _memory(config, model, cluster, scheduler, draft, longest)
    length = context_length(config, own_len, _of_a_lane(memory, config))
    if length.is_too_long:
        assumed += ("max_model_len",)
    config = replace(config, max_model_len=length.max_model_len)
    rules = version_of(config.engine).rules
    settings = _settings(config, predictor, model, cluster)
    clients = [
        LlmClient(name, config, predictor=predictor, memory=memory, rules=rules) for name in names
    ]
    drafting = config.speculative_config
    machine = Machine(
        model=model,
        cluster=cluster,
        num_drafts=drafting.num_speculative_tokens if drafting else 0,
        drafter=draft,
        power_limit=config.power_limit,
        price=config.gpu_price,
    )
    timed = cache(lambda spans: llm_clients(names[:1], as_said, spans)[0].predictor)
    for client in clients:
        client.timed_across = timed if _is_made_here(config) else None
        client.assumed = assumed
        client.assumed_host = worth
        client.settings = settings
        client.machine = machine
        client.imitates = imitated(config)
    return clients


def _of_the_server(config: EngineConfig, gpu: GpuSpec) -> Scheduler:
    """Return the scheduler that vLLM's server has on a GPU, in the version that is named."""
    drafting = config.speculative_config
    num_drafts = drafting.num_speculative_tokens if drafting else 0
    version = version_of(config.engine)
    options = scheduler_options(ChunkedScheduler, version)
    return ChunkedScheduler(**server_limits(gpu, num_drafts, version)._asdict(), **options)


def _predictor(
    config: EngineConfig, model: ModelSpec, cluster: Cluster, scheduler: Scheduler
) -> PipelinePredictor:
    """Return what times the model's steps: the given object, or one that is made here."""
    given: Any = config.predictor
    if given is not None and not callable(given):
        return ranks_of(cast("Predictor | PipelinePredictor", given))
    make: PredictorFactory = given or RooflinePredictor
    drafting = config.speculative_config
    num_drafts = drafting.num_speculative_tokens if drafting else 0
    version = version_of(config.engine)
    most = largest_graph(version, cluster.gpu, scheduler.max_num_seqs, num_drafts)

    def timed(part: ModelSpec) -> Predictor:
        return with_graphs_up_to(most, make(model=part, cluster=cluster))

    try:
        return pipeline_predictor(timed, model, cluster)
    except ValueError as error:
        if config.predictor is None:
            raise
        raise ScenarioError(f"predictor: {error}") from error


def _is_made_here(config: EngineConfig) -> bool:
    """Whether what times the steps is made for model and GPUs, and not given whole."""
    return config.predictor is None or callable(config.predictor)


def _settings(
    config: EngineConfig, predictor: PipelinePredictor, model: ModelSpec, cluster: Cluster
) -> dict[str, Setting | None]:
    """Return what a client's TTFT and TPOT are like, where it gives such tokens.

    Nobody compared engines that draft.
    """
    source = predictor.traits.compared_as
    setting = setting_of(source, model, cluster) if source and not _drafts(config) else None
    of_stage = {Prefill.kind: "ttft", Decode.kind: "tpot"}
    serves = ROLES[config.role]
    return dict.fromkeys((name for kind, name in of_stage.items() if kind in serves), setting)


def _drafts(config: EngineConfig) -> bool:
    return config.speculative_config is not None


def _memory(
    config: EngineConfig,
    model: ModelSpec,
    cluster: Cluster,
    scheduler: Scheduler,
    draft: Drafter | None,
    longest: int,
) -> EngineMemory:
    """Return the KV cache of an engine. Raises ScenarioError for one without room.

    longest: tokens of a prompt, which a step of a scheduler without a limit takes whole.
    """
    kv_cache = config.kv_cache
    num_tokens = getattr(scheduler, "max_num_batched_tokens", longest)
    sizes: dict[str, Any] = {
        "max_num_batched_tokens": num_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
    }
    return EngineMemory(
        num_gpu_blocks=num_gpu_blocks(kv_cache, model, cluster, **sizes, drafter=draft),
        kv_groups=shared_groups(model, draft) if model.sliding_window else None,
        cache_tiers=cache_tiers(kv_cache, model, cluster),
        swap_space=_swap_space(scheduler, kv_cache, model, cluster),
        kv_block_bytes=kv_block_bytes(kv_cache, model, cluster),
        num_layers=model.num_layers,
    )


def _of_a_lane(memory: EngineMemory, config: EngineConfig) -> LaneMemory:
    """Return the part of an engine's KV cache that each request has to fit in."""
    return lane_memory(
        memory,
        config.kv_cache,
        config.pipeline_parallel_size,
        drafting=config.speculative_config,
        swaps=memory.swap_space is not None,
    )


def _with_token_budget(scheduler: Scheduler, max_model_len: int) -> Scheduler:
    """Return the scheduler with vLLM v0's budget where it takes whole prompts and has none.

    A step takes as many prompt tokens as the longest prompt may have.
    """
    if isinstance(scheduler, WholePromptScheduler) and scheduler.max_num_batched_tokens is None:
        return replace(scheduler, max_num_batched_tokens=max_model_len)
    return scheduler


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


def cluster_of(gpu: GpuSpec, model: ModelSpec, config: EngineConfig) -> Cluster:
    """Return the GPUs that serve a model. Raises ScenarioError when it cannot be split so."""
    try:
        cluster = Cluster(
            gpu,
            tensor_parallel_size=config.tensor_parallel_size,
            pipeline_parallel_size=config.pipeline_parallel_size,
            data_parallel_size=config.data_parallel_size,
            enable_expert_parallel=config.enable_expert_parallel,
            expert_load_imbalance=config.expert_load_imbalance,
        )
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    cluster.check_split(model)
    return cluster


def with_graphs_up_to(size: int, predictor: Predictor) -> Predictor:
    """Return a predictor whose largest CUDA graph has so many tokens, if it says no size itself."""
    if not isinstance(predictor, RooflinePredictor) or size == MOST_CAPTURED:
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
