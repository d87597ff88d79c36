"""Tiers below the GPU: MIST's figures of loads, what each option changes, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from mist_sim import (
    ChunkedScheduler,
    LlmClient,
    Scenario,
    ScenarioError,
    load_model,
    simulate,
)
from mist_sim.clients.admission import AdmissionControl
from mist_sim.clients.kv_cache import CacheTier, KvCacheConfig, cache_tiers
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.memory import MemoryTier
from mist_sim.scenario.build import build
from tests.reference.predictors import ConstantPredictor

DDR4 = MemoryTier(name="cpu", capacity=1e12, read_bandwidth=150e9)
NVME = MemoryTier(name="ssd", capacity=1e12, read_bandwidth=7e9, latency=50e-6)


@pytest.mark.parametrize(
    ("tier", "num_bytes", "microseconds"),
    [
        (DDR4, 2**18, 1.83),
        (DDR4, 2**20, 7.07),
        (DDR4, 2**24, 111.9),
        (DDR4, 2**28, 1790),
        (DDR4, 2**30, 7158),
        (NVME, 2**18, 87.4),
        (NVME, 2**20, 199.8),
        (NVME, 2**24, 2447),
        (NVME, 2**28, 38_398),
        (NVME, 2**30, 153_442),
    ],
)
def test_loads_of_the_fio_study(tier, num_bytes, microseconds):
    """MIST Fig. 8b: 80 ns and 150 GB/s of DDR4, 50 us and 7 GB/s of an NVMe disk."""
    assert tier.read_time(num_bytes, 1.0) * 1e6 == pytest.approx(microseconds, rel=2e-3)


@pytest.mark.parametrize(
    ("gigabytes_per_s", "num_tokens", "milliseconds"),
    [
        (128, 4096, 10.49),
        (128, 24_576, 62.91),
        (32, 4096, 41.94),
        (32, 24_576, 251.7),
        (2, 4096, 671.1),
        (2, 24_576, 4026.5),
    ],
)
def test_loads_of_the_storage_study(gigabytes_per_s, num_tokens, milliseconds):
    """MIST Table V, cases A to C: keys and values of Llama-3.1-70B, 327,680 bytes a token."""
    tier = MemoryTier(name="a", capacity=1e12, read_bandwidth=gigabytes_per_s * 1e9, latency=0.0)
    num_bytes = num_tokens * load_model("llama-3.1-70b").kv_bytes_per_token
    assert tier.read_time(num_bytes, 1.0) * 1e3 == pytest.approx(milliseconds, rel=1e-3)


def test_host_memory_is_read_over_the_links_of_all_ranks():
    model, gpu = load_model("llama-3.1-70b"), load_gpu("h100-sxm")
    config = KvCacheConfig(tiers=(MemoryTier(name="cpu", capacity=2**38),))
    (tier,) = cache_tiers(config, model, Cluster(gpu, 4))
    block_bytes = 16 * model.kv_bytes_per_token
    assert tier.num_blocks == 2**38 // block_bytes
    assert tier.seconds_per_block == pytest.approx(block_bytes / (4 * gpu.host_bandwidth))


CPU = {"name": "cpu", "capacity": "8 GiB"}
SSD = {"name": "ssd", "capacity": "64 GiB", "read_bandwidth": "7 GB/s", "latency": "50 us"}


def scenario(*tiers: dict[str, Any], **overrides: Any) -> Scenario:
    """Six long prefixes that come back, in memory for two of them."""
    data = {
        "model": "llama-3.1-8b",
        "workload": {
            "lengths": {
                "type": "prefix_repetition",
                "num_requests": 60,
                "num_prefixes": 6,
                "prefix_len": 12_000,
                "suffix": {"type": "fixed", "tokens": 100},
                "output": {"type": "fixed", "tokens": 20},
            },
            "arrivals": {"type": "poisson", "rate": "2 /s"},
        },
        "clients": [
            {
                "name": "llm",
                "gpu": "h100-sxm",
                "kv_cache": {"num_gpu_blocks_override": 1_600, "tiers": list(tiers)},
            }
        ],
    }
    changes = {path.replace("__", "."): value for path, value in overrides.items()}
    return Scenario.from_dict(data, changes)


def test_what_the_gpu_forgot_is_loaded():
    alone = simulate(scenario()).summary
    result = simulate(scenario(CPU | {"capacity": "64 GiB"}))
    tiered = result.summary
    first = result.requests.groupby("num_cached_tokens").size()
    assert first[0] == 6  # each prefix is computed once
    gpu_rate = tiered["prefix_cache_hit_rate"] - tiered["tier_hit_rates"]["cpu"]
    assert 0 < gpu_rate < tiered["prefix_cache_hit_rate"]
    assert alone["prefix_cache_hit_rate"] < tiered["prefix_cache_hit_rate"]
    assert tiered["mean_ttft_ms"] < alone["mean_ttft_ms"]
    assert (result.loads["end"] > result.loads["start"]).all()
    assert set(result.loads["tier"]) == {"cpu"}


def test_a_lower_tier_has_what_the_upper_one_forgot():
    small = simulate(scenario(CPU)).summary
    both = simulate(scenario(CPU, SSD)).summary
    assert set(both["tier_hit_rates"]) == {"cpu", "ssd"}
    assert small["prefix_cache_hit_rate"] < both["prefix_cache_hit_rate"]


@pytest.mark.parametrize(
    "change", [{"capacity": "3 GiB"}, {"read_bandwidth": "1 GB/s"}, {"latency": "100 ms"}]
)
def test_every_option_of_a_tier_changes_a_result(change):
    plain = simulate(scenario(CPU)).summary
    changed = simulate(scenario(CPU | change)).summary
    assert plain["mean_ttft_ms"] < changed["mean_ttft_ms"]


def test_results_with_loads_are_saved(tmp_path):
    folder = simulate(scenario(CPU)).save(tmp_path / "out")
    assert (folder / "loads.parquet").exists()


@pytest.mark.parametrize(
    ("tiers", "changes", "message"),
    [
        ([CPU, CPU], {}, "tiers: must have different names, got cpu, cpu"),
        ([CPU | {"capacity": "0 GiB"}], {}, "capacity: must be > 0"),
        ([CPU | {"capacity": "1 MiB"}], {}, "tier cpu has 1,048,576 bytes, less than a block"),
        ([CPU | {"latency": "-1 s"}], {}, "latency: must be >= 0 s"),
        ([CPU | {"read_bandwidth": "0 GB/s"}], {}, "read_bandwidth: must be > 0"),
        ([CPU | {"name": ""}], {}, "name: must not be empty"),
        ([CPU | {"size": "1 GiB"}], {}, "unknown key"),
        ([CPU], {"clients__0__kv_cache__enable_prefix_caching": False}, "tiers must be empty"),
        ([CPU], {"clients__0__pipeline_parallel_size": 2}, "tiers must be empty where pipeline"),
        ([CPU], {"clients__0__data_parallel_size": 2}, "tiers must be empty where pipeline"),
        ([CPU], {"clients__0__async_scheduling": True}, "with async_scheduling"),
    ],
)
def test_refusals(tiers, changes, message):
    with pytest.raises(ScenarioError, match=message):
        build(scenario(*tiers, **changes))


def test_admission_control_is_refused_with_tiers():
    with pytest.raises(ScenarioError, match="unless admission has its defaults"):
        LlmClient(
            "llm",
            scheduler=ChunkedScheduler(),
            predictor=ConstantPredictor(0.01),
            num_gpu_blocks=10,
            cache_tiers=[CacheTier("cpu", 10, 0.0, 0.0)],
            admission=AdmissionControl(max_num_waiting=3),
        )
