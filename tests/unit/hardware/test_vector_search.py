"""Indexes of vectors: their memory, what searches them, and how their seconds grow."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import FlatIndex, HnswIndex, IvfPqIndex, ScenarioError, SearchCores, SearchGpu
from mist_sim.hardware import load_gpu
from mist_sim.hardware.vector_search import coefficient_names, load_coefficients
from mist_sim.hardware.vector_search.coefficients import Rates
from tests.effort import examples
from tests.refusals import refused

FLAT = FlatIndex(num_vectors=1_000_000, dimensions=768)
IVF = IvfPqIndex(num_vectors=1_000_000, dimensions=768, num_lists=1024, num_probes=16, pq_bytes=64)
HNSW = HnswIndex(num_vectors=1_000_000, dimensions=768, num_links=32, ef_search=64)
INDEXES = (FLAT, IVF, HNSW)
CORES = SearchCores(cores=8, memory=1e12, memory_bandwidth=150e9)


def test_memory_is_vectors_codes_links_and_tables():
    assert FLAT.num_bytes == 4 * 768e6
    tables = 4 * 1024 * 64 * 256
    assert IVF.num_bytes == 1e6 * (64 + 8) + 4 * 768 * (1024 + 256) + tables
    many = replace(IVF, num_lists=65_536)  # 4 GiB of tables, which faiss does not compute ahead
    assert many.num_bytes == 1e6 * (64 + 8) + 4 * 768 * (65_536 + 256)
    assert HNSW.num_bytes == pytest.approx(1e6 * (4 * 768 + 4 * (64 + 32 / 31) + 12))


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_that_does_not_fit_is_refused(index):
    exact = replace(CORES, memory=index.num_bytes)
    exact.check(index)
    small = replace(CORES, memory=0.99 * index.num_bytes)
    with pytest.raises(ScenarioError, match=r"index must fit the memory of 8 cores: .*GiB"):
        small.check(index)


def test_gpu_has_its_own_memory_and_no_graphs():
    gpu = SearchGpu(gpu="l4")
    gpu.check(FLAT)
    with pytest.raises(ScenarioError, match="index must fit the memory of l4: FlatIndex of 28.61"):
        gpu.check(replace(FLAT, num_vectors=10_000_000))
    with pytest.raises(ScenarioError, match="index must be flat or ivf_pq on a GPU"):
        gpu.check(HNSW)


def test_gpu_reads_all_vectors_once_for_small_batch():
    spec = load_gpu("h100-sxm")
    reading = FLAT.num_bytes / (spec.decode.mbu * spec.memory_bandwidth)
    seconds = SearchGpu(gpu="h100-sxm").seconds(FLAT, 1, 10)
    assert reading < seconds < 1.05 * reading
    assert SearchGpu(gpu="h100-sxm").seconds(FLAT, 16, 10) < 2 * seconds
    assert SearchGpu(gpu="h100-sxm").seconds(IVF, 1, 10) < seconds / 20


@examples(60)
@given(st.sampled_from(INDEXES), st.integers(1, 300), st.integers(1, 100), st.integers(1, 128))
def test_more_work_never_takes_less(index, batch, results, cores):
    searcher = replace(CORES, cores=cores)
    seconds = searcher.seconds(index, batch, results)
    assert 0 < seconds < float("inf")
    assert searcher.seconds(index, batch + 1, results) >= seconds
    assert searcher.seconds(index, batch, results + 1) >= seconds
    more = replace(index, num_vectors=2 * index.num_vectors)
    assert searcher.seconds(more, batch, results) >= seconds
    slower = replace(searcher, memory_bandwidth=1e9)
    assert slower.seconds(index, batch, results) >= seconds
    alone = replace(searcher, cores=1, memory_bandwidth=1e15)
    together = replace(searcher, memory_bandwidth=1e15)
    assert together.seconds(index, batch, results) <= alone.seconds(index, batch, results)


@pytest.mark.parametrize(
    ("index", "more"),
    [(IVF, {"num_probes": 32}), (IVF, {"pq_bytes": 96}), (HNSW, {"ef_search": 128})],
)
def test_more_effort_takes_longer(index, more):
    assert CORES.seconds(replace(index, **more), 8, 10) > CORES.seconds(index, 8, 10)


def test_no_batch_is_faster_than_memory():
    """100 queries of a flat index on 100 cores read all vectors once."""
    narrow = SearchCores(cores=100, memory=1e12, memory_bandwidth=1e9)
    assert narrow.seconds(FLAT, 100, 10) == pytest.approx(FLAT.num_bytes / 1e9, rel=0.01)


test_impossible_sizes_are_refused = refused(
    lambda index, changes: replace(index, **changes),
    (FLAT, {"num_vectors": 0}, "num_vectors must be >= 1, got 0"),
    (IVF, {"num_probes": 2000}, "num_probes must be <= 1024, the lists, got 2000"),
    (IVF, {"num_lists": 2_000_000}, "num_lists must be <= 1000000, the vectors"),
    (IVF, {"pq_bytes": 100}, "pq_bytes must divide the 768 dimensions, got 100"),
    (HNSW, {"num_links": 1}, "num_links must be >= 2, got 1"),
    (HNSW, {"ef_search": 0}, "ef_search must be >= 1, got 0"),
    (CORES, {"cores": 0}, "cores must be >= 1, got 0"),
    (CORES, {"memory_bandwidth": 0.0}, "memory_bandwidth must be finite and > 0"),
    error=ValueError,
)


def test_unknown_coefficients_and_gpus_are_named():
    known = coefficient_names()[0]
    with pytest.raises(ScenarioError, match=f"did you mean '{known}'"):
        replace(CORES, coefficients=known[:-1])
    with pytest.raises(ScenarioError, match="no GPU .*'h100x'|h100x"):
        SearchGpu(gpu="h100x")


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "own.toml"
    head = 'machine = "m"\ndate = "2026-01-01"\nsoftware = "s"\n[ivf_pq]\n[hnsw]\n[flat]\n'
    path.write_text(head + "queries = 0.5\n", encoding="utf-8")
    own = replace(CORES, coefficients=str(path), memory_bandwidth=1e15)
    assert own.seconds(FLAT, 1, 1) == 0.5
    assert own.seconds(FLAT, 9, 1) == 2 * 8 * 0.5 / 8
    path.write_text(head + "querys = 0.5\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match="unknown key 'querys' did you mean 'queries'|querys"):
        load_coefficients(str(path))
    path.write_text(head + "queries = -1.0\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match="queries must be finite and >= 0, got -1.0"):
        load_coefficients(str(path))


def test_an_index_that_nobody_measured():
    class Tree:
        num_bytes = 1.0

    with pytest.raises(ScenarioError, match="no seconds were measured of an index Tree"):
        CORES.seconds(Tree(), 1, 1)
    assert Rates().query_seconds(FLAT, 5) == 0
