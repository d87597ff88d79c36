"""Cores of a processor, or a GPU, that search an index: whether it fits, and how long it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from mist_sim.checks import Positive, check_fields
from mist_sim.errors import ScenarioError
from mist_sim.hardware.devices import GpuSpec, kernel_of, load_gpu
from mist_sim.hardware.vector_search.coefficients import (
    DEFAULT,
    SearchCoefficients,
    load_coefficients,
)
from mist_sim.hardware.vector_search.indexes import FlatIndex, IvfPqIndex, VectorIndex
from mist_sim.registry import Registry
from mist_sim.units import Bytes, BytesPerSecond

SEARCHERS = Registry("searchers")
"""Kinds of hardware that search an index (see `Searcher`)."""


@runtime_checkable
class Searcher(Protocol):
    """Searches an index for batches of queries."""

    def check(self, index: VectorIndex) -> None:
        """Raise ScenarioError for an index that it has no memory for, or cannot search."""

    def seconds(self, index: VectorIndex, batch_size: int, num_results: int) -> float:
        """Return how long a batch of queries takes. num_results: neighbours of each."""


def _check_fits(index: VectorIndex, memory: float, where: str, remedy: str) -> None:
    if index.num_bytes > memory:
        raise ScenarioError(
            f"index must fit the memory of {where}: {type(index).__name__} of "
            f"{index.num_bytes / 2**30:.2f} GiB, {memory / 2**30:.2f} GiB of memory; {remedy}"
        )


@SEARCHERS.register("cores")
@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCores:
    """Cores of one machine, over which the queries of a batch are spread (as faiss does).

    cores: number that search (>= 1). A query runs on one core.
    memory: for the index.
    memory_bandwidth: of the machine, shared by all cores; it bounds the time of a batch by the
        bytes its queries read.
    coefficients: a name of the package, or the path of a TOML file that `mist calibrate rag` has
        written.
    Raises ValueError for values out of range, ScenarioError for unknown coefficients.
    """

    cores: Positive[int]
    memory: Positive[Bytes]
    memory_bandwidth: Positive[BytesPerSecond]
    coefficients: str = DEFAULT
    _measured: SearchCoefficients = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "_measured", load_coefficients(self.coefficients))

    def check(self, index: VectorIndex) -> None:
        """Raise ScenarioError for an index that does not fit the memory."""
        remedy = (
            "give more memory, fewer pq_bytes or dimensions, or several clients with a part each"
        )
        _check_fits(index, self.memory, f"{self.cores} cores", remedy)

    def seconds(self, index: VectorIndex, batch_size: int, num_results: int) -> float:
        """Return how long a batch of queries takes."""
        rates = self._measured.rates(index)
        active = min(batch_size, self.cores)
        speed = float(active**self._measured.core_exponent)
        turns = math.ceil(batch_size / active) * active  # a core with one query more is waited for
        computing = turns / speed * self._measured.query_seconds(index, num_results)
        reading = self._shared_bytes(index, batch_size) / self.memory_bandwidth
        return rates.batches + max(computing, reading)

    def _shared_bytes(self, index: VectorIndex, batch_size: int) -> float:
        """Return the bytes that a batch reads; cores that scan all vectors read them together."""
        each = self._measured.memory_traffic(index)
        return each * (
            math.ceil(batch_size / self.cores) if isinstance(index, FlatIndex) else batch_size
        )


_FLOAT = 4
_TF32 = 0.5  # of the rate of 16-bit products; NVIDIA's data sheets, A100 to B200
_KERNELS = 3  # distances to centroids or vectors, scan, selection


@SEARCHERS.register("gpu")
@dataclass(frozen=True, slots=True, kw_only=True)
class SearchGpu:
    """A GPU that keeps the whole index in its memory: flat and IVF-PQ.

    Its seconds are analytic: the longer of the time to read a batch's bytes and to compute its
    products, at the rates of the GPU's kernels. They were not validated by measurements.

    gpu: a name of the catalog, or the path of a TOML file.
    Raises ScenarioError for an unknown one.
    """

    gpu: str
    _spec: GpuSpec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_spec", load_gpu(self.gpu))

    @property
    def spec(self) -> GpuSpec:
        """The GPU's spec."""
        return self._spec

    def check(self, index: VectorIndex) -> None:
        """Raise ScenarioError for an index that does not fit, and for graphs."""
        has_graph = isinstance(index, IvfPqIndex) and index.centroids is not None
        if has_graph or not isinstance(index, FlatIndex | IvfPqIndex):
            raise ScenarioError(
                "index must be flat or ivf_pq on a GPU, without a graph of vectors or centroids, "
                f"got {type(index).__name__}; graphs are searched by cores"
            )
        _check_fits(index, self._spec.memory, self.gpu, "give fewer pq_bytes, or cores instead")

    def seconds(self, index: VectorIndex, batch_size: int, num_results: int) -> float:
        """Return how long a batch of queries takes."""
        gpu, work = self._spec, index.work()
        whole = work.vectors * _FLOAT  # distances, which the selection reads again
        compared = batch_size * 2 * whole + _FLOAT * work.scanned_values
        codes = batch_size * (work.codes * 2 * _FLOAT + work.code_bytes)
        reading = (compared + codes) / (gpu.decode.mbu * gpu.memory_bandwidth)
        flops = batch_size * (2 * work.scanned_values + work.table_entries + work.code_bytes)
        computing = flops / (gpu.prefill.mfu * _TF32 * gpu.flops["bf16"])
        floor = _KERNELS * kernel_of(gpu.kernels, "vector").floor
        return floor + max(reading, computing)
