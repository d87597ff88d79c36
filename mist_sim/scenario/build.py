"""Builds the objects of a simulation from a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from mist_sim.clients import Client
from mist_sim.core.result_warnings import COMMAND_LINE, UNREAD, ResultWarning
from mist_sim.errors import ScenarioError, TraceError, brief
from mist_sim.garbage import rare_collections
from mist_sim.metrics import Result
from mist_sim.reconfiguration import Reconfigure, Search, check_reconfigure
from mist_sim.routers import PolledRouter, Router
from mist_sim.scenario.format.families import STAGE
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.format.paths import Origin
from mist_sim.scenario.format.problems import Location, Problem, said_by, summed_up
from mist_sim.scenario.loading import later_text
from mist_sim.scenario.rules import nobody_serves, served_models, unread_facts
from mist_sim.scenario.schema import Scenario
from mist_sim.scenario.sections.clients.base import ClientPart
from mist_sim.scenario.sections.whole import has_topology, made
from mist_sim.scenario.sections.workload import WorkloadSpec
from mist_sim.scenario.sliders import replay_search, without_idle_roles
from mist_sim.simulation import Progress, Run, Simulation
from mist_sim.simulation_rules import Members
from mist_sim.stages import KvRetrieval
from mist_sim.traces import ARRIVALS, NamesModels, TraceArrivals, TraceReader, Workload


def simulate(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    progress: Progress | None = None,
    events: bool = False,
) -> Result:
    """Run a scenario once and return its records.

    scenario: or what is one: the name of a preset or the path of a file (`Scenario.load`), or plain
        mappings (`Scenario.from_dict`). progress: called now and then with (requests done,
        simulated seconds). events: whether `Result.events` lists the decisions.
    Raises ScenarioError for input that cannot be simulated and for a scenario with replications
    (see `replicate`), and InvariantError for a bug.
    """
    with rare_collections():  # many clients are many objects that stay
        return start(scenario, progress=progress, events=events).run().result()


def start(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    progress: Progress | None = None,
    events: bool = False,
) -> Run:
    """Return a run of a scenario that can be stopped at a time, or taken event by event.

    Its arguments, and what it raises, are those of `simulate`.
    """
    scenario = _loaded(scenario)
    if scenario.replications > 1:
        raise ScenarioError(
            f"replications must be 1 where one run is asked for, got {scenario.replications}; "
            "call replicate(scenario)"
        )
    groups = [client.name for client in scenario.clients for _ in client.names]
    text = later_text(scenario)
    told = {"title": scenario.headline, "scenario_text": text, "client_groups": groups}
    return build(scenario).start(progress, events=events, told=told)


def _loaded(said: object) -> Scenario:
    """Return the scenario that is named, described, or given. Raises ScenarioError for others."""
    if isinstance(said, Scenario):
        return said
    if isinstance(said, str | Path):
        return Scenario.load(said)
    if isinstance(said, Mapping):
        return Scenario.from_dict(said)
    raise ScenarioError(
        "scenario must be a Scenario, the name of a preset, the path of a file or a mapping, got "
        f"{brief(said)}"
    )


def build(scenario: Scenario) -> Simulation:
    """Return a simulation, ready to run.

    Raises ScenarioError that lists every problem which shows only when the parts are put together,
    such as a model that does not fit its GPUs; TraceError for a bad first row.
    """
    return _build(without_idle_roles(scenario))


def build_workload(scenario: Scenario) -> Workload:
    """Return the workload of a scenario without building its clients.

    Raises ScenarioError as `build` does; TraceError for a bad first row.
    """
    found = _Problems(scenario.origin)
    with found.at(("workload",), WorkloadSpec):
        workload = _workload(scenario.workload, scenario.model)
    found.raise_any()
    return workload


def _build(scenario: Scenario) -> Simulation:
    """Return a simulation whose clients have the roles of the scenario."""
    found = _Problems(scenario.origin)
    clients: list[Client] = []
    for position, spec in enumerate(scenario.clients):
        with found.at(("clients", position), type(spec)):
            placed = spec.on_topology() if has_topology(scenario.network) else spec
            clients += _taking_entries(placed, scenario.workload).clients(scenario.model)
    with found.at(("workload",), WorkloadSpec):
        workload = _workload(scenario.workload, scenario.model)
        _check_rows(workload.source, scenario)
    found.raise_any()
    hand_over = scenario.hand_over.make()
    with found.at(("network",), type(scenario.network or scenario)):
        network = scenario.network.make() if scenario.network else None
        if network is not None:
            network.admit(Members(clients, any_splits=hand_over.policy is not None).tenants)
    found.raise_any()
    lives = made(scenario.lifecycle, scenario.clients) if scenario.lifecycle else None
    with found.at(("lifecycle",), type(scenario.lifecycle or scenario)):
        if lives is not None:
            lives.check(clients, network)
    changes = scenario.reconfigure.make() if scenario.reconfigure else None
    with found.at(("reconfigure",), type(scenario.reconfigure or scenario)):
        if changes is not None:
            check_reconfigure(changes, clients)
    found.raise_any()
    return Simulation(
        clients=clients,
        workload=workload,
        router=_router(scenario.router, scenario),
        routers={
            STAGE.registry[name].kind: _router(part, scenario)
            for name, part in scenario.routers.items()
        },
        seed=scenario.seed,
        slo=scenario.slo.make(),
        warmup=scenario.warmup,
        network=network,
        power=None if scenario.power is None else scenario.power.make(),
        cost=scenario.cost.make() if scenario.cost else None,
        hand_over=hand_over,
        front_end=scenario.front_end.make(),
        gateway=scenario.gateway.make() if scenario.gateway else None,
        lifecycle=lives,
        reconfigure=changes,
        search=_search(scenario) if changes is not None and changes.on_change else None,
        remarks=[
            *(ResultWarning(COMMAND_LINE, text) for text in scenario.assumptions),
            *(ResultWarning(UNREAD, text) for text in unread_facts(scenario)),
        ],
    )


def _router(part: Part, scenario: Scenario) -> Router:
    """Return the router of a part, with polled views if there is an interval."""
    router: Router = part.make()
    interval = scenario.view_interval
    if not interval:
        return router
    return PolledRouter(router=router, view_interval=interval, counts_sent=scenario.counts_sent)


def _check_rows(source: object, scenario: Scenario) -> None:
    """Raise TraceError for the first row whose model no client serves."""
    served = served_models([client.describe(scenario.model) for client in scenario.clients])
    if served is None or not isinstance(source, TraceReader):
        return
    if isinstance(source, NamesModels) and source.names_models:
        for line, model in source.models():
            if model not in served:
                text = f"names the model {brief(model)}: {nobody_serves(model, served)}"
                raise TraceError(source.path, line, text)


def _taking_entries(spec: ClientPart, workload: WorkloadSpec) -> ClientPart:
    """Return a client whose pipeline can take retrieved KV entries.

    Pipelines with one scheduler do not simulate loads of entries; those of vLLM v0 do.
    """
    is_pipeline = getattr(spec, "pipeline_parallel_size", 1) > 1
    if not is_pipeline or KvRetrieval.kind not in workload.stages:
        return spec
    return spec.model_copy(update={"virtual_engines": True, "async_scheduling": False})


def _search(scenario: Scenario) -> Search:
    """Return the search that moves sliders during a run, by the traffic of the clients."""

    def twin(reconfigure: Reconfigure) -> Simulation:
        simulation = _build(scenario.model_copy(update={"reconfigure": None}))
        simulation.reconfigure = reconfigure
        return simulation

    return replay_search(twin)


def _workload(spec: WorkloadSpec, model: str | None) -> Workload:
    """Return the workload, after reading the first row of a trace. model: the scenario's.

    This finds an unreadable file before anything runs.
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
        predictions=spec.predictions.make() if spec.predictions else None,
        retries=spec.retries.make() if spec.retries else None,
        models=spec.models,
        adapters=spec.adapters,
        max_concurrency=spec.max_concurrency,
        max_tokens=spec.max_tokens,
        images=spec.make_images(model),
    )


@dataclass(frozen=True)
class _Problems:
    """Collects problems of several parts of a scenario. origin: where it was read from."""

    origin: Origin
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

    def raise_any(self) -> None:
        """Raise a ScenarioError that lists the problems, if there are any."""
        if self.problems:
            raise summed_up(self.problems, self.origin)
