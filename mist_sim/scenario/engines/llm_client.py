"""Makes an engine for a language model from model, GPUs, scheduler and predictor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from mist_sim.clients import EngineConfig, LlmClient
from mist_sim.clients.engine_checks import AUTO_LENGTH
from mist_sim.clients.kv_cache import KvCacheConfig
from mist_sim.clients.kv_cache.capacity import NoRoomError
from mist_sim.clients.scheduling import (
    SCHEDULERS,
    ChunkedScheduler,
    ContinuousScheduler,
    Scheduler,
)
from mist_sim.clients.scheduling.whole_prompts.base import WholePromptScheduler
from mist_sim.clients.traits import ROLES, TimesOrigin
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.collectives.spans import ONE_NODE, Spans
from mist_sim.hardware.drafter import Drafter
from mist_sim.hardware.kernel_choice import KernelChoice
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.power_cap import cap_warnings, with_power_limit
from mist_sim.hardware.predictors import PREDICTORS, PipelinePredictor
from mist_sim.hardware.predictors.scaled import StepTimeScale
from mist_sim.hardware.predictors.tower_times import TowerTimes
from mist_sim.hardware.setting import (
    ADAPTED,
    CAPPED,
    IN_PARTS,
    SCALED,
    WITH_IMAGES,
    Borrowed,
    Setting,
    comparable,
)
from mist_sim.models import ModelSpec, check_generates, load_model
from mist_sim.models.moe_backends import rows_computed
from mist_sim.scenario.engines.all_reduce import with_all_reduce
from mist_sim.scenario.engines.default_overhead import parse_time
from mist_sim.scenario.engines.engine_hosts import with_host
from mist_sim.scenario.engines.engine_kernels import kernel_choice, unlike_timed
from mist_sim.scenario.engines.engine_memory import (
    LOADS,
    engine_memory,
    host_copies,
    of_a_lane,
    with_loads,
    with_longer_blocks,
    with_state_pages,
)
from mist_sim.scenario.engines.resharding import resharding
from mist_sim.scenario.engines.server_defaults import server_limits
from mist_sim.scenario.engines.server_start import (
    LENGTH,
    SEQUENCES,
    Server,
    check_length,
    check_start,
    context_length,
    most_sequences,
    older_versions,
)
from mist_sim.scenario.engines.signatures import taking
from mist_sim.scenario.engines.state_caching import MODE
from mist_sim.scenario.engines.step_times import is_made_here, step_times
from mist_sim.scenario.engines.version_defaults import scheduler_options, with_version_defaults
from mist_sim.scenario.engines.version_names import version_of
from mist_sim.scenario.engines.version_origins import imitated
from mist_sim.scenario.engines.what_fits import what_fits
from mist_sim.stages import Decode, Prefill


@taking(EngineConfig)
def llm_client(name: str, config: EngineConfig | None = None, /, **options: Any) -> LlmClient:
    """Return a client that serves a language model, for simulations made in Python.

    config: the engine's options. options: the same as keywords; see the docstring of
        `EngineConfig`.

    Models and GPUs may be given as names, as paths or as the specs themselves, scheduler and
    predictor as names, with their defaults. Clients may share a scheduler and a predictor.

    Raises ScenarioError when the model cannot be split that way or does not fit.
    """
    if config is not None and options:
        raise TypeError(f"llm_client takes a config or options, got {', '.join(options)} as well")
    if isinstance(said := options.get("scheduler"), str):
        options["scheduler"] = SCHEDULERS[said]()
    if isinstance(said := options.get("predictor"), str):
        options["predictor"] = PREDICTORS[said]
    return llm_clients([name], config or EngineConfig(**options))[0]


def llm_clients(
    names: Sequence[str], config: EngineConfig, spans: Spans = ONE_NODE
) -> list[LlmClient]:
    """Return clients with equal engines; they share predictor, scheduler and traits.

    spans: the groups of ranks that lie on several nodes.
    Raises ScenarioError when the model cannot be split that way or does not fit.
    """
    as_said = config
    fits = partial(what_fits, config, lambda other: _making(other, spans)(names[0]).memory)
    try:
        make = _making(config, spans)
        first = make(names[0])
    except NoRoomError as error:
        found = fits() or "nothing that was tried: neither 8 GPUs, FP8 and AWQ nor larger GPUs"
        raise NoRoomError(f"{error}; it fits with {found}") from None
    others = first.named if config.resharding is None else make  # which has parts of its own
    clients = [first, *map(others, names[1:])]
    timed = cache(lambda spans: llm_clients(names[:1], as_said, spans)[0].predictor)
    for client in clients:
        client.timed_across = timed if is_made_here(config) else None
        client.what_fits = fits
    return clients


def _making(config: EngineConfig, spans: Spans) -> Callable[[str], LlmClient]:
    """Return a function that makes a client from its name."""
    said_length = config.max_model_len
    config = with_version_defaults(config)
    model = stored_as(config.model, config.quantization, config.kv_cache)
    cluster = replace(_cluster(_gpu(config), config), spans=spans)
    server = Server(config, model, cluster)
    check_start(server)
    kernels = kernel_choice(config, model, cluster)
    asked_cache = config.kv_cache
    config = with_longer_blocks(with_state_pages(with_loads(config), model, cluster))
    own_len = model.max_position_embeddings
    longest = own_len if config.max_model_len in (None, AUTO_LENGTH) else config.max_model_len
    scheduler = config.scheduler or _default_scheduler(config, cluster.gpu)
    scheduler = _with_token_budget(scheduler, longest)
    timed = kernels.timed(model, cluster)
    times = step_times(config, model, timed, scheduler, longest)
    config = replace(config, scheduler=scheduler, overhead=times.overhead)
    memory = engine_memory(config, model, cluster, scheduler, times, longest)
    predictor, rules = times.predictor, version_of(config.engine).rules
    lane = of_a_lane(memory, config, rules)
    length = context_length(config, own_len, lane)
    check_length(config, scheduler, length.max_model_len)
    config = replace(config, max_model_len=length.max_model_len)
    tower = _tower(config, model, cluster, predictor)
    if tower is not None:
        times = replace(times, assumed=(*times.assumed, "images", *tower.assumed))
    assumed = times.assumed + ((LENGTH,) if length.is_too_long else ())
    most = most_sequences(config, lane, has_graphs=bool(times.graphs))
    assumed += (SEQUENCES,) if scheduler.max_num_seqs > most else ()
    if asked_cache.enable_prefix_caching and config.kv_cache.mamba_cache_mode == "none":
        assumed += () if asked_cache.mamba_cache_mode else (MODE,)
    tiers = zip(asked_cache.tiers, config.kv_cache.tiers, strict=True)
    if any(asked.loads_in_step is None and not tier.loads_in_step for asked, tier in tiers):
        assumed += (LOADS,)
    assumed += tuple(host_copies(config.kv_cache.tiers, cluster.gpu))
    assumed += tuple(f"model: {each}" for each in model.approximated)
    assumed += tuple(f"towers: {each}" for each in _tower_memory(config, model))
    assumed += config.speculative_config.assumed if config.speculative_config else ()
    origin = TimesOrigin(
        estimate=predictor.traits.estimate,
        assumed=assumed + (config.resharding.assumed if config.resharding else ()),
        assumed_host=times.assumed_host,
        settings=_settings(config, predictor, kernels, model, cluster),
        kernels=kernels.named if times.by_backend else {},
        imitates=imitated(config),
        warnings=(
            *older_versions(server),
            *length.warnings(scheduler.max_num_seqs, most),
            *cap_warnings(cluster.gpu, config.power_limit),
        ),
        caches_prefixes=config.kv_cache.enable_prefix_caching and config.role != "decode",
        parse=parse_time(config, model),
    )
    parts: dict[str, Any] = {
        "predictor": predictor,
        "memory": memory,
        "rules": rules,
        "machine": _machine(config, model, cluster, times.drafter, kernels),
        "origin": origin,
        "tower": tower,
    }
    if config.resharding is None:
        return lambda name: LlmClient(name, config, **parts)

    def other(layout: EngineConfig) -> LlmClient:
        return _making(replace(layout, max_model_len=said_length), spans)("prefill")

    return resharding(config, model, cluster, parts, other)


def _gpu(config: EngineConfig) -> GpuSpec:
    """Return the named GPU, changed by the engine's options."""
    gpu = with_all_reduce(load_gpu(config.gpu), config.all_reduce, config.tensor_parallel_size)
    return with_power_limit(with_host(gpu, config), config.power_limit)


