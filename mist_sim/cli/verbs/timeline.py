"""`mist timeline`: write a run's results as a timeline that browsers draw."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

_SUMMARY_BYTES = 64 * 2**20  # more than any summary has


def timeline(
    folder: Path = typer.Argument(
        ..., metavar="DIR", help="The folder that mist run --out wrote.", show_default=False
    ),
    out: Path = typer.Option(
        Path("timeline.json"), metavar="FILE", help="Write the timeline into this file."
    ),
    start: str = typer.Option("0 s", "--from", metavar="TIME", help="Leave out what ends before."),
    end: str | None = typer.Option(
        None, "--until", metavar="TIME", help="Leave out what begins later.", show_default=False
    ),
    force: bool = typer.Option(False, "--force", help="Replace FILE if it is there."),
) -> None:
    """Write a run's requests, steps and transfers as Chrome trace events.

    Open the file at ui.perfetto.dev or chrome://tracing.
    """
    from mist_sim.cli.signals import Saved
    from mist_sim.errors import ScenarioError
    from mist_sim.inputs.tables import of_a_form
    from mist_sim.metrics.timeline import timeline as text_of
    from mist_sim.output import output_file

    first, last = _seconds(start, "--from"), _seconds(end, "--until") if end else inf
    if first >= last:
        raise ScenarioError(f"--until must be later than --from, {start}, got {end}")
    with Saved() as saved, output_file(out, replace=force) as file:
        saved.output = file
        with of_a_form(folder, "results that mist run wrote"):
            text = text_of(_tables(folder), first, last, _layouts(folder))
        file.write(text)
        typer.echo(f"{out}: open it at ui.perfetto.dev or chrome://tracing", err=True)


def _seconds(text: str, option: str) -> float:
    from mist_sim.errors import ScenarioError
    from mist_sim.units import DURATION

    try:
        return DURATION.parse(text)
    except ScenarioError as error:
        raise ScenarioError(f"{option}: {error}") from None


def _layouts(folder: Path) -> list[dict[str, Any]]:
    """Return the layouts that clients had, where any changed; without the summary, none."""
    import json

    from mist_sim.errors import ScenarioError
    from mist_sim.inputs.files import text_of

    file = folder / "summary.json"
    if not file.is_file():
        return []
    try:
        found: list[dict[str, Any]] = json.loads(text_of(file, _SUMMARY_BYTES)).get("layouts", [])
    except (ValueError, AttributeError) as error:
        raise ScenarioError(f"{file}: is no summary of a run ({error})") from None
    return found


def _tables(folder: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd
    from pyarrow import ArrowException

    from mist_sim.errors import ScenarioError, brief
    from mist_sim.metrics.timeline import TABLES

    tables = {}
    for name in TABLES:
        file = folder / f"{name}.parquet"
        if not file.is_file():
            if name == "transfers":
                continue
            raise ScenarioError(
                f"{folder}: has no {file.name}; name a folder that mist run --out wrote, "
                "without replications"
            )
        try:
            tables[name] = pd.read_parquet(file)
        except (OSError, ArrowException) as error:
            raise ScenarioError(f"{file}: cannot be read: {brief(str(error), 300)}") from None
    return tables
