"""`mist plot`: pictures of a run, of several runs, or of a study, as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mist_sim.cli.session import note

if TYPE_CHECKING:
    from mist_sim.report.pages.page import Page


def plot(
    folder: Path = typer.Argument(
        ..., metavar="DIR", help="The folder that mist run --out wrote.", show_default=False
    ),
    names: list[str] = typer.Argument(
        None,
        metavar="[PICTURE]...",
        help="The pictures to draw, or a panel of one, such as latency.ttft; by default, all that "
        "the run has. Of a study: numbers of its summaries, such as p99_ttft_ms.",
    ),
    beside: list[Path] = typer.Option(
        [], metavar="DIR", help="Draw this run beside the first one; repeatable."
    ),
    over: list[Path] = typer.Option(
        [], metavar="DIR", help="Draw this run in the axes of the first one; repeatable."
    ),
    form: str = typer.Option(
        "html",
        "--format",
        metavar="FORM",
        help="html, pdf, svg or png; the latter two of one picture.",
    ),
    out: Path | None = typer.Option(
        None, metavar="FILE", help="Write the pictures into this file; by default plots.FORM."
    ),
    force: bool = typer.Option(False, "--force", help="Replace FILE if it exists."),
) -> None:
    """Draw a run, several runs, or a study into one file.

    Pictures: latency, attainment, cdf, load, queue, batch, memory, stages, requests, transfers,
    power (of a run with --tables over_time beside the others).
    """
    from mist_sim.cli.signals import Saved
    from mist_sim.errors import ScenarioError, brief, in_words
    from mist_sim.inputs.tables import of_a_form
    from mist_sim.output import output_file
    from mist_sim.report.pages.page import require_report
    from mist_sim.report.pictures.printed import FORMATS, printed_bytes, require_matplotlib

    if form not in ("html", *FORMATS):
        raise ScenarioError(f"--format must be html, {', '.join(FORMATS)}, got {brief(form)}")
    if beside and over:
        raise ScenarioError("--beside and --over draw runs in two ways; leave one out")
    require_report()
    if form != "html":
        require_matplotlib()
    file_name = out or Path(f"plots.{form}")
    with Saved() as saved, output_file(file_name, replace=force) as file:
        saved.output = file
        with of_a_form(folder, "results that mist run wrote"):
            page = _page([folder, *(beside or over)], names or [], in_one=bool(over))
        if form == "html":
            file.write(page.html())
        else:
            file.write(printed_bytes([each.figure for each in page.figures], form))
            for line in page.warnings:  # for which these formats have no place
                note(f"warning: {line}")
        opened = (
            "open it in a browser" if form == "html" else in_words(len(page.figures), "picture")
        )
        note(f"{file_name}: {opened}")


def _page(folders: list[Path], names: list[str], *, in_one: bool) -> Page:
    """Return the page of one run or study, or of several runs."""
    from mist_sim.cli.titles import title_of
    from mist_sim.errors import ScenarioError
    from mist_sim.metrics.tables.run_folder import RunFolder
    from mist_sim.report.pages.folder_page import study_pictures
    from mist_sim.report.pages.plots_page import plots_page, several_page

    first = folders[0]
    if len(folders) == 1:
        if (first / "study.json").is_file():
            return study_pictures(first, title_of(first), names)
        return plots_page(RunFolder(first), title_of(first), names)
    runs = {str(folder): RunFolder(folder) for folder in folders}
    if len(runs) < len(folders):
        raise ScenarioError("a folder is named twice; leave one out")
    return several_page(runs, names, in_one=in_one)
