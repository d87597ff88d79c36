"""Tasks in parallel processes, which end with their parent."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.registry import comes_with_package
from mist_sim.scenario.plugins import FAMILIES
from mist_sim.studies.executor import Done
from mist_sim.studies.task import Task, answer
from mist_sim.worker_processes import (
    end_with,
    set_variables,
    variables_for_workers,
    while_processes_start,
)

if TYPE_CHECKING:
    from loky import ProcessPoolExecutor

Plugins = list[tuple[str, str, type[Any]]]
"""Family, name and class of plugins that are not ours."""

_IDLE = 300  # seconds after which a worker without a task ends
_AHEAD = 2  # tasks per worker: the running one, and the next
_THREADS = ("OMP", "OPENBLAS", "MKL", "BLIS", "VECLIB", "NUMBA", "NUMEXPR")


class StoppedError(ScenarioError):
    """No more tasks of the study can be run; results so far stay in its journal."""


@dataclass(frozen=True)
class _Here:
    """Settings that a worker takes over from the process that started it.

    folder: the working directory. variables: of the environment, as they were before workers were
    started, for programs that a run starts.
    """

    folder: Path
    plugins: Plugins
    variables: Mapping[str, str | None]


@dataclass(frozen=True)
class Workers:
    """Runs tasks in worker processes, with the working directory and plugins of this one.

    num: number of processes. what: name of the work, for messages.
    """

    num: int
    what: str

    def stream(self, tasks: Iterable[Task]) -> Generator[Done, None, None]:
        """Run tasks in worker processes, which are killed if the generator is closed early."""
        with variables_for_workers() as variables:
            here = _Here(Path.cwd(), plugins_of_others(), variables)
            with while_processes_start():  # more of them, where the last study had fewer
                pool = _pool(self.num)
            has_ended = False
            try:
                yield from _stream(pool, iter(tasks), here, self.num * _AHEAD)
                has_ended = True
            except BrokenExecutor as error:
                raise StoppedError(f"{self.what}: {_why_broken(error, self.num)}") from error
            finally:
                if not has_ended:  # their results are not needed
                    pool.shutdown(kill_workers=True)


def _why_broken(error: BrokenExecutor, num: int) -> str:
    """Return why processes cannot go on. num: of the processes."""
    if "un-serialize" in str(error):  # loky's text, the only sign of this case
        return (
            "another process cannot read what makes the simulation, such as a cached function of "
            "the program that is run; move it to a module that the program imports, or take jobs=1"
        )
    return (
        f"one of {num} processes was ended from outside, perhaps for lack of memory; lower --jobs "
        "(jobs in Python)"
    )


def num_cores() -> int:
    """Return the number of cores that this process may use, such as its container's."""
    from loky import cpu_count

    return int(cpu_count())


def _pool(num: int) -> ProcessPoolExecutor:
    """Return the workers, reusing those of the last study if they are still running."""
    from loky import get_reusable_executor

    threads = str(max(num_cores() // num, 1))
    names = [f"{name}_NUM_THREADS" for name in _THREADS]
    return get_reusable_executor(
        max_workers=num,
        timeout=_IDLE,
        initializer=end_with,
        initargs=(os.getpid(),),
        env={name: os.environ.get(name, threads) for name in names},
    )


def _stream(
    pool: ProcessPoolExecutor, tasks: Iterator[Task], here: _Here, most: int
) -> Iterator[Done]:
    """Keep the workers busy with a limited number of tasks, and yield finished ones."""
    running: dict[Future[str], Task] = {}
    while True:
        with while_processes_start():
            for task in islice(tasks, most - len(running)):
                running[pool.submit(_run, task.run, task.arguments, here)] = task
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield Done(running.pop(future), _answer_of(future))


def _answer_of(future: Future[str]) -> str | Exception:
    """Return the answer of a task. Raises errors not caused by the task."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenExecutor) or not isinstance(error, Exception):
        raise error
    return error


def plugins_of_others() -> Plugins:
    """Return the plugins from outside this package, which worker processes must import as well."""
    return [
        (name, plugin, cls)
        for name, family in FAMILIES.items()
        for plugin, cls in family.registry.loaded().items()
        if not comes_with_package(cls)
    ]


def _run(run: Callable[..., Any], arguments: tuple[Any, ...], there: _Here) -> str:
    """Do a task where things are as `there`; return its answer."""
    os.chdir(there.folder)
    set_variables(there.variables)
    for family, name, cls in there.plugins:
        if name not in FAMILIES[family].registry:
            FAMILIES[family].registry.register(name)(cls)
    return answer(run, arguments)
