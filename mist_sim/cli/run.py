"""`mist run`: simulate a scenario, print its results, and write them into a folder."""

from __future__ import annotations

import glob
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mist_sim.cli.options import Force, Out, Quiet, require_out
from mist_sim.cli.settings import overrides_of

MISSED = 3

if TYPE_CHECKING:
    from mist_sim.scenario import Scenario


def presets(incomplete: str) -> list[str]:
    """Return what a shell may complete; it adds files itself where no preset begins so.

    The package of the presets is not imported, which would take a second.
    """
    folder = Path(__file__).parents[1] / "scenario" / "presets"
    return sorted(path.stem for path in folder.glob(f"{glob.escape(incomplete)}*.yaml"))


def run(
    scenario: str | None = typer.Argument(
        None,
        metavar="SCENARIO",
        help="A YAML file, the name of a preset (mist list presets), or - for standard input; "
        "none where --from-vllm says all.",
        show_default=False,
        autocompletion=presets,
    ),
    settings: list[str] = typer.Option(
        [],
        "--set",
        metavar="KEY=VALUE",
        help="Set a value of the scenario, such as clients.0.count=8 or router=random; repeatable.",
        show_default=False,
    ),
    commands: list[str] = typer.Option(
        [],
        "--from-vllm",
        metavar="COMMAND",
        help='Replace the clients by the server of "vllm serve ...", or the workload by that of '
        '"vllm bench serve ..."; or a file that holds it.',
        show_default=False,
    ),
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

    overrides = _of_vllm(commands) | overrides_of(settings)
    if seed is not None:
        overrides["seed"] = seed
    if replications is not None:
        overrides["replications"] = replications
    if scenario is None and not commands:
        raise ScenarioError(
            "SCENARIO is required: a file, a preset (mist list presets) or -; without it, "
            "--from-vllm must say both the server and its load"
        )
    loaded = _load(scenario, overrides)
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


def _load(name: str | None, overrides: dict[str, Any]) -> Scenario:
    from mist_sim.scenario import Scenario

    if name is None:
        return Scenario.from_dict({}, overrides)
    if name != "-":
        return Scenario.load(name, overrides)
    from mist_sim.scenario.format.yaml_text import decoded

    source = "standard input"
    if sys.stdin.isatty():
        typer.echo("Reading the scenario from the terminal; end it with Ctrl-D.", err=True)
    return Scenario.from_yaml(decoded(sys.stdin.buffer.read(), source), overrides, source=source)


def _of_vllm(commands: list[str]) -> dict[str, Any]:
    """Return the keys of a scenario that vLLM's command lines say."""
    if not commands:
        return {}
    from mist_sim.cli.from_vllm import note_left_out
    from mist_sim.scenario.from_vllm.commands import from_vllm

    found = from_vllm(commands)
    note_left_out(found.left_out)
    return found.keys
