"""`mist timeline`: write a run's results as a timeline that browsers draw."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mist_sim.cli.options import ReplaceFile
from mist_sim.cli.session import note

if TYPE_CHECKING:
    from mist_sim.metrics.tables import RunFolder


def timeline(
    folder: Path = typer.Argument(
        ..., metavar="DIR", help="The folder that mist run --out wrote.", show_default=False
    ),
    out: Path = typer.Option(
        Path("timeline.json"), metavar="FILE", help="Write the timeline into this file."
    ),
    start: str = typer.Option(
        "0 s", "--from", metavar="TIME", help="Leave out events that end before."
    ),
    end: str | None = typer.Option(
        None,
        "--until",
        metavar="TIME",
        help="Leave out events that begin later.",
        show_default=False,
    ),
    force: ReplaceFile = False,
) -> None:
    """Write a run's requests, steps and transfers as Chrome trace events.

    Open the file at ui.perfetto.dev or chrome://tracing.
    """
    from mist_sim.cli.signals import Saved
    from mist_sim.errors import ScenarioError
    from mist_sim.inputs import of_a_form
    from mist_sim.metrics.tables import RunFolder
    from mist_sim.metrics.timeline import TABLES
    from mist_sim.metrics.timeline import timeline as text_of
    from mist_sim.output import output_file
    from mist_sim.report.elements import warning_lines

    first, last = _seconds(start, "--from"), _seconds(end, "--until") if end else inf
    if first >= last:
        raise ScenarioError(f"--until must be later than --from, {start}, got {end}")
    with Saved() as saved, output_file(out, replace=force) as file:
        saved.output = file
        with of_a_form(folder, "results that mist run wrote"):
            run = RunFolder(folder)
            tables = {name: run.table(name) for name in TABLES if _is_needed(run, name)}
            file.write(text_of(tables, run.summary, first, last))
        for line in warning_lines(run.summary):
            note(f"warning: {line}")
        note(f"{out}: open it at ui.perfetto.dev or chrome://tracing")


def _is_needed(run: RunFolder, name: str) -> bool:
    """Tell whether a table has to be read: runs without transfers have no table of them."""
    return name != "transfers" or run.has(name)


def _seconds(text: str, option: str) -> float:
    from mist_sim.errors import ScenarioError
    from mist_sim.units import DURATION

    try:
        return DURATION.parse(text)
    except ScenarioError as error:
        raise ScenarioError(f"{option}: {error}") from None
