"""Shared by verbs that simulate: run, write the files, print the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar

import typer

from mist_sim.cli.signals import Saved
from mist_sim.errors import ScenarioError, printable

if TYPE_CHECKING:
    from mist_sim.cli.progress import Progress
    from mist_sim.metrics import Replications, Result
    from mist_sim.metrics.tables import Findings
    from mist_sim.output import OutputFile, OutputFolder
    from mist_sim.scenario import Scenario
    from mist_sim.studies.task import Executor


REPORT = "report.html"
Found = TypeVar("Found", bound="Findings")


class How(TypedDict):
    """Arguments that a study takes from a command: see `replicate`."""

    progress: Progress
    journal: Path | None
    resume: bool


def note(text: str) -> None:
    """Say something on stderr; stdout is for results. Lines hold printable characters only."""
    typer.echo("\n".join(map(printable, text.split("\n"))), err=True)


@contextmanager
def saving(out: Path, *, replace: bool) -> Iterator[OutputFile]:
    """Claim a file for what a command writes. replace: `--force`."""
    from mist_sim.output import output_file

    with Saved() as saved, output_file(out, replace=replace) as file:
        saved.output = file
        yield file


def warn(summary: Mapping[str, Any]) -> None:
    """Say the warnings of findings on stderr. summary: `Findings.summary`."""
    from mist_sim.report.elements import warning_lines

    for line in warning_lines(summary):
        note(f"warning: {line}")


def executor_of(cluster: str | None, jobs: int | None) -> Executor | None:
    """Return the executor of a study on a cluster; None: local processes.

    Raises ScenarioError for an invalid address, and together with --jobs.
    """
    from mist_sim.studies.clusters import executor_at

    if cluster is None:
        return None
    if jobs is not None:
        raise ScenarioError("--jobs has no effect with --cluster; its workers decide; leave it out")
    return executor_at(cluster)


@dataclass(frozen=True, kw_only=True)
class Session:
    """The destination of a command's results.

    out: the folder to write; None: none. force: overwrite earlier results in it. as_json: print the
        summary as JSON in place of the tables. names: aiperf or sglang, whose names the JSON then
        has; empty: vLLM's. quiet: no notes and no progress bar. tables: tables of a run to write;
        None: the usual ones. events: keep a run's events. resume: continue the stopped study.
    report: write a run's report beside the tables.
    Raises ScenarioError for force and resume without out.
    """

    options: ClassVar[Sequence[str]] = ("out", "force", "resume", "as_json", "quiet")
    """Fields that are options of a verb with a parameter of this type."""

    out: Path | None = None
    force: bool = False
    as_json: bool = False
    names: str = ""
    quiet: bool = False
    tables: Collection[str] | None = None
    events: bool = False
    resume: bool = False
    report: bool = False

    def __post_init__(self) -> None:
        for name, is_given in (("--force", self.force), ("--resume", self.resume)):
            if is_given and self.out is None:
                raise ScenarioError(f"{name} has no effect without --out; give --out too")

    def run(self, scenario: Scenario) -> Result:
        """Simulate a scenario, write the results, print and return them.

        The folder is claimed before anything runs. If the run fails, the folder is unchanged.
        """
        from mist_sim.scenario import simulate

        say = note if not self.quiet else lambda text: None
        return self._kept(
            lambda how: simulate(
                scenario,
                progress=Forewarning(scenario, how["progress"], say),
                events=self.events,
            ),
            total=scenario.workload.num_requests,
            write=self._write_run,
        )

    def replicate(self, scenario: Scenario, jobs: int | None = None) -> Replications:
        """Run a scenario's replications; their results are treated as in `run`."""
        from mist_sim.studies import replicate

        return self._kept(
            lambda how: replicate(scenario, jobs=jobs, **how),
            total=scenario.replications,
            unit="replications",
        )

    def search(self, work: Callable[[How], Found], total: int | None = None) -> Found:
        """Run work of many runs; its results are handled as in `run`.

        work: called with the study's arguments. total: number of runs; None if unknown.
        """
        return self._kept(work, total=total, unit="runs")

    def note_undrawn(self, picture: str) -> None:
        """Note that the folder lacks a picture, where the library that draws it is missing."""
        from mist_sim.report.pictures.style import can_draw, not_drawn

        if self.out is not None and not self.quiet and not can_draw():
            note(not_drawn(picture))

    def _kept(
        self,
        work: Callable[[How], Found],
        *,
        total: int | None = None,
        unit: str = "requests",
        write: Callable[[Found, Path], None] | None = None,
    ) -> Found:
        """Do some work under a progress bar, and write its results if there is a folder for them.

        total, unit: amount of work, for the progress bar. write: writes files other than the usual.
        """
        from mist_sim.cli.progress import Progress
        from mist_sim.metrics.tables import UnansweredError
        from mist_sim.output import output_folder

        with Saved() as saved:
            claimed: AbstractContextManager[OutputFolder | None] = nullcontext()
            if self.out is not None:
                claimed = output_folder(self.out, replace=self.force, resume=self.resume)
            with self._shown_if_stopped(), claimed as folder:
                saved.output = folder
                with Progress(total, visible=not self.quiet, unit=unit) as progress:
                    journal = folder.journal if folder and unit != "requests" else None
                    try:
                        found = work(How(progress=progress, journal=journal, resume=self.resume))
                    except UnansweredError as problem:
                        warn({"warnings": [each.data for each in problem.warnings]})
                        if problem.found is None or folder is None or not folder.is_new:
                            raise
                        names = folder.fill(problem.found.write_files)
                        tried = f"All that was tried is in {folder.path}: {', '.join(names)}"
                        raise ScenarioError(f"{problem}. {tried}") from None
                fill = partial(write, found) if write else found.write_files
                files = folder.fill(fill) if folder else []
            self._show(found, files)
        return found

    @contextmanager
    def _shown_if_stopped(self) -> Iterator[None]:
        """Print what a study found before it was stopped inside."""
        try:
            yield
        except KeyboardInterrupt as stop:
            found = getattr(stop, "found", None)
            if found is not None:
                self._print(found)
            raise

    def _write_run(self, result: Result, folder: Path) -> None:
        from mist_sim.output import write_text

        result.write_files(folder, self.tables)
        if self.report:
            write_text(folder / REPORT, result.presenter.report(result))

    def _show(self, result: Findings, files: list[str]) -> None:
        """Print the results of a run, and the place of its files."""
        from mist_sim.user_paths import user_path

        folder = user_path(self.out) if self.out else None
        self._print(result)
        if folder is not None and not self.quiet:
            note(f"Written to {folder}: {', '.join(files)}")
        elif not self.quiet and not self.as_json:
            note("Nothing was saved: --out DIR writes the results into a folder.")

    def _print(self, result: Findings) -> None:
        """Print results as tables, or as JSON."""
        if self.as_json:
            from mist_sim.metrics.other_names import NAMES
            from mist_sim.output import json_text

            summary = NAMES[self.names](result.summary) if self.names else result.summary
            typer.echo(json_text(summary), nl=False)
        else:
            result.show()


