"""Indexes and searches that `mist calibrate rag --measure` times: a few minutes on one core.

Three indexes of each kind are held out whole: their sizes, dimensions and lists occur in no fitted
index, so the error on them is that of a prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mist_sim.calibration.rag.searches import TimedSearch

_FLAT = (
    # vectors, dimensions, held out
    (100_000, 64, False),
    (50_000, 384, False),
    (100_000, 128, True),
    (400_000, 64, False),
    (20_000, 768, False),
    (30_000, 384, True),
    (150_000, 96, False),
    (800_000, 64, True),
)
_IVF_PQ = (
    # vectors, dimensions, lists, bytes, held out
    (100_000, 128, 256, 16, False),
    (200_000, 64, 1024, 8, False),
    (250_000, 96, 512, 24, True),
    (50_000, 384, 256, 48, False),
    (300_000, 64, 256, 32, False),
    (60_000, 384, 128, 32, True),
    (30_000, 768, 128, 64, False),
    (400_000, 64, 512, 8, False),
    (400_000, 96, 1024, 16, True),
)
_HNSW = (
    # vectors, dimensions, links, held out
    (20_000, 64, 16, False),
    (30_000, 128, 32, False),
    (30_000, 128, 16, True),
    (60_000, 64, 32, False),
    (20_000, 384, 16, False),
    (30_000, 96, 32, True),
    (10_000, 768, 32, False),
    (20_000, 384, 32, True),
)
_EF_CONSTRUCTION = 40  # faiss's default


def indexes() -> Iterator[TimedSearch]:
    """Yield the indexes to build, without a search."""
    for vectors, dimensions, lists, pq_bytes, out in _IVF_PQ:
        yield TimedSearch(
            index="ivf_pq",
            num_vectors=vectors,
            dimensions=dimensions,
            num_lists=lists,
            pq_bytes=pq_bytes,
            is_held_out=out,
        )
    for vectors, dimensions, links, out in _HNSW:
        yield TimedSearch(
            index="hnsw",
            num_vectors=vectors,
            dimensions=dimensions,
            num_links=links,
            ef_construction=_EF_CONSTRUCTION,
            is_held_out=out,
        )
    for vectors, dimensions, out in _FLAT:
        yield TimedSearch(index="flat", num_vectors=vectors, dimensions=dimensions, is_held_out=out)


def searches(index: TimedSearch) -> Iterator[TimedSearch]:
    """Yield the searches of an index: by effort, batch, results and threads."""
    for effort in _efforts(index):
        for batch_size in (1, 4, 16, 64):
            yield replace(effort, batch_size=batch_size)
        yield replace(effort, batch_size=16, num_results=100)
        yield replace(effort, batch_size=16, num_threads=2)


def _efforts(index: TimedSearch) -> list[TimedSearch]:
    if index.index == "flat":
        return [index]
    if index.index == "hnsw":
        return [replace(index, ef_search=ef) for ef in (16, 64, 200)]
    return [replace(index, num_probes=probes) for probes in (1, 4, 16, 64)]
