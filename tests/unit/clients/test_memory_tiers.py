"""Tiers below the GPU: MIST's figures of loads, what each option changes, and refusals."""

import re
from itertools import pairwise
from typing import Any

import pytest

from mist_sim import (
    ChunkedScheduler,
    LlmClient,
    Result,
    Scenario,
    ScenarioError,
    Simulation,
    llm_client,
    load_model,
    simulate,
)
from mist_sim.clients.kv_cache import CacheTier, KvCacheConfig, cache_tiers
from mist_sim.clients.options.overload import AdmissionControl
from mist_sim.clients.scheduling.lane_view import LaneView
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.devices import MemoryTier
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.scenario.build import build
from tests.reference.comparison import workload
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.reference.scenarios import changed
from tests.reference.stepwise import Job
from tests.refusals import refused

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
    return changed(data, **overrides)


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
    assert (result.transfers["end"] > result.transfers["start"]).all()
    assert set(result.transfers["source"]) == {"cpu"}


def test_a_lower_tier_has_what_upper_one_forgot():
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


def test_what_writes_back_needs_less_room():
    """It does not have again what is on the GPU."""
    through, back = (
        simulate(scenario(CPU | {"write_policy": policy})).summary
        for policy in ("write_through", "write_back")
    )
    assert through["prefix_cache_hit_rate"] < back["prefix_cache_hit_rate"]


def test_results_with_loads_are_saved(tmp_path):
    folder = simulate(scenario(CPU)).save(tmp_path / "out")
    assert (folder / "transfers.parquet").exists()


test_refusals = refused(
    lambda tiers, changes: build(scenario(*tiers, **changes)),
    ([CPU, CPU], {}, "tiers: must have different names, got cpu, cpu"),
    ([CPU | {"capacity": "0 GiB"}], {}, "capacity: must be finite and > 0 B"),
    ([CPU | {"capacity": "1 MiB"}], {}, "tier cpu has 1,048,576 bytes, less than a block"),
    ([CPU | {"latency": "-1 s"}], {}, "latency: must be finite and >= 0 s"),
    ([CPU | {"read_bandwidth": "0 GB/s"}], {}, "read_bandwidth: must be finite and > 0 B/s"),
    ([CPU | {"name": ""}], {}, "name: must not be empty"),
    ([CPU | {"write_policy": "write_bock"}], {}, "write_policy"),
    ([CPU | {"size": "1 GiB"}], {}, "unknown key"),
    ([CPU], {"clients__0__kv_cache__enable_prefix_caching": False}, "tiers must be empty"),
    (
        [CPU | {"capacity": "3 MiB"}],
        {"clients__0__pipeline_parallel_size": 2},
        "tier cpu has 1 blocks, less than one for each of 2 lanes",
    ),
)


# --- who gives up, and engines of several lanes -------------------------------------------------

STEP, LOAD = 1.0, 10.0  # seconds; of any step, and of any block from the tier
LONG = ((7, 40),)  # ten blocks that come back


def engine(num_lanes: int = 1, **more: Any) -> LlmClient:
    """Room for 45 blocks of four tokens in each lane, and for more in a slow tier."""
    one = ConstantPredictor(STEP)
    ranks = (one,) * num_lanes
    options: dict[str, Any] = {
        "scheduler": ChunkedScheduler(),
        "predictor": one if num_lanes == 1 else PipelinePredictor(ranks, lambda num_tokens: 0.0),
        "num_gpu_blocks": 45 * num_lanes,
        "block_size": 4,
        "cache_tiers": [CacheTier("cpu", 200 * num_lanes, 0.0, LOAD)],
    }
    return llm_engine("llm", **options | more)


def served(client: LlmClient, jobs: list[Job]) -> Result:
    return Simulation(clients=[client], workload=workload(jobs)).run()


def prompt(time: float, num_tokens: int, **more: Any) -> Job:
    return Job(time, num_tokens, 1, **more)


FORGOTTEN = [prompt(0.0, 41, content=LONG), prompt(5.0, 180)]  # the second one takes all memory


NGRAM = {"method": "ngram", "num_speculative_tokens": 2}
IN_STEP = {"cache_tiers": [CacheTier("cpu", 200, 0.0, LOAD, in_step=True)]}


