"""A run whose requests are alone, for a search that finds no rate."""

from __future__ import annotations

from mist_sim.scenario.loading import as_data
from mist_sim.search.binding.relaxed_runs import relaxed_run
from mist_sim.search.verdicts.request_times import Target
from mist_sim.studies.built import Built
from mist_sim.studies.rates import Rates
from mist_sim.studies.task import Key, Task

_ALONE = 2.0**-20  # times the scenario's own rate
_NUMBER = 200  # requests, where the workload may have any number


def lone_run(key: Key, built: Built, target: Target, *, as_is: bool) -> Task:
    """Return the run that tells, as a task of a study. as_is: with all requests of the workload."""
    rates = Rates(built.scenario, built)
    rate = rates.own * _ALONE
    arguments = as_data(built.scenario), rates.at(rate), built.scenario.seed, rate, target
    return Task(key, relaxed_run, (*arguments, None, 0.0, None if as_is else _NUMBER))
