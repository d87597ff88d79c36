"""Collectives: bytes, latencies, and which algorithm is the fastest for a message."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, Interconnect, gpu_from_table, load_gpu
from mist_sim.hardware.collectives import all_gather, all_reduce

NVLINK = Interconnect(kind="nvlink", bandwidth=450e9, all_reduce="auto")
PCIE = Interconnect(kind="pcie", bandwidth=32e9, all_reduce="host_shared")
GIGABYTE, KILOBYTE = 1e9, 1e3


def by(algorithm: str, link: Interconnect = NVLINK) -> Interconnect:
    return replace(link, all_reduce=algorithm)


def test_one_rank_has_nobody_to_talk_to():
    for link in (NVLINK, PCIE):
        assert all_reduce(link, 1)(GIGABYTE) == all_gather(link, 1)(GIGABYTE) == 0.0


def test_large_messages_take_the_bytes_of_seesaw():
    """Eq. 1, B_ar: ring on NVLink, all through the host on PCIe; latency hardly counts."""
    for ranks in (2, 8):
        ring = 2 * (ranks - 1) / ranks / 360
        assert all_reduce(NVLINK, ranks)(GIGABYTE) == pytest.approx(ring, rel=0.03)
        assert all_reduce(PCIE, ranks)(GIGABYTE) == pytest.approx((ranks - 1) / 25.6, rel=0.01)


def test_all_reduce_follows_bestserve():
    """Table 3, prefill, b = 1, s = 2048, h = 8192, t = 4: 0.0723 ms."""
    cluster = Cluster(load_gpu("ascend-910b3"), 4)
    assert cluster.all_reduce_time(2.0 * 2048 * 8192) == pytest.approx(0.0723e-3, rel=1e-3)
    assert cluster.all_reduce_time(0.0) == 0.0


@pytest.mark.parametrize(
    ("ranks", "ring", "tree"), [(2, 7.8e-6, 8.0e-6), (4, 10.2e-6, 9.2e-6), (8, 15.0e-6, 10.4e-6)]
)
def test_small_messages_take_the_latencies_of_nccl(ranks, ring, tree):
    """6.6 us and 2 (n - 1) hops of 0.6 us; 6.8 us and 2 log2(n) of them."""
    assert all_reduce(by("ring"), ranks)(0.0) == pytest.approx(ring)
    assert all_reduce(by("tree"), ranks)(0.0) == pytest.approx(tree)
    assert all_reduce(NVLINK, ranks)(0.0) == pytest.approx(min(ring, tree))


def test_a_hop_over_pcie_takes_longer():
    assert all_reduce(PCIE, 8)(0.0) == pytest.approx(6.6e-6 + 14 * 1.0e-6)


@given(ranks=st.integers(2, 16), size=st.floats(0, 1e12))
def test_auto_is_the_faster_of_ring_and_tree(ranks, size):
    ring, tree = all_reduce(by("ring"), ranks)(size), all_reduce(by("tree"), ranks)(size)
    assert all_reduce(NVLINK, ranks)(size) == min(ring, tree)


def test_trees_win_small_messages_and_rings_large_ones():
    ring, tree = all_reduce(by("ring"), 8), all_reduce(by("tree"), 8)
    assert tree(10 * KILOBYTE) < ring(10 * KILOBYTE)
    assert tree(GIGABYTE) > ring(GIGABYTE)


@given(
    link=st.sampled_from([NVLINK, PCIE]),
    ranks=st.integers(2, 16),
    sizes=st.tuples(st.floats(1, 1e11), st.floats(1, 1e11)).map(sorted),
)
def test_more_bytes_take_longer_and_use_the_link_better(link, ranks, sizes):
    for collective in (all_reduce(link, ranks), all_gather(link, ranks)):
        short, long = (collective(size) for size in sizes)
        assert short <= long
        assert sizes[0] / short <= sizes[1] / long * (1 + 1e-12)


def test_gathering_and_scattering_are_the_halves_of_an_all_reduce():
    for link in (by("ring"), PCIE):
        whole, half = all_reduce(link, 8)(GIGABYTE), all_gather(link, 8)(GIGABYTE)
        assert 2 * half == pytest.approx(whole, rel=0.01)
    assert all_gather(by("ring"), 8)(0.0) == pytest.approx(6.6e-6 + 7 * 0.6e-6)


# --- measured ---------------------------------------------------------------------------------


def test_a_measured_table_takes_the_place_of_the_model():
    """Bus bandwidth as nccl-tests has it: bytes x 2 (n - 1) / n / time."""
    table = {"1 MB": 10e9, "1 KB": 0.1e9, "100 MB": 300e9}
    link = replace(NVLINK, bus_bandwidth=table)
    time = all_reduce(link, 4)
    assert time(0.0) == 0.0
    assert time(10.0) == time(1e3) == pytest.approx(1e3 * 1.5 / 0.1e9)
    assert time(1e6) == pytest.approx(1e6 * 1.5 / 10e9)
    assert time(50.5e6) == pytest.approx((time(1e6) + time(100e6)) / 2)
    assert time(1e9) == pytest.approx(1e9 * 1.5 / 300e9)
    assert all_gather(link, 4)(1e9) == pytest.approx(1e9 * 0.75 / 300e9)


def test_a_spec_file_may_have_the_table():
    link = {"kind": "nvlink", "bandwidth": "450 GB/s", "bus_bandwidth": {"1 MiB": "90 GB/s"}}
    table = {"based_on": "h100-sxm", "interconnect": link}
    gpu = gpu_from_table(table, name="mine", source="mine.toml")
    assert Cluster(gpu, 2).all_reduce_time(2**20) == pytest.approx(2**20 / 90e9)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"1 MiB": "0 GB/s"}, "bus_bandwidth.1 MiB must be > 0"),
        ({"big": "1 GB/s"}, r"x\.toml: interconnect: bus_bandwidth: a size needs"),
        ({"1 MiB": 5}, "interconnect.bus_bandwidth.1 MiB: a bandwidth needs"),
    ],
)
def test_a_wrong_table_is_named(table, problem):
    link = {"kind": "nvlink", "bandwidth": "450 GB/s", "bus_bandwidth": table}
    with pytest.raises(ScenarioError, match=problem):
        gpu_from_table({"based_on": "h100", "interconnect": link}, name="x", source="x.toml")


def test_a_larger_message_cannot_be_faster():
    with pytest.raises(ValueError, match=r"must not make 1e\+06 B faster than 1000 B"):
        replace(NVLINK, bus_bandwidth={"1 KB": 1e6, "1 MB": 1e12})
