"""Tasks on a Ray cluster (ray.io), to which this process is connected as a client."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any
from warnings import catch_warnings, simplefilter

from mist_sim.errors import ScenarioError
from mist_sim.studies.clusters.remote_task import check_versions, versions
from mist_sim.studies.task import Done, Task
from mist_sim.studies.workers import StoppedError, do, there

_AHEAD = 2  # tasks per core: the running one, and the next


class OnRay:
    """Does tasks on a Ray cluster, over one connection, however many studies.

    address: of its client server, such as ray://10.0.0.7:10001.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._is_connected = False

    def stream(self, tasks: Iterable[Task]) -> Generator[Done, None, None]:
        """Yield tasks as they are done. Raises ScenarioError where there is no such cluster."""
        ray = _package()
        if not self._is_connected:
            self._connect(ray)
            self._is_connected = True
        yield from self._done(ray, iter(tasks))

    def close(self) -> None:
        """End the connection; the next study makes another."""
        if self._is_connected:
            _package().shutdown()
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
            self._check(ray)
        except BaseException:
            ray.shutdown()
            raise

    def _check(self, ray: Any) -> None:
        try:
            found = ray.get(ray.remote(versions).remote())
        except ray.exceptions.RayError as error:
            raise ScenarioError(
                f"{self.address}: a worker cannot run mist-sim; install it there: {error}"
            ) from error
        check_versions(self.address, {"one": found})

    def _done(self, ray: Any, tasks: Iterator[Task]) -> Iterator[Done]:
        """Keep the workers busy, and yield finished tasks."""
        remote = ray.remote(max_retries=0)(do)
        taken = there({})
        most = _AHEAD * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        running: dict[Any, Task] = {}
        while True:
            for task in islice(tasks, most - len(running)):
                running[remote.remote(task.run, task.arguments, taken)] = task
            if not running:
                return
            for reference in ray.wait(list(running), num_returns=1)[0]:
                yield Done(running.pop(reference), self._answer(ray, reference))

    def _answer(self, ray: Any, reference: Any) -> str | Exception:
        """Return the answer of a task. Raises errors not caused by the task."""
        try:
            return str(ray.get(reference))
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            return cause if isinstance(cause, Exception) else error
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise StoppedError(
                f"{self.address}: a worker or the cluster was ended from outside; results so far "
                f"are kept: --resume continues"
            ) from error


def _package() -> Any:
    """Return Ray. Raises ScenarioError where it is not installed."""
    try:
        import ray
    except ImportError:
        raise ScenarioError(
            "a Ray cluster takes Ray, which is not installed: pip install 'mist-sim[ray]'"
        ) from None
    return ray
