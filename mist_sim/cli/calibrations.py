"""Kinds of measurements of `mist calibrate` that have a form of their own."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from mist_sim.cli.session import note

if TYPE_CHECKING:
    from mist_sim.calibration.rag import SearchFit
    from mist_sim.validation.own_time import OwnTime


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
        _print_searches(found)
        if out is not None:
            note(f"Written to {out}")


def _measure(csv: Path, force: bool) -> None:
    """Time searches of faiss, and write them once all are timed."""
    from mist_sim.calibration.rag import faiss_version, machine_name, notes_of, searches_text
    from mist_sim.calibration.rag import measure as timed
    from mist_sim.output import output_file
    from mist_sim.report.elements import Terminal

    notes = notes_of(
        f"faiss-cpu {faiss_version()}", machine_name(), datetime.now(UTC).date().isoformat()
    )
    with output_file(csv, replace=force) as file, Terminal(stderr=True).status("") as status:
        searches = list(timed(status.update))
        file.write(searches_text(searches, notes))


def _print_searches(found: SearchFit) -> None:
    """Print the errors by kind of index, and how cores scale."""
    from mist_sim.calibration.rag import KINDS
    from mist_sim.report.elements import Terminal, listed

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


def calibrate_own_time(folder: Path, out: Path | None, force: bool) -> None:
    """Fit the run of a folder, print the figures and errors, and write the scenario with them.

    force: replace a file. Raises ScenarioError for what is no run, and as `fit_own_time`.
    """
    from mist_sim.cli.signals import Saved
    from mist_sim.output import output_file
    from mist_sim.report.elements import Terminal
    from mist_sim.validation.own_time import fit_own_time
    from mist_sim.validation.runs import read_run

    run = read_run(folder)
    with Saved() as saved, output_file(out, replace=force) if out else nullcontext() as file:
        saved.output = file
        with Terminal(stderr=True).status("fitting ..."):
            found = fit_own_time(run)
        if file is not None:
            file.write(found.scenario.resolved())
        _print_own_time(run.name, found)
        if out is not None:
            note(f"Written to {out}; next: mist run {quote(str(out))}")


def _print_own_time(name: str, found: OwnTime) -> None:
    from mist_sim.core.result_warnings import merged
    from mist_sim.report.elements import Terminal, listed, with_warnings

    console = Terminal()
    console.print(name, style="bold")
    figures = [(f"overhead.{key}", _time(value)) for key, value in found.seconds.items()]
    console.print(listed(("own time", "fitted"), figures, right=[1]))
    console.print()
    errors = [
        (metric.upper(), *("-" if error is None else f"{error:.1%}" for error in row))
        for metric, row in found.errors.items()
    ]
    titles = ("mean error of a request", "before", "fitted", "held out")
    told = {"warnings": [each.data for each in merged(found.warnings)]}
    console.print(with_warnings(told, listed(titles, errors, right=range(1, 4))))
    ttft, tpot = found.lone
    later = "" if tpot is None else f", then {_time(tpot)} a token"
    console.print(f"\nA request that is alone: first token after {_time(ttft)}{later}")
    words = " ".join(f"--set {key}='{value}'" for key, value in _rounded(found).items())
    console.print(f"In another scenario: {words}", soft_wrap=True)
    for remark in found.notes:
        note(f"note: {remark}")


def _rounded(found: OwnTime) -> dict[str, str]:
    return {
        f"{place}.{key}": _time(value)
        for place in dict.fromkeys(where.rpartition(".")[0] for where in found.overrides)
        for key, value in found.seconds.items()
    }


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"
