"""`mist validate`: measured runs of real engines beside simulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mist_sim.cli.scenario_input import AllowPrograms

if TYPE_CHECKING:
    from mist_sim.validation import MeasuredRun

_MEASUREMENTS = Path("../shared/measurements")


def validate(
    folders: list[Path] = typer.Argument(
        None, metavar="RUN_FOLDER", help="Folders with a run.yaml; else the published runs."
    ),
    measurements: Path = typer.Option(
        _MEASUREMENTS, metavar="DIR", help="Where the published measurements lie."
    ),
    allow_programs: AllowPrograms = False,
) -> None:
    """Simulate measured runs, and print both with the errors."""
    from mist_sim.validation import known_runs, read_run

    runs = [read_run(folder, allow_programs=allow_programs) for folder in folders or ()]
    runs = runs or known_runs(measurements)
    for run in runs:
        _show(run)


def _show(run: MeasuredRun) -> None:
    from rich.console import Console
    from rich.padding import Padding

    from mist_sim.report.elements.layout import listed

    out = Console()
    if run.missing:
        out.print(run.name, style="bold", highlight=False, markup=False)
        out.print(f"  skipped: needs {run.missing}\n", highlight=False, markup=False)
        return
    titles = ("", "measured", "simulated", "error", "mean |error|", "median")
    rows = [
        (
            f"{row.metric}, {row.unit}" if row.unit else row.metric,
            _number(row.measured),
            _number(row.simulated),
            f"{100 * row.error:+.1f} %",
            *("" if size is None else f"{100 * size:.1f} %" for size in (row.spread, row.middle)),
        )
        for row in run.rows()
    ]
    table = listed(titles, rows, right=range(1, 6))
    out.print(run.name, style="bold", highlight=False, markup=False)
    fitted = f"; fitted: {run.fitted}" if run.fitted else ""
    out.print(f"{run.engine}; {run.provenance}{fitted}", style="dim", highlight=False, markup=False)
    out.print(Padding(table, (0, 0, 1, 2), expand=False))


def _number(value: float | None) -> str:
    if value is None:
        return "median"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
