"""What `run` and `demo` share: simulate, write the files, print the table."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mist_sim.scenario import Scenario


def note(text: str) -> None:
    """Say something on stderr; stdout is for results."""
    typer.echo(text, err=True)


def run_and_show(scenario: Scenario, out: Path | None, *, quiet: bool = False) -> None:
    """Simulate a scenario, write the results to `out` if given, and print them.

    The folder is checked before anything runs; when something goes wrong, nothing is left in it.
    """
    from rich.console import Console

    from mist_sim.cli.output import results_folder
    from mist_sim.cli.progress import Progress
    from mist_sim.report import headline, results_table
    from mist_sim.scenario import simulate

    with results_folder(out) if out else nullcontext() as folder:
        with Progress(scenario.workload.num_requests, visible=not quiet) as progress:
            result = simulate(scenario, progress=progress)
        files = sorted(file.name for file in result.save(folder).iterdir()) if folder else []
    console = Console(highlight=False)
    console.print(headline(scenario), style="bold", markup=False)
    console.print()
    console.print(results_table(result))
    if quiet:
        return
    if out is None:
        note("Nothing was saved: --out DIR writes the results into a folder.")
    else:
        note(f"Written to {out}: {', '.join(files)}")