@pytest.mark.parametrize(("more", "gap"), [({}, STEP), (IN_STEP, 10 * LOAD + STEP)])
def test_a_step_waits_for_its_loads_where_the_tier_says_so(more, gap):
    """Meanwhile a decode gets no token; between steps the same load delays only its request."""
    again, decode = prompt(20.0, 41, content=LONG), Job(10.0, 1, 100)
    result = served(engine(**more), [*FORGOTTEN, decode, again])
    found = result.requests.sort_values("arrival_time").iloc[-1]
    assert found["ttft"] == 10 * LOAD + STEP
    assert found["num_cached_tokens"] == 40
    times = result.token_times(2)
    assert max(later - sooner for sooner, later in pairwise(times)) == gap
    (load,) = result.transfers.query("kind == 'load'").to_dict("records")
    assert (load["start"], load["end"], load["num_tokens"]) == (20.0, 20.0 + 10 * LOAD, 40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"role": "prefill"}, "role: must be left out with loads_in_step"),
        ({"scheduler": "continuous"}, "scheduler: must be chunked with loads_in_step"),
        (
            {"scheduler": {"prefill_schedule_interval": 2}},
            "scheduler.prefill_schedule_interval must be 1 with loads_in_step",
        ),
        (
            {"speculative_config": {**NGRAM, "acceptance_rate": 0.5}},
            "speculative_config: must be left out with loads_in_step",
        ),
        (
            {"kv_cache": {"tiers": [CPU | {"loads_in_step": True}, SSD]}},
            "tiers: must have the same loads_in_step, got true and false in cpu, ssd",
        ),
        (
            {"kv_cache": {"tiers": [CPU | {"loads_in_step": None}, SSD]}},
            "tiers: must have the same loads_in_step, got null and false in cpu, ssd",
        ),
    ],
)
def test_options_that_do_not_go_with_loads_in_a_step(change, message):
    changes = {f"clients__0__{key}": value for key, value in change.items()}
    with pytest.raises(ScenarioError, match=re.escape(message)):
        build(scenario(CPU | {"loads_in_step": True}, **changes))


@pytest.mark.parametrize("role", [None, "prefill", "decode"])
def test_a_step_waits_where_that_is_left_open_unless_the_client_has_a_role(role):
    cpu = MemoryTier(name="cpu", capacity=2**33, loads_in_step=None)
    client = llm_client("llm", role=role, kv_cache=KvCacheConfig(tiers=(cpu,)))
    (tier,) = client.memory.tiers
    assert tier.in_step is (role is None)


class OnePromptOrDecodes(ChunkedScheduler):
    """A scheduler as the guide describes it, with a prompt or the decodes in a step."""

    def plan(self, lane: LaneView) -> None:
        if lane.head is None or not lane.admit(lane.head):
            for each in lane.running:
                lane.run(each)


def test_a_scheduler_of_ones_own_loads_from_tiers():
    again = prompt(10.0, 41, content=LONG)
    result = served(engine(scheduler=OnePromptOrDecodes()), [*FORGOTTEN, again])
    assert result.transfers["num_tokens"].tolist() == [40]
    assert result.requests["finished_at"].tolist()[2] == 10 + 10 * LOAD + STEP


class LeavesLoadedOnes(ChunkedScheduler):
    """Forgets whose blocks have come."""

    def plan(self, lane: LaneView) -> None:
        for each in lane.running:
            lane.run(each)
        for each in lane.waiting:
            if lane.notes.setdefault(each, lane.time) == lane.time:
                lane.admit(each)


def test_who_is_forgotten_after_a_load_stops_run():
    again = prompt(10.0, 41, content=LONG)
    with pytest.raises(ScenarioError, match="lets no request compute .* 0 running and 1 waiting"):
        served(engine(scheduler=LeavesLoadedOnes()), [*FORGOTTEN, again])


def test_what_waits_for_blocks_counts_as_waiting():
    client = engine(admission=AdmissionControl(max_num_waiting=1))
    again = prompt(10.0, 41, content=LONG)
    requests = served(client, [*FORGOTTEN, again, prompt(11.0, 1)]).requests
    assert requests["status"].tolist()[2:] == ["finished", "rejected"]


def test_host_memory_of_an_engine_is_read_over_its_own_links():
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100-sxm")
    config = KvCacheConfig(tiers=(MemoryTier(name="cpu", capacity=2**38),))
    one, two = (cache_tiers(config, model, Cluster(gpu, 1, replicas))[0] for replicas in (1, 2))
    assert one == two
    (half,) = cache_tiers(config, model, Cluster(gpu, pipeline_parallel_size=2))
    assert half.seconds_per_block == pytest.approx(one.seconds_per_block / 2)


# --- who is in which tier -----------------------------------------------------------------------


def loaded(client: LlmClient, *jobs: Job) -> dict[str, int]:
    loads = served(client, list(jobs)).transfers
    return loads.groupby("source")["num_tokens"].sum().to_dict()
