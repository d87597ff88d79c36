"""Tasks on a running Dask cluster (dask.org): scheduler and workers."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.studies.clusters.remote_task import check_versions, versions
from mist_sim.studies.task import Done, Task
from mist_sim.studies.workers import StoppedError, There, do, there

_PATIENCE = 10  # seconds after which a scheduler counts as unreachable
_AHEAD = 2  # tasks per thread: the running one, and the next
_NO_PACKAGE = (
    "a Dask cluster takes dask.distributed, which is not installed: pip install 'mist-sim[dask]'"
)


class OnDask:
    """Runs tasks on the workers of a Dask scheduler, over one connection for all studies.

    scheduler: its address, such as tcp://10.0.0.7:8786. name: its name in messages.
    """

    def __init__(self, scheduler: str, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self._client: Any = None

    def stream(self, tasks: Iterable[Task]) -> Generator[Done, None, None]:
        """Yield tasks as they are done. Raises ScenarioError where there is no such cluster."""
        distributed = _package()
        if self._client is None:
            self._client = self._connected(distributed)
        client = self._client
        futures: dict[Any, Task] = {}
        try:
            yield from self._done(distributed, client, iter(tasks), futures)
        except (OSError, distributed.comm.CommClosedError, distributed.CancelledError) as error:
            raise StoppedError(
                f"{self.name}: the scheduler is gone; results so far are kept: --resume continues"
            ) from error
        finally:
            if futures:  # their results are not needed
                client.cancel(list(futures), force=True)

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

    def _done(
        self, distributed: Any, client: Any, tasks: Iterator[Task], futures: dict[Any, Task]
    ) -> Iterator[Done]:
        """Keep the workers busy, and yield finished tasks."""
        taken = there({})
        most = _AHEAD * sum(client.nthreads().values())
        while True:
            for task in islice(tasks, most - len(futures)):
                futures[_submit(client, task, taken)] = task
            if not futures:
                return
            for future in distributed.wait(list(futures), return_when="FIRST_COMPLETED").done:
                task = futures.pop(future)
                yield Done(task, self._answer(distributed, future))
                future.release()

    def _answer(self, distributed: Any, future: Any) -> str | Exception:
        """Return the answer of a task. Raises errors not caused by the task."""
        error = future.exception()
        if error is None:
            return str(future.result())
        if isinstance(error, distributed.scheduler.KilledWorker | distributed.CancelledError):
            raise StoppedError(
                f"{self.name}: workers were ended from outside, perhaps for lack of memory; "
                f"results so far are kept: --resume continues"
            ) from error
        if not isinstance(error, Exception):
            raise error
        return error


def _submit(client: Any, task: Task, taken: There) -> Any:
    return client.submit(do, task.run, task.arguments, taken, pure=False)


def _package() -> Any:
    """Return dask.distributed. Raises ScenarioError where it is not installed."""
    try:
        import distributed
    except ImportError:
        raise ScenarioError(_NO_PACKAGE) from None
    return distributed
