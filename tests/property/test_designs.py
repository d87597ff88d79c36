"""Designs of random clients: everything stays but the sides, and each is a scenario that loads."""

import json
from collections import Counter
from math import prod

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mist_sim import Scenario, ScenarioError
from mist_sim.scenario.loading import as_data
from mist_sim.search.designs import designs_of
from tests.effort import examples, features_seen, missing
from tests.reference.scenarios import of_profile

GPUS = ("h100-sxm", "a100-80gb-sxm", "l40s", "rtx-4090")
SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
STAYS = ("seed", "model", "workload", "slo", "warmup", "replications", "power", "cost")
LINK = {"bandwidth": "100 Gb/s"}


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Return a scenario of a few groups of engines, with or without roles."""
    model = draw(st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b"]))
    roles = draw(st.sampled_from([[None], ["prefill", "decode"], ["prefill", None, "decode"]]))
    groups = []
    for k, role in enumerate(roles * draw(st.integers(1, 2))):
        group = {
            "name": f"c{k}",
            "role": role,
            "gpu": draw(st.sampled_from(GPUS)),
            "count": draw(st.integers(1, 2)),
            "tensor_parallel_size": draw(st.sampled_from([1, 2])),
        }
        chunk = draw(st.sampled_from([None, 256, 512, 4096]))
        if chunk is not None:
            group["scheduler"] = {"max_num_batched_tokens": chunk}
        groups.append(group)
    return Scenario.from_dict(
        {
            "seed": draw(st.integers(0, 9)),
            "model": model,
            "workload": of_profile(40, "2 /s"),
            "clients": groups,
            "slo": draw(st.sampled_from([{}, {"ttft": "1 s", "tpot": "50 ms"}])),
        }
        | ({"network": LINK} if roles[0] else {})
    )


def gpus(data):
    """Count the GPUs of all clients, by what they are."""
    found: Counter[str] = Counter()
    for client in data["clients"]:
        if client["type"] == "afd":
            number = client["attention_workers"] + client["ffn_workers"] * client["ffn_gpus"]
        else:
            number = prod(client[size] for size in SIZES)
        found[client["gpu"]] += client["count"] * number
    return found


@examples(60)
@given(scenario=scenarios())
def test_everything_stays_but_the_sides(scenario):
    own = as_data(scenario)
    num_engines = sum(client["count"] for client in own["clients"])
    assume(num_engines > 1)
    designs = designs_of(scenario)
    assert len(designs.scenarios) >= 2
    assert any(each is scenario for each in designs.scenarios.values())
    assert not designs.scenarios.keys() & designs.left_out.keys()
    texts = {json.dumps(as_data(each)) for each in designs.scenarios.values()}
    assert len(texts) == len(designs.scenarios), "two names of one design"
    for name, each in designs.scenarios.items():
        data = as_data(each)
        assert {key: data[key] for key in STAYS} == {key: own[key] for key in STAYS}
        assert gpus(data) == gpus(own), name
        assert as_data(Scenario.from_dict(data)) == data
    ratios = {f"{k} prefill + {num_engines - k} decode" for k in range(1, num_engines)}
    assert ratios <= designs.scenarios.keys()
    if designs.scenarios.keys() & ratios and own["network"] is None:
        assert "network" in designs.assumed


KINDS = ("together", "prefill + 1 decode", "hybrid", "1A", "as it stands", "left out", "network")


def kinds(scenario):
    """Return what the designs of a scenario show of what there is."""
    try:
        designs = designs_of(scenario)
    except ScenarioError:
        return set()
    names = " ".join([*designs.scenarios, *designs.assumed])
    return {kind for kind in KINDS if kind in names} | ({"left out"} if designs.left_out else set())


@pytest.mark.deep
def test_random_clients_have_designs_of_every_kind():
    assert not missing(features_seen(scenarios(), kinds, KINDS), KINDS)
