"""From a scenario to the objects that run it: the one place that knows concrete classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from mist_sim.clients import Client, LlmClient, SequentialClient
from mist_sim.clients.admission import AdmissionControl
from mist_sim.clients.kv_cache import KvCacheConfig, cache_tiers, num_gpu_blocks
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.clients.scheduling.whole_prompts import WholePromptScheduler
from mist_sim.core.request import Stage
from mist_sim.errors import ScenarioError, TraceError
from mist_sim.hardware import Cluster, GpuSpec, load_gpu
from mist_sim.hardware.drafter import drafter
from mist_sim.hardware.predictors import (
    EngineOverhead,
    PipelinePredictor,
    Predictor,
    RooflinePredictor,
    pipeline_predictor,
    with_drafting,
)
from mist_sim.metrics import Result
from mist_sim.models import ModelSpec, load_model
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.scenario.clients import LlmClientSpec, SequentialClientSpec
from mist_sim.scenario.problems import Location, Problem, said_by, summed_up
from mist_sim.scenario.schema import Scenario
from mist_sim.scenario.workload import WorkloadSpec
from mist_sim.simulation import Progress, Simulation
from mist_sim.stages import ToolCall
from mist_sim.traces import ARRIVALS, TraceArrivals, TraceReader, Workload


def simulate(scenario: Scenario, *, progress: Progress | None = None) -> Result:
    """Run a scenario and return its records.

    progress: called now and then with (requests done, simulated seconds).
    Raises ScenarioError for input that cannot be simulated, and InvariantError for a bug.
    """
    simulation = build(scenario)
    result = simulation.run(progress)
    return replace(result, scenario=scenario.resolved())


def build(scenario: Scenario) -> Simulation:
    """Return a simulation, ready to run.

    Raises ScenarioError that lists every problem which only shows when the parts come
    together, such as a model that does not fit its GPUs; TraceError for a bad first row.
    """
    found = _Problems()
    clients: list[Client] = []
    for position, spec in enumerate(scenario.clients):
        with found.at(("clients", position), type(spec)):
            if isinstance(spec, LlmClientSpec):
                clients += _llm_clients(spec, spec.model or scenario.model or "")
            else:
                clients += _sequential_clients(spec)
    with found.at(("workload",), WorkloadSpec):
        workload = _workload(scenario.workload)
    if found.problems:
        raise summed_up(found.problems, scenario.origin)
    return Simulation(
        clients=clients,
        workload=workload,
        router=scenario.router.make(),
        seed=scenario.seed,
        slo=scenario.slo.make(),
        warmup=scenario.warmup,
    )


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
    scheduler: chunked prefill without it; an object of its own for every client.
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
    kv_cache = kv_cache or KvCacheConfig()
    spec = _stored_as(model, quantization, kv_cache)
    cluster = _cluster(
        load_gpu(gpu) if isinstance(gpu, str) else gpu,
        spec,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        expert_load_imbalance=expert_load_imbalance,
    )
    if predictor is None:
        predictor = _timed_by(lambda part: RooflinePredictor(part, cluster), spec, cluster)
    num_ranks = len(predictor.ranks) if isinstance(predictor, PipelinePredictor) else 1
    if num_ranks != pipeline_parallel_size:
        raise ScenarioError(
            f"pipeline_parallel_size must be {num_ranks}, the ranks that the predictor times, "
            f"got {pipeline_parallel_size}"
        )
    scheduler = scheduler or ChunkedScheduler()
    overhead = overhead or EngineOverhead()
    if _times_kernels(predictor):
        overhead = overhead.or_else(cluster.gpu.overhead)
    max_model_len = max_model_len or spec.max_position_embeddings
    if isinstance(scheduler, WholePromptScheduler) and scheduler.max_num_batched_tokens is None:
        # vLLM v0: a step takes as many prompt tokens as the longest prompt may have
        scheduler = replace(scheduler, max_num_batched_tokens=max_model_len)
    draft = None
    if speculative_config:
        draft = drafter(speculative_config, spec, cluster)
        predictor = with_drafting(predictor, speculative_config, draft)
    max_num_batched_tokens = getattr(scheduler, "max_num_batched_tokens", max_model_len)
    return LlmClient(
        name,
        scheduler=scheduler,
        predictor=overhead.around(predictor, overlapped=async_scheduling),
        data_parallel_size=data_parallel_size,
        lockstep=cluster.num_sharing_replicas > 1,
        num_gpu_blocks=num_gpu_blocks(
            kv_cache,
            spec,
            cluster,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=scheduler.max_num_seqs,
            drafter=draft,
        ),
        block_size=kv_cache.block_size,
        watermark=kv_cache.watermark,
        kv_groups=spec.kv_groups if spec.sliding_window else None,
        enable_prefix_caching=kv_cache.enable_prefix_caching,
        cache_tiers=cache_tiers(kv_cache, spec, cluster),
        max_model_len=max_model_len,
        request_overhead=overhead.request or 0.0,
        speculative_config=speculative_config,
        async_scheduling=async_scheduling,
        admission=admission,
    )


def _times_kernels(predictor: Predictor | PipelinePredictor) -> bool:
    """Tell whether an engine's own time comes on top of what is predicted."""
    first = predictor.ranks[0] if isinstance(predictor, PipelinePredictor) else predictor
    return bool(getattr(first, "kernels_only", False))


