"""Collectives: bytes, latencies, and which algorithm is the fastest for a message."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.errors import ScenarioError
from mist_sim.hardware import Cluster, Interconnect, gpu_from_table, load_gpu
from mist_sim.hardware.collectives import all_gather, all_reduce

NVLINK = Interconnect(kind="nvlink", bandwidth=450e9, all_reduce="auto")
PCIE = Interconnect(kind="pcie", bandwidth=32e9, all_reduce="host_shared")
HOSTED = replace(PCIE, all_reduce="host")
XGMI = replace(NVLINK, kind="xgmi")
GIGABYTE, KILOBYTE = 1e9, 1e3


def by(algorithm: str, link: Interconnect = NVLINK) -> Interconnect:
    return replace(link, all_reduce=algorithm)


def test_one_rank_has_nobody_to_talk_to():
    for link in (NVLINK, PCIE):
        assert all_reduce(link, 1)(GIGABYTE) == all_gather(link, 1)(GIGABYTE) == 0.0


def test_large_messages_take_the_bytes_of_seesaw():
    """Eq. 1, B_ar: a ring, and all through the host; latency hardly counts."""
    for ranks in (2, 8):
        ring = 2 * (ranks - 1) / ranks / 360
        assert all_reduce(by("ring"), ranks)(GIGABYTE) == pytest.approx(ring, rel=0.03)
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
    assert all_reduce(XGMI, ranks)(0.0) == pytest.approx(min(ring, tree))


def test_a_hop_over_pcie_takes_longer():
    assert all_reduce(PCIE, 8)(0.0) == pytest.approx(6.6e-6 + 14 * 1.0e-6)


@given(ranks=st.integers(2, 16), size=st.floats(0, 1e12))
def test_without_measurements_auto_is_the_faster_of_ring_and_tree(ranks, size):
    ring, tree = all_reduce(by("ring"), ranks)(size), all_reduce(by("tree"), ranks)(size)
    assert all_reduce(XGMI, ranks)(size) == min(ring, tree)


def test_trees_win_small_messages_and_rings_large_ones():
    ring, tree = all_reduce(by("ring"), 8), all_reduce(by("tree"), 8)
    assert tree(10 * KILOBYTE) < ring(10 * KILOBYTE)
    assert tree(GIGABYTE) > ring(GIGABYTE)


@given(
    link=st.sampled_from([NVLINK, PCIE, XGMI, HOSTED]),
    ranks=st.integers(2, 16),
    sizes=st.tuples(st.floats(1, 1e11), st.floats(1, 1e11)).map(sorted),
)
def test_more_bytes_take_longer_and_use_link_better(link, ranks, sizes):
    for collective in (all_reduce(link, ranks), all_gather(link, ranks)):
        short, long = (collective(size) for size in sizes)
        assert short <= long
        assert sizes[0] / short <= sizes[1] / long * (1 + 1e-12)


def test_gathering_and_scattering_are_halves_of_all_reduce():
    for link in (by("ring"), PCIE):
        whole, half = all_reduce(link, 8)(GIGABYTE), all_gather(link, 8)(GIGABYTE)
        assert 2 * half == pytest.approx(whole, rel=0.01)
    assert all_gather(by("ring"), 8)(0.0) == pytest.approx(6.6e-6 + 7 * 0.6e-6)


# --- as fitted over NVLink ----------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_small_sums_over_nvlink_take_one_kernel_of_vllms_own(ranks):
    """4.4 us whatever the ranks, where NCCL's tree takes 8.0 to 10.4 us and its ring 7.8 to 15."""
    assert all_reduce(NVLINK, ranks)(0.0) == pytest.approx(4.4e-6)
    slower = replace(NVLINK, kernel_latency=1.6, nccl_latency=1.6)
    assert all_reduce(slower, ranks)(0.0) == pytest.approx(7.04e-6)


