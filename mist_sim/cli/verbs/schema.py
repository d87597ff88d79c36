"""`mist schema`: the JSON Schema of scenario files, for editors."""

from __future__ import annotations

from pathlib import Path

import typer

from mist_sim.cli.options import ReplaceFile


def schema(
    out: Path | None = typer.Option(
        None, metavar="FILE", help="Write to this file instead of the terminal."
    ),
    force: ReplaceFile = False,
) -> None:
    """Print the JSON Schema of scenario files, for editors."""
    import json

    from mist_sim.cli.signals import Saved
    from mist_sim.output import output_file
    from mist_sim.scenario.json_schema import json_schema

    text = json.dumps(json_schema(), indent=2)
    if out is None:
        typer.echo(text)
        return
    with Saved() as saved, output_file(out, replace=force) as file:
        saved.output = file
        file.write(f"{text}\n")
