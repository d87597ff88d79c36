"""Makes an engine for a language model from model, GPUs, scheduler and predictor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, ParamSpec, Protocol, TypeGuard, cast, overload

from mist_sim.clients import EngineConfig, LlmClient
from mist_sim.clients.engine.lanes import lane_memory, queue_form
from mist_sim.clients.kv_cache import (
    EngineMemory,
    KvCacheConfig,
    LaneMemory,
    SwapSpace,
    cache_tiers,
    kv_block_bytes,
    num_gpu_blocks,
    swap_space,
)
from mist_sim.clients.kv_cache.capacity import NoRoomError
from mist_sim.clients.kv_cache.profile_run import SAMPLER_BYTES, Needs, ProfileRun, num_graphs
from mist_sim.clients.options.engine_config import AUTO_LENGTH, against_loads
from mist_sim.clients.options.resharding_options import HOST_MEMORY
from mist_sim.clients.resharding.client import ReshardingClient, ShardSizes
from mist_sim.clients.scheduling import SCHEDULERS, ChunkedScheduler, ContinuousScheduler, Scheduler
from mist_sim.clients.scheduling.whole_prompts import WholePromptScheduler
from mist_sim.clients.traits import ROLES, TimesOrigin
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.cluster import PARALLEL_SIZES
from mist_sim.hardware.collectives import ONE_NODE, Spans
from mist_sim.hardware.devices import MemoryTier, fitted_gpus
from mist_sim.hardware.drafter import Drafter, shared_groups
from mist_sim.hardware.expert_exchange import exchange_warnings
from mist_sim.hardware.kernel_choice import KernelChoice, deployment_of
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
from mist_sim.metrics.assumptions import HOST_COPIES
from mist_sim.models import ModelSpec, check_generates, load_model
from mist_sim.models.adapters import AT_ONCE, adapter_moves
from mist_sim.models.expert_padding import is_padded
from mist_sim.models.kv_groups import KvGroups
from mist_sim.models.moe_backends import MoeBackend, expert_format, rows_computed
from mist_sim.models.spec import rank_part
from mist_sim.scenario.engines.defaults import (
    imitated,
    largest_graph,
    scheduler_options,
    server_limits,
    with_version_defaults,
)
from mist_sim.scenario.engines.links import with_all_reduce, with_host
from mist_sim.scenario.engines.server_start import (
    LENGTH,
    SEQUENCES,
    Server,
    check_length,
    check_start,
    context_length,
    longest_that_fits,
    most_sequences,
    older_versions,
)
from mist_sim.scenario.engines.state_caching import MODE, state_caching
from mist_sim.scenario.engines.step_times import (
    StepTimes,
    is_made_here,
    kernel_choice,
    parse_time,
    step_times,
    unlike_timed,
)
from mist_sim.scenario.engines.versions import EXPERTS, SAMPLER, version_of
from mist_sim.stages import Decode, Prefill


def engine_memory(
    config: EngineConfig,
    model: ModelSpec,
    cluster: Cluster,
    scheduler: Scheduler,
    times: StepTimes,
    longest: int,
) -> EngineMemory:
    """Return the KV cache of an engine. Raises ScenarioError if there is no room.

    longest: tokens of the longest prompt, which a scheduler without a limit takes in one step.
    """
    draft = times.drafter
    kv_cache = config.kv_cache
    num_tokens = getattr(scheduler, "max_num_batched_tokens", longest)
    sizes: dict[str, Any] = {
        "max_num_batched_tokens": num_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
    }
    decodes = scheduler.max_num_seqs * (1 + config.num_drafts)
    needs = Needs(
        profile=_profile(config),
        num_graphs=num_graphs(times.graphs, decodes),
        moe_backend=config.moe_backend or _experts_of(config, model, cluster),
        lora=config.lora,
        images=config.images,
        language_model_only=config.language_model_only,
    )
    blocks = num_gpu_blocks(kv_cache, model, cluster, **sizes, drafter=draft, needs=needs)
    ranks, lora = cluster.tensor_parallel_size, config.lora
    return EngineMemory(
        num_gpu_blocks=blocks,
        kv_groups=_groups(config, model, cluster, draft),
        cache_tiers=cache_tiers(kv_cache, model, cluster),
        swap_space=_swap_space(scheduler, kv_cache, model, cluster),
        kv_block_bytes=kv_block_bytes(kv_cache, model, cluster),
        num_layers=model.num_layers,
        adapter_moves=AT_ONCE
        if lora is None
        else adapter_moves(model, lora, ranks, cluster.gpu.from_host),
        kv_entries=model.kv_entries,
    )


def _profile(config: EngineConfig) -> ProfileRun:
    """Return what the version's profile finds, with the sampler of the engine."""
    version = version_of(config.engine)
    said = config.sampling.sampler if config.sampling else None
    sampler = said or version.default(SAMPLER)
    return replace(version.profile, sampler_bytes=SAMPLER_BYTES[sampler])