def test_a_sum_over_nvlink_by_hand():
    """Of 360 GB/s: one shot 0.60, two shots 2 / 0.98, NCCL's last way 2 / 1.27."""
    one_shot = 4.4e-6 + 3 * 65_536 / 0.60 / 360e9
    assert all_reduce(NVLINK, 4)(65_536) == pytest.approx(one_shot)
    two_shots = 9.4e-6 + 2 * 4 * 2**20 / 0.98 / 360e9
    assert all_reduce(NVLINK, 8)(4 * 2**20) == pytest.approx(two_shots)
    by_nccl = 7.7e-6 + 14 * 4.1e-6 + 2 * 2**30 / 1.27 / 360e9
    assert all_reduce(NVLINK, 8)(2**30) == pytest.approx(by_nccl)


def test_two_ranks_read_each_other_no_faster_than_their_kernels():
    """At most 218 GB/s, also over a link of 900: 4.8 us for 1 MiB on top of the latency."""
    fast = replace(NVLINK, bandwidth=900e9)
    assert all_reduce(fast, 2)(2**20) == pytest.approx(4.4e-6 + 2**20 / 218e9)


@pytest.mark.parametrize("ranks", [3, 5, 7, 16])
def test_other_numbers_of_ranks_take_nccl(ranks):
    assert all_reduce(NVLINK, ranks)(0.0) == pytest.approx(4.9e-6 + 2 * (ranks - 1) * 0.81e-6)


@pytest.mark.parametrize(
    ("ranks", "size", "measured"),
    [
        (4, 2**8, 7.5e-6),
        (8, 2**8, 13.2e-6),
        (8, 2**21, 20.2e-6),
        (16, 2**8, 45.9e-6),
        (16, 2**21, 52.6e-6),
    ],
)
def test_sums_between_trays_as_measured(ranks, size, measured):
    """GB300, vLLM 0.27 (aiconfigurator-core 0.12.0): other kernels on two trays, NCCL on four."""
    link = load_gpu("gb300").interconnect
    assert all_reduce(link, ranks)(size) == pytest.approx(measured, rel=0.15)


def test_a_gather_over_nvlink_by_hand():
    """4.9 us and n - 1 hops of 0.82 us, and 0.45 of 360 GB/s."""
    expected = 4.9e-6 + 7 * 0.82e-6 + 1024 / 0.45 / 360e9
    assert all_gather(NVLINK, 8)(1024) == pytest.approx(expected)
    assert all_gather(replace(NVLINK, nccl_latency=2.0), 8)(0.0) == pytest.approx(2 * 10.64e-6)


@pytest.mark.parametrize("collective", [all_reduce, all_gather])
@given(
    link=st.sampled_from([NVLINK, replace(NVLINK, bandwidth=900e9, nccl_latency=1.6), HOSTED]),
    ranks=st.sampled_from([(2, 4), (4, 6), (6, 8), (8, 9), (9, 16), (16, 17), (17, 64)]),
    size=st.floats(0, 1e12),
)
def test_more_ranks_are_never_faster(collective, link, ranks, size):
    """Of the numbers that vLLM's kernels sum, or beyond: three ranks take NCCL, which is slower."""
    few, more = (collective(link, each)(size) for each in ranks)
    assert few <= more * (1 + 1e-12)


@given(
    ranks=st.integers(2, 16),
    size=st.floats(0, 1e12),
    better=st.sampled_from(["bandwidth", "efficiency", "nccl_latency", "kernel_latency"]),
)
def test_a_better_link_is_never_slower(ranks, size, better):
    factor = 0.5 if better.endswith("latency") else 1.2
    link = replace(NVLINK, **{better: getattr(NVLINK, better) * factor})
    assert all_reduce(link, ranks)(size) <= all_reduce(NVLINK, ranks)(size)


# --- measured ---------------------------------------------------------------------------------


def test_a_measured_table_takes_the_place_of_model():
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
        ({"1 MiB": "0 GB/s"}, "bus_bandwidth.1 MiB must be finite and > 0 B/s"),
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
