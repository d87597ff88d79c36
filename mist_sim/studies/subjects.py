"""Subjects of a study, a scenario or a function that makes a simulation, and their seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np

from mist_sim.errors import ScenarioError, brief
from mist_sim.metrics import Result
from mist_sim.rng import Streams
from mist_sim.scenario import Scenario, build
from mist_sim.scenario.loading import as_data
from mist_sim.simulation import Simulation
from mist_sim.studies.built import Rates
from mist_sim.studies.task import Task
from mist_sim.studies.varied_gpus import varied

Factory = Callable[..., Simulation]
"""Makes a new simulation of a seed and of what is varied; see `study`."""

Subject = Scenario | Factory

Figures = Callable[[Result], Mapping[str, Any]]
"""Returns figures of one's own of a run, by name."""

Seeds = int | Sequence[int] | None


def subject_at(subject: Subject, values: Mapping[str, Any], rate: float | None) -> Subject:
    """Return a subject at a point: a scenario with its values, a function as it is.

    rate: of a scenario, requests per second; None: its own.
    Raises ScenarioError for a point that cannot be.
    """
    if isinstance(subject, Scenario):
        scenario = varied(subject, values) if values else subject
        if rate is None:
            return scenario
        return Scenario.from_dict(as_data(scenario), Rates(scenario).at(rate))
    return subject


def tasks_of(
    subject: Subject,
    values: Mapping[str, Any] | None = None,
    seeds: Seeds = None,
    figures: Figures | None = None,
) -> list[Task]:
    """Return the runs of a subject at a point, one a seed; keys are the seeds.

    subject: as `subject_at` returns it. values: arguments of a function.
    """
    if isinstance(subject, Scenario):
        mine = _seeds(seeds, subject.seed, subject.replications)
        data = as_data(subject)
        return [Task((seed,), run_scenario, (data, seed, figures)) for seed in mine]
    return [
        Task((seed,), run_factory, (subject, dict(values or {}), seed, figures))
        for seed in _seeds(seeds, 0, 1)
    ]


def check_scenarios(given: Iterable[object]) -> None:
    """Raise ScenarioError unless the subject is a scenario, where functions are not allowed."""
    for each in given:
        if isinstance(each, str | Path):
            raise ScenarioError(
                f"scenario must be a Scenario, got {brief(each)}; Scenario.load(...) reads one"
            )
        if not isinstance(each, Scenario):
            raise ScenarioError(
                f"scenario must be a Scenario, got {_told(each)}; a function that returns a new "
                "Simulation each time runs in study(function, vary=..., seeds=10)"
            )


def check_subject(subject: object, keys: Sequence[str], *, has_rates: bool = False) -> None:
    """Raise ScenarioError for an invalid subject. keys: the varied keys."""
    if isinstance(subject, Scenario):
        return
    if isinstance(subject, str | Path):
        check_scenarios([subject])
    if isinstance(subject, Simulation) or not callable(subject):
        raise ScenarioError(
            "subject must be a Scenario, or a function that returns a new Simulation each time, "
            f"got {brief(subject)}"
        )
    if has_rates:
        raise ScenarioError(
            "rates must be left out where a function makes the simulation; give it an argument for "
            f"the rate, and vary that: study({_name(subject)}, vary={{'rate': [...]}})"
        )
    parameters = _parameters(subject)
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    unknown = [key for key in keys if key not in parameters and not takes_all]
    if unknown:
        raise ScenarioError(
            f"vary {unknown[0]}: must be an argument of {_name(subject)}, which takes "
            f"{', '.join(parameters) or 'none'}"
        )


def run_scenario(data: dict[str, Any], seed: int, figures: Figures | None) -> dict[str, Any]:
    """Run a scenario, given as plain mappings, once with a seed; return summary and figures."""
    return _figures_of(build(one_run(data, seed)).run(), figures)


def one_run(
    data: Mapping[str, Any], seed: int, changes: Mapping[str, Any] | None = None
) -> Scenario:
    """Return a scenario, given as plain mappings, with changes, for one run with a seed."""
    return Scenario.from_dict(data, {**(changes or {}), "seed": seed, "replications": 1})


def run_factory(
    factory: Factory, values: Mapping[str, Any], seed: int, figures: Figures | None
) -> dict[str, Any]:
    """Make and run a function's simulation once with a seed; return summary and figures."""
    arguments = dict(values)
    if "seed" in _parameters(factory):
        arguments.setdefault("seed", seed)
    simulation = factory(**arguments)
    if not isinstance(simulation, Simulation):
        raise ScenarioError(f"{_name(factory)} must return a Simulation, got {brief(simulation)}")
    simulation.streams = Streams(seed)
    return _figures_of(simulation.run(), figures)


def _figures_of(result: Result, figures: Figures | None) -> dict[str, Any]:
    return result.summary | (dict(figures(result)) if figures is not None else {})


def _seeds(seeds: Seeds, first: int, count: int) -> tuple[int, ...]:
    if seeds is None or isinstance(seeds, int):
        num = count if seeds is None else seeds
        if num < 1:
            raise ScenarioError(f"seeds must be >= 1, or a list of seeds, got {num}")
        return seeds_from(first, num)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ScenarioError(f"seeds must be one or more that differ, got {brief(seeds)}")
    return tuple(seeds)


def _parameters(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    return signature(function).parameters


def _told(value: object) -> str:
    is_function = callable(value) and not isinstance(value, Simulation)
    return f"the function {_name(value)}" if is_function else brief(value)


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


_STREAM = 7  # the children of streams have keys of three numbers (mist_sim.rng)


def seeds_from(seed: int, count: int) -> tuple[int, ...]:
    """Return `count` seeds: the given one, and others drawn from it.

    Other seeds give others, and a longer list begins like a shorter one. They fit into 63 bits.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(_STREAM,))
    drawn = sequence.generate_state(count - 1, np.uint64)
    return (seed, *(int(value >> np.uint64(1)) for value in drawn))