def _cluster(gpu: GpuSpec, model: ModelSpec, **split: Any) -> Cluster:
    """Return the GPUs that serve a model. Raises ScenarioError when it cannot be split so."""
    try:
        cluster = Cluster(gpu, **split)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    cluster.check_split(model)
    return cluster


def _timed_by(
    make: Callable[[ModelSpec], Predictor], model: ModelSpec, cluster: Cluster
) -> Predictor | PipelinePredictor:
    """Return a predictor of the model, or of its parts on the ranks of a pipeline."""
    if cluster.pipeline_parallel_size == 1:
        return make(model)
    return pipeline_predictor(make, model, cluster)


def _stored_as(
    model: str | ModelSpec, quantization: str | None, kv_cache: KvCacheConfig
) -> ModelSpec:
    """Return a model with weights and KV cache stored as an engine is told to."""
    spec = load_model(model) if isinstance(model, str) else model
    dtype = None if kv_cache.kv_cache_dtype == "auto" else kv_cache.kv_cache_dtype
    try:
        return spec.with_dtypes(weights=quantization, kv_cache=dtype)
    except ValueError as error:
        raise ScenarioError(f"quantization: {error}") from None


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """How many seconds a stage takes on one worker: `base`, and `per_token` for each token.

    Without a base, a tool call takes its own duration and other stages take nothing but their
    tokens' time. A stage without `num_tokens` counts as none.
    """

    base: float | None
    per_token: float

    def __call__(self, stage: Stage) -> float:
        """Return the duration of a stage in seconds."""
        base = self.base
        if base is None:
            base = stage.duration if isinstance(stage, ToolCall) else 0.0
        return base + self.per_token * int(getattr(stage, "num_tokens", 0))


def _llm_clients(spec: LlmClientSpec, model_name: str) -> Iterator[LlmClient]:
    """Yield the copies of a client; they share a predictor."""
    model = _stored_as(model_name, spec.quantization, spec.kv_cache.make())
    gpu = load_gpu(spec.gpu)
    split: dict[str, Any] = {
        "tensor_parallel_size": spec.tensor_parallel_size,
        "pipeline_parallel_size": spec.pipeline_parallel_size,
        "data_parallel_size": spec.data_parallel_size,
        "enable_expert_parallel": spec.enable_expert_parallel,
        "expert_load_imbalance": spec.expert_load_imbalance,
    }
    cluster = _cluster(gpu, model, **split)
    if cluster.pipeline_parallel_size > 1 and "model" not in spec.predictor.needs:
        raise ScenarioError(
            "pipeline_parallel_size must be 1 with a predictor that does not look at the model, "
            f"got {cluster.pipeline_parallel_size}"
        )
    try:
        predictor = _timed_by(
            lambda part: spec.predictor.make(model=part, cluster=cluster), model, cluster
        )
    except ValueError as error:
        raise ScenarioError(f"predictor: {error}") from error
    speculation = spec.speculative_config.make() if spec.speculative_config else None
    for name in spec.names:
        yield llm_client(
            name,
            model=model,
            gpu=gpu,
            **split,
            scheduler=spec.scheduler.make(),
            kv_cache=spec.kv_cache.make(),
            predictor=predictor,
            overhead=spec.overhead.make(),
            async_scheduling=spec.async_scheduling,
            admission=spec.admission.make(),
            max_model_len=spec.max_model_len,
            speculative_config=speculation,
        )


def _sequential_clients(spec: SequentialClientSpec) -> Iterator[SequentialClient]:
    service_time = ServiceTime(spec.base_time, spec.time_per_token or 0.0)
    for name in spec.names:
        yield SequentialClient(
            name, serves=spec.kinds, service_time=service_time, num_workers=spec.num_workers
        )


def _workload(spec: WorkloadSpec) -> Workload:
    """Return the workload, after a look at the first row of a trace.

    The look finds a file that cannot be read before anything runs.
    """
    source, arrivals = spec.source.make(), spec.arrivals.make()
    if isinstance(source, TraceReader):
        first = next(source.rows(), None)
        if isinstance(arrivals, TraceArrivals) and first and first.arrival_time is None:
            others = ", ".join(name for name in ARRIVALS if name != "trace")
            raise ScenarioError(
                f"arrivals must not be trace, since the trace has no times; choose one of {others}"
            )
    return Workload(
        source,
        arrivals,
        spec.make_pipeline(),
        spec.priorities,
        time_limits=spec.make_time_limits(),
        retries=spec.retries.make() if spec.retries else None,
    )


@dataclass(frozen=True)
class _Problems:
    """Gathers what goes wrong in several parts of a scenario."""

    problems: list[Problem] = field(default_factory=list)

    @contextmanager
    def at(self, location: Location, model: type[BaseModel]) -> Iterator[None]:
        """Note a ScenarioError raised inside as a problem there; a TraceError passes."""
        try:
            yield
        except TraceError:
            raise
        except ScenarioError as error:
            self.problems.append(said_by(error, model, location))