def _default_scheduler(config: EngineConfig, gpu: GpuSpec) -> Scheduler:
    return _of_the_server(config, gpu) if config.resharding is None else ContinuousScheduler()


def _of_the_server(config: EngineConfig, gpu: GpuSpec) -> Scheduler:
    """Return the scheduler of vLLM's server on a GPU, in the named version."""
    version = version_of(config.engine)
    options = scheduler_options(ChunkedScheduler, version)
    return ChunkedScheduler(**server_limits(gpu, config.num_drafts, version)._asdict(), **options)


def _with_token_budget(scheduler: Scheduler, max_model_len: int) -> Scheduler:
    """Return the scheduler with vLLM v0's budget if it takes whole prompts and has none.

    A step takes as many prompt tokens as the longest prompt may have.
    """
    if isinstance(scheduler, WholePromptScheduler) and scheduler.max_num_batched_tokens is None:
        return replace(scheduler, max_num_batched_tokens=max_model_len)
    return scheduler


def _settings(
    config: EngineConfig,
    predictor: PipelinePredictor,
    kernels: KernelChoice,
    model: ModelSpec,
    cluster: Cluster,
) -> dict[str, Setting | Borrowed | None]:
    """Return the settings by which a client's TTFT and TPOT are compared with measurements.

    Engines with drafts were not compared.
    """
    source = None if config.speculative_config else predictor.traits.compared_as
    release = version_of(config.engine).name.removeprefix("vllm-")
    setting = comparable(source, model, cluster, release) if source else None
    limit = config.power_limit
    if setting is not None and limit is not None and limit < cluster.gpu.watts:
        setting = CAPPED
    if setting is not None and config.lora is not None:
        setting = ADAPTED
    if setting is not None and config.images is not None:
        setting = WITH_IMAGES
    parts = config.decode_context_parallel_size * config.prefill_context_parallel_size
    if setting is not None and parts > 1:
        setting = IN_PARTS
    if setting is not None and StepTimeScale.of(config.step_time_scale) != StepTimeScale():
        setting = SCALED
    setting = unlike_timed(config, kernels, setting, model, cluster)
    of_stage = {Prefill.kind: "ttft", Decode.kind: "tpot"}
    serves = ROLES[config.role]
    return dict.fromkeys((name for kind, name in of_stage.items() if kind in serves), setting)


