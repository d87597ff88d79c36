"""`mist plot`: pictures of a run as one HTML file."""

from __future__ import annotations

from pathlib import Path

import typer


def plot(
    folder: Path = typer.Argument(
        ..., metavar="DIR", help="The folder that mist run --out wrote.", show_default=False
    ),
    names: list[str] = typer.Argument(
        None, metavar="[PICTURE]...", help="Which pictures; all that the run has without any."
    ),
    out: Path = typer.Option(
        Path("plots.html"), metavar="FILE", help="Write the pictures into this file."
    ),
    force: bool = typer.Option(False, "--force", help="Replace FILE if it is there."),
) -> None:
    """Draw a run into one HTML file.

    Pictures: latency, attainment, cdf, load, queue, batch, memory, stages, requests, transfers,
    power (of a run with --tables over_time beside the others).
    """
    from mist_sim.cli.signals import Saved
    from mist_sim.cli.titles import title_of
    from mist_sim.inputs.tables import of_a_form
    from mist_sim.metrics.tables.run_folder import RunFolder
    from mist_sim.output import output_file
    from mist_sim.report.pages.page import require_report
    from mist_sim.report.pages.plots_page import plots_page

    require_report()
    with Saved() as saved, output_file(out, replace=force) as file:
        saved.output = file
        with of_a_form(folder, "results that mist run wrote"):
            page = plots_page(RunFolder(folder), title_of(folder), names or [])
        file.write(page.html())
        typer.echo(f"{out}: open it in a browser", err=True)
