"""Whole steps of models with experts beside measured kernels, by back end of the experts.

    python -m benchmarks.backend_grid .../aisimulate_core/systems/data --grid grid.parquet

The points of `benchmarks.kernel_grid`, with the experts of one back end in place of the usual ones:
on the measured side the row of aisimulate's table with these sizes, ranks and tokens, on ours the
figures of that back end. Nothing scored is fitted: all figures were found without the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from benchmarks import kernel_grid
from benchmarks.kernel_grid import SYSTEMS, formats, left_out, shapes
from mist_sim.hardware import GpuSpec, load_gpu
from mist_sim.hardware.devices import Kernel
from mist_sim.hardware.kernel_choice import usual_backend
from mist_sim.models import load_model
from tools.kernels.expert_rows import backend_of, backend_rows
from tools.kernels.kernel_fit import fit_kernel
from tools.kernels.kernel_reading import table_of

_THEIRS = {"bf16": "bfloat16", "fp8": "fp8", "mxfp4": "w4a16_mxfp4"}
_MXFP8 = ("mxfp4", "flashinfer_trtllm_afp8")  # activations of 8 bits have a name of their own
_ROUTING = "power_law_1.2"  # the package's default


def scores(folder: Path, grid: pd.DataFrame) -> Iterator[tuple[str, str, str, pd.Series]]:
    """Yield architecture, kind, back end, and computed over measured seconds of its steps."""
    for architecture, systems in SYSTEMS.items():
        cards = [load_gpu(gpu) for gpu in systems]
        small = [replace(card.kernels["vector"], mbu=0.8) for card in cards]
        rows = backend_rows([folder / name for name in systems.values()], cards, small)
        for (kind, backend), (version, found) in rows.items():
            if usual_backend(architecture, kind) == backend:
                continue
            ratios = []
            for name in dict.fromkeys(grid["model"]):
                fit = fit_kernel(found, shapes(load_model(name)))
                if fit is None:
                    continue
                for gpu, system in systems.items():
                    table = folder / system / "moe" / "vllm" / version
                    steps = _with_experts(grid, gpu, name, kind, backend, table)
                    if len(steps):
                        ours = kernel_grid.simulated(steps, _gpu_with(kind, Kernel(**fit.values)))
                        ratios.append(kernel_grid.ratios(steps, ours))
            if ratios:
                yield architecture, kind, backend, pd.concat(ratios)


def _gpu_with(kind: str, kernel: Kernel):
    def gpu_of(name: str, gpu: str) -> GpuSpec:
        card = left_out(name, gpu)
        return replace(card, kernels={**card.kernels, kind: kernel})

    return gpu_of


def _with_experts(
    grid: pd.DataFrame, gpu: str, name: str, kind: str, backend: str, folder: Path
) -> pd.DataFrame:
    """Return a model's steps on a GPU with the measured experts of a back end."""
    dtype, moe = kind.removeprefix("experts_"), load_model(name).moe
    steps = grid[(grid["gpu"] == gpu) & (grid["model"] == name) & (grid["dtype"] == dtype)]
    path = folder / "moe_perf.parquet"
    if steps.empty or moe is None or not path.is_file() or dtype not in _THEIRS:
        return steps.iloc[:0]
    model = dict(formats(name))[dtype]
    table = table_of(path)
    theirs = "w4a8_mxfp4_mxfp8" if (dtype, backend) == _MXFP8 else _THEIRS[dtype]
    table = table[
        table["moe_dtype"].eq(theirs)
        & table["kernel_source"].map(backend_of).eq(backend)
        & table["distribution"].eq(_ROUTING)
        & table["hidden_size"].eq(model.hidden_size)
        & table["inter_size"].eq(moe.intermediate_size)
        & table["topk"].eq(moe.num_experts_per_token)
        & table["num_experts"].eq(moe.num_experts)
        & table["moe_ep_size"].eq(1)
    ].drop_duplicates(["num_tokens", "moe_tp_size"])
    tokens = steps["number"].where(steps["step"].eq("decode"), steps["length"])
    keyed = steps.assign(num_tokens=tokens, moe_tp_size=steps["ranks"])
    joined = keyed.merge(table[["num_tokens", "moe_tp_size", "latency"]], how="inner")
    return joined.assign(experts=joined["latency"] * 1e-3 * model.num_moe_layers)


def main() -> None:
    """Print the score of each back end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--grid", type=Path)
    options = parser.parse_args()
    grid = kernel_grid.grid_of(options.grid)
    grid = grid[grid["experts"] > 0].reset_index(drop=True)
    every = []
    for architecture, kind, backend, ratio in scores(options.folder, grid):
        kernel_grid.show(f"{architecture} {kind} {backend}", ratio)
        every.append(ratio)
    kernel_grid.show("all", pd.concat(every))


if __name__ == "__main__":
    main()
