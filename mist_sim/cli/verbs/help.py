"""`mist help`: what the keys of a scenario file are."""

from __future__ import annotations

import typer

_SCENARIO = "scenario"


def help_(
    topic: str = typer.Argument(
        ...,
        metavar="scenario|KEY",
        help="The keys of scenario files, or one of them.",
        autocompletion=lambda incomplete: [_SCENARIO] * _SCENARIO.startswith(incomplete),
    ),
    key: str | None = typer.Argument(
        None, metavar="[KEY]", help="One key, such as router or clients.0.scheduler.max_num_seqs."
    ),
) -> None:
    """Print what the keys of scenario files are, with types and defaults; all, or one."""
    from mist_sim.cli.listings.scenario_keys import explained, page

    path = [topic] * (topic != _SCENARIO) + ([key] if key else [])
    typer.echo("\n\n".join(explained(".".join(path))) if path else page())