def _experts_of(config: EngineConfig, model: ModelSpec, cluster: Cluster) -> MoeBackend | None:
    """Return the version's kernel of experts that a kernel pads; None for others."""
    if not is_padded(model):
        return None
    choices = version_of(config.engine).default(f"{EXPERTS}{expert_format(model)}")
    chosen: MoeBackend | None = choices.of(deployment_of(model, cluster))
    return chosen


LOADS = "kv_cache.tiers.loads_in_step"


def with_loads(config: EngineConfig) -> EngineConfig:
    """Return an engine whose tiers say whether a step waits for loads.

    A step does where the tiers leave it open, unless an option or a topology rules it out. Tiers
    have a place (`MemoryTier.at`) on a topology only.
    """
    tiers = config.kv_cache.tiers
    if all(tier.loads_in_step is not None for tier in tiers):
        return config
    in_step = not against_loads(config) and all(tier.at is None for tier in tiers)
    decided = tuple(replace(tier, loads_in_step=in_step) for tier in tiers)
    return replace(config, kv_cache=replace(config.kv_cache, tiers=decided))


def host_copies(tiers: Sequence[MemoryTier], gpu: GpuSpec) -> Iterator[str]:
    """Yield the tiers that are read at the full rate of a GPU's host link, as results have it."""
    for tier in tiers:
        if tier.read_bandwidth is None and tier.at in (None, "host"):
            yield f"{HOST_COPIES}{tier.name} at {gpu.from_host / 1e9:g} GB/s a GPU"


def _groups(
    config: EngineConfig, model: ModelSpec, cluster: Cluster, draft: Drafter | None
) -> KvGroups | None:
    """Return the groups of layers that share pages; None if all layers share a page."""
    if not model.layers:
        return shared_groups(model, draft) if model.sliding_window else None
    layout = model.cache_layout(cluster.tensor_parallel_size)
    if not layout.has_groups:
        return None
    if not layout.has_states:
        return layout.groups
    caching = state_caching(config, model, cluster, layout)
    return replace(layout.groups, state_cache=caching.mode, saves_inside=caching.saves_inside)


def with_state_pages(config: EngineConfig, model: ModelSpec, cluster: Cluster) -> EngineConfig:
    """Return an engine whose blocks are as long as the states of its model require.

    A block's entries take at least the bytes of a state (see `CacheLayout`). Prefixes are cached
    where states are kept.
    """
    layout = model.cache_layout(cluster.tensor_parallel_size) if model.layers else None
    if layout is None or not layout.has_states:
        if config.kv_cache.mamba_cache_mode is not None:
            raise ScenarioError(
                f"{MODE} must be left out for {model.name}, no layer of which keeps a state, got "
                f"{config.kv_cache.mamba_cache_mode}"
            )
        return config
    caching = state_caching(config, model, cluster, layout)
    kv_cache = replace(
        config.kv_cache,
        block_size=caching.block_size,
        enable_prefix_caching=caching.mode != "none",
        mamba_cache_mode=caching.mode,
    )
    return replace(config, kv_cache=kv_cache)


def with_longer_blocks(config: EngineConfig) -> EngineConfig:
    """Return an engine whose blocks hold the tokens of all ranks that share out a context.

    On each of them a block has `block_size` of these (vLLM: `KVCacheManager` multiplies the block
    size by `dcp_world_size`).
    """
    size, kv_cache = config.decode_context_parallel_size, config.kv_cache
    if size == 1:
        return config
    return replace(config, kv_cache=replace(kv_cache, block_size=size * kv_cache.block_size))


def _swap_space(
    scheduler: Scheduler, config: KvCacheConfig, model: ModelSpec, cluster: Cluster
) -> SwapSpace | None:
    """Return the swap space of an engine; None if its scheduler does not swap."""
    if scheduler.swaps:
        return swap_space(config, model, cluster)
    if config.swap_space is not None:
        raise ScenarioError(
            "kv_cache must have no swap_space, since nothing is swapped with "
            "scheduler.preemption: recompute"
        )
    return None


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
        kind = NoRoomError if isinstance(error, NoRoomError) else ScenarioError
        raise kind(f"resharding, TP {tensor} x PP {pipeline} for prompts: {error}") from None
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


P = ParamSpec("P")


