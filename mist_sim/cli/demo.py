"""`mist demo`: simulate the bundled workload, to see what the tool gives."""

from __future__ import annotations

from pathlib import Path

import typer

_FOLDER = "mist-demo"


def demo(
    out: Path | None = typer.Option(
        None,
        metavar="DIR",
        help=f"Write the results into this new or empty folder; {_FOLDER} without it.",
    ),
) -> None:
    """Simulate a bundled workload on two GPUs: a first look, in seconds."""
    from mist_sim.cli.session import note, run_and_show
    from mist_sim.scenario import Scenario

    folder = out or _free_folder()
    if out is None and folder.name != _FOLDER:
        note(f"{_FOLDER} holds files already; the results go to {folder}")
    run_and_show(Scenario.load("demo"), folder)
    note("Next, a third GPU: mist run demo --set clients.0.count=3")


def _free_folder() -> Path:
    """Return the first of mist-demo, mist-demo-2, ... that is missing or empty."""
    folder, number = Path(_FOLDER), 1
    while folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        number += 1
        folder = Path(f"{_FOLDER}-{number}")
    return folder
