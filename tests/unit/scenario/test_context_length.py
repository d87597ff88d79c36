"""`max_model_len` against the memory of the KV cache, as vLLM compares them when it starts."""

import re

import pytest

from mist_sim import KvCacheConfig, Scenario, Simulation, Workload, llm_client, simulate
from mist_sim.cli.app import BAD_INPUT
from mist_sim.core.result_warnings import TOO_SMALL
from mist_sim.errors import ScenarioError
from mist_sim.scenario import build
from mist_sim.scenario.from_vllm.tables import context_length
from mist_sim.search.comparison import compare
from tests.commands import exit_code
from tests.warned import texts

SMALL = KvCacheConfig(num_gpu_blocks_override=101)  # 100 of 16 tokens for requests
OWN = 131_072  # of Llama-3.1-8B
TOO_LARGE = {  # 70.6 GB of weights on each 80 GB GPU
    "model": "llama-3.1-70b",
    "engine": "vllm-0.14",
    "clients": [{"name": "llm", "gpu": "h100-sxm", "tensor_parallel_size": 2}],
    "workload": {
        "lengths": {
            "type": "synthetic",
            "num_requests": 10,
            "prompt": {"type": "fixed", "tokens": 2_000},
            "output": {"type": "fixed", "tokens": 10},
        },
        "arrivals": {"type": "poisson", "rate": "1 /s"},
    },
    "slo": {"ttft": "5 s"},
}


def client(**options):
    return llm_client("llm", **({"kv_cache": SMALL} | options))


def test_a_length_that_fits_is_taken():
    assert client(max_model_len=1_600).max_model_len == 1_600


def test_a_length_that_does_not_fit_is_refused_with_what_does():
    """`_check_enough_kv_cache_memory` in vllm/v1/core/kv_cache_utils.py."""
    with pytest.raises(ScenarioError, match="max_model_len must be <= 1600, got 1601") as caught:
        client(max_model_len=1_601)
    said = str(caught.value)
    assert "takes 101 blocks of 16, and there are 100" in said
    assert "raise num_gpu_blocks_override, or write max_model_len: auto" in said


def test_memory_is_raised_by_its_share_where_it_is_counted():
    with pytest.raises(ScenarioError, match="raise gpu_memory_utilization, or write"):
        llm_client("llm", gpu="a10", max_model_len=OWN)


def test_auto_takes_what_fits():
    """`_auto_fit_max_model_len`, there since 0.14."""
    assert client(max_model_len=-1).max_model_len == 1_600
    assert llm_client("llm", gpu="h100-sxm", max_model_len=-1).max_model_len == OWN


def test_auto_asks_every_lane_of_a_pipeline():
    lanes = {"pipeline_parallel_size": 2, "virtual_engines": True}
    assert client(max_model_len=-1, **lanes).max_model_len == 800
    assert client(max_model_len=-1, pipeline_parallel_size=2).max_model_len == 1_600


def test_auto_with_windows_counts_what_they_keep():
    """Window groups keep a few blocks of a long request, full attention all."""
    made = client(model="gpt-oss-20b", max_model_len=-1)
    pool = made.memory.pool()
    assert pool.blocks_for(made.max_model_len) <= pool.num_blocks
    assert pool.blocks_for(made.max_model_len + 1) > pool.num_blocks
    assert made.max_model_len < 1_600


def test_nothing_fits_without_a_single_token():
    few = KvCacheConfig(num_gpu_blocks_override=2)
    with pytest.raises(ScenarioError, match="max_model_len must be <= 0"):
        client(model="gpt-oss-20b", kv_cache=few, max_model_len=-1)


def test_unsaid_the_models_own_holds_and_is_assumed():
    """vLLM would not start; a scenario of short requests runs, and is told."""
    made = client()
    assert made.max_model_len == OWN
    assert made.traits.times.assumed == ("front_end", "max_model_len")
    assert "max_model_len" not in llm_client("llm").traits.times.assumed
    workload = Workload.from_lists([100, 2_000], [10, 10], [0.0, 0.0])
    result = Simulation(clients=[made], workload=workload).run()
    assert result.summary["assumed"] == {"llm": ["front_end", "max_model_len"]}
    assert (result.summary["completed"], result.summary["num_rejected"]) == (1, 1)
    lines = "\n".join(texts(result.summary))
    assert "vLLM would not start without max_model_len" in lines
    assert "The engine's own time" not in lines


