"""`mist calibrate run`: fit an engine's own time to a measured run."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from mist_sim.cli.session import note

if TYPE_CHECKING:
    from mist_sim.validation import OwnTime


def calibrate_own_time(folder: Path, out: Path | None, force: bool) -> None:
    """Fit the run of a folder, print the figures and errors, and write the scenario with them.

    force: replace a file. Raises ScenarioError for what is no run, and as `fit_own_time`.
    """
    from mist_sim.cli.signals import Saved
    from mist_sim.output import output_file
    from mist_sim.report.elements.terminal import Terminal
    from mist_sim.validation import fit_own_time, read_run

    run = read_run(folder)
    with Saved() as saved, output_file(out, replace=force) if out else nullcontext() as file:
        saved.output = file
        with Terminal(stderr=True).status("fitting ..."):
            found = fit_own_time(run)
        if file is not None:
            file.write(found.scenario.resolved())
        _print(run.name, found)
        if out is not None:
            note(f"Written to {out}; next: mist run {quote(str(out))}")


def _print(name: str, found: OwnTime) -> None:
    from mist_sim.core.result_warnings import merged
    from mist_sim.report.elements.terminal import Terminal
    from mist_sim.report.elements.warned import with_warnings
    from mist_sim.report.elements.widths import listed

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
