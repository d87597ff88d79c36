"""Fits figures of kernels to a table of measured ones, and writes a GPU spec.

python -m tools.kernels TABLE --gpu h100-sxm --out my-card.toml
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from mist_sim.hardware import load_gpu
from mist_sim.models import load_model
from mist_sim.output import output_file
from mist_sim.report.elements import Terminal, listed
from tools.command import run
from tools.kernels.kernel_calibration import KernelFits, calibrate_kernels
from tools.kernels.kernel_tables import written

_TABLE = (
    "a file of LLMServingSim or Vidur; or of aiconfigurator-core, the folder of a system, such as "
    "systems/data/h100_sxm"
)


def main(words: Sequence[str] | None = None) -> None:
    """Print the figures with their errors, and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path, help=_TABLE)
    parser.add_argument("--gpu", default="h100-sxm", help="the GPU measured; by default h100-sxm")
    parser.add_argument("--model", help="the model measured, if the table does not name it")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the GPU spec to write (.toml)")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    given = parser.parse_args(words)
    with output_file(given.out, replace=given.force) if given.out else nullcontext() as file:
        model = load_model(given.model) if given.model else None
        found = calibrate_kernels(given.table, load_gpu(given.gpu), model)
        if file is not None:
            file.write(found.text)
        _print(found)


def _print(found: KernelFits) -> None:
    rows = [
        (
            fit.kind,
            f"{fit.num_rows:,}",
            f"{fit.median:.1%}",
            f"{fit.ninth:.0%}",
            ", ".join(f"{name} {value}" for name, value in written(fit.values).items()),
            ", ".join(fit.at_bound),
        )
        for fit in found.fits
    ]
    titles = ("kernels", "rows", "median error", "nine in ten", "figures", "not determined")
    Terminal().print(listed(titles, rows, right=range(1, 4)))


if __name__ == "__main__":
    run(main)
