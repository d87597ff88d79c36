"""`mist help`: what the keys of a scenario file are."""

from __future__ import annotations

from enum import StrEnum

import typer


class Topic(StrEnum):
    """What `mist help` knows."""

    SCENARIO = "scenario"


def help_(
    topic: Topic = typer.Argument(..., metavar="scenario", help="The keys of scenario files."),
    key: str | None = typer.Argument(
        None, metavar="[KEY]", help="One key, such as router or clients.0.scheduler.max_num_seqs."
    ),
) -> None:
    """Print what the keys of scenario files are, with types and defaults; all, or one."""
    from mist_sim.cli.listings.scenario_keys import explained, page

    typer.echo(page() if key is None else "\n\n".join(explained(key)))
