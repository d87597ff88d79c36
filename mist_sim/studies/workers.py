"""Tasks in parallel processes, which end with their parent.

The processes of parallel runs: none imports from the working directory or outlives its parent.

A light module, because a worker process imports it before all others of ours.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

from mist_sim.errors import ScenarioError
from mist_sim.interruptions import put_off
from mist_sim.registry import comes_with_package
from mist_sim.scenario.plugins import FAMILIES
from mist_sim.studies.task import Done, Task, answer, kept_busy

if TYPE_CHECKING:
    from loky import ProcessPoolExecutor


_LOOK = 0.5  # seconds between two looks
_QUIET = "ignore:resource_tracker:UserWarning"
_before: list[Mapping[str, str | None]] = []
"""The setting to go back to, once for each run under way: a stopped one may be closed late."""


@contextmanager
def variables_for_workers() -> Iterator[Mapping[str, str | None]]:
    """Set the start-up file of Python processes started inside; yield the previous setting.

    Python puts the working directory in front of the path of a process that runs a module, as
    workers and the processes that clean up after them do, so that a `numpy.py` there would be
    executed: they start in safe-path mode. Workers get the path of this process later. Clean-up
    processes warn of files that an ending parent has removed already; ignore that.
    """
    setting: Mapping[str, str | None]
    if not _before:
        warnings = os.environ.get("PYTHONWARNINGS")
        wanted = {
            "PYTHONSAFEPATH": "1",
            "PYTHONWARNINGS": f"{warnings},{_QUIET}" if warnings else _QUIET,
        }
        setting = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
    else:
        setting = _before[0]
    _before.append(setting)
    try:
        yield setting
    finally:
        _before.remove(setting)
        if not _before:
            set_variables(setting)


def set_variables(values: Mapping[str, str | None]) -> None:
    """Set variables of the environment; None removes one."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def while_processes_start() -> Iterator[None]:
    """Delay Ctrl-C, SIGHUP and SIGTERM: signals that arrive inside are handled on leaving.

    An exception in the middle would leave processes that no code knows of, and this process would
    wait for them. A terminal sends the first two signals to all processes at once. A worker would
    print where Ctrl-C met it, and loky's clean-up process would die before the
    others. So the children get neither signal, and their parent ends them in order.
    """
    with put_off(), _terminal_blocked():
        yield


@contextmanager
def _terminal_blocked() -> Iterator[None]:
    """Block signals from the terminal, in processes started inside, for their whole life."""
    if sys.platform == "win32":  # has no masks
        yield
    else:
        from multiprocessing import resource_tracker

        both = [signal.SIGINT, signal.SIGHUP]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, both)
        try:
            resource_tracker.ensure_running()  # which would let Ctrl-C through when it starts later
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with(parent: int) -> None:
    """End this process soon after its parent ends, even if the parent is killed or already dead.

    A worker calls it first. Does nothing on Windows, which cannot tell.
    parent: id of a process. Results computed since are lost; no process could receive them.
    """
    if sys.platform != "win32":
        if os.getppid() != parent:
            os._exit(1)
        threading.Thread(target=_wait_for_the_end_of, args=(parent,), daemon=True).start()


def _wait_for_the_end_of(parent: int) -> None:
    while os.getppid() == parent:
        sleep(_LOOK)
    os._exit(1)


Plugins = list[tuple[str, str, type[Any]]]
"""Family, name and class of plugins that are not ours."""

_IDLE = 300  # seconds after which a worker without a task ends
_AHEAD = 2  # tasks per worker: the running one, and the next
_THREADS = ("OMP", "OPENBLAS", "MKL", "BLIS", "VECLIB", "NUMBA", "NUMEXPR")


class StoppedError(ScenarioError):
    """No more tasks of the study can be run; results so far stay in its journal."""


@dataclass(frozen=True)
class There:
    """Settings that a worker takes over from the process that started it.

    folder: the working directory, if it exists there; a file that a scenario names must exist there
    under the same path. variables: of the environment, as they were before workers were started,
    for programs that a run starts.
    """

    folder: str
    plugins: Plugins
    variables: Mapping[str, str | None]


def there(variables: Mapping[str, str | None]) -> There:
    """Return this process's settings for workers."""
    return There(str(Path.cwd()), plugins_of_others(), variables)


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
            here = there(variables)
            with while_processes_start():  # more of them, where the last study had fewer
                pool = _pool(self.num)
            has_ended = False
            try:
                yield from kept_busy(
                    tasks,
                    {},
                    self.num * _AHEAD,
                    lambda task: pool.submit(do, task.run, task.arguments, here),
                    lambda futures: wait(futures, return_when=FIRST_COMPLETED).done,
                    _answer_of,
                    while_processes_start,
                )
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


def do(run: Callable[..., Any], arguments: tuple[Any, ...], taken: There) -> str:
    """Do a task on a worker; return its answer."""
    if Path(taken.folder).is_dir():
        os.chdir(taken.folder)
    set_variables(taken.variables)
    for family, name, cls in taken.plugins:
        if name not in FAMILIES[family].registry:
            FAMILIES[family].registry.register(name)(cls)
    return answer(run, arguments)
