"""Studies on clusters: Dask (dask.org) and Ray (ray.io) do the tasks in place of processes here.

A cluster is one that runs already, named by its address: dask://HOST:PORT or ray://HOST:PORT. Each
executor has one connection, however many studies; its workers have to compute the same as this
process.
"""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Generator, Iterable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any
from warnings import catch_warnings, simplefilter

from mist_sim.errors import ScenarioError, brief
from mist_sim.studies.task import Done, Executor, Task, kept_busy
from mist_sim.studies.workers import StoppedError, do, there

_ADDRESS = re.compile(r"(dask|ray)://([\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")
_LAST_PORT = 65_535
_PATIENCE = 10  # seconds after which a scheduler counts as unreachable
_AHEAD = 2  # tasks per thread or core: the running one, and the next
_PACKAGES = ("mist-sim", "numpy", "scipy")  # packages whose version may change a number
_NEEDS = {
    "distributed": "a Dask cluster takes dask.distributed, which is not installed: pip install "
    "'mist-sim[dask]'",
    "ray": "a Ray cluster takes Ray, which is not installed: pip install 'mist-sim[ray]'",
}


def executor_at(address: str) -> Executor:
    """Return the executor of tasks on a cluster; it connects at the first task.

    Raises ScenarioError for other addresses.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[3]) <= _LAST_PORT:
        raise ScenarioError(
            "--cluster must be dask://HOST:PORT or ray://HOST:PORT, such as dask://10.0.0.7:8786, "
            f"got {brief(address)}"
        )
    kind, host, port = match.groups()
    return OnDask(f"tcp://{host}:{port}", address) if kind == "dask" else OnRay(address)


class OnDask:
    """Runs tasks on the workers of a Dask scheduler.

    scheduler: its address, such as tcp://10.0.0.7:8786. name: its name in messages.
    """

    def __init__(self, scheduler: str, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self._client: Any = None

    def stream(self, tasks: Iterable[Task]) -> Generator[Done, None, None]:
        """Yield tasks as they are done. Raises ScenarioError where there is no such cluster."""
        distributed = _package("distributed")
        if self._client is None:
            self._client = self._connected(distributed)
        client, taken = self._client, there({})
        running: dict[Any, Task] = {}

        def answer(future: Any) -> str | Exception:
            error = future.exception()
            found = str(future.result()) if error is None else error
            future.release()
            if isinstance(error, distributed.scheduler.KilledWorker | distributed.CancelledError):
                raise StoppedError(
                    f"{self.name}: workers were ended from outside, perhaps for lack of memory; "
                    f"results so far are kept: --resume continues"
                ) from error
            if isinstance(found, str | Exception):
                return found
            raise found

        try:
            yield from kept_busy(
                tasks,
                running,
                _AHEAD * sum(client.nthreads().values()),
                lambda task: client.submit(do, task.run, task.arguments, taken, pure=False),
                lambda futures: distributed.wait(futures, return_when="FIRST_COMPLETED").done,
                answer,
            )
        except (OSError, distributed.comm.CommClosedError, distributed.CancelledError) as error:
            raise StoppedError(
                f"{self.name}: the scheduler is gone; results so far are kept: --resume continues"
            ) from error
        finally:
            if running:  # their results are not needed
                client.cancel(list(running), force=True)

    def close(self) -> None:
        """End the connection; the next study makes another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self, distributed: Any) -> Any:
        try:
            client = distributed.Client(self.scheduler, timeout=_PATIENCE)
        except (OSError, TimeoutError) as error:
            raise ScenarioError(
                f"{self.name}: no Dask scheduler answers within {_PATIENCE} s; start it with "
                "dask scheduler, and workers with dask worker HOST:PORT"
            ) from error
        try:
            self._check(client)
        except BaseException:
            client.close()
            raise
        return client

    def _check(self, client: Any) -> None:
        """Raise ScenarioError where there are no workers, or such as compute something else."""
        try:
            client.wait_for_workers(1, timeout=_PATIENCE)
        except TimeoutError:
            raise ScenarioError(
                f"{self.name}: has no workers; start some with dask worker {self.scheduler}"
            ) from None
        try:
            found = client.run(versions)
        except ImportError as error:
            raise ScenarioError(
                f"{self.name}: a worker lacks mist-sim ({error}); install it there"
            ) from error
        check_versions(self.name, found)


class OnRay:
    """Does tasks on a Ray cluster.

    address: of its client server, such as ray://10.0.0.7:10001.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._is_connected = False

    def stream(self, tasks: Iterable[Task]) -> Generator[Done, None, None]:
        """Yield tasks as they are done. Raises ScenarioError where there is no such cluster."""
        ray = _package("ray")
        if not self._is_connected:
            self._connect(ray)
            self._is_connected = True
        remote, taken = ray.remote(max_retries=0)(do), there({})

        def answer(reference: Any) -> str | Exception:
            try:
                return str(ray.get(reference))
            except ray.exceptions.RayTaskError as error:
                cause = error.cause
                return cause if isinstance(cause, Exception) else error
            except (ray.exceptions.RayError, ConnectionError) as error:
                raise StoppedError(
                    f"{self.address}: a worker or the cluster was ended from outside; results so "
                    f"far are kept: --resume continues"
                ) from error

        yield from kept_busy(
            tasks,
            {},
            _AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1),
            lambda task: remote.remote(task.run, task.arguments, taken),
            lambda references: ray.wait(references, num_returns=1)[0],
            answer,
        )

    def close(self) -> None:
        """End the connection; the next study makes another."""
        if self._is_connected:
            _package("ray").shutdown()
            self._is_connected = False

    def _connect(self, ray: Any) -> None:
        try:
            with catch_warnings():
                simplefilter("ignore")  # the message already describes their effect
                ray.init(self.address, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            raise ScenarioError(
                f"{self.address}: no Ray cluster answers; start one with ray start --head "
                "--ray-client-server-port PORT"
            ) from error
        try:
            check_versions(self.address, {"one": ray.get(ray.remote(versions).remote())})
        except BaseException as error:
            ray.shutdown()
            if isinstance(error, ray.exceptions.RayError):
                raise ScenarioError(
                    f"{self.address}: a worker cannot run mist-sim; install it there: {error}"
                ) from error
            raise


def versions() -> dict[str, str]:
    """Return the versions that determine whether two processes compute the same."""
    found = {name: version(name) for name in _PACKAGES}
    return found | {"Python": ".".join(platform.python_version_tuple()[:2])}


def check_versions(cluster: str, found: Mapping[str, Mapping[str, str]]) -> None:
    """Raise ScenarioError if a worker might compute other results. found: by its name."""
    here = versions()
    for worker, theirs in found.items():
        for name, mine in here.items():
            if theirs.get(name) != mine:
                raise ScenarioError(
                    f"{cluster}: worker {worker} has {name} {theirs.get(name, 'unknown')}, and "
                    f"here it is {mine}, so that results might differ; install the same"
                )


def _package(name: str) -> Any:
    """Return dask.distributed or Ray. Raises ScenarioError where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise ScenarioError(_NEEDS[name]) from None
