"""A piece of work of a study, and the row that it gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, Self

from mist_sim.errors import MistError, ScenarioError

Key = tuple[str | int | float, ...]
"""Names a task among those of its study for people: a point, a rate, a seed."""


@dataclass(frozen=True)
class Task:
    """A call that returns plain data.

    run: a module-level function, since other processes import it. arguments: plain data, or
        dataclasses of it, so that a journal can recognise the call; the result must be JSON. Equal
        calls give equal results.
    """

    key: Key
    run: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Failure:
    """The failure of a task. kind: the name of the error's class.

    error: it, if it happened in this process or its workers.
    """

    kind: str
    message: str
    error: Exception | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, error: Exception) -> Self:
        """Return the failure that an error is."""
        return cls(type(error).__name__, str(error) or type(error).__name__, error)

    def __str__(self) -> str:
        return self.message if self.is_told else f"{self.kind}: {self.message}"

    @property
    def plain(self) -> Self:
        """It without the error, which would keep alive all that its run had."""
        return replace(self, error=None)

    @property
    def exception(self) -> Exception:
        """The error; if it happened elsewhere, one with its message."""
        return self.error or ScenarioError(str(self))

    @property
    def is_told(self) -> bool:
        """Whether the message is meant for users, with a remedy."""
        return self.kind in {cls.__name__ for cls in _all_kinds(MistError)}


@dataclass(frozen=True)
class Row:
    """The outcome of a task: a result, or a failure."""

    key: Key
    result: Any = None
    failure: Failure | None = None

    @property
    def value(self) -> Any:
        """The result. Raises the error of a task that failed."""
        if self.failure is None:
            return self.result
        raise self.failure.exception

    @property
    def plain(self) -> Self:
        """It without the error, as `Failure.plain`."""
        return replace(self, failure=self.failure and self.failure.plain)


def answer(run: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return the result of a call as JSON; NaN and infinity in Python's notation.

    Every result is converted this way, so that one read from a journal is the same.
    """
    return json.dumps(run(*arguments), default=_number)


def _number(value: Any) -> Any:
    """Return a number of NumPy's as one of Python's."""
    try:
        return value.item()
    except (AttributeError, ValueError):
        raise TypeError(f"a result must be plain data, got {type(value).__name__}") from None


def _all_kinds(cls: type[BaseException]) -> set[type[BaseException]]:
    return {cls}.union(*(_all_kinds(sub) for sub in cls.__subclasses__()))


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


def kept_busy(
    tasks: Iterable[Task],
    running: dict[Any, Task],
    most: int,
    submit: Callable[[Task], Any],
    first_done: Callable[[list[Any]], Iterable[Any]],
    answer: Callable[[Any], str | Exception],
    starting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Done]:
    """Keep workers busy with at most so many tasks, and yield those that are done.

    running: takes the tasks under way. answer: of a task; raises errors not caused by it. starting:
    around submissions.
    """
    left = iter(tasks)
    while True:
        with starting():
            for task in islice(left, most - len(running)):
                running[submit(task)] = task
        if not running:
            return
        for done in first_done(list(running)):
            yield Done(running.pop(done), answer(done))
