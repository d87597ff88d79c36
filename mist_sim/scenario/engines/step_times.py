"""Step times of an engine: a predictor, the engine's own time around it, and drafts.

The kernels of a GPU that was not timed: their effect on a step.

Without an `architecture` every kernel reaches the same share of the GPU's peaks and none takes time
to start, so steps come out too fast. With one, a GPU that is not in the catalog is taken to reach
the shares of the GPUs that were timed. Other architectures tell by how much either may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from mist_sim.clients import EngineConfig
from mist_sim.clients.options.engine_options import PredictorFactory
from mist_sim.clients.scheduling import Scheduler
from mist_sim.core.batch import StepBatch
from mist_sim.core.front_end import FRONT_END
from mist_sim.errors import ScenarioError, in_words
from mist_sim.hardware import Cluster, GpuSpec, device_of
from mist_sim.hardware.devices import CDNA, architecture_names, fitted_gpus, kernels_of
from mist_sim.hardware.drafter import Drafter, drafter
from mist_sim.hardware.kernel_choice import KernelChoice, deployment_of, has_tuned_tiles
from mist_sim.hardware.power_cap import check_follows_clock
from mist_sim.hardware.predictors import (
    EngineOverhead,
    PipelinePredictor,
    Predictor,
    RooflinePredictor,
    pipeline_predictor,
    with_drafting,
)
from mist_sim.hardware.predictors.adapter_times import AdapterTimes
from mist_sim.hardware.predictors.analytic.context_parallel import (
    with_context_exchange,
    with_shared_prompts,
)
from mist_sim.hardware.predictors.analytic.cuda_graphs import MOST_CAPTURED, captured
from mist_sim.hardware.predictors.around import Beside, WithSampling
from mist_sim.hardware.predictors.base import sustained_rates
from mist_sim.hardware.predictors.overhead import EXPOSED, FITTED_ON
from mist_sim.hardware.predictors.ranks import ranks_of
from mist_sim.hardware.predictors.scaled import StepTimeScale
from mist_sim.hardware.sampling import Sampling, SamplingTimes
from mist_sim.hardware.setting import Borrowed, Setting, figures_of_its_own
from mist_sim.metrics.assumptions import RELEASE
from mist_sim.models import ModelSpec
from mist_sim.models.adapters import check_adapters
from mist_sim.models.attention_backends import check_attention_backend
from mist_sim.models.expert_padding import is_padded
from mist_sim.models.generation import asked_by_model
from mist_sim.models.moe_backends import check_moe_backend, expert_format
from mist_sim.scenario.engines.defaults import largest_graph
from mist_sim.scenario.engines.links import assumed_host, check_links
from mist_sim.scenario.engines.versions import (
    ATTENTION,
    EXPERTS,
    FIRST_PATCH,
    HIDES,
    PARSES,
    SAMPLER,
    TEMPLATES,
    Hidden,
    version_of,
)

_DECODES = (1, 64)  # a step whose kernels start longer than they run, and a filled one
_CONTEXT = 1024  # tokens
_PROMPT = 2048  # tokens


def assumed_kernels(predictor: PipelinePredictor, gpu: GpuSpec) -> tuple[str, ...]:
    """Return what is assumed of the kernels of a GPU, with its effect; empty if they were timed.

    A GPU whose efficiencies were fitted or measured has the time to start kernels in them.
    """
    timed = predictor.ranks[0]
    if gpu.architecture == CDNA and gpu.confidence == "fitted":
        return (f"whole runs: {gpu.name}",)
    if gpu.confidence != "spec-only" or not isinstance(timed, RooflinePredictor):
        return ()
    is_own = gpu.architecture and figures_of_its_own(gpu)
    if gpu.kernels and not is_own and gpu.architecture != CDNA:
        return ()
    if gpu.kernels:
        steps = (*(_decoding(number) for number in _DECODES), StepBatch(((_PROMPT, 0),)))
        told = [f"{_as_others(timed, step)} {_of(step)}" for step in steps]
        return (f"kernels: {gpu.name} as {gpu.architecture}, {', '.join(told)}",)
    found = (f"{_ratios(timed, _decoding(number))} {_of(_decoding(number))}" for number in _DECODES)
    return (f"architecture: {' and '.join(found)}",)


def _decoding(number: int) -> StepBatch:
    return StepBatch((), number, number * _CONTEXT, longest_context=_CONTEXT)


def _of(step: StepBatch) -> str:
    decodes = step.num_decodes
    return f"with {in_words(decodes, 'decode')}" if decodes else f"with a prompt of {_PROMPT:,}"


def _as_others(timed: RooflinePredictor, step: StepBatch) -> str:
    """Return the time of a step if the GPU reached what other GPUs reach, as multiples.

    That is shares of its own peaks, by kernel and in all, and the latencies of links.
    """
    own, gpu = timed.step_time(step), timed.cluster.gpu
    times = {}
    for other in fitted_gpus():
        link = replace(
            gpu.interconnect,
            nccl_latency=other.interconnect.nccl_latency,
            kernel_latency=other.interconnect.kernel_latency,
        )
        like = replace(
            gpu,
            kernels=other.kernels,
            prefill=other.prefill,
            decode=other.decode,
            interconnect=link,
        )
        found = replace(timed, cluster=replace(timed.cluster, gpu=like))
        times[other.name] = found.step_time(step) / own
    low, high = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
    return f"{times[low]:.2f} ({low}) to {times[high]:.2f} ({high})"


def _ratios(timed: RooflinePredictor, batch: StepBatch) -> str:
    """Return the time of a step by each architecture's kernels, as a range of multiples."""
    own, gpu = timed.step_time(batch), timed.cluster.gpu
    of_others = [
        replace(
            timed, cluster=replace(timed.cluster, gpu=replace(gpu, kernels=kernels_of(name)))
        ).step_time(batch)
        / own
        for name in architecture_names()
    ]
    return f"{min(of_others):.2f} to {max(of_others):.2f}"


