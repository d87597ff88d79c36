"""Shared by verbs that simulate: run, write the files, print the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import typer

from mist_sim.cli.options import AsJson, Force, Out, Quiet, Resume, require_out
from mist_sim.errors import printable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mist_sim.cli.progress import Progress
    from mist_sim.errors import ScenarioError
    from mist_sim.metrics import Replications, Result
    from mist_sim.metrics.tables import Findings, UnansweredError
    from mist_sim.output import OutputFolder
    from mist_sim.scenario import Scenario


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


def _nothing(text: str) -> None:
    """Say nothing."""


def _written(problem: UnansweredError, folder: Path, names: list[str]) -> ScenarioError:
    """Return an error that also says where everything that was tried is."""
    from mist_sim.errors import ScenarioError

    return ScenarioError(f"{problem}. All that was tried is in {folder}: {', '.join(names)}")


def _usual_files(found: Findings, folder: Path) -> None:
    found.write_files(folder)


@dataclass(frozen=True, kw_only=True)
class Session:
    """The destination of a command's results.

    out: the folder to write; None: none. force: overwrite earlier results in it. as_json: print the
        summary as JSON in place of the tables. names: aiperf or sglang, whose names the JSON then
        has; empty: vLLM's. quiet: no notes and no progress bar. tables: tables of a run to write;
        None: the usual ones. resume: continue the stopped study.
    report: write a run's report beside the tables.
    """

    out: Path | None = None
    force: bool = False
    as_json: bool = False
    names: str = ""
    quiet: bool = False
    tables: Collection[str] | None = None
    resume: bool = False
    report: bool = False

    def run(self, scenario: Scenario) -> Result:
        """Simulate a scenario, write the results, print and return them.

        The folder is claimed before anything runs. If the run fails, the folder is unchanged.
        """
        from mist_sim.cli.forewarning import Forewarning
        from mist_sim.scenario import simulate

        say = _nothing if self.quiet else note
        return self._kept(
            lambda how: simulate(scenario, progress=Forewarning(scenario, how["progress"], say)),
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
        write: Callable[[Found, Path], None] = _usual_files,
    ) -> Found:
        """Do some work under a progress bar, and write its results if there is a folder for them.

        total, unit: amount of work, for the progress bar. write: writes the files.
        """
        from mist_sim.cli.progress import Progress
        from mist_sim.cli.signals import Saved
        from mist_sim.metrics.tables import UnansweredError

        with Saved() as saved:
            with self._shown_if_stopped(), self._claimed() as folder:
                saved.output = folder
                with Progress(total, visible=not self.quiet, unit=unit) as progress:
                    journal = folder.journal if folder and unit != "requests" else None
                    try:
                        found = work(How(progress=progress, journal=journal, resume=self.resume))
                    except UnansweredError as problem:
                        from mist_sim.report.elements import warning_lines

                        told = {"warnings": [each.data for each in problem.warnings]}
                        for line in warning_lines(told):
                            note(f"warning: {line}")
                        if problem.found is None or folder is None or not folder.is_new:
                            raise
                        names = folder.fill(partial(_usual_files, problem.found))
                        raise _written(problem, folder.path, names) from None
                files = folder.fill(partial(write, found)) if folder else []
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

    def _claimed(self) -> AbstractContextManager[OutputFolder | None]:
        from contextlib import nullcontext

        from mist_sim.output import output_folder

        if self.out is None:
            return nullcontext()
        return output_folder(self.out, replace=self.force, resume=self.resume)

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


def saves(*, resumes: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of results: --out, --force, --resume, --json and --quiet.

    The verb declares no such options; its parameter `session` gets the Session that they make.
    resumes: whether its work is a study, which --resume can continue.
    """
    options = {"out": Out, "force": Force, "resume": Resume, "as_json": AsJson, "quiet": Quiet}
    if not resumes:
        del options["resume"]

    def with_options(verb: Callable[..., None]) -> Callable[..., None]:
        @wraps(verb)
        def run(**given: Any) -> None:
            session = Session(**{name: given.pop(name) for name in options})
            require_out(session.force, session.out, session.resume)
            verb(session=session, **given)

        own = signature(verb, eval_str=True)
        kept = [each for each in own.parameters.values() if each.name != "session"]
        added = [
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=None if name == "out" else False,
                annotation=option,
            )
            for name, option in options.items()
        ]
        run.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        return run

    return with_options