@pytest.mark.parametrize("word", ["auto", -1])
def test_auto_in_a_file(word):
    overrides = {"clients.0.max_model_len": word, "clients.0.engine": "vllm-0.14"}
    found = Scenario.load("demo", overrides=overrides)
    assert found.clients[0].max_model_len == -1
    assert next(iter(found.clients[0].clients("llama-3.1-8b"))).max_model_len == OWN


def test_auto_came_in_0_14(capsys):
    overrides = ["engine=vllm-0.12", "clients.0.max_model_len=auto"]
    words = [word for text in overrides for word in ("--set", text)]
    assert exit_code("run", "demo", *words) == BAD_INPUT
    said = " ".join(capsys.readouterr().err.split())
    assert "vLLM 0.12 has no such option (auto came in 0.14), got -1" in said
    assert "write the tokens that fit, or engine: vllm-0.14 or newer" in said
    Scenario.load("demo", overrides={"engine": "vllm-0.12", "clients.0.max_model_len": 5_000})


def test_a_length_that_does_not_fit_ends_with_exit_code_2(capsys):
    small = "clients.0.kv_cache.num_gpu_blocks_override=101"
    words = ["--set", small, "--set", "clients.0.max_model_len=2000"]
    assert exit_code("run", "demo", *words) == BAD_INPUT
    said = " ".join(capsys.readouterr().err.split())
    assert "clients.0.max_model_len: must be <= 1600, got 2000" in said


def test_auto_of_a_command_line():
    assert [context_length(text) for text in ("auto", "-1", "16K")] == ["auto", "auto", 16_384]


@pytest.mark.parametrize("length", [0, -2])
def test_no_length_below_one(length):
    with pytest.raises(ScenarioError, match=f"max_model_len must be >= 1, got {length}; auto"):
        llm_client("llm", max_model_len=length)


def test_requests_without_room_name_what_holds_them():
    found = simulate(Scenario.from_dict(TOO_LARGE))
    (told,) = [each for each in found.warnings if each.kind is TOO_SMALL]
    text = str(told)
    for each in ("KV cache of 1,344 tokens", "GiB a GPU are missing", "tensor_parallel_size 4"):
        assert each in text
    for change in ({"tensor_parallel_size": 4}, {"quantization": "fp8"}):
        client = TOO_LARGE["clients"][0] | change
        held = simulate(Scenario.from_dict({**TOO_LARGE, "clients": [client]}))
        assert held.summary["num_rejected"] == 0


def test_a_comparison_names_models_without_room():
    cases = {1: "one", 2: "two", 4: "four"}
    found = compare(
        {
            name: Scenario.from_dict(TOO_LARGE, {"clients.0.tensor_parallel_size": width})
            for width, name in cases.items()
        },
        jobs=1,
    )
    small = [each.of for each in found.warnings if each.kind is TOO_SMALL]
    assert small == [("one",), ("two",)]
    assert "Too little GPU memory (see above): one, two." in found.verdict


def test_a_model_without_room_names_what_holds_it():
    with pytest.raises(ScenarioError, match="are missing for one KV-cache block") as error:
        build(Scenario.from_dict(TOO_LARGE, {"clients.0.tensor_parallel_size": 1}))
    for each in ("tensor_parallel_size 2 (", "tensor_parallel_size 4 (", "AWQ", "gpu b200"):
        assert each in str(error.value)


@pytest.mark.parametrize(
    ("options", "gpu"),
    [
        ({}, "h100-sxm"),
        ({"clients.0.scheduler": {"max_num_batched_tokens": 4096}}, "h100-sxm"),
        ({"clients.0.scheduler": "continuous", "engine": None}, "b200"),
    ],
)
def test_the_room_that_a_larger_gpu_is_said_to_give_is_there(options, gpu):
    """With that GPU's own chunk and CUDA graphs, which are larger, unless the user has said one."""
    width = 1 if gpu == "b200" else 2
    said = {"clients.0.tensor_parallel_size": width, **options}
    with pytest.raises(ScenarioError) as told:
        build(Scenario.from_dict(TOO_LARGE, {"clients.0.gpu": "l40s", **said}))
    (named,) = re.findall(rf"gpu {gpu} \(KV cache of ([\d,]+) tokens\)", str(told.value))
    (client,) = build(Scenario.from_dict(TOO_LARGE, {"clients.0.gpu": gpu, **said})).clients
    assert client.memory.num_tokens == int(named.replace(",", ""))