_WITHOUT_TEMPLATE = frozenset({"gpt_oss"})  # whose prompts openai_harmony writes


def own_time(
    overhead: EngineOverhead | None, predictor: PipelinePredictor, gpu: GpuSpec
) -> EngineOverhead:
    """Return the engine's own time; around kernels alone, the GPU's entry fills what is not set."""
    overhead = overhead or EngineOverhead()
    return overhead.or_else(gpu.overhead) if predictor.traits.kernels_only else overhead


def exposed(overhead: EngineOverhead, config: EngineConfig, predictor: Predictor) -> EngineOverhead:
    """Return the engine's own time with what async scheduling does not hide of it in a release.

    What a scenario says of it is taken in its place.
    """
    hidden = _hidden(config)
    is_said = any(getattr(overhead, name) is not None for name in EXPOSED)
    if is_said or not config.async_scheduling or hidden.step == math.inf:
        return overhead
    step, sequence = overhead.of_a_step(predictor)
    return replace(
        overhead,
        exposed_step=max(0.0, step - hidden.step),
        exposed_sequence=max(0.0, sequence - hidden.sequence),
    )


def _hidden(config: EngineConfig) -> Hidden:
    found: Hidden = version_of(config.engine).default(HIDES)
    return found


def between_releases(config: EngineConfig) -> tuple[str, ...]:
    """Return what is assumed of a release: what lies between two others, and its packages."""
    version = version_of(config.engine)
    told = [each for each in version.interpolated if config.async_scheduling or each != HIDES]
    found = [f"{RELEASE}{version.title}: {', '.join(told)}"] if told else []
    says_sampler = config.sampling is not None and config.sampling.sampler is not None
    if version.minor <= FIRST_PATCH and not says_sampler:
        found.append("FlashInfer as in vLLM's images (else sampling.sampler: pytorch)")
    return tuple(found)


def parse_time(config: EngineConfig, model: ModelSpec) -> float:
    """Return the seconds of an HTTP server for a request before any that waits is tokenized."""
    version = version_of(config.engine)
    has_template = model.architecture not in _WITHOUT_TEMPLATE
    seconds: float = version.default(PARSES) + version.default(TEMPLATES) * has_template
    return seconds


def assumed_times(
    overhead: EngineOverhead, predictor: PipelinePredictor, gpu: GpuSpec
) -> tuple[str, ...]:
    """Return the options that are not set and whose default is an assumption on this GPU.

    vLLM's front end is among them around kernels and layers, unless `overhead.request` is set; the
    scenario may still set it.

    overhead: with the values of the GPU's entry.
    """
    said: dict[str, float | None] = {}
    elsewhere = device_of(gpu).name != FITTED_ON
    if predictor.traits.kernels_only and elsewhere:
        said = {"overhead.step": overhead.step, "overhead.sequence": overhead.sequence}
    if predictor.traits.beyond_prompts:
        said["overhead.prefill_step"] = overhead.prefill_step
    found = tuple(name for name, seconds in said.items() if seconds is None)
    found += predictor.traits.assumed
    has_server = predictor.traits.kernels_only or predictor.traits.beyond_prompts
    return (*found, FRONT_END) if has_server and overhead.request is None else found


_CHECKS = {"moe_backend": check_moe_backend, "attention_backend": check_attention_backend}


