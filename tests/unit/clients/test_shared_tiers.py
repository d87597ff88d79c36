"""Tiers that engines share: what one computed, others find, also when it has failed."""

from typing import Any

import pytest

from mist_sim import Result, Scenario, ScenarioError, simulate
from mist_sim.scenario.build import build
from tests.refusals import refused
from tests.unit.clients.test_memory_tiers import scenario

STORE = {
    "name": "store",
    "capacity": "256 GiB",
    "read_bandwidth": "20 GB/s",
    "latency": "1 ms",
    "shared": True,
}


def clients(*tiers: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Two engines that requests go to in turn."""
    kv_cache = {"num_gpu_blocks_override": 1_600, "tiers": list(tiers)}
    return [{"name": name, "gpu": "h100-sxm", "kv_cache": kv_cache, **more} for name in "ab"]


def two(*tiers: dict[str, Any], **overrides: Any) -> Scenario:
    return scenario(clients=clients(*tiers), **overrides)


SLOWLY = {"workload__arrivals": {"type": "constant", "rate": "1 /s"}}
"""Nobody asks for a prefix while it is computed for the first time."""


def test_engines_find_what_others_computed():
    """Each of six prefixes is computed once with a shared tier, and once an engine without."""
    apart = simulate(two(STORE | {"shared": False}, **SLOWLY)).requests
    shared = simulate(two(STORE, **SLOWLY)).requests
    assert (apart["num_cached_tokens"] == 0).sum() > 6
    assert (shared["num_cached_tokens"] == 0).sum() == 6


def failing(*tiers: dict[str, Any], policy: str = "retry", **more: Any) -> Result:
    """One engine fails while it answers; the other one goes on with its requests."""
    failures = [{"clients": "a", "at": "8 s", "repair": "2 s"}]
    return simulate(
        two(
            *tiers,
            lifecycle={"failures": failures, "on_failure": {"policy": policy}},
            workload__lengths__output__tokens=200,
            **more,
        )
    )


def test_a_lost_request_finds_its_prefix_elsewhere():
    """The retried prompt is that of the answer so far, 12,100 tokens and more."""
    alone, shared = failing(), failing(STORE)
    for result in (alone, shared):
        assert result.summary["num_lost_visits"] == result.summary["num_retried_visits"] > 0
        assert result.summary["completed"] == 60
    loads = shared.transfers
    assert (loads["start"] >= 8.0).any()
    assert set(loads["source"]) == {"store"}
    assert shared.summary["p99_e2el_ms"] < alone.summary["p99_e2el_ms"]


def test_a_client_that_comes_back_finds_what_it_computed_before():
    """Its own memory is empty; without a shared tier it computes all prefixes again."""
    own, shared = (
        simulate(
            scenario(
                clients=clients(tier)[:1],
                lifecycle={"failures": [{"clients": "a", "at": "15 s", "repair": "1 s"}]},
            )
        )
        for tier in (STORE | {"shared": False}, STORE)
    )
    assert (own.requests["num_cached_tokens"] == 0).sum() > 6
    assert (shared.requests["num_cached_tokens"] == 0).sum() == 6


def test_a_step_that_was_lost_left_nothing():
    """The engine fails in its first prompt: the next one that asks for it computes all of it."""
    long_prompt = {"workload__lengths__prefix_len": 20_000}
    result = simulate(
        scenario(
            clients=clients(STORE, scheduler={"max_num_batched_tokens": 1024}),
            lifecycle={"failures": [{"clients": "a", "at": "500 ms", "repair": "1 s"}]},
            workload__lengths__num_requests=1,
            workload__lengths__num_prefixes=1,
            workload__arrivals={"type": "all_at_once"},
            **long_prompt,
        )
    )
    assert result.summary["num_lost_visits"] == 1
    assert result.requests["num_cached_tokens"].tolist() == [0]
    assert not len(result.transfers)


def test_the_same_seed_gives_the_same_records():
    first, second = failing(STORE), failing(STORE)
    assert first.requests.equals(second.requests)


def test_a_shared_tier_at_a_place_of_topology():
    tier = {key: value for key, value in STORE.items() if key != "read_bandwidth"}
    network = {"topology": "hgx-h100", "remote_storage": "20 GB/s"}
    there = simulate(two(tier | {"at": "remote/storage"}, network=network, **SLOWLY))
    assert (there.requests["num_cached_tokens"] == 0).sum() == 6


test_refusals = refused(
    lambda tiers: two(*tiers),
    ([STORE | {"write_policy": "write_back"}], "write_policy: must be write_through"),
    ([STORE | {"read_bandwidth": None}], "read_bandwidth: must be given with shared, or at"),
    ([STORE | {"at": "host"}], "at: must be a place that all reach"),
    ([STORE, {"name": "cpu", "capacity": "1 GiB"}], "tiers: must have the shared one last"),
)


def test_blocks_of_two_kinds_cannot_lie_in_one():
    one, other = clients(STORE)
    other = other | {"kv_cache": other["kv_cache"] | {"block_size": 32}}
    with pytest.raises(ScenarioError, match="b: tier store must have the block_size that it has"):
        build(scenario(clients=[one, other]))
