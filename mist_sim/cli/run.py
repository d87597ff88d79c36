"""`mist run`: simulate a scenario, print its results, and write them into a folder."""

from __future__ import annotations

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
    session = Session(out=out, force=force, as_json=as_json, quiet=quiet)
    if loaded.replications > 1:
        found = session.replicate(loaded, jobs)
        missed = shortcomings(found.summaries, found.slo)
    else:
        summary = session.run(loaded).summary
        missed = shortcomings([summary], summary.get("slo", {}))
    if strict and missed:
        typer.echo("\n  ".join(("missed:", *missed)), err=True)
        raise typer.Exit(MISSED)
