"""Step times of an engine: a predictor, the engine's own time around it, and drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from mist_sim.clients import EngineConfig
from mist_sim.clients.engine_options import PredictorFactory
from mist_sim.clients.scheduling import Scheduler
from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster
from mist_sim.hardware.drafter import Drafter, drafter
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
from mist_sim.hardware.predictors.analytic.context_parallel import with_context_exchange
from mist_sim.hardware.predictors.analytic.cuda_graphs import MOST_CAPTURED, captured
from mist_sim.hardware.predictors.analytic.shared_prompts import with_shared_prompts
from mist_sim.hardware.predictors.base import sustained_rates
from mist_sim.hardware.predictors.beside import Beside
from mist_sim.hardware.predictors.ranks import ranks_of
from mist_sim.hardware.predictors.sampling import with_sampling
from mist_sim.hardware.predictors.scaled import StepTimeScale
from mist_sim.hardware.sampling import SamplingTimes
from mist_sim.models import ModelSpec
from mist_sim.models.adapters import check_adapters
from mist_sim.scenario.engines.all_reduce import check_sums_over_links
from mist_sim.scenario.engines.assumed_kernels import assumed_kernels
from mist_sim.scenario.engines.default_overhead import (
    assumed_times,
    between_releases,
    exposed,
    hides_host,
    own_time,
)
from mist_sim.scenario.engines.engine_hosts import assumed_host, check_times_links
from mist_sim.scenario.engines.engine_kernels import times_kernels
from mist_sim.scenario.engines.engine_version import SAMPLER
from mist_sim.scenario.engines.sampling import drawing
from mist_sim.scenario.engines.version_defaults import largest_graph
from mist_sim.scenario.engines.version_names import version_of


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
        predictor = predictor.with_first(Beside(predictor.ranks[0], times, "adapters", "memory"))
        assumed += ("lora",)
    if drawn.filter or drawn.penalty:
        sampler = version_of(config.engine).default(SAMPLER)
        _, bytes_per_s = sustained_rates(cluster.gpu, cluster.gpu.decode)
        masks = SamplingTimes(drawn, model.vocab_size, sampler, bytes_per_s)
        predictor = with_sampling(predictor, masks)
    left = exposed(overhead, config, predictor.ranks[0])
    first = left.around(predictor.ranks[0], overlapped=hides_host(config))
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
    if config.all_reduce is not None:
        check_sums_over_links(predictor)
    check_times_links(predictor, config)
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
