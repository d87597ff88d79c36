"""`mist fit`: learn step times from measured steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mist_sim.cli.options import ReplaceFile
from mist_sim.cli.session import note

if TYPE_CHECKING:
    from mist_sim.calibration.regression import Regression


def fit(
    measurements: Path = typer.Argument(
        metavar="MEASUREMENTS",
        help="A file of measured steps, as mist profile writes it, or Splitwise's CSV file.",
        show_default=False,
    ),
    out: Path = typer.Option(..., metavar="FILE", help="Write the regression into this JSON file."),
    form: str = typer.Option("steps", "--format", help="The file's form: steps or splitwise."),
    subset: str = typer.Option(
        "", help="MODEL/HARDWARE of a Splitwise file, such as llama2-70b/h100-80gb."
    ),
    model: str = typer.Option("", help="The model measured, if the file does not name it."),
    gpu: str = typer.Option("", help="The GPU measured, if the file does not name it."),
    tensor_parallel_size: int = typer.Option(
        0, help="The ranks measured, if the file does not give them.", show_default=False
    ),
    force: ReplaceFile = False,
) -> None:
    """Learn step times from measured steps.

    Writes an ensemble of regressors as plain numbers, and prints how far points were off that the
    ensemble had not seen.
    """
    from mist_sim.calibration.regression import fit_file
    from mist_sim.cli.signals import Saved
    from mist_sim.output import output_file
    from mist_sim.report.elements import Terminal, listed

    console = Terminal()
    with Saved() as saved, output_file(out, replace=force) as file:
        saved.output = file
        with console.status("learning ..."):
            found = fit_file(
                measurements,
                form=form,
                subset=subset,
                model=model,
                gpu=gpu,
                tensor_parallel_size=tensor_parallel_size,
            )
        file.write(found.text)
        titles = ("points held out", "number", "mean error", "median error")
        console.print(listed(titles, list(_errors(found)), right=range(1, 4)))
        for remark in found.content["remarks"]:
            note(f"note: {remark}")
        note(f"Written to {out}")


def _errors(found: Regression) -> Iterator[list[str]]:
    """Yield a row for each place of the points held out: how far off the ensemble was."""
    for stage in ("prefill", "decode"):
        for place, errors in found.content["stages"][stage]["held_out"].items():
            shares = [errors["mean"], errors["median"]]
            cells = ["-" if share is None else f"{share:.1%}" for share in shares]
            yield [f"{stage}, {place}", str(errors["points"]), *cells]