def kernel_choice(config: EngineConfig, model: ModelSpec, cluster: Cluster) -> KernelChoice:
    """Return the back ends of an engine. Raises ScenarioError for one that does not suit it."""
    gpu, version = cluster.gpu, version_of(config.engine)
    for name, check in _CHECKS.items():
        asked = getattr(config, name)
        if asked is not None:
            try:
                check(asked, model, gpu.name, gpu.architecture)
            except ValueError as error:
                raise ScenarioError(str(error)) from None
    if gpu.architecture == CDNA:  # kernels of ROCm, of which no list of back ends tells
        return KernelChoice(config.moe_backend, config.attention_backend)
    stored = expert_format(model)
    experts = (
        version.default(f"{EXPERTS}{stored}").of(deployment_of(model, cluster)) if stored else None
    )
    attention = version.default(ATTENTION).of(model, gpu.architecture)
    experts = config.moe_backend or experts
    tuned = has_tuned_tiles(experts, model, cluster, version.minor)
    return KernelChoice(experts, config.attention_backend or attention, tuned)


def times_kernels(config: EngineConfig, model: ModelSpec, predictor: PipelinePredictor) -> bool:
    """Return whether a predictor times kernels by back end.

    Raises ScenarioError for a named back end where it does not. The kernel of MXFP4 experts counts
    all the same: it pads weights in memory.
    """
    if isinstance(predictor.ranks[0], RooflinePredictor):
        return True
    asked = [name for name in _CHECKS if getattr(config, name) is not None]
    if is_padded(model):
        asked = [name for name in asked if name != "moe_backend"]
    if asked:
        raise ScenarioError(
            f"{asked[0]} must be null with this predictor, whose times are those of the kernels "
            f"that were measured, got {getattr(config, asked[0])}; predictor: {{type: roofline}} "
            "has kernels by back end"
        )
    return False


def unlike_timed(
    config: EngineConfig,
    choice: KernelChoice,
    setting: Setting | Borrowed | None,
    model: ModelSpec,
    cluster: Cluster,
) -> Setting | Borrowed | None:
    """Return a setting, or why nothing is known of it where no such kernels were timed.

    Without figures of a back end those of the usual one hold.
    """
    if not isinstance(setting, Setting):
        return setting
    if setting.source == "roofline":
        why = choice.untimed(model, cluster)
    else:
        why = f"experts by {config.moe_backend}" if config.moe_backend else ""
    return Borrowed(f"not known: {why}") if why else setting


class Drawing(NamedTuple):
    """How tokens are sampled, and which of the sampling options are assumed."""

    sampling: Sampling
    assumed: tuple[str, ...] = ()


