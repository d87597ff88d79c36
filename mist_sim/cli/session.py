"""What verbs that simulate share: run, write the files, print the table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mist_sim.metrics import Replications, Result
    from mist_sim.metrics.findings import Findings
    from mist_sim.output.folders import OutputFolder
    from mist_sim.scenario import Scenario


Found = TypeVar("Found", bound="Findings")


def note(text: str) -> None:
    """Say something on stderr; stdout is for results."""
    typer.echo(text, err=True)


@dataclass(frozen=True, kw_only=True)
class Session:
    """What becomes of the results of a command.

    out: the folder to write; None: none. force: earlier results in it make room. as_json: print
    the summary as JSON in place of the tables. quiet: no notes and no progress bar. tables: those
    of a run that are written; None: the usual ones.
    """

    out: Path | None = None
    force: bool = False
    as_json: bool = False
    quiet: bool = False
    tables: Collection[str] | None = None

    def run(self, scenario: Scenario) -> Result:
        """Simulate a scenario, write the results, print and return them.

        The folder is claimed before anything runs; when something goes wrong, it stays as it was.
        """
        from mist_sim.cli.progress import Progress
        from mist_sim.scenario import simulate

        with self._claimed() as folder:
            with Progress(scenario.workload.num_requests, visible=not self.quiet) as progress:
                result = simulate(scenario, progress=progress)
            write = partial(result.write_files, tables=self.tables)
            files = folder.fill(write) if folder else []
        self._show(result, files)
        return result

    def replicate(self, scenario: Scenario, jobs: int | None = None) -> Replications:
        """Run a scenario's replications; their results are treated as in `run`."""
        from mist_sim.cli.progress import Progress
        from mist_sim.scenario import replicate

        with self._claimed() as folder:
            total, unit = scenario.replications, "replications"
            with Progress(total, visible=not self.quiet, unit=unit) as progress:
                found = replicate(scenario, jobs=jobs, progress=progress)
            files = folder.fill(found.write_files) if folder else []
        self._show(found, files)
        return found

    def search(self, work: Callable[[Callable[[int], None]], Found]) -> Found:
        """Do what takes many runs; its results are treated as in `run`.

        work: is called with what it has to tell how many runs are done.
        """
        from mist_sim.cli.progress import Progress

        with self._claimed() as folder:
            with Progress(None, visible=not self.quiet, unit="runs") as progress:
                found = work(progress)
            files = folder.fill(found.write_files) if folder else []
        self._show(found, files)
        return found

    def _claimed(self) -> AbstractContextManager[OutputFolder | None]:
        from contextlib import nullcontext

        from mist_sim.output import output_folder

        return output_folder(self.out, replace=self.force) if self.out else nullcontext()

    def _show(self, result: Findings, files: list[str]) -> None:
        """Print what came out of a run, and say where its files are."""
        from mist_sim.cli.signals import saved
        from mist_sim.user_paths import user_path

        folder = user_path(self.out) if self.out else None
        with saved(folder):
            if self.as_json:
                from mist_sim.output.texts import json_text

                typer.echo(json_text(result.summary), nl=False)
            else:
                result.show()
        if folder is not None and not self.quiet:
            note(f"Written to {folder}: {', '.join(files)}")
        elif not self.quiet and not self.as_json:
            note("Nothing was saved: --out DIR writes the results into a folder.")
