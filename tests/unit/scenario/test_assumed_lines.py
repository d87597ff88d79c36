"""What a run assumes of starts and prefixes, and says among its warnings."""

import pytest

from mist_sim import Scenario, simulate
from mist_sim.core.front_end import MEASURED
from mist_sim.search.comparison import compare
from tests.warned import about, texts

LENGTHS = {
    "type": "synthetic",
    "num_requests": 20,
    "prompt": {"type": "fixed", "tokens": 100},
    "output": {"type": "fixed", "tokens": 10},
}
DATA = {
    "model": "llama-3.1-8b",
    "clients": [{"name": "llm", "gpu": "h100-sxm", "count": 2}],
    "workload": {"lengths": LENGTHS, "arrivals": {"type": "poisson", "rate": "20 /s"}},
}
CSV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.97,374,44
2023-11-16 18:17:04.03,396,109
"""
JSONL = """{"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}
{"timestamp": 9, "input_length": 600, "output_length": 9, "hash_ids": [2, 3]}
"""


def lines(data):
    result = simulate(Scenario.from_dict(data))
    return result.summary.get("assumed", {}), texts(result.summary)


@pytest.mark.parametrize(
    ("lifecycle", "names"),
    [
        ({"failures": [{"clients": ["llm-1"], "at": "100 ms", "repair": "100 ms"}]}, ["llm-1"]),
        ({"failures": [{"clients": ["llm-1"], "at": "100 ms"}]}, []),
        ({"drains": [{"clients": ["llm-0"], "at": "100 ms", "back": "200 ms"}]}, ["llm-0"]),
        ({"drains": [{"clients": ["llm-0"], "at": "100 ms"}]}, []),
        (
            {
                "failures": [{"clients": ["llm-1"], "at": "100 ms", "repair": "100 ms"}],
                "start_up": {"time": "0 s"},
            },
            [],
        ),
    ],
)
def test_starts_in_no_time_are_assumed(lifecycle, names):
    assumed, told = lines(DATA | {"lifecycle": lifecycle})
    assert [name for name, each in assumed.items() if "lifecycle.start_up" in each] == names
    assert sum("start in 0 s" in line for line in told) == bool(names)


@pytest.mark.parametrize(
    ("start_up", "said"),
    [
        ({"storage": "5 GB/s"}, "compilation, graph_capture, other are assumed"),
        ({"compilation": "30 s", "other": "2 s"}, "graph_capture is assumed"),
        ({"compilation": "30 s", "other": "2 s", "graph_capture": "9 s"}, ""),
    ],
)
def test_the_engines_times_of_a_start_are_those_of_an_8b_model(start_up, said):
    failures = [{"clients": ["llm-1"], "at": "100 ms", "repair": "100 ms"}]
    assumed, told = lines(DATA | {"lifecycle": {"failures": failures, "start_up": start_up}})
    found = [line for line in told if line.startswith("lifecycle.start_up: ")]
    assert len(found) == bool(said)
    assert all(said in line and "8B model" in line for line in found)
    named = {name for each in assumed.values() for name in each if "start_up" in name}
    assert len(named) == said.count(",") + bool(said)


@pytest.mark.parametrize(
    ("kind", "text", "caches", "said"),
    [("azure", CSV, True, True), ("azure", CSV, False, False), ("mooncake", JSONL, True, False)],
)
def test_a_trace_without_hashes_says_that_nothing_can_be_found(tmp_path, kind, text, caches, said):
    (tmp_path / "trace").write_text(text, "utf-8")
    client = {"name": "llm", "gpu": "h100-sxm", "kv_cache": {"enable_prefix_caching": caches}}
    trace = {"type": kind, "path": str(tmp_path / "trace")}
    assumed, told = lines(DATA | {"clients": [client], "workload": {"trace": trace}})
    assert ("prefixes" in assumed["llm"]) == said
    assert sum("nothing can be found" in line for line in told) == said


def test_drawn_lengths_say_nothing_of_prefixes():
    assumed, _ = lines(DATA)
    assert all("prefixes" not in names for names in assumed.values())


def test_the_front_end_names_all_of_its_times():
    _, told = lines(DATA)
    (line,) = [each for each in told if "front_end" in each]
    for seconds in (MEASURED.request, MEASURED.response):
        assert f"{1e3 * seconds:g} ms" in line
    assert f"{1e6 * MEASURED.stream_token:g} us of a server for each streamed token" in line


@pytest.mark.parametrize(
    ("client", "network", "told"),
    [
        ({"gpu": "h100-sxm", "pipeline_parallel_size": 1}, None, None),
        (
            {"gpu": "h100-sxm", "pipeline_parallel_size": 2},
            None,
            "16 x h100-sxm by nvlink, which joins 8",
        ),
        (
            {"gpu": "l40s", "pipeline_parallel_size": 2},
            None,
            "16 x l40s by pcie, which seldom joins more than 8",
        ),
        (
            {"gpu": "h100-sxm", "pipeline_parallel_size": 2},
            {"topology": "hgx-h100", "nodes": 2, "spans_nodes": True},
            None,
        ),
        ({"gpu": "h100-sxm", "data_parallel_size": 2}, None, None),
    ],
)
def test_ranks_beyond_a_node_are_said_to_be_timed_in_one(client, network, told):
    """Engines beside one another send nothing; stages of a pipeline do."""
    data = {
        **DATA,
        "model": "llama-3.1-70b",
        "clients": [{"name": "llm", "tensor_parallel_size": 8, **client}],
        **({"network": network} if network else {}),
    }
    summary = simulate(Scenario.from_dict(data)).summary
    lines = texts(summary, "one node")
    assert len(lines) == bool(told)
    if told:
        assert f"joined them all: {told}. Other links are slower" in lines[0]
        both = compare({name: Scenario.from_dict(data) for name in "ab"}, jobs=1)
        assert lines[0] in about(both.summary, "b")


@pytest.mark.parametrize("rate", [None, "100 GB/s"])
def test_loads_at_the_full_rate_of_host_links_are_assumed(rate):
    tier = {"name": "cpu", "capacity": "1 GiB"} | ({"read_bandwidth": rate} if rate else {})
    client = {"name": "llm", "gpu": "h100-sxm", "kv_cache": {"tiers": [tier]}}
    summary = simulate(Scenario.from_dict(DATA | {"clients": [client]})).summary
    found = texts(summary, "host copies")
    assert len(found) == (rate is None)
    assert all("cpu at 64 GB/s a GPU" in each for each in found)