class Maker(Protocol[P]):
    """A client of a name, from a config or from its options."""

    @overload
    def __call__(self, name: str, config: EngineConfig, /) -> LlmClient: ...
    @overload
    def __call__(self, name: str, /, *args: P.args, **kwargs: P.kwargs) -> LlmClient: ...


def taking(
    config_type: Callable[P, EngineConfig],
) -> Callable[[Callable[..., LlmClient]], Maker[P]]:
    """Tell type checkers and `help` that a function takes the options of a config."""

    def signed(function: Callable[..., LlmClient]) -> Maker[P]:
        first = list(inspect.signature(function).parameters.values())[:2]
        options = inspect.signature(config_type).parameters.values()
        signature = inspect.Signature([*first, *options], return_annotation="LlmClient")
        function.__signature__ = signature  # type: ignore[attr-defined]
        return cast("Maker[P]", function)

    return signed


_WIDEST = 8  # GPUs of a node
_SHORTEST = 1024  # tokens of a context that are worth naming
_GRAPH = "max_cudagraph_capture_size"
_WEIGHTS = ("fp8", "int4")  # int4: as AWQ and GPTQ store them

Change = dict[str, Any]


def what_fits(
    config: EngineConfig,
    memory_of: Callable[[EngineConfig], LaneMemory],
    least: int | None = None,
) -> str:
    """Return changes of an engine that give it room, with the tokens that its KV cache then has.

    memory_of: its KV cache; raises ScenarioError if there is no room for one. least: tokens of the
        longest request; None: they are not known, and changes that hold the model's longest context
        are named beside those that hold less.
    Single changes, or pairs of them if no single one does; empty if no pair does either.
    """
    kinds = (_widths(config), _formats(config), _larger_gpus(config))
    ways = [list(each) for each in (*kinds, _shorter_prompts(config, least or _SHORTEST))]
    found = [text for way in ways for text in _with_room(config, memory_of, way, least)]
    if not found:
        for i, j in ((0, 1), (0, 2), (1, 2)):
            both = [first | second for first in ways[i][-1:] for second in ways[j]]
            found += _with_room(config, memory_of, both, least)
    return " or ".join(found)


def _with_room(
    config: EngineConfig,
    memory_of: Callable[[EngineConfig], LaneMemory],
    changes: list[Change],
    least: int | None,
) -> Iterator[str]:
    """Yield the first of some changes that gives room, and the first that gives enough."""
    is_first = True
    for change in changes:
        try:
            changed = _changed(config, change)
            memory = memory_of(changed)
        except (ScenarioError, ValueError):  # options that fit these GPUs and no others
            continue
        enough = _context(changed) if least is None else least
        is_enough = longest_that_fits(memory, enough) == enough
        if is_enough or (is_first and least is None):
            told = " with ".join(f"{name} {value}" for name, value in change.items())
            weights = "AWQ or GPTQ weights, " if "int4" in change.values() else ""
            yield f"{told} ({weights}KV cache of {memory.num_tokens:,} tokens)"
            is_first = False
        if is_enough:
            return


def _changed(config: EngineConfig, change: Change) -> EngineConfig:
    """Return an engine with a change; limits that are its GPU's defaults are those of another."""
    changed, scheduler = replace(config, **change), config.scheduler
    if "gpu" not in change or scheduler is None:
        return changed
    version = version_of(config.engine)
    before, after = (
        server_limits(load_gpu(each.gpu), config.num_drafts, version)._asdict()
        for each in (config, changed)
    )
    defaults = {
        key: after[key] for key, limit in before.items() if getattr(scheduler, key, None) == limit
    }
    chunk = defaults.get(
        "max_num_batched_tokens", getattr(scheduler, "max_num_batched_tokens", None)
    )
    if chunk is not None and "max_num_seqs" in defaults:
        # as vLLM: its default leaves each running request a token
        defaults["max_num_seqs"] = min(defaults["max_num_seqs"], chunk)
    limited = replace(scheduler, **defaults)
    graphs = (
        largest_graph(version, load_gpu(each.gpu), seats.max_num_seqs, config.num_drafts)
        for each, seats in ((config, scheduler), (changed, limited))
    )
    predictor = _with_graph(config.predictor, *graphs)
    return replace(changed, scheduler=limited, predictor=predictor)


def _with_graph(predictor: Any, before: int, after: int) -> Any:
    """Return a predictor; a file's, whose largest graph is the default, has another default's."""
    part = getattr(predictor, "__self__", None)
    if getattr(part, _GRAPH, None) != before:
        return predictor
    return part.model_copy(update={_GRAPH: after}).make  # type: ignore[union-attr]


def _context(config: EngineConfig) -> int:
    """Return the tokens of the longest request that an engine takes."""
    if isinstance(config.max_model_len, int) and config.max_model_len > 0:
        return config.max_model_len
    model = config.model
    return (load_model(model) if isinstance(model, str) else model).max_position_embeddings


