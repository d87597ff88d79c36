"""Prints the catalog's figures of cards that only layers were measured of (LLMServingSim).

python -m tools.catalog MEASUREMENTS
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from mist_sim.hardware import load_gpu
from mist_sim.models import load_model
from tools.command import run
from tools.kernels.kernel_fit import fit_kernel
from tools.kernels.kernel_rows import joined
from tools.kernels.layer_tables import read_layers

_LAYERS = "layer-profiles/v0/{}/meta-llama/Llama-3.1-8B/tp1/layers.csv.gz"
_BY_LAYERS = {"rtx-a6000": "A6000", "rtx-3090": "RTX3090"}  # cards that no other table has


def catalog_figures(measurements: Path) -> dict[str, dict[str, float]]:
    """Return the catalog's figures of cards with only layer measurements (LLMServingSim).

    measurements: the folder with all files.
    """
    model = load_model("llama-3.1-8b")
    found = {}
    for name, folder in _BY_LAYERS.items():
        gpu = load_gpu(name)
        rows = read_layers(measurements / _LAYERS.format(folder), gpu, model)
        fit = fit_kernel(joined(rows))
        if fit:
            found[name] = {
                f"{phase}.{share}": fit.values[share]
                for phase in ("prefill", "decode")
                for share in ("mfu", "mbu")
            } | {"kernels.bf16.floor": fit.values["floor"]}
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Print the figures, with more digits than the catalog has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("measurements", type=Path, help="the folder of all files")
    for name, figures in catalog_figures(parser.parse_args(words).measurements).items():
        cells = (f"{figure} {value:.3f}" for figure, value in figures.items())
        print(f"{name:14} {'  '.join(cells)}")


if __name__ == "__main__":
    run(main)