def drawing(config: EngineConfig, predictor: PipelinePredictor) -> Drawing:
    """Return how an engine's tokens are drawn.

    With step times of kernels only, the model's `generation_config.json` counts. Other step times
    include a sampler, or are of another kind: there only the scenario's options count. Two things
    are assumed: that a model without a known file asks for nothing, and the time of penalties in
    versions that count the tokens anew in each step.

    Source: `ModelConfig.get_diff_sampling_param` in vllm/config/model.py, since 0.7.
    Raises ScenarioError for a sampler that has nothing to do.
    """
    sampling, assumed = config.sampling or Sampling(), list[str]()
    if predictor.traits.kernels_only and sampling.generation_config == "auto":
        name = config.model if isinstance(config.model, str) else config.model.name
        said = asked_by_model(name)
        if said is None and config.sampling is None:
            assumed.append("sampling")
        sampling = sampling.or_else(said or {})
    try:
        sampling.check_sampler()
    except ValueError as error:
        raise ScenarioError(f"sampling: {error}") from None
    if sampling.penalty and not version_of(config.engine).rules.keeps_counts:
        assumed.append(f"sampling.{sampling.penalty}")
    return Drawing(sampling, tuple(assumed))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The predictor of an engine's steps, and which of its options are assumed.

    overhead: the engine's own time, which is in the predictor. drafter: of an engine that drafts
    with a model. graphs: tokens of the CUDA graphs that the engine captures. by_backend: whether
    kernels are timed by back end. assumed, assumed_host: as a client has them (`Client`).
    """

    predictor: PipelinePredictor
    overhead: EngineOverhead
    drafter: Drafter | None
    graphs: tuple[int, ...]
    by_backend: bool
    assumed: tuple[str, ...]
    assumed_host: Mapping[str, Any]


def step_times(
    config: EngineConfig, model: ModelSpec, cluster: Cluster, scheduler: Scheduler, longest: int
) -> StepTimes:
    """Return what times the steps of an engine.

    longest: tokens of a prompt, which a step of a scheduler without a limit takes whole.
    Raises ScenarioError for options that the predictor does not know.
    """
    predictor = _predictor(config, model, cluster, scheduler)
    graphs = _captured(config, predictor, cluster, scheduler)
    _check_known(config, predictor)
    by_backend = times_kernels(config, model, predictor)
    overhead = own_time(config.overhead, predictor, cluster.gpu)
    drawn, drawn_assumed = drawing(config, predictor)
    assumed = assumed_times(overhead, predictor, cluster.gpu) + drawn_assumed
    assumed += assumed_kernels(predictor, cluster.gpu)
    assumed += between_releases(config)
    num_tokens = getattr(scheduler, "max_num_batched_tokens", None) or longest
    worth = assumed_host(predictor, config, model, cluster, min(num_tokens, longest))
    if worth:
        assumed += ("host",)
    if cluster.decode_context_parallel_size > 1:
        predictor = with_context_exchange(predictor)
    if cluster.prefill_context_parallel_size > 1:
        predictor = with_shared_prompts(predictor)
    draft = None
    if config.speculative_config:
        draft = drafter(config.speculative_config, model, cluster)
        predictor = with_drafting(predictor, config.speculative_config, draft)
    if config.lora is not None:
        check_adapters(model, config.lora, cluster.tensor_parallel_size)
        times = AdapterTimes(model, cluster, config.lora)
        predictor = predictor.with_first(
            Beside(predictor.ranks[0], times.seconds, "adapters", "memory")
        )
        assumed += ("lora",)
        assumed += ("lora.storage_bandwidth",) * (config.lora.storage_bandwidth is None)
    if drawn.filter or drawn.penalty:
        sampler = version_of(config.engine).default(SAMPLER)
        _, bytes_per_s = sustained_rates(cluster.gpu, cluster.gpu.decode)
        masks = SamplingTimes(drawn, model.vocab_size, sampler, bytes_per_s)
        predictor = predictor.with_last(WithSampling(predictor.ranks[-1], masks))
    left = exposed(overhead, config, predictor.ranks[0])
    first = left.around(predictor.ranks[0], overlapped=bool(config.async_scheduling))
    timed = predictor.with_first(first)
    timed = StepTimeScale.of(config.step_time_scale).around(timed)
    return StepTimes(timed, overhead, draft, graphs, by_backend, assumed, worth)


def is_made_here(config: EngineConfig) -> bool:
    """Whether what times the steps is made for model and GPUs, and not given whole."""
    return config.predictor is None or callable(config.predictor)


def _check_known(config: EngineConfig, predictor: PipelinePredictor) -> None:
    """Raise ScenarioError for options that the predictor does not follow."""
    if config.power_limit is not None:
        if not is_made_here(config):
            raise ScenarioError("power_limit must be null with a predictor that is given whole")
        check_follows_clock(predictor)
    check_links(predictor, config)
    needs = predictor.traits.needs_scale
    if needs and config.step_time_scale is None:
        raise ScenarioError(needs)


def _predictor(
    config: EngineConfig, model: ModelSpec, cluster: Cluster, scheduler: Scheduler
) -> PipelinePredictor:
    """Return what times the model's steps: the given object, or one that is made here."""
    given: Any = config.predictor
    if given is not None and not callable(given):
        return ranks_of(cast("Predictor | PipelinePredictor", given))
    make: PredictorFactory = given or RooflinePredictor
    version = version_of(config.engine)
    most = largest_graph(version, cluster.gpu, scheduler.max_num_seqs, config.num_drafts)

    def timed(part: ModelSpec) -> Predictor:
        return with_graphs_up_to(most, make(model=part, cluster=cluster))

    try:
        return pipeline_predictor(timed, model, cluster)
    except ValueError as error:
        if config.predictor is None:
            raise
        raise ScenarioError(f"predictor: {error}") from error


def _captured(
    config: EngineConfig, predictor: PipelinePredictor, cluster: Cluster, scheduler: Scheduler
) -> tuple[int, ...]:
    """Return the tokens of the graphs that an engine captures: a roofline's, or vLLM's default."""
    timed = predictor.ranks[0]
    if isinstance(timed, RooflinePredictor):
        return timed.captured_sizes
    version = version_of(config.engine)
    most = largest_graph(version, cluster.gpu, scheduler.max_num_seqs, config.num_drafts)
    return captured(most, None).sizes


def with_graphs_up_to(size: int, predictor: Predictor) -> Predictor:
    """Return a predictor whose largest CUDA graph has so many tokens if it names no size itself."""
    if not isinstance(predictor, RooflinePredictor) or size == MOST_CAPTURED:
        return predictor
    if predictor.enforce_eager or predictor.cudagraph_capture_sizes is not None:
        return predictor
    if predictor.max_cudagraph_capture_size is not None:
        return predictor
    return replace(predictor, max_cudagraph_capture_size=size)
