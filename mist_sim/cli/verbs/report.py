"""`mist report`: one HTML file of a command's results."""

from __future__ import annotations

from pathlib import Path

import typer

from mist_sim.cli.options import Quiet, ReplaceFile, SavedResults
from mist_sim.cli.session import note


def report(
    folder: SavedResults,
    out: Path = typer.Option(
        Path("report.html"), metavar="FILE", help="Write the report into this file."
    ),
    brief: bool = typer.Option(
        False,
        "--brief",
        help="Write one sheet of A4: the question, the answer with how sure, limits, dollars a "
        "month, room, one picture, what was assumed.",
    ),
    force: ReplaceFile = False,
    quiet: Quiet = False,
) -> None:
    """Write a report as one HTML file: the verdict, pictures, tables, and the scenario."""
    from mist_sim.cli.signals import Saved
    from mist_sim.cli.titles import title_of
    from mist_sim.output import output_file
    from mist_sim.report.folder_page import folder_page
    from mist_sim.report.pages.page import require_report

    require_report()
    with Saved() as saved, output_file(out, replace=force) as file:
        saved.output = file
        page = folder_page(folder, title_of(folder))
        file.write(page.sheet() if brief else page.html())
        if not quiet:
            note(f"{out}: open it in a browser")
