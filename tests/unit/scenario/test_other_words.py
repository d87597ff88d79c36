"""Words of other tools are answered with where what they mean stands here."""

from dataclasses import fields

import pytest

from mist_sim import Scenario
from mist_sim.errors import ScenarioError
from mist_sim.network import Fabric
from mist_sim.scenario.format.problems import instead
from mist_sim.scenario.format.problems import keys_of_others as keys
from mist_sim.scenario.options import engine_options
from mist_sim.scenario.schema import Scenario as Schema
from mist_sim.scenario.sections.workload import WorkloadSpec
from tests.refusals import refused

OPTIONS = {option.key for option in engine_options()}
PREFIXES = {key[:end] for key in OPTIONS for end, char in enumerate(key) if char == "."}


test_a_word_of_another_tool = refused(
    lambda place, value: Scenario.load("demo", overrides={place: value}),
    ("request_rate", 10, "here it is workload.arrivals: {type: poisson, rate: 10 /s}"),
    ("max_concurrency", 16, "workload.max_concurrency, or without a rate workload.arrivals"),
    ("workload.arrivals.burstiness", 1, "{type: gamma, rate: 10 /s, burstiness: 0.5}"),
    ("workload.lengths.output_len", 100, "here it is workload.lengths.output of drawn"),
    ("workload.isl", 100, "here it is workload.lengths.prompt with type: synthetic"),
    ("clients.0.spans_nodes", True, "here it is network.spans_nodes"),
    ("clients.0.enable_chunked_prefill", True, "scheduler.type: chunked (on) or mixed (off)"),
    ("clients.0.scheduler.policy", "priority", "here it is clients.N.scheduler.order"),
    ("scheduler.policy", "priority", "here it is clients.N.scheduler"),
    ("tensor_parallel_size", 2, "here it is clients.N.tensor_parallel_size"),
    ("gpu_memory_utilization", 0.9, "here it is clients.N.kv_cache.gpu_memory_utilization"),
    ("clients.0.kv_cache.max_num_seqs", 4, "here it is clients.N.scheduler.max_num_seqs"),
    ("clients.0.scheduler.watermark", 0.1, "here it is clients.N.kv_cache.watermark"),
    ("clients.0.dtype", "bfloat16", "here it is clients.N.quantization"),
    ("clients.0.kv_cache.dtype", "fp8", "unknown key; did you mean 'kv_cache_dtype'?"),
    ("clients.0.mem-fraction-static", 0.8, "clients.N.kv_cache.gpu_memory_utilization"),
    ("clients.0.quantization", "awq", "got 'awq'; here write quantization: int4"),
    ("clients.0.scheduler.order", "lpm", "prefix-aware orders are not simulated"),
    ("router", "prefix_aware", "here write prefix_affinity"),
    ("router", "cache-aware", "here write prefix_affinity"),
    ("workload.lengths", "random", "here write type: synthetic"),
)


def test_a_word_means_nothing_where_its_answer_could_not_stand():
    with pytest.raises(ScenarioError) as caught:
        Scenario.load("demo", overrides={"workload.arrivals.type": "random"})
    assert "synthetic" not in str(caught.value)


@pytest.mark.parametrize("key", keys())
def test_every_answer_names_keys_that_there_are(key):
    path = keys()[key].split(",")[0].split(":")[0].split(" ")[0]
    head, _, rest = path.partition(".")
    assert head in Schema.model_fields
    if head == "clients":
        option = rest.removeprefix("N.")
        assert option in OPTIONS | PREFIXES | {"count"}
    elif head == "network":
        assert rest in {field.name for field in fields(Fabric)}
    elif rest:
        assert rest.split(".")[0] in WorkloadSpec.model_fields


@pytest.mark.parametrize("word", ["none", "auto", "bf16", "half"])
def test_weights_as_they_are_have_no_name(word):
    assert "null, or leave the key out" in instead(word, ["fp8", "int8"])
    assert instead(word, ["round_robin"]) == ""
