"""`mist report`, `plot` and `timeline`: pages, pictures and a timeline of saved results."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from mist_sim.cli.session import note, saving, warn
from mist_sim.cli.values import quantity
from mist_sim.errors import MistError, ScenarioError, brief, in_words, printable
from mist_sim.units import DURATION

if TYPE_CHECKING:
    from mist_sim.report.pages.page import Page


def report(
    folder: Path,
    *,
    out: Path = Path("report.html"),
    brief: bool = False,
    replace: bool = False,
    quiet: bool = False,
) -> None:
    """Write a report as one HTML file: the verdict, pictures, tables, and the scenario.

    out FILE: Write the report into this file.
    brief: Write one sheet of A4: the question, the answer with how sure, limits, dollars a month,
        room, one picture, what was assumed.
    """
    from mist_sim.report.pages.page import require_report
    from mist_sim.report.presenters import folder_page

    require_report()
    with saving(out, replace=replace) as file:
        page = folder_page(folder, _title(folder))
        file.write(page.sheet() if brief else page.html())
        if not quiet:
            note(f"{out}: open it in a browser")


def plot(
    folder: Path,
    names: Sequence[str] = (),
    *,
    beside: Sequence[Path] = (),
    over: Sequence[Path] = (),
    form: str | None = None,
    out: Path | None = None,
    replace: bool = False,
    quiet: bool = False,
) -> None:
    """Draw a run, several runs, or other findings into one file: HTML, PNG, SVG or PDF.

    Pictures: latency, attainment, cdf, load, queue, batch, memory, stages, requests, transfers,
    power (of a run with --tables over_time beside the others).

    names [PICTURE]...: The pictures to draw, or a panel of one, such as latency.ttft; by default,
        all that the run has. Of a study: numbers of its summaries, such as p99_ttft_ms.
    beside DIR: Draw this run beside the first one; repeatable.
    over DIR: Draw this run in the axes of the first one; repeatable.
    form --format FORM: html, png, svg or pdf; by default as the suffix of --out says, or html.
    out FILE: Write the pictures into this file; by default plots.FORM.
    """
    from mist_sim.inputs import of_a_form
    from mist_sim.report.pages.page import require_report
    from mist_sim.report.pictures.picture import bytes_of
    from mist_sim.report.pictures.style import require_matplotlib

    if beside and over:
        raise ScenarioError("--beside and --over draw runs in two ways; leave one out")
    form = _form(form, out)
    (require_report if form == "html" else require_matplotlib)()
    file_name = out or Path(f"plots.{form}")
    with saving(file_name, replace=replace) as file:
        with of_a_form(folder, "results that mist run wrote"):
            page = _page([folder, *(beside or over)], names, in_one=bool(over))
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


def _page(folders: list[Path], names: Sequence[str], *, in_one: bool) -> Page:
    """Return the page of one run or study, or of several runs."""
    from mist_sim.metrics.tables import RunFolder
    from mist_sim.report.pages.run_page import plots_page, several_page
    from mist_sim.report.presenters import folder_page, study_pictures

    first = folders[0]
    if len(folders) == 1:
        if (first / "study.json").is_file():
            return study_pictures(first, _title(first), names)
        if not (first / "summary.json").is_file():
            return folder_page(first, _title(first)).only(names)
        return plots_page(RunFolder(first), _title(first), names)
    runs = {str(folder): RunFolder(folder) for folder in folders}
    if len(runs) < len(folders):
        raise ScenarioError("a folder is named twice; leave one out")
    return several_page(runs, names, in_one=in_one)


def _title(folder: Path) -> str:
    """Return a one-line title of a simulation; the folder's name if no scenario gives one.

    That of a study leaves out what is varied.
    """
    from mist_sim.scenario import Scenario

    file = folder / "scenario.resolved.yaml"
    name = printable(folder.resolve().name)
    if not file.is_file():
        return name
    try:
        scenario = Scenario.load(file, allow_programs=False)
        lines = scenario.headline_without(_varied(folder / "study.json")).splitlines()
    except MistError:  # its trace is elsewhere now, or it is of another version, or damaged
        return name
    return lines[1] if len(lines) > 1 else name  # the first says which file it came from


def _varied(study: Path) -> set[str]:
    """Return the keys that a study varies; none for a folder without one."""
    from mist_sim.inputs import object_in, of_a_form
    from mist_sim.report.presenters import MOST_BYTES

    if not study.is_file():
        return set()
    with of_a_form(study, "results that mist wrote"):
        points = object_in(study, MOST_BYTES)["points"]
        return {key for point in points for key in point["values"]}


def timeline(
    folder: Path,
    *,
    out: Path = Path("timeline.json"),
    start: str = "0 s",
    until: str | None = None,
    replace: bool = False,
) -> None:
    """Write a run's requests, steps, transfers and events as Chrome trace events.

    Open the file at ui.perfetto.dev or chrome://tracing.

    folder DIR: The folder that mist run --out wrote.
    out FILE: Write the timeline into this file.
    start --from TIME: Leave out events that end before.
    until TIME: Leave out events that begin later.
    """
    from mist_sim.inputs import of_a_form
    from mist_sim.metrics.tables import RunFolder
    from mist_sim.metrics.timeline import OPTIONAL, TABLES
    from mist_sim.metrics.timeline import timeline as text_of

    first = quantity(start, DURATION, "--from")
    last = quantity(until, DURATION, "--until") if until else inf
    if first >= last:
        raise ScenarioError(f"--until must be later than --from, {start}, got {until}")
    with saving(out, replace=replace) as file:
        with of_a_form(folder, "results that mist run wrote"):
            run = RunFolder(folder)
            needed = [name for name in TABLES if name not in OPTIONAL or run.has(name)]
            tables = {name: run.table(name) for name in needed}
            file.write(text_of(tables, run.summary, first, last))
        warn(run.summary)
        note(f"{out}: open it at ui.perfetto.dev or chrome://tracing")
