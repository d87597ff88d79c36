"""`mist run`: simulate a scenario, print its results, and write them into a folder."""

from __future__ import annotations

from pathlib import Path

import typer

from mist_sim.cli.options import Force, Out, Quiet, require_out
from mist_sim.cli.scenario_input import (
    FromVllm,
    ScenarioName,
    Settings,
    keys_of,
    load,
    require_scenario,
)

MISSED = 3


def run(
    scenario: ScenarioName = None,
    settings: Settings = [],  # noqa: B006 - typer makes a new list
    commands: FromVllm = [],  # noqa: B006
    seed: int | None = typer.Option(None, help="Set the seed.", show_default=False),
    replications: int | None = typer.Option(
        None,
        metavar="N",
        help="Run so often, with seeds of their own: means and confidence intervals.",
    ),
    jobs: int | None = typer.Option(
        None, metavar="N", help="Replications that run at a time; one a core without it."
    ),
    out: Out = None,
    force: Force = False,
    as_json: bool = typer.Option(
        False, "--json", help="Print the summary as JSON in place of the tables."
    ),
    tables: str | None = typer.Option(
        None,
        metavar="NAMES",
        help="Write these tables into DIR in place of the usual ones, such as requests,over_time; "
        "or none.",
        show_default=False,
    ),
    strict: bool = typer.Option(
        False,
        "--strict",
        help="End with 3 when no request finishes, the run is unstable, or a limit is missed.",
    ),
    quiet: Quiet = False,
) -> None:
    """Simulate a scenario and print its results."""
    from mist_sim.cli.session import Session
    from mist_sim.errors import ScenarioError
    from mist_sim.report import shortcomings

    require_scenario(scenario, commands)
    overrides = keys_of(commands, settings)
    if seed is not None:
        overrides["seed"] = seed
    if replications is not None:
        overrides["replications"] = replications
    loaded = load(scenario, overrides)
    require_out(force, out)
    if jobs is not None and loaded.replications == 1:
        raise ScenarioError("--jobs has no effect on one run; give --replications too")
    wanted = None if tables is None else _tables(tables, out, loaded.replications)
    session = Session(out=out, force=force, as_json=as_json, quiet=quiet, tables=wanted)
    if loaded.replications > 1:
        found = session.replicate(loaded, jobs)
        missed = shortcomings(found.summaries, found.slo)
    else:
        summary = session.run(loaded).summary
        missed = shortcomings([summary], summary.get("slo", {}))
    if strict and missed:
        typer.echo("\n  ".join(("missed:", *missed)), err=True)
        raise typer.Exit(MISSED)


def _tables(names: str, out: Path | None, replications: int) -> list[str]:
    """Return the tables that are to be written."""
    from mist_sim.errors import ScenarioError
    from mist_sim.metrics.result import check_tables

    if out is None:
        raise ScenarioError("--tables has no effect without --out, the folder for them")
    if replications > 1:
        raise ScenarioError("--tables has no effect on replications, which write one table")
    found = [name.strip() for name in names.split(",")]
    if found == ["none"]:
        return []
    try:
        check_tables(found)
    except ScenarioError as error:
        raise ScenarioError(f"--{error}") from None
    return list(dict.fromkeys(found))
