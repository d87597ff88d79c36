"""`mist demo`: simulate the bundled workload, as a first example of the output."""

from __future__ import annotations

from pathlib import Path

import typer

from mist_sim.cli.options import Quiet

_FOLDER = "mist-demo"


def demo(
    out: Path | None = typer.Option(
        None,
        metavar="DIR",
        help=f"Write the results into this new or empty folder; by default {_FOLDER}.",
    ),
    force: bool = typer.Option(
        False, "--force", help="Replace earlier results in the folder; other files stay."
    ),
    quiet: Quiet = False,
) -> None:
    """Simulate a bundled workload on two GPUs: a first look."""
    from mist_sim.cli.session import REPORT, Session, note
    from mist_sim.report.pages.page import MISSING, can_report
    from mist_sim.scenario import Scenario

    folder = out or (Path(_FOLDER) if force else _free_folder())
    if out is None and folder.name != _FOLDER and not quiet:
        note(f"{_FOLDER} is taken; the results go to {folder}")
    # the working directory may have a file of that name, whose programs must not run
    scenario = Scenario.load("demo", allow_programs=False)
    has_report = can_report()
    Session(out=folder, force=force, quiet=quiet, report=has_report).run(scenario)
    if not quiet:
        note(f"Open {folder / REPORT} in a browser" if has_report else MISSING)
        note("Next, more load: mist run demo --set workload.arrivals.rate='40 /s'")


def _free_folder() -> Path:
    """Return the first of mist-demo, mist-demo-2, ... that is new or empty, and not in use."""
    from mist_sim.output import is_free

    folder, number = Path(_FOLDER), 1
    while not is_free(folder):
        number += 1
        folder = Path(f"{_FOLDER}-{number}")
    return folder
