"""Executors of a study's tasks: this process, its workers, or another package's."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import NamedTuple, Protocol

from mist_sim.studies.task import Task, answer


class Done(NamedTuple):
    """A task that was done. answer: its result as JSON text, or the error that it raised."""

    task: Task
    answer: str | Exception


class Executor(Protocol):
    """Does tasks, several at a time.

    To run a study somewhere else, such as on a cluster, write a class with this method. One that
    holds a connection may have a method `close`, too, which is called when the study ends.
    """

    def stream(self, tasks: Iterable[Task]) -> Generator[Done, None, None]:
        """Yield tasks as they finish, in any order; each is run by `studies.task.answer`.

        tasks: taken one by one, few more than can run at a time. An exception in a task becomes its
            answer. Closing the generator early ends running tasks.
        Raises StoppedError if no more tasks can be run.
        """


class InTurn:
    """Does one task after the other, in this process."""

    def stream(self, tasks: Iterable[Task]) -> Generator[Done, None, None]:
        """Run tasks one after the other in this process."""
        for task in tasks:
            try:
                found: str | Exception = answer(task.run, task.arguments)
            except Exception as error:  # noqa: BLE001 - a failing point is a row
                found = error
            yield Done(task, found)
