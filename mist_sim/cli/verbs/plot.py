"""`mist plot`: pictures of a run, of several runs, or of other findings, as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mist_sim.cli.options import Quiet, ReplaceFile, SavedResults
from mist_sim.cli.session import note

if TYPE_CHECKING:
    from mist_sim.report.pages.page import Page


def plot(
    folder: SavedResults,
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
    form: str | None = typer.Option(
        None,
        "--format",
        metavar="FORM",
        help="html, png, svg or pdf; by default as the suffix of --out says, or html.",
    ),
    out: Path | None = typer.Option(
        None, metavar="FILE", help="Write the pictures into this file; by default plots.FORM."
    ),
    force: ReplaceFile = False,
    quiet: Quiet = False,
) -> None:
    """Draw a run, several runs, or other findings into one file: HTML, PNG, SVG or PDF.

    Pictures: latency, attainment, cdf, load, queue, batch, memory, stages, requests, transfers,
    power (of a run with --tables over_time beside the others).
    """
    from mist_sim.cli.signals import Saved
    from mist_sim.errors import ScenarioError, in_words
    from mist_sim.inputs import of_a_form
    from mist_sim.output import output_file
    from mist_sim.report.pages.page import require_report
    from mist_sim.report.pictures.picture import bytes_of
    from mist_sim.report.pictures.style import require_matplotlib

    if beside and over:
        raise ScenarioError("--beside and --over draw runs in two ways; leave one out")
    form = _form(form, out)
    (require_report if form == "html" else require_matplotlib)()
    file_name = out or Path(f"plots.{form}")
    with Saved() as saved, output_file(file_name, replace=force) as file:
        saved.output = file
        with of_a_form(folder, "results that mist run wrote"):
            page = _page([folder, *(beside or over)], names or [], in_one=bool(over))
        if form == "html":
            file.write(page.html())
            told = f"{file_name}: open it in a browser"
        else:
            is_one = len(page.figures) == 1
            drawn = [
                ("" if is_one else each.title, each.figure.warned(page.told).headed(page.title))
                for each in page.figures
            ]
            file.write(bytes_of(drawn, form))
            for line in page.warnings:  # of which the pictures have the names
                note(f"warning: {line}")
            told = f"{file_name}: {in_words(len(drawn), 'picture')}"
        if not quiet:
            note(told)


def _form(asked: str | None, out: Path | None) -> str:
    """Return the form of the file: what is asked for, or what its suffix says.

    Raises ScenarioError for other forms, and where both say something else.
    """
    from mist_sim.errors import ScenarioError, brief
    from mist_sim.report.pictures.picture import FORMS

    suffix = out.suffix.removeprefix(".").lower() if out else ""
    form = asked or suffix or "html"
    known = ("html", *FORMS)
    if form not in known:
        what = f"--format must be {', '.join(known)}" if asked else f"{out}: must be a file of"
        raise ScenarioError(f"{what}, got {brief(form)}" if asked else f"{what} {', '.join(known)}")
    if asked and suffix in known and suffix != asked:
        raise ScenarioError(f"--format {asked} and the suffix of {out} differ; leave one out")
    return form


def _page(folders: list[Path], names: list[str], *, in_one: bool) -> Page:
    """Return the page of one run or study, or of several runs."""
    from mist_sim.cli.titles import title_of
    from mist_sim.errors import ScenarioError
    from mist_sim.metrics.tables import RunFolder
    from mist_sim.report.folder_page import folder_page, study_pictures
    from mist_sim.report.pages.plots_page import pictures_of, plots_page, several_page

    first = folders[0]
    if len(folders) == 1:
        if (first / "study.json").is_file():
            return study_pictures(first, title_of(first), names)
        if not (first / "summary.json").is_file():
            return pictures_of(folder_page(first, title_of(first)), names)
        return plots_page(RunFolder(first), title_of(first), names)
    runs = {str(folder): RunFolder(folder) for folder in folders}
    if len(runs) < len(folders):
        raise ScenarioError("a folder is named twice; leave one out")
    return several_page(runs, names, in_one=in_one)
