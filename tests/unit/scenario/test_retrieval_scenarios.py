"""KV retrieval in scenario files: what they say, and what is wrong with them."""

from pathlib import Path
from typing import Any

import pytest

import mist_sim as mist
from tests.commands import exit_code
from tests.refusals import refused

DRAM = {"name": "dram", "read_bandwidth": "128 GB/s", "latency": "80 ns"}
NVME = {"name": "nvme", "read_bandwidth": "7 GB/s", "latency": "50 us"}
HALF = {"hit_rate": 0.5}


def scenario(*levels: dict[str, Any], others: tuple[Any, ...] = (), **client: Any) -> mist.Scenario:
    more = client.pop("more", {})
    kv = {"name": "kv", "type": "kv_retrieval", "levels": list(levels), **client}
    return mist.Scenario.from_dict(
        {
            "model": "llama-3.1-8b",
            "workload": {
                "lengths": {
                    "type": "prefix_repetition",
                    "num_requests": 40,
                    "num_prefixes": 4,
                    "prefix_len": 2048,
                    "suffix": {"type": "fixed", "tokens": 100},
                    "output": {"type": "fixed", "tokens": 10},
                },
                "arrivals": {"type": "constant", "rate": "1 /s"},
                "pipeline": ["kv_retrieval", "prefill", "decode"],
            },
            "clients": [{"name": "llm", "gpu": "h100-sxm"}, kv, *others],
            **more,
        }
    )


def test_entries_are_those_of_the_scenarios_model():
    """2,148 tokens of 128 KiB at 128 GB/s, and 80 ns."""
    summary = mist.simulate(scenario(DRAM | {"hit_rate": 1.0})).summary
    assert summary["mean_retrieval_ms"] == pytest.approx(1e3 * (2148 * 131072 / 128e9 + 80e-9))
    other = mist.simulate(scenario(DRAM | {"hit_rate": 1.0}, model="llama-3.1-70b")).summary
    assert other["mean_retrieval_ms"] == pytest.approx(1e3 * (2148 * 327680 / 128e9 + 80e-9))


def test_contents_show_in_the_report(capsys):
    """Each of the four prefixes is computed once, and found by all requests behind the first."""
    result = mist.simulate(scenario(DRAM | {"capacity": "64 GB"}, NVME, hits="stored"))
    assert result.summary["retrieval_hit_rates"] == {"dram": 36 * 2048 / (40 * 2148)}
    result.show()
    shown = capsys.readouterr().out
    assert "context tokens retrieved" in shown
    assert "from dram" in shown
    assert "retrieval" in shown[shown.index("Communication") :]


def test_a_resolved_scenario_says_the_same():
    first = scenario(DRAM | {"capacity": "1 GB"}, NVME, hits="stored", eviction="lfu")
    again = mist.Scenario.from_yaml(first.resolved())
    assert again.resolved() == first.resolved()


def test_a_level_as_small_as_a_block_of_a_small_model_is_none_too_small():
    """What a block takes is known with the scenario's model alone."""
    small = scenario(DRAM | {"capacity": "4 MB"}, hits="stored", block_size=16)
    assert mist.simulate(small).summary["num_retrievals"] == 40


