"""Times of MIST's KV retrieval that follow exactly from its formulas and tables.

Sources: §IV-A3 (the recursion), §IV-B5 (fio on DDR4 and NVMe), Table V (storage architectures),
§V-B (about 20 ms between racks). Contexts are those of Llama-3.1-70B.
"""

import pytest

from mist_sim.clients.retrieval.levels import StorageLevel, expected_time
from mist_sim.models import load_model

EXACT = 1e-6
SHORT, LONG = 4096, 24576  # tokens of the two contexts of Fig. 13
TOKEN = load_model("llama-3.1-70b").kv_bytes_per_token
KIB, MIB, GIB = 2**10, 2**20, 2**30


def level(bandwidth: float, latency: float = 0.0, hit_rate: float = 1.0) -> StorageLevel:
    return StorageLevel(
        name=f"{bandwidth:g}", read_bandwidth=bandwidth, latency=latency, hit_rate=hit_rate
    )


def test_bytes_of_the_contexts():
    assert TOKEN == 327_680
    assert pytest.approx(1.342e9, rel=1e-3) == SHORT * TOKEN
    assert pytest.approx(8.053e9, rel=1e-3) == LONG * TOKEN


@pytest.mark.parametrize(
    ("case", "storage", "short_ms", "long_ms"),
    [
        ("A", level(128e9), 10.48576, 62.91456),
        ("B", level(32e9), 41.94304, 251.65824),
        ("C", level(2e9), 671.08864, 4026.53184),
        ("D", level(2e9, 20e-3), 691.08864, 4046.53184),
        ("D, with a serial hop", level(1 / (1 / 2e9 + 1 / 128e9), 20e-3), 701.5744, 4109.4464),
    ],
)
def test_storage_architectures(case, storage, short_ms, long_ms):
    """Table V, bandwidths per client; of case D our reading is C and the latency of the link."""
    for num_tokens, ms in ((SHORT, short_ms), (LONG, long_ms)):
        assert 1e3 * expected_time(num_tokens * TOKEN, [storage]) == pytest.approx(ms, rel=EXACT)


@pytest.mark.parametrize(
    ("storage", "microseconds"),
    [
        (level(150e9, 80e-9), [1.827627, 7.070507, 111.928107, 1789.649707, 7158.358827]),
        (level(7e9, 50e-6), [87.449143, 199.796571, 2446.745143, 38397.922286, 153441.689143]),
    ],
)
def test_sequential_reads(storage, microseconds):
    """Fig. 8 (b), the model's line: DDR4 at 150 GB/s and 80 ns, NVMe at 7 GB/s and 50 us."""
    sizes = [256 * KIB, MIB, 16 * MIB, 256 * MIB, GIB]
    times = [1e6 * expected_time(size, [storage]) for size in sizes]
    assert times == pytest.approx(microseconds, rel=EXACT)


@pytest.mark.parametrize(("capacity", "contexts"), [(1e12, 124), (4e12, 497), (32e12, 3974)])
def test_capacity_in_long_contexts(capacity, contexts):
    """Table V: 1, 4 and 32 TB are about so many contexts of 24,576 tokens."""
    assert round(capacity / (LONG * TOKEN)) == contexts


# --- edges of the recursion -------------------------------------------------------------------


def test_one_level_that_always_hits_costs_its_latency_and_its_bytes():
    assert expected_time(7e9, [level(7e9, 50e-6)], 9.0) == 1.00005


def test_a_level_that_never_hits_costs_nothing():
    never = level(1e9, 1.0, hit_rate=0.0)
    assert expected_time(2e9, [never, level(2e9, 0.5)]) == 1.5
    assert expected_time(2e9, [never], 3.0) == 3.0
    assert expected_time(2e9, [], 3.0) == 3.0


def test_behind_a_level_that_always_hits_nothing_counts():
    assert expected_time(2e9, [level(2e9), level(1.0)], 1e9) == 1.0


def test_no_bytes_take_the_latency():
    assert expected_time(0, [level(2e9, 0.25, 0.5), level(1e9, 0.5)]) == 0.375


def test_three_levels_and_a_miss_by_hand():
    """1/2 x 1 s + 1/2 (1/4 x 2 s + 3/4 (1/2 x 4 s + 1/2 x 16 s)) = 4.5 s."""
    levels = [level(8.0, 0, 0.5), level(4.0, 0, 0.25), level(2.0, 0, 0.5)]
    assert expected_time(8.0, levels, 16.0) == 4.5
