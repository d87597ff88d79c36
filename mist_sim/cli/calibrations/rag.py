"""`mist calibrate rag`: time searches of vector indexes, and fit the seconds of operations."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mist_sim.cli.session import note

if TYPE_CHECKING:
    from mist_sim.calibration.rag import SearchFit


def calibrate_searches(csv: Path, measure: bool, out: Path | None, force: bool) -> None:
    """Fit the searches of a CSV, print the errors, and write the coefficients.

    measure: time searches first, and write the CSV. force: replace files.
    Raises ScenarioError for files that cannot be read or written, and where faiss is missing.
    """
    from mist_sim.calibration.rag import calibrate_rag, coefficients_text
    from mist_sim.cli.signals import Saved
    from mist_sim.output import output_file

    with Saved() as saved, output_file(out, replace=force) if out else nullcontext() as file:
        if measure:
            _measure(csv, force)
        saved.output = file
        found = calibrate_rag(csv)
        if file is not None:
            file.write(coefficients_text(found))
        _print(found)
        if out is not None:
            note(f"Written to {out}")


def _measure(csv: Path, force: bool) -> None:
    """Time searches of faiss, and write them once all are timed."""
    from mist_sim.calibration.rag import notes_of, searches_text
    from mist_sim.calibration.rag.timed_searches import faiss_version, machine_name
    from mist_sim.calibration.rag.timed_searches import measure as timed
    from mist_sim.output import output_file
    from mist_sim.report.elements.terminal import Terminal

    notes = notes_of(
        f"faiss-cpu {faiss_version()}", machine_name(), datetime.now(UTC).date().isoformat()
    )
    with output_file(csv, replace=force) as file, Terminal(stderr=True).status("") as status:
        searches = list(timed(status.update))
        file.write(searches_text(searches, notes))


def _print(found: SearchFit) -> None:
    """Print the errors by kind of index, and how cores scale."""
    from mist_sim.calibration.rag.search_fit import KINDS
    from mist_sim.report.elements.terminal import Terminal
    from mist_sim.report.elements.widths import listed

    coefficients = found.coefficients
    rows = [
        (
            kind,
            f"{found.num_fitted[kind]:,}",
            f"{found.fitted_errors[kind]:.1%}",
            f"{found.num_held_out[kind]:,}",
            f"{coefficients.errors[kind]:.1%}",
        )
        for kind in KINDS
    ]
    console = Terminal()
    titles = ("index", "searches", "median error", "held out", "median error")
    console.print(listed(titles, rows, right=range(1, 5)))
    console.print(f"cores search as (number of cores) to the {coefficients.core_exponent:.2f}")
    console.print(f"{coefficients.software}, {coefficients.machine}, {coefficients.date}")
