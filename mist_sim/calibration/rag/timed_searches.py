"""Times real searches of faiss on this machine, one thread for the law and two for its scaling.

Vectors are drawn: mixtures of Gaussians in 16 hidden dimensions, rotated into all dimensions with a
little noise, since text embeddings fill few of their dimensions. The lists of k-means on them are
realistically uneven. Each call uses new queries. Of several rounds over the same calls the fastest
counts. Times are processor seconds, divided evenly by the threads: the time of a search on an idle
machine, so that other load matters little.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.calibration.rag import grid
from mist_sim.calibration.rag.searches import TimedSearch
from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams

Vectors = NDArray[np.float32]

_HIDDEN, _CENTRES, _NOISE = 16, 500, 0.1
_QUERIES = 512
_TRAINED_ON = 20_000
_ROUNDS = 3
_ROUND_SECONDS = 0.05


def measure(tell: Callable[[str], None]) -> Iterator[TimedSearch]:
    """Yield the searches of the grid with their seconds. tell: called with each next item.

    Raises ScenarioError if faiss is not installed.
    """
    faiss = _faiss()
    for index in grid.indexes():
        tell(f"{index.index}: {index.num_vectors:,} vectors of {index.dimensions} dimensions")
        yield from _of_index(faiss, index)


def _faiss() -> Any:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads leave the cores to others
    try:
        import faiss
    except ImportError:
        raise ScenarioError(
            "--measure needs faiss, which is not installed: pip install 'mist-sim[rag]'"
        ) from None
    return faiss


def _of_index(faiss: Any, index: TimedSearch) -> Iterator[TimedSearch]:
    vectors, queries = _vectors(index)
    faiss.omp_set_num_threads(1)
    built = _built(faiss, index, vectors)
    index = replace(index, index_bytes=int(faiss.serialize_index(built).nbytes))
    for search in grid.searches(index):
        faiss.omp_set_num_threads(search.num_threads)
        _set_effort(built, search)
        yield _timed(faiss, built, search, queries)


def _vectors(index: TimedSearch) -> tuple[Vectors, Vectors]:
    """Return the vectors of an index, and queries like them."""
    rng = Streams(index.num_vectors).generator(f"vectors: {index.dimensions}")
    centres = rng.standard_normal((_CENTRES, _HIDDEN), dtype=np.float32)
    turn = rng.standard_normal((_HIDDEN, index.dimensions), dtype=np.float32) / _HIDDEN**0.5

    def draw(number: int) -> Vectors:
        hidden = 0.5 * rng.standard_normal((number, _HIDDEN), dtype=np.float32)
        hidden += centres[rng.integers(_CENTRES, size=number)]
        noise = rng.standard_normal((number, index.dimensions), dtype=np.float32)
        return np.ascontiguousarray(hidden @ turn + _NOISE * noise, dtype=np.float32)

    return draw(index.num_vectors), draw(_QUERIES)


def _built(faiss: Any, index: TimedSearch, vectors: Vectors) -> Any:
    if index.index == "flat":
        built = faiss.IndexFlatL2(index.dimensions)
    elif index.index == "hnsw":
        built = faiss.IndexHNSWFlat(index.dimensions, index.num_links)
        built.hnsw.efConstruction = index.ef_construction
    else:
        built = faiss.index_factory(index.dimensions, f"IVF{index.num_lists},PQ{index.pq_bytes}")
        built.cp.niter = 4
        built.pq.cp.niter = 4
        built.train(vectors[:_TRAINED_ON])
    built.add(vectors)
    return built


def _set_effort(built: Any, search: TimedSearch) -> None:
    if search.index == "ivf_pq":
        built.nprobe = search.num_probes
    if search.index == "hnsw":
        built.hnsw.efSearch = search.ef_search


def _timed(faiss: Any, built: Any, search: TimedSearch, queries: Vectors) -> TimedSearch:
    """Return a search with its seconds and its distances."""
    size, k = search.batch_size, search.num_results
    batches = [queries[start : start + size] for start in range(0, _QUERIES, size)]
    first = _seconds(built, batches[:1], search)
    _reset(faiss)
    counted = np.concatenate(batches[: max(1, int(_ROUND_SECONDS / first))])
    built.search(counted, k)
    distances = _distances(faiss, search, len(counted)) / len(counted)
    calls = batches[: max(1, min(len(batches), int(_ROUND_SECONDS / first)))]
    seconds = min(_seconds(built, calls, search) for _ in range(_ROUNDS)) / len(calls)
    return replace(search, seconds=seconds, num_distances=distances)


def _seconds(built: Any, batches: Sequence[Vectors], search: TimedSearch) -> float:
    begin = time.process_time()
    for batch in batches:
        built.search(batch, search.num_results)
    return (time.process_time() - begin) / search.num_threads


def _reset(faiss: Any) -> None:
    faiss.cvar.indexIVF_stats.reset()
    faiss.cvar.hnsw_stats.reset()


def _distances(faiss: Any, search: TimedSearch, num_queries: int) -> float:
    if search.index == "ivf_pq":
        return float(faiss.cvar.indexIVF_stats.ndis)
    if search.index == "hnsw":
        return float(faiss.cvar.hnsw_stats.ndis)
    return float(search.num_vectors * num_queries)


def machine_name() -> str:
    """Return the processor's name, and its number of cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.is_file() else []
    said: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        said.setdefault(key.strip(), value.strip())
    name = said.get("model name") or platform.processor() or platform.machine()
    family = f", family {said['cpu family']}, model {said['model']}" if "cpu family" in said else ""
    cores = sum(line.startswith("processor") for line in lines)
    return f"{name}{family}" + (f", {cores} cores" if cores else "")


def faiss_version() -> str:
    """Return the version of faiss that is timed."""
    return str(_faiss().__version__)
