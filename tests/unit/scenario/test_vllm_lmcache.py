"""LMCache's settings, of variables and of a connector's own config: each has its own answer."""

import json

import pytest

from mist_sim.scenario.from_vllm.commands import read_commands

TIER = "LMCache keeps blocks as a tier of host memory does"


def answers(variables="", role="kv_both", connector="LMCacheConnectorV1", extra=None, **more):
    """Return verdict, reason and whether it is assumed, by what the line says."""
    said = {"kv_connector": connector, "kv_role": role}
    if extra is not None:
        said["kv_connector_extra_config"] = extra
    flag = f"--kv-transfer-config '{json.dumps(said)}'" if connector else ""
    found = read_commands([f"{variables} vllm serve qwen3-8b {flag}"], **more)
    items = [item for each in found.account for item in each.items]
    return found.keys["clients"][0], {i.flag: (i.verdict, i.why, i.is_assumed) for i in items}


def test_a_disk_is_refused_wherever_it_is_said():
    _, found = answers("LMCACHE_LOCAL_DISK=/d LMCACHE_MAX_LOCAL_DISK_SIZE=500")
    verdict, why, _ = found["LMCACHE_MAX_LOCAL_DISK_SIZE"]
    assert verdict == "refused"
    assert "read_bandwidth: 7 GB/s" in why
    entries = {"lmcache.local_disk": "/d", "lmcache.max_local_disk_size": 100}
    _, found = answers(extra=entries)
    assert found["kv_connector_extra_config lmcache.max_local_disk_size"][0] == "refused"
    _, found = answers(extra=entries, overrides=["clients.0.kv_cache.tiers"])
    assert {verdict for verdict, _, _ in found.values()} == {"applied"}


def test_a_disk_needs_a_place_and_a_size():
    for half in ("LMCACHE_LOCAL_DISK=/d", "LMCACHE_MAX_LOCAL_DISK_SIZE=5"):
        client, found = answers(half)
        assert found[half.partition("=")[0]][:1] == ("no effect",)
        assert client["kv_cache"]["tiers"][0]["name"] == "lmcache"


def test_entries_of_connector_are_answered_one_by_one():
    client, found = answers(
        "LMCACHE_MAX_LOCAL_CPU_SIZE=20",
        extra={"lmcache.max_local_cpu_size": 40, "lmcache.chunk_size": 256, "other": 1},
    )
    assert client["kv_cache"]["tiers"][0]["capacity"] == "40 GB"
    named = "kv_connector_extra_config "
    assert found[f"{named}lmcache.max_local_cpu_size"][0] == "applied"
    assert "given, too" in found["LMCACHE_MAX_LOCAL_CPU_SIZE"][1]
    assert "not chunks" in found[f"{named}lmcache.chunk_size"][1]
    assert found[f"{named}other"][2]


@pytest.mark.parametrize(
    ("entry", "verdict"),
    [
        ({"block_size": 64}, "no effect"),
        ({"eviction_policy": "lru"}, "no effect"),
        ({"eviction_policy": "arc"}, "refused"),
        ({"secondary_tiers": [{"type": "fs"}]}, "refused"),
    ],
)
def test_entries_of_the_offloading_connector(entry, verdict):
    client, found = answers(
        connector="OffloadingConnector", extra={"cpu_bytes_to_use": 10**9, **entry}
    )
    assert client["kv_cache"]["tiers"] == [{"name": "cpu", "capacity": "1000000000 B"}]
    (own,) = [said for flag, said in found.items() if next(iter(entry)) in flag]
    assert own[0] == verdict


def test_a_size_without_a_tier_is_no_tier():
    client, found = answers("LMCACHE_MAX_LOCAL_CPU_SIZE=50", connector="")
    assert "kv_cache" not in client
    assert "no LMCache connector" in found["LMCACHE_MAX_LOCAL_CPU_SIZE"][1]
    client, found = answers("LMCACHE_MAX_LOCAL_CPU_SIZE=50", role="kv_producer")
    assert client["role"] == "prefill"
    assert "kv_cache" not in client
    _, why, is_assumed = found["LMCACHE_MAX_LOCAL_CPU_SIZE"]
    assert is_assumed
    assert "has no tier" in why
    assert TIER not in why
