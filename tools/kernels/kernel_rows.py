"""Measured kernels, one a row, in the quantities that their time depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mist_sim.hardware import GpuSpec

Array = NDArray[np.float64]
Combined = Literal["root", "sum", "longer"]

_COMBINED: Mapping[Combined, Callable[[Array, Array], Array]] = {
    "root": np.hypot,
    "sum": np.add,
    "longer": np.maximum,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRows:
    """Timings of one kind of kernels; arrays of one value a row.

    kind: of `mist_sim.hardware.devices.KERNELS`.
    launches: kernels that a row's time is the sum of. depth, inputs: thousands of steps that a
    block takes one after the other, millions of values put in. compute: seconds of the FLOPs at
    the peak rate, of one kernel; padded: the same for each row of padding, softmax: for each FLOP
    of an exponential, padded_softmax: for each of those in a row of padding. memory: seconds of
    the bytes at the peak bandwidth, of one kernel. known: seconds of what else a row has in it.
    shape: names what belongs to one model, to leave it out.
    combined: how compute and memory are: the root of their squares, their sum (attention of
    prompts), or the longer of the two (attention of decodes).
    """

    kind: str
    seconds: Array
    launches: Array
    depth: Array
    inputs: Array
    compute: Array
    padded: Array
    softmax: Array
    padded_softmax: Array
    memory: Array
    known: Array
    shape: NDArray[np.str_]
    combined: Combined = "root"

    def __len__(self) -> int:
        return len(self.seconds)

    def only(self, chosen: NDArray[np.bool_] | slice) -> KernelRows:
        """Return some of the rows."""
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return KernelRows(kind=self.kind, combined=self.combined, **columns)

    def times(self, figures: dict[str, float]) -> Array:
        """Return the time of each row with the given figures of `Kernel`, in seconds."""
        per_pair = figures.get("per_pair", 0.0)
        extra = figures.get("padding", 0.0) * (self.padded + per_pair * self.padded_softmax)
        if half := figures.get("padding_from", 0.0):  # compute: of the rows that experts have
            extra = extra * self.compute / (self.compute + half * self.padded)
        extra = extra + per_pair * self.softmax
        compute = (self.compute + extra) / figures.get("mfu", 1.0)
        memory = self.memory / figures.get("mbu", 1.0)
        one_by_one = figures.get("serial", 0.0) * self.depth
        start = figures.get("floor", 0.0) + figures.get("per_input", 0.0) * self.inputs
        if self.combined == "longer":  # a block waits for its keys, or for the memory
            memory = np.maximum(memory, one_by_one)
        else:
            start = start + one_by_one
        both = _COMBINED[self.combined](compute, memory)
        return np.asarray(self.launches * (start + both) + self.known)


_COLUMNS = (
    "seconds",
    "launches",
    "depth",
    "inputs",
    "compute",
    "padded",
    "softmax",
    "padded_softmax",
    "memory",
    "known",
    "shape",
)


def joined(parts: Sequence[KernelRows]) -> KernelRows:
    """Return the rows of several tables of one kind."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return KernelRows(kind=parts[0].kind, combined=parts[0].combined, **columns)


def kernel_rows(
    kind: str,
    seconds: Array,
    gpu: GpuSpec,
    dtype: str,
    flops: Array,
    num_bytes: Array,
    *,
    shape: NDArray[np.str_],
    launches: Array | float = 1.0,
    depth: Array | float = 0.0,
    inputs: Array | float = 0.0,
    padded_flops: Array | float = 0.0,
    pairs: Array | float = 0.0,
    padded_pairs: Array | float = 0.0,
    known: Array | float = 0.0,
    combined: Combined = "root",
) -> KernelRows:
    """Return rows in seconds at the peaks of a GPU, from FLOPs and bytes of one kernel."""
    peak = gpu.flops.get(dtype, gpu.flops["bf16"])

    def full(values: Array | float) -> Array:
        return np.broadcast_to(np.asarray(values, dtype=float), seconds.shape)

    return KernelRows(
        kind=kind,
        seconds=seconds,
        launches=full(launches),
        depth=full(depth) / 1e3,
        inputs=full(inputs) / 1e6,
        compute=flops / peak,
        padded=full(padded_flops) / peak,
        softmax=full(pairs) / peak,
        padded_softmax=full(padded_pairs) / peak,
        memory=num_bytes / gpu.memory_bandwidth,
        known=full(known),
        shape=shape,
        combined=combined,
    )


def shapes_of(*columns: Array) -> NDArray[np.str_]:
    """Return a name for each row's sizes, "4096x1024"."""
    parts = np.stack([column.astype(int) for column in columns], axis=1)
    return np.array(["x".join(map(str, row)) for row in parts.tolist()])
