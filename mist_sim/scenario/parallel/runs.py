"""Independent runs in parallel processes, which end with the one that started them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, TypeVar

from mist_sim.errors import ScenarioError
from mist_sim.scenario.parallel.worker_processes import end_with, starting_quietly
from mist_sim.scenario.plugins import FAMILIES

Found = TypeVar("Found")

Plugins = list[tuple[str, str, type[Any]]]
"""Family, name and class of plugins that are not ours."""


def each_in_parallel(
    run: Callable[..., Found],
    arguments: Sequence[tuple[Any, ...]],
    *,
    what: str,
    jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Found]:
    """Return what `run` returns for each of some arguments, in their order.

    run: a function of a module, since other processes import it; they have the working directory
    and the plugins of this one. what: what is run, for messages. jobs: processes at a time, by
    default one a core; one runs here. progress: called with how many are done.
    Raises ScenarioError for fewer than one job, and where a process is ended from outside.
    """
    from joblib import Parallel, cpu_count, delayed

    if jobs is not None and jobs < 1:
        raise ScenarioError(f"jobs must be >= 1, got {jobs}")
    folder, plugins = Path.cwd(), _plugins_of_others()
    num_jobs = min(jobs or cpu_count(), len(arguments))  # cores that a container may use
    parallel = Parallel(n_jobs=num_jobs, return_as="generator_unordered")
    tasks = [
        delayed(_run)(number, run, given, folder, plugins, os.getpid())
        for number, given in enumerate(arguments)
    ]
    found: dict[int, Found] = {}
    runs = None
    try:
        with starting_quietly():
            runs = parallel(tasks)
        for number, result in runs:
            found[number] = result
            if progress is not None:
                progress(len(found))
    except BrokenExecutor as error:
        raise ScenarioError(
            f"{what}: one of {num_jobs} processes was ended from outside, perhaps for lack "
            "of memory; lower --jobs (jobs in Python)"
        ) from error
    except BaseException as error:
        if runs is not None:
            runs.throw(error)  # an interruption ends the processes, too: nobody waits for them
        raise
    return [found[number] for number in range(len(arguments))]


def _plugins_of_others() -> Plugins:
    return [
        (name, plugin, cls)
        for name, family in FAMILIES.items()
        for plugin, cls in family.registry.items()
        if not cls.__module__.startswith("mist_sim.")
    ]


def _run(
    number: int,
    run: Callable[..., Found],
    given: tuple[Any, ...],
    folder: Path,
    plugins: Plugins,
    parent: int,
) -> tuple[int, Found]:
    """Run one of them, maybe in a child of `parent`; return its number and what it returns."""
    end_with(parent)
    os.chdir(folder)
    for family, name, cls in plugins:
        if name not in FAMILIES[family].registry:
            FAMILIES[family].registry.register(name)(cls)
    return number, run(*given)
