"""From a scenario to the objects that run it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel

from mist_sim.clients import Client, LlmClient, SequentialClient
from mist_sim.core.request import Stage
from mist_sim.errors import ScenarioError, TraceError
from mist_sim.hardware import load_gpu
from mist_sim.hardware.predictors import Predictor, pipeline_predictor
from mist_sim.metrics import Result
from mist_sim.models import ModelSpec
from mist_sim.scenario.client_schemas import LlmClientSpec, SequentialClientSpec
from mist_sim.scenario.engines.all_reduce import check_sums_over_links, with_all_reduce
from mist_sim.scenario.engines.llm_client import (
    cluster_of,
    llm_client,
    stored_as,
    with_graphs_of,
)
from mist_sim.scenario.format.problems import Location, Problem, said_by, summed_up
from mist_sim.scenario.schema import Scenario
from mist_sim.scenario.workload import WorkloadSpec
from mist_sim.simulation import Progress, Simulation
from mist_sim.stages import ToolCall
from mist_sim.traces import ARRIVALS, TraceArrivals, TraceReader, Workload


def simulate(scenario: Scenario, *, progress: Progress | None = None) -> Result:
    """Run a scenario once and return its records.

    progress: called now and then with (requests done, simulated seconds).
    Raises ScenarioError for input that cannot be simulated and for a scenario with replications
    (see `replicate`), and InvariantError for a bug.
    """
    if scenario.replications > 1:
        raise ScenarioError(
            f"replications must be 1 where one run is asked for, got {scenario.replications}; "
            "call replicate(scenario)"
        )
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
    model = stored_as(model_name, spec.quantization, spec.kv_cache.make())
    gpu = with_all_reduce(load_gpu(spec.gpu), spec.all_reduce, spec.tensor_parallel_size)
    split: dict[str, Any] = {
        "tensor_parallel_size": spec.tensor_parallel_size,
        "pipeline_parallel_size": spec.pipeline_parallel_size,
        "data_parallel_size": spec.data_parallel_size,
        "enable_expert_parallel": spec.enable_expert_parallel,
        "expert_load_imbalance": spec.expert_load_imbalance,
    }
    cluster = cluster_of(gpu, model, **split)
    if cluster.pipeline_parallel_size > 1 and "model" not in spec.predictor.needs:
        raise ScenarioError(
            "pipeline_parallel_size must be 1 with a predictor that does not look at the model, "
            f"got {cluster.pipeline_parallel_size}"
        )
    scheduler = spec.scheduler.make()

    def timed(part: ModelSpec) -> Predictor:
        return with_graphs_of(spec.predictor.make(model=part, cluster=cluster), scheduler)

    try:
        predictor = pipeline_predictor(timed, model, cluster)
    except ValueError as error:
        raise ScenarioError(f"predictor: {error}") from error
    if spec.all_reduce is not None:
        check_sums_over_links(predictor)
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
