"""A study that is going on: tasks go to an executor, their rows into the journal and back."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from os.path import pardir, relpath
from pathlib import Path
from time import monotonic
from typing import Any, TypedDict, TypeVar, Unpack

from mist_sim.errors import ScenarioError, in_words
from mist_sim.metrics.tables import Findings
from mist_sim.studies.decided_question import named_files, plain
from mist_sim.studies.journal import Journal, journal_at
from mist_sim.studies.task import Executor, Failure, InTurn, Key, Row, Task
from mist_sim.studies.workers import Workers, num_cores

_K = TypeVar("_K")

Progress = Callable[[int], None]
"""Called with how many tasks are done."""


class How(TypedDict, total=False):
    """How the runs of a study are made; its result depends on none of it.

    jobs: runs at a time; by default one per core. progress: called with the runs done. journal: a
        file that receives the results as they come; None: none. resume: continue an existing
        journal; no run is repeated. executor: makes the runs; None: this process, or worker
        processes.
    """

    jobs: int | None
    progress: Progress | None
    journal: str | Path | None
    resume: bool
    executor: Executor | None


class OutOfTimeError(Exception):
    """The time of a study is up."""


@dataclass
class Driver:
    """Runs the tasks of a study; those in the journal are not repeated.

    what: name of the work, for messages. jobs: parallel tasks. executor: runs them; None: this
        process if jobs is 1, else worker processes. num_done: finished tasks, those of the journal
        included. deadline: of `time.monotonic`, after which no row is waited for; None: none.
    A study that is stopped asks for what it knows. so_far: returns a text; "" for none.
    partial: returns the findings of the runs that finished, or None; the interruption carries them
    as `found`.
    """

    what: str
    jobs: int
    journal: Journal | None = None
    progress: Progress | None = None
    executor: Executor | None = None
    num_done: int = 0
    deadline: float | None = None
    so_far: Callable[[], str] = str
    partial: Callable[[], Findings | None] = lambda: None

    def stream(self, tasks: Iterable[Task], *, keep_errors: bool = False) -> Iterator[Row]:
        """Yield a row per task as they finish; those of the journal first, as they come.

        keep_errors: turn a failure into a row of the journal; by default the first one is raised,
            and running tasks are ended. Raises OutOfTimeError behind the deadline.
        """
        known: deque[Row] = deque()
        self._check_time()
        with closing(self._executor_for(tasks).stream(self._missing(tasks, known))) as done:
            for task, answer in done:
                while known:
                    yield self._counted(known.popleft())
                if isinstance(answer, Exception):
                    if not keep_errors:
                        raise answer
                    row = Row(task.key, failure=Failure.of(answer))
                else:
                    row = Row(task.key, json.loads(answer))
                if self.journal is not None:
                    self.journal.add(task, row, str(answer))
                yield self._counted(row)
                self._check_time()
        while known:
            yield self._counted(known.popleft())

    def run(
        self,
        tasks: Sequence[Task],
        *,
        keep_errors: bool = False,
        rows: dict[Key, Row] | None = None,
    ) -> list[Row]:
        """Return the rows of tasks in their order; their keys must differ.

        rows: takes them as they finish.
        """
        rows = {} if rows is None else rows
        for row in self.stream(tasks, keep_errors=keep_errors):
            rows[row.key] = row
        return [rows[task.key] for task in tasks]

    def finished(self, tasks: Mapping[_K, Task]) -> dict[_K, Row]:
        """Return the rows of tasks, failed ones too; when the time is up, of those that ended."""
        rows: dict[Key, Row] = {}
        with suppress(OutOfTimeError):
            self.run([*tasks.values()], keep_errors=True, rows=rows)
        return {of: rows[task.key] for of, task in tasks.items() if task.key in rows}

    def results(self, tasks: Sequence[Task]) -> list[Any]:
        """Return the results of tasks in their order. Raises the error of a failed one."""
        return [row.value for row in self.run(tasks)]

    def _check_time(self) -> None:
        if self.deadline is not None and monotonic() > self.deadline:
            raise OutOfTimeError

    def _executor_for(self, tasks: Iterable[Task]) -> Executor:
        if self.executor is not None:
            return self.executor
        most = len(tasks) if isinstance(tasks, Sequence) else self.jobs
        num = min(self.jobs, most)
        return InTurn() if num <= 1 else Workers(num, self.what)

    def _missing(self, tasks: Iterable[Task], known: deque[Row]) -> Iterator[Task]:
        """Yield the unfinished tasks; rows of finished ones go to `known`."""
        for task in tasks:
            row = None if self.journal is None else self.journal.find(task)
            if row is None:
                yield task
            else:
                known.append(row)

    def _counted(self, row: Row) -> Row:
        self.num_done += 1
        if self.progress is not None:
            self.progress(self.num_done)
        return row


@contextmanager
def studying(
    what: str,
    subjects: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    **how: Unpack[How],
) -> Iterator[Driver]:
    """Begin a study, and close it with its journal.

    what: name of the work, such as "goodput". subjects, options: everything the results depend on,
        the subjects by name.
    Raises ScenarioError for fewer than one job, `resume` without a journal, and the journal of
    another study.
    """
    if unknown := how.keys() - How.__annotations__.keys():
        raise TypeError(f"unknown arguments: {', '.join(sorted(unknown))}; see How")
    jobs, journal, executor = how.get("jobs"), how.get("journal"), how.get("executor")
    resume = how.get("resume", False)
    if jobs is not None and jobs < 1:
        raise ScenarioError(f"jobs must be >= 1, got {jobs}")
    if journal is None and resume:
        raise ScenarioError("resume has no effect without a journal; name one")
    driver = Driver(what, jobs or num_cores(), progress=how.get("progress"), executor=executor)
    otherwise = "no results were written; --out DIR keeps finished runs"
    with ExitStack() as ending:
        if (close := getattr(executor, "close", None)) is not None:
            ending.callback(close)
        if journal is not None:
            identity = _identity(what, subjects, options or {})
            driver.journal = ending.enter_context(journal_at(journal, identity, resume=resume))
            otherwise = "no results were written"
        try:
            yield driver
        except (KeyboardInterrupt, Exception) as stop:
            if driver.journal is not None and len(driver.journal):
                stop.add_note(_kept(driver.journal))
            if isinstance(stop, KeyboardInterrupt):
                _tell(stop, driver, otherwise)
            raise


def _kept(journal: Journal) -> str:
    """Return where the finished runs of a study are that did not come to its end."""
    place = relpath(journal.path)
    place = str(journal.path) if place.startswith(pardir) else place
    return (
        f"finished runs are kept ({len(journal)}) in {place}: --resume (resume=True in Python) "
        "goes on after them"
    )


def _tell(stop: KeyboardInterrupt, driver: Driver, otherwise: str) -> None:
    """Add to an interruption what the study knows so far: its findings, and words.

    The words stand behind the place of the results.

    otherwise: where they are, unless that was added.
    """
    if not driver.num_done:
        return
    if not getattr(stop, "__notes__", ()):
        stop.add_note(otherwise)
    stop.found = driver.partial()  # type: ignore[attr-defined]
    told = driver.so_far() or "too early to tell anything"
    stop.add_note(f"stopped after {in_words(driver.num_done, 'run')}: {told}")


def _identity(what: str, subjects: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a study, as plain data."""
    from importlib.metadata import version

    data = plain(subjects)
    return {
        "study": what,
        "mist_sim": version("mist-sim"),
        "options": plain(options),
        "subjects": data,
        "files": named_files([data, plain(options)]),
    }
