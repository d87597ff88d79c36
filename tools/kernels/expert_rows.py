"""Grouped products of experts in tables of measured kernels, by format and by back end.

Tables name the class of each kernel (`kernel_source`); `BACKENDS` says which of vLLM's
`--moe-backend` it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.hardware import GpuSpec
from mist_sim.hardware.devices import Kernel
from mist_sim.inputs import of_a_form
from tools.kernels.kernel_reading import (
    FORMATS,
    cold,
    columns,
    table_of,
    versions_of,
)
from tools.kernels.kernel_rows import KernelRows, joined, kernel_rows, shapes_of

if TYPE_CHECKING:
    import pandas as pd

TABLE = "moe/moe_perf"
BACKENDS = {
    "flashinfer_trtllm_mxfp4_mxfp8": "flashinfer_trtllm_afp8",
    "flashinfer_trtllm": "flashinfer_trtllm",
    "flashinfer_cutlass": "flashinfer_cutlass",
    "marlin": "marlin",
    "triton": "triton",
    "vllm_fused_moe": "triton",
}
"""By part of a kernel's name, the first that is in it: the back end; others are not known."""

_ALIGNED = 8  # inner sizes that are no multiple take other kernels
_UNGATED = {(1024, 2688), (2048, 5120), (2688, 1856)}  # Nemotron: two matrices an expert, not three
_MXFP8 = "w4a8_mxfp4_mxfp8"  # weights as MXFP4 has them, activations of 8 bits
_SIZES = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size"]


def expert_rows(table: pd.DataFrame, gpu: GpuSpec, vector: Kernel) -> Iterator[KernelRows]:
    """Yield the experts of each format by the kernel that computes most shapes.

    vector: figures of norms and activations, which run between the products.
    """
    table = _usable(table)
    table = table[table["moe_ep_size"].eq(1)]
    for name, every in table.groupby("moe_dtype"):
        if name in FORMATS:
            usual = every[every["kernel_source"].eq(_usual_kernel(every))]
            yield _products(str(name), usual, gpu, vector)


def backend_rows(
    folders: Sequence[Path], gpus: Sequence[GpuSpec], vectors: Sequence[Kernel]
) -> dict[tuple[str, str], tuple[str, KernelRows]]:
    """Return the version and the rows of each kind and back end of an architecture's cards.

    Each has the table with the most rows, the newest of those; experts that are spread over ranks
    count where a back end has no others.
    """
    found: dict[tuple[str, str], dict[str, list[KernelRows]]] = {}
    for folder, gpu, vector in zip(folders, gpus, vectors, strict=True):
        for path in versions_of(folder, TABLE):
            with of_a_form(path, "vLLM's kernels"):
                for backend, rows in _by_backend(table_of(path), gpu, vector):
                    of_kind = found.setdefault((rows.kind, backend), {})
                    of_kind.setdefault(path.parent.name, []).append(rows)
    return {key: _largest(versions) for key, versions in sorted(found.items())}


def _largest(versions: dict[str, list[KernelRows]]) -> tuple[str, KernelRows]:
    parts = {version: joined(rows) for version, rows in versions.items()}
    version = max(reversed(parts), key=lambda name: len(parts[name]))
    return version, parts[version]


def _by_backend(
    table: pd.DataFrame, gpu: GpuSpec, vector: Kernel
) -> Iterator[tuple[str, KernelRows]]:
    table = _usable(table)
    table = table.assign(backend=table["kernel_source"].map(backend_of))
    known = table[table["backend"].ne("")]
    for (backend, name), part in known.groupby(["backend", "moe_dtype"]):
        whole = part[part["moe_ep_size"].eq(1)]
        format_of = "w4a16_mxfp4" if name == _MXFP8 else str(name)
        if format_of in FORMATS:
            yield str(backend), _products(format_of, part if whole.empty else whole, gpu, vector)


def backend_of(kernel_source: str) -> str:
    """Return the back end of a kernel, by its name in a table; empty: not known."""
    return next((name for part, name in BACKENDS.items() if part in kernel_source), "")


def _usable(table: pd.DataFrame) -> pd.DataFrame:
    table = table[table["num_tokens"].le(16384)]
    table = table[(table["inter_size"] // table["moe_tp_size"] % _ALIGNED).eq(0)]
    pairs = zip(table["hidden_size"], table["inter_size"], strict=True)
    return table[np.array([pair not in _UNGATED for pair in pairs], dtype=bool)]


def _usual_kernel(rows: pd.DataFrame) -> str:
    """Return the kernel that computes most shapes; others cover the rest."""
    shapes = rows[["kernel_source", "hidden_size", "inter_size", "num_experts"]].drop_duplicates()
    return str(shapes["kernel_source"].value_counts().index[0])


def _products(name: str, table: pd.DataFrame, gpu: GpuSpec, vector: Kernel) -> KernelRows:
    """Return the rows of one format; ranks of expert parallelism have a share of all of it."""
    table = table.drop_duplicates([*_SIZES, "moe_ep_size", "distribution"])
    kind, width, dtype = FORMATS[name]
    n, h, inner, k, number, ranks, spread, ms = columns(table, *_SIZES, "moe_ep_size", "latency")
    even = table["distribution"].eq("balanced").to_numpy()
    uniform = number * (1 - (1 - k / number) ** n)
    reached = np.where(even, np.minimum(number, n * k), uniform) / spread
    rank, routed = inner / ranks, n * k / spread
    # the two products are taken as two equal ones: two thirds and one third are 5 % apart
    flops, weights = 3 * routed * h * rank, 1.5 * reached * h * rank * width
    moved = routed * (2 * h + 3 * rank)
    between = (routed * 3 * rank + n * (k + 1) * h) * 2
    known = 2 * vector.floor + between / ((vector.mbu or 0.8) * gpu.memory_bandwidth)
    rows = kernel_rows(
        f"experts_{kind}",
        ms * 1e-3,
        gpu,
        dtype,
        flops,
        weights + moved,
        shape=shapes_of(h, inner, number),
        launches=2.0,
        depth=(h + rank) / 2,
        inputs=routed * (h + rank) / 2,
        padded_flops=3 * reached * h * rank,
        known=known,
    )
    return cold(rows.only(rows.seconds > rows.known))
