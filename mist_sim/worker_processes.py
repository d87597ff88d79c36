"""The processes of parallel runs: none imports from the working directory or outlives its parent.

A light module, because a worker process imports it before all others of ours.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import sleep

from mist_sim.interruptions import put_off

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
