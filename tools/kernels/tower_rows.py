"""Reads the attention of vision towers in the tables of aisimulate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mist_sim.hardware import GpuSpec
from mist_sim.hardware.predictors.tower_times import computed_head
from mist_sim.inputs import of_a_form
from tools.kernels.kernel_reading import columns, table_of
from tools.kernels.kernel_rows import KernelRows, kernel_rows, shapes_of

if TYPE_CHECKING:
    import pandas as pd

SHORTEST = 64
"""Patches of the smallest images whose rows are fitted. Images of Qwen, Gemma and Llama 4 have 256
and more, and so have Kimi's from 224 x 224 pixels on."""


def read_towers(folder: Path, version: str, gpu: GpuSpec) -> list[KernelRows]:
    """Return the attention of towers of a system, as one version of vLLM has it; none without.

    folder: `systems/data/h100_sxm`. The shapes of the rows are their head sizes, in which towers
    differ: a tower that is split over ranks keeps its own.
    """
    path = folder / "encoder_attention" / "vllm" / version / "encoder_attention_perf.parquet"
    if not path.is_file():
        return []
    with of_a_form(path, "vLLM's kernels"):
        return [tower_rows(table_of(path), gpu)]


def tower_rows(table: pd.DataFrame, gpu: GpuSpec) -> KernelRows:
    """Return the rows of a table with `batch_size` images of `isl` patches each."""
    table = table[table["isl"].ge(SHORTEST)]
    images, n, heads, ms = columns(table, "batch_size", "isl", "num_heads", "latency")
    sizes = table["head_dim"].to_numpy(dtype=int)
    flops = 4 * computed_head(sizes)  # of a pair
    queries = images * heads * n
    return kernel_rows(
        "tower_attention",
        ms * 1e-3,
        gpu,
        "bf16",
        flops * queries * n,
        0.0 * queries,
        shape=shapes_of(sizes),
        depth=n,
        padded_flops=flops * queries,
        pairs=queries * n,
        padded_pairs=queries,
        combined="sum",
    )