def _tower_memory(config: EngineConfig, model: ModelSpec) -> Iterator[str]:
    """Yield what the memory holds of towers of images and sound that are only loaded."""
    if config.images is not None or config.language_model_only:
        return
    parameters = model.tower_parameters + (model.vision.num_parameters if model.vision else 0)
    if parameters:
        yield (
            f"{2e-9 * parameters:.3g} GB of weights are counted for the towers of images or sound "
            f"of {model.name}, computed from their sizes; the memory of profile runs of images is "
            "not. An engine without them has this much more for its cache: language_model_only: "
            "true (vLLM's --language-model-only)."
        )
    for key in model.unsized_towers:
        yield (
            f"The weights of the tower {key} of {model.name} are not counted, since the config "
            "leaves out its sizes, so there is less room for the cache than said. Its hidden_size, "
            "num_hidden_layers and intermediate_size would tell."
        )


def _tower(
    config: EngineConfig, model: ModelSpec, cluster: Cluster, predictor: PipelinePredictor
) -> TowerTimes | None:
    """Return what times the vision tower of an engine; None where it serves no images."""
    if config.images is None:
        return None
    if model.vision is None:
        raise ScenarioError(
            f"images must be left out with {model.name}: no vision tower of it is known; a "
            "config.json with its vision_config has one, of Qwen3-VL, Qwen3.5, Gemma 3 and 4, "
            "Llama 4 or Kimi-K2.5"
        )
    return TowerTimes(
        model.name,
        model.vision,
        cluster,
        is_spread=config.images.is_spread,
        measured=predictor.traits.tower_attention,
    )


def _machine(
    config: EngineConfig,
    model: ModelSpec,
    cluster: Cluster,
    drafter: Drafter | None,
    kernels: KernelChoice,
) -> Machine:
    """Return the GPUs of a client."""
    return Machine(
        model=model,
        cluster=cluster,
        num_drafts=config.num_drafts,
        drafter=drafter,
        expert_rows=rows_computed(kernels.experts),
        power_limit=config.power_limit,
        price=config.gpu_price,
    )


def _cluster(gpu: GpuSpec, config: EngineConfig) -> Cluster:
    """Return the GPUs of an engine. Raises ScenarioError for sizes that none has."""
    try:
        return Cluster(
            gpu,
            tensor_parallel_size=config.tensor_parallel_size,
            pipeline_parallel_size=config.pipeline_parallel_size,
            decode_context_parallel_size=config.decode_context_parallel_size,
            prefill_context_parallel_size=config.prefill_context_parallel_size,
            data_parallel_size=config.data_parallel_size,
            enable_expert_parallel=config.enable_expert_parallel,
            expert_load_imbalance=config.expert_load_imbalance,
        )
    except ValueError as error:
        raise ScenarioError(str(error)) from None


def stored_as(
    model: str | ModelSpec, quantization: str | None, kv_cache: KvCacheConfig
) -> ModelSpec:
    """Return a model with weights and KV cache stored as the engine's options say."""
    spec = load_model(model) if isinstance(model, str) else model
    check_generates(spec)
    dtype = None if kv_cache.kv_cache_dtype == "auto" else kv_cache.kv_cache_dtype
    try:
        return spec.with_dtypes(weights=quantization, kv_cache=dtype)
    except ValueError as error:
        raise ScenarioError(f"quantization: {error}") from None