def _widths(config: EngineConfig) -> Iterator[Change]:
    width = config.tensor_parallel_size
    while (width := 2 * width) <= _WIDEST:
        yield {"tensor_parallel_size": width}


def _formats(config: EngineConfig) -> Iterator[Change]:
    said = _WEIGHTS.index(config.quantization) + 1 if config.quantization in _WEIGHTS else 0
    yield from ({"quantization": name} for name in _WEIGHTS[said:])


def _shorter_prompts(config: EngineConfig, least: int) -> Iterator[Change]:
    """Yield ever shorter contexts where a step computes as many tokens as the longest prompt has.

    The activations of such a step take memory that the KV cache then lacks. least: tokens.
    """
    scheduler, length = config.scheduler, _context(config)
    if scheduler is None and config.resharding is not None:
        scheduler = _default_scheduler(config, load_gpu(config.gpu))
    if not _has_budget_of_context(scheduler):
        return
    while (length := length // 2) >= least:
        yield {"max_model_len": length}


def _larger_gpus(config: EngineConfig) -> Iterator[Change]:
    """Yield GPUs with more memory whose step times are fitted, the smallest first."""
    own = load_gpu(config.gpu).memory
    larger = {gpu.name: gpu.memory for gpu in fitted_gpus() if gpu.memory > own}
    yield from ({"gpu": name} for name in sorted(larger, key=lambda name: (larger[name], name)))


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
    if options.get("max_model_len") == "auto":
        options["max_model_len"] = AUTO_LENGTH
    if isinstance(said := options.get("predictor"), str):
        options["predictor"] = PREDICTORS[said]
    if isinstance(said := options.get("kv_cache"), Mapping):
        raise TypeError(f"kv_cache must be a KvCacheConfig, such as KvCacheConfig(**{dict(said)})")
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
    if _has_budget_of_context(scheduler):
        scheduler = replace(scheduler, max_num_batched_tokens=longest)
    timed = kernels.timed(model, cluster)
    times = step_times(config, model, timed, scheduler, longest)
    config = replace(config, scheduler=scheduler, overhead=times.overhead)
    memory = engine_memory(config, model, cluster, scheduler, times, longest)
    predictor, rules = times.predictor, version_of(config.engine).rules
    lane = lane_memory(config, rules, memory, queue_form(config, rules, memory))
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
            *exchange_warnings(model, cluster, is_timed=predictor.traits.sums_over_links),
        ),
        caches_prefixes=config.kv_cache.enable_prefix_caching and config.role != "decode",
        parse=parse_time(config, model),
    )
    parts: dict[str, Any] = {
        "predictor": predictor,
        "memory": memory,
        "rules": rules,
        "machine": Machine(
            model=model,
            cluster=cluster,
            num_drafts=config.num_drafts,
            drafter=times.drafter,
            expert_rows=rows_computed(kernels.experts),
            power_limit=config.power_limit,
            price=config.gpu_price,
        ),
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
    """Return the scheduler of vLLM's server on a GPU, in the named version."""
    if config.resharding is not None:
        return ContinuousScheduler()
    version = version_of(config.engine)
    limits = server_limits(gpu, config.num_drafts, version)._asdict()
    return ChunkedScheduler(**limits, **scheduler_options(ChunkedScheduler, version))


def _has_budget_of_context(scheduler: Scheduler | None) -> TypeGuard[WholePromptScheduler]:
    """Tell whether a step takes as many prompt tokens as the longest prompt may have.

    That is vLLM v0's budget of a scheduler that takes whole prompts and says none.
    """
    return isinstance(scheduler, WholePromptScheduler) and scheduler.max_num_batched_tokens is None


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
    parts = config.decode_context_parallel_size * config.prefill_context_parallel_size
    unlike = {
        SCALED: StepTimeScale.of(config.step_time_scale) != StepTimeScale(),
        IN_PARTS: parts > 1,
        WITH_IMAGES: config.images is not None,
        ADAPTED: config.lora is not None,
        CAPPED: limit is not None and limit < cluster.gpu.watts,
    }
    if setting is not None:
        setting = next((why for why, is_so in unlike.items() if is_so), setting)
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


def _cluster(gpu: GpuSpec, config: EngineConfig) -> Cluster:
    """Return the GPUs of an engine. Raises ScenarioError for sizes that none has."""
    others = ("enable_expert_parallel", "expert_load_imbalance", "all2all_backend")
    try:
        return Cluster(gpu, **{name: getattr(config, name) for name in (*PARALLEL_SIZES, *others)})
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
