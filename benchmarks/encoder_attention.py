"""Attention of vision towers: the catalog's figures beside measured kernels of vLLM.

    python -m benchmarks.encoder_attention .../aisimulate_core/systems/data

The folder is in the wheel of aisimulate (Apache-2.0; see `benchmarks/family_steps.py`). All rows of
64 patches and more count, in heads of 64, 72, 80 and 104 values as Qwen3-VL, SigLIP and others have
them. `tools/pages/make_backends.py` fits the figures to these rows; "left out" is the score of rows
under figures that are fitted without their head size. No figure is fitted to rows of vLLM 0.25.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from benchmarks.kernel_grid import SYSTEMS
from mist_sim.hardware import GpuSpec, load_gpu
from mist_sim.hardware.devices import FIGURES, kernel_of
from tools.kernels.kernel_fit import fit_kernel
from tools.kernels.kernel_rows import KernelRows, joined
from tools.kernels.tower_rows import read_towers

FITTED, NEWER = "0.24.0", "0.25.0"
_SIZES = {"up to 512 patches": (0, 512), "up to 4,096": (513, 4096), "more": (4097, 10**9)}


def of_catalog(gpu: GpuSpec) -> dict[str, float]:
    """Return the figures with which the catalog times towers on a GPU."""
    kernel = kernel_of(gpu.kernels, "tower_attention")
    return {name: value for name in FIGURES if (value := getattr(kernel, name)) is not None}


def errors(rows: KernelRows, figures: Mapping[str, float]) -> pd.DataFrame:
    """Return patches and absolute relative error of each row."""
    off = np.abs(rows.times(dict(figures)) / rows.seconds - 1)
    return pd.DataFrame({"patches": 1e3 * rows.depth, "error": off})


def left_out(parts: Mapping[str, KernelRows]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the errors of the GPUs of an architecture, each head size under figures without it."""
    every = joined(list(parts.values()))
    fits = {size: fit_kernel(every, [size]) for size in np.unique(every.shape).tolist()}
    for gpu, rows in parts.items():
        for size, fit in fits.items():
            chosen = rows.only(rows.shape == size)
            if fit and len(chosen):
                yield gpu, errors(chosen, fit.values)


def scores(data: Path) -> pd.DataFrame:
    """Return the error of each row: GPU, patches, and how it was scored."""
    found = []
    for systems in SYSTEMS.values():
        parts = {}
        for gpu, folder in systems.items():
            card = load_gpu(gpu)
            for version, name in ((FITTED, "fitted"), (NEWER, "vLLM 0.25")):
                for rows in read_towers(data / folder, version, card):
                    found.append(errors(rows, of_catalog(card)).assign(gpu=gpu, how=name))
                    if version == FITTED:
                        parts[gpu] = rows
        if parts:
            found += [of.assign(gpu=gpu, how="left out") for gpu, of in left_out(parts)]
    return pd.concat(found)


def score(error: pd.Series) -> str:
    """Return the median error, and that of nine in ten."""
    return f"{error.median():.1%}, {error.quantile(0.9):.1%}".replace("%", " %")


def main(data: Annotated[Path, typer.Argument(help="aisimulate_core/systems/data")]) -> None:
    """Print the errors by GPU and by patches of an image."""
    found = scores(data)
    print("| left out: median, nine in ten | all |", " | ".join(_SIZES), "|")
    for gpu, part in found[found["how"].eq("left out")].groupby("gpu", sort=False):
        sizes = [
            part.loc[part["patches"].round().between(*each), "error"] for each in _SIZES.values()
        ]
        print(f"| {gpu} |", " | ".join(map(score, [part["error"], *sizes])), "|")
    for how, part in found.groupby("how"):
        print(f"{how}: {len(part):,} rows, {score(part['error'])}")


if __name__ == "__main__":
    typer.run(main)