class Once(Session):
    """Of a command that is no study, which `--resume` could not continue."""

    options = ("out", "force", "as_json", "quiet")


PATIENCE = 10.0  # seconds of a run before it is worth a look


class Forewarning:
    """Passes progress on; after ten seconds of a run, warns of a proved overload.

    Shorter runs end before a note would help, and pay nothing for it.
    """

    def __init__(
        self,
        scenario: Scenario,
        progress: Callable[[int, float], None],
        note: Callable[[str], None],
    ) -> None:
        self._scenario = scenario
        self._progress = progress
        self._note = note
        self._due: float | None = monotonic() + PATIENCE

    def __call__(self, num_done: int, sim_seconds: float) -> None:
        """Take note of how far the run is."""
        if self._due is not None and monotonic() >= self._due:
            self._due = None
            if text := overload(self._scenario):
                self._note(text)
        self._progress(num_done, sim_seconds)


def overload(scenario: Scenario) -> str:
    """Return a warning if a scenario is provably overloaded; else ""."""
    from mist_sim.search.planning.bounds import proved_load

    load = proved_load(scenario)
    if load is None or load.arriving <= load.most:
        return ""
    return (
        f"workload.arrivals: {load.arriving:.3g} requests a second arrive, and the engines are "
        f"proved to serve at most {load.most:.3g}: queues grow until the last has come, or "
        "requests are given up. `mist goodput` finds the rate that they keep."
    )