STORED = {"hits": "stored"}
test_what_is_wrong_is_one_message = refused(
    lambda levels, client: mist.simulate(scenario(*levels, **client)),
    ((NVME | HALF, DRAM | HALF), {}, "levels: must go from the nearest to the furthest, got dram"),
    ((DRAM | {"hit_rate": 1.5},), {}, "levels.0.hit_rate: must be in [0, 1], got 1.5"),
    ((DRAM | {"hit_rate": -0.1},), {}, "levels.0.hit_rate: must be in [0, 1], got -0.1"),
    ((DRAM,), {}, "dram: hit_rate must be given with hits: expected"),
    ((DRAM,), {"hits": "drawn"}, "dram: hit_rate must be given with hits: drawn"),
    ((DRAM | HALF,), STORED, "hit_rate must be left out with hits: stored"),
    ((DRAM | {"capacity": "0 B"},), STORED, "capacity: must be finite and > 0"),
    ((DRAM | {"capacity_tokens": 0},), STORED, "capacity_tokens: must be >= 1, got 0"),
    ((DRAM | {"capacity": "1 GB", "capacity_tokens": 9},), STORED, "capacity_tokens: must be left"),
    ((DRAM | {"capacity_tokens": 255},), STORED, "that of a block or more, 256 tokens"),
    ((DRAM | {"capacity": "1 MB"},), STORED, "that of a block or more, 256 tokens"),
    ((DRAM | HALF | {"capacity": "1 GB"},), {}, "capacity must be left out with hits: expected"),
    ((DRAM | HALF | {"shared": True},), {}, "shared must be left out with hits: expected"),
    ((DRAM | HALF | {"total_bandwidth": "1 GB/s"},), {}, "total_bandwidth: must be left out"),
    ((DRAM | HALF,), {"eviction": "lfu"}, "eviction: must be left out with hits: expected"),
    ((DRAM | HALF,), {"block_size": 16}, "block_size: must be left out with hits: expected"),
    ((DRAM | HALF,), {"max_batch_size": 0}, "max_batch_size: must be >= 1, got 0"),
    ((DRAM | HALF, DRAM | HALF), {}, "levels: must have names that differ, got dram, dram"),
    ((), {}, "levels: must have at least one entry, got none"),
    (({"name": "a", "hit_rate": 1},), {}, "read_bandwidth: must be given"),
    ((DRAM | HALF | {"read_bandwidth": "0 B/s"},), {}, "read_bandwidth: must be finite and > 0"),
    (({"name": "a", "at": "node1/host"} | HALF,), {}, "to: must be given, since the level a"),
    ((DRAM | HALF,), {"to": "node0/host"}, "to: must be left out, since no level has the key at"),
    ((DRAM | HALF,), {"device": {"name": "cpu", "slots": 0}}, "device.slots: must be >= 1, got 0"),
    (
        (DRAM | HALF,),
        {"model": "llama-3.1-8b", "bytes_per_token": "1 kB"},
        "left out with bytes_per",
    ),
    (({"name": "a", "at": "b"} | HALF,), {"to": "c"}, "to: must be left out, since the network"),
)


def test_places_that_a_topology_lacks_are_named():
    far = {"name": "far", "at": "node77/host"} | HALF
    with pytest.raises(mist.ScenarioError, match="kv: levels.at: .* no place 'node77/host'"):
        mist.simulate(scenario(far, to="node0/host", more={"network": {"topology": "racks-h100"}}))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"capacity": "2 GB"}, "capacity that it has at kv"),
        ({"total_bandwidth": "2 GB/s"}, "total_bandwidth that it has at kv"),
    ],
)
def test_clients_say_same_of_level_that_they_share(change, what):
    rack = DRAM | {"capacity": "1 GB", "shared": True, "total_bandwidth": "1 GB/s"}
    other = {"name": "other", "type": "kv_retrieval", "hits": "stored", "levels": [rack | change]}
    with pytest.raises(mist.ScenarioError, match=f"other: level dram must have the {what}"):
        mist.simulate(scenario(rack, hits="stored", others=(other,)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bytes,seconds\n1,1\n", "no column 'num_bytes'"),
        ("num_bytes,seconds\n", "has no row"),
        ("num_bytes,seconds\n10,1\n5,2\n", ":3: num_bytes must rise, got 5 behind 10"),
        ("num_bytes,seconds\n10,2\n20,1\n", ":3: seconds must not fall, got 1 behind 2"),
        ("num_bytes,seconds\n10,0\n", ":2: seconds must be a finite number > 0, got '0'"),
        ("num_bytes,seconds\n10\n", ":2: seconds must be a finite number > 0, got ''"),
        (
            'num_bytes,seconds,note\n10,1,"a\n20,2,b\n30,3,c"\n40,4,d\n',
            ":2: a quoted field opened in line 2 swallows 2 lines",
        ),
        ("num_bytes,seconds\n1e999,1\n", ":2: num_bytes must be a finite number > 0"),
    ],
)
def test_measured_files_are_read_with_care(text, message, tmp_path):
    (tmp_path / "reads.csv").write_text(text)
    with pytest.raises(mist.ScenarioError) as caught:
        scenario({"name": "a", "measured": str(tmp_path / "reads.csv")} | HALF)
    assert message in str(caught.value)


def test_bad_input_ends_with_code_2_and_one_line(tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text(scenario(DRAM | HALF).resolved().replace("hit_rate: 0.5", "hit_rate: 7"))
    assert exit_code("run", path, "--out", tmp_path / "results") == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0
    assert said.endswith("levels.0.hit_rate: must be in [0, 1], got 7.0")
    assert not (tmp_path / "results").exists()


def test_pipelines_take_retrieved_entries():
    """In the form of vLLM v0, since loads into a queue of batches are not simulated."""
    folder = Path(__file__).parents[3] / "examples/mist_studies"
    changes = {"workload.lengths.num_requests": 20, "clients.0.pipeline_parallel_size": 2}
    found = mist.Scenario.load(folder / "code.yaml", overrides=changes)
    assert found.clients[0].name == "llm"
    result = mist.simulate(found)
    assert result.summary["completed"] == 20
