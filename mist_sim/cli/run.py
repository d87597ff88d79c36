"""`mist run`: simulate a scenario, print its results, and write them into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def run(
    scenario: str = typer.Argument(
        help="A YAML file, or the name of a preset (mist list presets).", show_default=False
    ),
    settings: list[str] = typer.Option(
        [],
        "--set",
        metavar="KEY=VALUE",
        help="Set a value of the scenario, such as clients.0.count=8 or router=random; repeatable.",
        show_default=False,
    ),
    seed: int | None = typer.Option(None, help="Set the seed.", show_default=False),
    out: Path | None = typer.Option(
        None, metavar="DIR", help="Write the results into this new or empty folder."
    ),
    quiet: bool = typer.Option(
        False, "--quiet", "-q", help="Print nothing but the results and errors."
    ),
) -> None:
    """Simulate a scenario and print its results."""
    from mist_sim.cli.session import run_and_show
    from mist_sim.scenario import Scenario

    overrides = _overrides(settings)
    if seed is not None:
        overrides["seed"] = seed
    run_and_show(Scenario.load(scenario, overrides), out, quiet=quiet)


def _overrides(settings: list[str]) -> dict[str, Any]:
    """Return values by path; a value is read as YAML, as it would be in the file."""
    from mist_sim.errors import ScenarioError
    from mist_sim.scenario import yaml_text

    overrides = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        if not equals:
            raise ScenarioError(f"--set {setting}: must be KEY=VALUE, such as clients.0.count=8")
        overrides[path.strip()] = yaml_text.parse(value, f"--set {path}")
    return overrides
