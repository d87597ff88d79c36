"""Re-sharding among the designs that GPUs allow: in comparisons, plans and searches."""

from __future__ import annotations

import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.hardware import load_gpu
from mist_sim.hardware.resharding import device_of
from mist_sim.models import load_model
from mist_sim.scenario.loading import as_data
from mist_sim.search.designs import Fleet, designs_of, resharded
from mist_sim.search.planning import PlanOptions, plan
from mist_sim.search.resharding import Lengths, PairOptions, rank_pairs
from mist_sim.search.spaces import SearchOptions, Space, search_space
from mist_sim.search.spaces.objectives import constraints_of, objectives_of
from tests.reference.scenarios import synthetic

ASKED = {
    "model": "llama-3.1-8b",
    "workload": synthetic(30, 3000, 60, {"type": "all_at_once"}),
    "clients": [{"name": "llm", "gpu": "l4", "tensor_parallel_size": 4}],
    "slo": {"e2el": "600 s"},
}


def asked(**overrides):
    return Scenario.from_dict(ASKED, {k.replace("__", "."): v for k, v in overrides.items()})


def layouts(scenario):
    client = as_data(scenario)["clients"][0]
    pair = client["resharding"]
    return [
        (each["tensor_parallel_size"], each["pipeline_parallel_size"]) for each in (pair, client)
    ]


def re_sharding(designs):
    return {name: each for name, each in designs.scenarios.items() if name.startswith("re-shard")}


def test_engines_of_several_gpus_re_shard_with_the_pairs_that_equation_1_likes_best():
    found = re_sharding(designs_of(asked()))
    ranked = rank_pairs(
        load_model("llama-3.1-8b"),
        device_of(load_gpu("l4")),
        4,
        Lengths(3000, 60),
        PairOptions(data_parallel_sizes=(1,), max_num_seqs=256),
    )
    best = [pair for pair in ranked.pairs if not pair.is_static][: len(found)]
    assert len(found) == 2
    for pair, (name, scenario) in zip(best, found.items(), strict=True):
        before, after = pair.prefill_layout, pair.decode_layout
        assert name == f"re-shard {before.label} to {after.label}"
        assert layouts(scenario) == [before[:2], after[:2]]
        assert before.num_devices == after.num_devices == 4


def test_they_serve_everything_and_say_what_they_assume():
    designs = designs_of(asked())
    assert "continuous" in designs.assumed["re-sharding"]
    assert "re-sharding" in designs.uneven
    for scenario in re_sharding(designs).values():
        result = simulate(scenario)
        assert (result.requests["status"] == "finished").all()
        assert len(result.summary["layouts"]) == 3


@pytest.mark.parametrize(("own", "kept"), [(512, 3000), (8192, 8192)])
def test_their_steps_keep_the_engines_token_budget(own, kept):
    budget = "max_num_batched_tokens"
    engine = asked(clients__0__scheduler={"type": "chunked", "max_num_seqs": 256, budget: own})
    for each in re_sharding(designs_of(engine)).values():
        assert as_data(each)["clients"][0]["scheduler"][budget] == kept


def test_they_stand_beside_every_layout_that_stays_and_fits():
    found = designs_of(asked(clients__0__gpu="a10")).scenarios
    sizes = ("tensor_parallel_size", "pipeline_parallel_size")
    stays = {
        tuple(client[size] for size in sizes)
        for each in found.values()
        if (client := as_data(each)["clients"][0])["resharding"] is None
    }
    assert stays == {(4, 1), (2, 2), (1, 4)}
    for name in ("fixed PP4", "fixed TP2PP2"):
        assert as_data(found[name])["clients"][0]["scheduler"]["type"] == "chunked"
        assert (simulate(found[name]).requests["status"] == "finished").all()


def test_engines_of_one_gpu_have_none():
    designs = designs_of(asked(clients__0__tensor_parallel_size=1))
    assert not re_sharding(designs)
    assert "re-sharding" not in designs.left_out
    with pytest.raises(ScenarioError, match="engine of two GPUs at least, got 1"):
        list(resharded(Fleet(asked(clients__0__tensor_parallel_size=1))))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"model": "qwen3-30b-a3b"}, "dense models in 16 bits"),
        ({"clients__0__quantization": "fp8"}, "quantization must be left out"),
        (
            {"clients__0__tensor_parallel_size": 1, "clients__0__pipeline_parallel_size": 3},
            "takes two layouts that fit, but of llama-3.1-8b on 3 x l4 only PP3 does",
        ),
    ],
)
def test_what_cannot_re_shard_is_left_out_with_the_reason(overrides, reason):
    assert reason in designs_of(asked(**overrides)).left_out["re-sharding"]


def test_engines_of_other_sizes_stay_or_have_pairs_of_their_own():
    clients = [
        {"name": "large", "gpu": "l4", "tensor_parallel_size": 4},
        {"name": "small", "gpu": "l4"},
    ]
    (first, *_) = re_sharding(designs_of(asked(clients=clients))).values()
    pairs = [client["resharding"] for client in as_data(first)["clients"]]
    assert pairs[0]["pipeline_parallel_size"] == 4
    assert pairs[1] is None


def test_pipelines_of_virtual_engines_re_shard_to_the_same_layouts_as_others():
    sizes = {"clients__0__tensor_parallel_size": 2, "clients__0__pipeline_parallel_size": 2}
    found = [designs_of(asked(**sizes, clients__0__virtual_engines=each)) for each in (True, False)]
    assert list(re_sharding(found[0])) == list(re_sharding(found[1]))
    assert "re-shard PP4 to TP4" in re_sharding(found[0])


def test_a_plan_tries_it_when_it_is_named():
    options = PlanOptions(
        gpus=("l4",),
        rate=0.5,
        max_gpus=4,
        tensor_parallel_sizes=(4,),
        designs=("reshard",),
        as_is=True,
    )
    found = plan(asked(workload__arrivals={"type": "poisson", "rate": "1 /s"}), options, jobs=1)
    assert "in turn (Seesaw)" in str(found.summary["lines"])
    assert layouts(found.scenario) == [(1, 4), (2, 2)]
    assert found.deployment.notes == ("vLLM has no engines that re-shard (Seesaw): no commands.",)
    assert "reshard" not in PlanOptions(gpus=("l4",)).designs


def test_a_search_finds_the_pair_that_serves_most():
    found = search_space(
        Space(
            scenario=asked(),
            designs=("together", "reshard"),
            constraints=constraints_of({}),
            objectives=objectives_of("output_throughput"),
        ),
        SearchOptions(method="exhaustive", as_is=True),
        jobs=1,
    )
    best = found.front[0]
    assert best["values"]["design"] == "re-shard PP4 to TP4"
    by_design = {row["values"]["design"]: row["figures"]["output_throughput"] for row in found.rows}
    assert by_design["re-shard PP4 to TP4"] == max(by_design.values())
    assert len(by_design) > 3


def test_a_plan_of_engines_with_one_gpu_says_what_re_sharding_takes():
    options = PlanOptions(gpus=("l4",), tensor_parallel_sizes=(1,), designs=("reshard",))
    with pytest.raises(ScenarioError, match="reshard takes engines of two GPUs"):
        plan(asked(workload__arrivals={"type": "poisson", "rate": "1 /s"}), options, jobs=1)
