"""What `run` and `demo` share: simulate, write the files, print the table."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mist_sim.metrics import Replications, Result
    from mist_sim.scenario import Scenario


def note(text: str) -> None:
    """Say something on stderr; stdout is for results."""
    typer.echo(text, err=True)


def run_and_show(scenario: Scenario, out: Path | None, *, quiet: bool = False) -> Result:
    """Simulate a scenario, write the results to `out` if given, print them, and return them.

    The folder is checked before anything runs; when something goes wrong, nothing is left in it.
    """
    from mist_sim.cli.progress import Progress
    from mist_sim.report import results_table
    from mist_sim.scenario import simulate

    with _results_folder(out) as folder:
        with Progress(scenario.workload.num_requests, visible=not quiet) as progress:
            result = simulate(scenario, progress=progress)
        if folder is not None:
            result.save(folder)
    _show(scenario, results_table(result), folder, quiet=quiet)
    return result


def replicate_and_show(
    scenario: Scenario, out: Path | None, *, jobs: int | None = None, quiet: bool = False
) -> Replications:
    """Run a scenario's replications, write the results to `out` if given, print and return them.

    The folder is treated as in `run_and_show`.
    """
    from mist_sim.cli.progress import Progress
    from mist_sim.report import replications_table
    from mist_sim.scenario import replicate

    with _results_folder(out) as folder:
        unit = "replications"
        with Progress(scenario.replications, visible=not quiet, unit=unit) as progress:
            found = replicate(scenario, jobs=jobs, progress=progress)
        if folder is not None:
            found.save(folder)
    _show(scenario, replications_table(found), folder, quiet=quiet)
    return found


def _results_folder(out: Path | None) -> AbstractContextManager[Path | None]:
    from mist_sim.cli.output import results_folder
    from mist_sim.user_paths import user_path

    return results_folder(user_path(out)) if out else nullcontext()


def _show(scenario: Scenario, table: RenderableType, folder: Path | None, *, quiet: bool) -> None:
    """Print a run's table, and say where its files are."""
    from rich.console import Console

    from mist_sim.report import headline

    console = Console(highlight=False)
    console.print(headline(scenario), style="bold", markup=False)
    console.print()
    console.print(table)
    if quiet:
        return
    if folder is None:
        note("Nothing was saved: --out DIR writes the results into a folder.")
    else:
        files = sorted(file.name for file in folder.iterdir())
        note(f"Written to {folder}: {', '.join(files)}")
