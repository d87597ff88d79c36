"""The designs that the GPUs of one scenario allow: together, apart, hybrids, bundles."""

import json
import re
from collections import Counter
from functools import partial
from math import prod

import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.hardware import gpu_names, load_gpu
from mist_sim.hardware.afd import FfnCards, step_coefficients
from mist_sim.models import load_model
from mist_sim.network import Fabric
from mist_sim.scenario import build
from mist_sim.scenario.loading import as_data
from mist_sim.scenario.schema import Splittable
from mist_sim.search.comparison import workloads_differ
from mist_sim.search.designs import (
    MOST,
    USUAL,
    assumed_network,
    chunks_to_try,
    designs_of,
    ratios_to_try,
)
from mist_sim.studies.built import Built
from tests.reference.scenarios import of_profile
from tests.refusals import refused
from tests.warned import about

TOGETHER = {
    "model": "llama-3.1-8b",
    "workload": of_profile(40, "20 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm", "count": 3}],
    "slo": {"ttft": "150 ms", "tpot": "40 ms"},
}
APART = TOGETHER | {
    "clients": [
        {"name": "prefill", "role": "prefill", "gpu": "h100-sxm", "count": 2},
        {"name": "decode", "role": "decode", "gpu": "h100-sxm"},
    ],
    "network": {"bandwidth": "400 Gb/s", "latency": "1 ms"},
}
EXPERTS = {"model": "qwen3-30b-a3b", "clients.0.count": 4}
OF_THREE = [
    "together 8192",
    "together 512",
    "together 2048",
    "1 prefill + 2 decode",
    "2 prefill + 1 decode",
    "hybrid 1 x 2048 + 2 x 512",
    "hybrid 1 x 8192 + 2 x 512",
    "hybrid 2 x 2048 + 1 x 512",
    "hybrid 2 x 8192 + 1 x 512",
]


def together(**overrides):
    return Scenario.from_dict(TOGETHER, overrides)


def said(**overrides):
    """As overrides, with dots for double underscores."""
    return together(**{key.replace("__", "."): value for key, value in overrides.items()})


def bundle_design(designs, name):
    """Return the design whose bundle is on these GPUs, whatever its slots."""
    (found,) = (each for title, each in designs.scenarios.items() if title.startswith(name))
    return found


def clients(scenario):
    return [
        (client.name, client.count, getattr(client, "role", None)) for client in scenario.clients
    ]


def chunks(scenario):
    return [client.scheduler.max_num_batched_tokens for client in scenario.clients]


@pytest.fixture
def mist(mist, tmp_path):
    """Run `mist compare` in a folder with scenarios."""
    (tmp_path / "together.yaml").write_text(together().resolved())
    (tmp_path / "apart.yaml").write_text(Scenario.from_dict(APART).resolved())
    return partial(mist, "compare")


# ------------------------------------------------------------------------------ what is offered


def test_equal_clients_without_roles_have_designs_of_three_kinds():
    scenario = together()
    designs = designs_of(scenario)
    assert list(designs.scenarios) == OF_THREE
    assert designs.scenarios["together 8192"] is scenario
    assert not workloads_differ({name: Built(each) for name, each in designs.scenarios.items()})
    assert {Built(each).num_gpus for each in designs.scenarios.values()} == {3}
    one = designs.scenarios["1 prefill + 2 decode"]
    assert clients(one) == [("llm-prefill", 1, "prefill"), ("llm-decode", 2, "decode")]
    hybrid = designs.scenarios["hybrid 2 x 8192 + 1 x 512"]
    assert clients(hybrid) == [("llm-p-heavy", 2, "p_heavy"), ("llm-d-heavy", 1, "d_heavy")]
    assert chunks(hybrid) == [8192, 512]
    assert chunks(designs.scenarios["together 512"]) == [512]
    assert list(designs.left_out) == ["bundles of attention and FFN workers"]
    assert "llama-3.1-8b has none" in designs.left_out["bundles of attention and FFN workers"]


def test_hybrids_flow_within_the_limits_of_the_scenario():
    hybrid = designs_of(together()).scenarios["hybrid 1 x 2048 + 2 x 512"]
    said = hybrid.router.parameters()
    assert (said["ttft"], said["if_none"]) == (0.15, "soonest")
    policy = hybrid.hand_over.make().policy
    assert (policy.tpot, policy.counts_seats) == (0.04, True)
    assert hybrid.hand_over.make().first_token == "prefill", "TTFT is the same of all designs"


@pytest.mark.parametrize(
    ("options", "found"),
    [({}, True), ({"async_scheduling": False}, False), ({"engine": "vllm-0.12"}, False)],
)
def test_all_designs_plan_ahead_or_none_does(options, found):
    """Hybrids as well: else they would lose to the others by that alone."""
    changes = {f"clients.0.{name}": value for name, value in options.items()}
    designs = designs_of(together(**changes)).scenarios
    assert any("hybrid" in name for name in designs)
    assert any("decode" in name for name in designs)
    for name, each in designs.items():
        assert {client.async_scheduling for client in build(each).clients} == {found}, name


def test_a_router_that_only_hybrids_have_is_said():
    """Until all have it, as the line says."""
    line = designs_of(together()).assumed["hybrids"]
    assert "a hybrid may win by its router alone" in line
    said = {"type": "length_aware", "ttft": "0.15 s", "if_none": "soonest"}
    assert "{type: length_aware, ttft: 0.15 s, if_none: soonest}" in line
    even = designs_of(together(router=said))
    assert "hybrids" not in even.assumed
    routers = [each.router.parameters() for each in even.scenarios.values()]
    assert all(each == routers[0] for each in routers)


def test_prompts_that_are_apart_have_the_largest_chunk():
    small = {"clients.0.scheduler": {"max_num_batched_tokens": 1024}}
    designs = designs_of(together(**small)).scenarios
    assert list(designs)[:3] == ["together 1024", "together 512", "together 2048"]
    assert chunks(designs["1 prefill + 2 decode"]) == [2048, 1024]


def test_a_scenario_with_roles_is_one_of_ratios():
    scenario = Scenario.from_dict(APART)
    designs = designs_of(scenario)
    assert list(designs.scenarios) == OF_THREE
    assert designs.scenarios["2 prefill + 1 decode"] is scenario
    assert "network" not in designs.assumed
    other = designs.scenarios["1 prefill + 2 decode"]
    assert other.network == scenario.network
    assert clients(other) == [
        ("prefill", 1, "prefill"),
        ("prefill-decode", 1, "decode"),
        ("decode", 1, "decode"),
    ]
    both = designs.scenarios["together 8192"]
    assert (both.network, {client.role for client in both.clients}) == (None, {None})
    assert not workloads_differ({name: Built(each) for name, each in designs.scenarios.items()})


def test_what_is_no_design_of_the_list_stands_as_it_is():
    flipping = together(
        network={"bandwidth": "400 Gb/s"},
        hand_over={"policy": {"type": "flipping", "num_prefill": 1}},
    )
    designs = designs_of(flipping).scenarios
    assert list(designs) == ["as it stands", *OF_THREE]
    assert designs["as it stands"] is flipping
    assert designs["together 8192"].network is None


def test_places_go_with_their_clients():
    places = ["node0/gpu0", "node0/gpu4"]
    placed = Scenario.from_dict(
        APART, {"network": {"topology": "hgx-h100"}, "clients.0.place": places}
    )
    designs = designs_of(placed).scenarios
    one = designs["1 prefill + 2 decode"].clients
    assert [client.place for client in one] == [("node0/gpu0",), ("node0/gpu4",), None]
    assert [client.place for client in designs["together 8192"].clients] == [None, None]


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        (["h100-sxm", "h100-sxm"], "{topology: hgx-h100}, the GPUs' own nodes, for all"),
        (["a10", "a10g"], "{topology: pcie-a10}, the GPUs' own nodes, for all"),
        (["h100-sxm", "l40s"], "{topology: pcie-l40s}, the nodes of l40s, which has the slowest"),
    ],
)
def test_whose_nodes_the_assumed_network_is(gpus, told):
    engines = [{"name": f"e{k}", "gpu": gpu} for k, gpu in enumerate(gpus)]
    assert designs_of(together(clients=engines)).assumed["network"].startswith(told)


def test_the_fastest_gpus_take_prompts_first():
    mixed = {
        "clients": [
            {"name": "a100", "gpu": "a100-80gb-sxm", "count": 2},
            {"name": "h100", "gpu": "h100-sxm", "count": 1},
        ]
    }
    designs = designs_of(together(**mixed))
    one = designs.scenarios["1 prefill + 2 decode"]
    assert clients(one) == [("a100", 2, "decode"), ("h100", 1, "prefill")]
    assert designs.assumed["network"].startswith(
        "{topology: hgx-a100}, the nodes of a100-80gb-sxm, which has the slowest links, also for "
        "h100-sxm, for all designs that hand over"
    )
    assert list(designs.scenarios)[:4] == ["together", *(f"together {chunk}" for chunk in USUAL)]


def test_clients_of_other_types_stay():
    data = TOGETHER | {
        "workload": TOGETHER["workload"] | {"pipeline": ["preprocess", "prefill", "decode"]},
        "clients": [
            {"name": "cpu", "type": "sequential", "serves": ["preprocess"], "base_time": "1 ms"},
            *TOGETHER["clients"],
        ],
    }
    for each in designs_of(Scenario.from_dict(data)).scenarios.values():
        assert clients(each)[0] == ("cpu", 1, None)


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ([8192], (8192, 512, 2048)),
        ([2048, 2048], (2048, 512, 8192)),
        ([512], (512, 2048, 8192)),
        ([100], (100, 512, 2048)),
        ([512, 1024], USUAL),
        ([], USUAL),
    ],
)
def test_chunks_to_try(own, found):
    assert chunks_to_try(own) == found
    assert len(found) == MOST < 4


@pytest.mark.parametrize(
    ("number", "found"), [(2, [1]), (3, [1, 2]), (4, [1, 2, 3]), (9, [1, 4, 8])]
)
def test_few_ratios_of_hybrids(number, found):
    assert ratios_to_try(number) == found


# ------------------------------------------------------------------------------ what cannot be


def test_one_client_has_other_chunks_and_is_told_what_splitting_takes():
    designs = designs_of(said(clients__0__count=1))
    assert list(designs.scenarios) == ["together 8192", "together 512", "together 2048"]
    (reason,) = designs.left_out.values()
    assert reason == "take two clients at least, got 1; raise clients.0.count"
    assert "hybrids, and bundles" in next(iter(designs.left_out))


@pytest.mark.parametrize(
    ("ranks", "halved"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"tensor_parallel_size": 1, "pipeline_parallel_size": 2}, "pipeline_parallel_size"),
    ],
)
def test_one_client_becomes_two_by_halving_ranks_that_it_has(ranks, halved):
    own = {f"clients__0__{name}": value for name, value in ranks.items()}
    (reason,) = designs_of(said(clients__0__count=1, **own)).left_out.values()
    assert reason.endswith(f", or halve clients.0.{halved} and double the count")


test_clients_that_cannot_change_sides_are_refused = refused(
    lambda overrides: designs_of(said(**overrides)),
    ({"clients__0__count": 1, "clients__0__scheduler": "static"}, "take two clients at least"),
    ({"clients__0__scheduler": "static"}, "no request joins a static batch"),
    (
        {
            "clients": [
                {"name": "a", "gpu": "h100-sxm"},
                {"name": "b", "gpu": "h100-sxm", "model": "qwen3-8b"},
            ]
        },
        "clients must serve one model to find designs for, got llama-3.1-8b, qwen3-8b",
    ),
)


def test_bundles_do_not_change_sides():
    six = dict.fromkeys(("alpha_a", "beta_a", "alpha_f", "beta_f", "alpha_c", "beta_c"), 1)
    bundle = {"type": "afd", "attention_workers": 2, "slots": 4, "cycle_s": "1 us"}
    data = APART | {"clients": [APART["clients"][0], {"name": "bundle", **bundle, **six}]}
    with pytest.raises(ScenarioError, match="clients.1.type must be llm .* got afd"):
        designs_of(Scenario.from_dict(data))


@pytest.mark.parametrize(
    ("overrides", "kind", "reason"),
    [
        ({"slo": {}}, "hybrids", "slo.ttft and slo.tpot must be given"),
        ({"clients__0__scheduler": "continuous"}, "hybrids", "scheduler must be chunked"),
        (
            {"view_interval": "1 s", "router": "least_outstanding"},
            "hybrid 1 x 2048 + 2 x 512",
            "must be left out with length_aware",
        ),
        (
            {"model": "qwen3-30b-a3b", "clients__0__quantization": "fp8"},
            "bundles of attention and FFN workers",
            "quantization must be left out",
        ),
        (
            {
                "model": "qwen3-30b-a3b",
                "clients__0__step_time_scale": 1.2,
                "clients__0__gpu": {"based_on": "h100-sxm", "memory": "90 GB"},
            },
            "bundles of attention and FFN workers",
            "step_time_scale must be left out",
        ),
        (
            {"lifecycle": {"failures": [{"clients": ["llm"], "at": "1 s", "repair": "1 s"}]}},
            "1 prefill + 2 decode",
            "no client is named 'llm'",
        ),
    ],
)
def test_designs_that_cannot_be_are_left_out_with_the_reason(overrides, kind, reason):
    designs = designs_of(said(**overrides))
    assert reason in designs.left_out[kind]
    assert len(designs.scenarios) >= 2
    assert kind not in designs.scenarios


# ------------------------------------------------------------------------------ bundles


def test_models_with_experts_have_bundles_on_same_gpus():
    designs = designs_of(together(**EXPERTS))
    found = {name: each for name, each in designs.scenarios.items() if "A " in name}
    assert [name[:11] for name in found] == ["1 prefill +", "2 prefill +"]
    assert "takes two GPUs" in designs.left_out["3 prefill + a bundle"]
    assert "never measured" in designs.assumed["bundles of attention and FFN workers"]
    for each in found.values():
        assert Built(each).num_gpus == 4
        assert each.clients[1].communication == "topology"
        assert simulate(each).summary["completed"] == 40


def test_bundles_on_a_link_have_coefficients_for_it():
    overrides = {"model": "qwen3-30b-a3b", "clients.1.count": 2}
    designs = designs_of(Scenario.from_dict(APART, overrides))
    scenario = bundle_design(designs, "2 prefill + 1A 1F")
    bundle = scenario.clients[1]
    assert bundle.communication == "coefficients"
    assert bundle.alpha_c > 0
    assert simulate(scenario).summary["completed"] == 40


def test_bundles_keep_limit_on_tpot_where_some_can():
    def slots(tpot):
        designs = designs_of(together(**EXPERTS, slo={"ttft": "1 s", "tpot": tpot}))
        bundle = bundle_design(designs, "2 prefill + 1A 1F").clients[1]
        return bundle.slots * bundle.batches

    assert slots("1 s") >= slots("41 ms") >= slots("1 ms")
    assert slots("1 s") > slots("1 ms"), "nobody keeps 1 ms, so the fastest is taken"


def test_bundles_have_the_slots_that_keep_the_limit_over_their_links():
    """Attention sends to the FFN in other nodes, which takes nearly as long as the FFN."""
    fleet = {"model": "deepseek-v3", "clients.0.gpu": "h200", "clients.0.tensor_parallel_size": 8}
    lengths = {
        "type": "synthetic",
        "num_requests": 800,
        "prompt": {"type": "fixed", "tokens": 1000},
        "output": {"type": "uniform", "low": 300, "high": 700},
    }
    workload = {"lengths": lengths, "arrivals": {"type": "poisson", "rate": "60 /s"}}
    limits = {"ttft": "20 s", "tpot": "50 ms"}
    designs = designs_of(together(**fleet, **{"clients.0.count": 4}, workload=workload, slo=limits))
    title = next(title for title in designs.scenarios if "8A 8F" in title)
    scenario = designs.scenarios[title]
    bundle = scenario.clients[1]
    assert title == f"2 prefill + 8A 8F {bundle.batches} x {bundle.slots}"
    assert "2 batches of 96 slots" in designs.assumed["bundles of attention and FFN workers"]
    kept = simulate(scenario).summary
    assert kept["good_request_fraction"] == 1
    more = {"clients.1.slots": bundle.slots + 16}
    missed = simulate(Scenario.from_dict(as_data(scenario), more)).summary
    assert kept["p99_tpot_ms"] < 50 < missed["p50_tpot_ms"]


def test_bundles_are_timed_as_mist_afd_times_them():
    designs = designs_of(together(**EXPERTS))
    bundle = bundle_design(designs, "2 prefill + 1A 1F").clients[1]
    gpu, model = load_gpu("h100-sxm"), load_model("qwen3-30b-a3b")
    cards = FfnCards(gpu=gpu, num_cards=1, network_bandwidth=1.0)
    expected = step_coefficients(model, gpu, cards, num_requests=bundle.slots)
    for part in ("alpha_a", "beta_a", "alpha_f", "beta_f"):
        assert getattr(bundle, part) == pytest.approx(getattr(expected, part), rel=1e-12)


def test_large_bundles_span_nodes():
    data = {"model": "deepseek-v3", "clients.0.gpu": "h200", "clients.0.tensor_parallel_size": 8}
    designs = designs_of(together(**data))
    found = [each for name, each in designs.scenarios.items() if "A " in name]
    assert len(found) == 1
    assert "as many experts on every GPU" in designs.left_out["2 prefill + a bundle"]
    for each in found:
        assert Built(each).num_gpus == 24
        assert each.network.make().spans_nodes


def test_bundles_have_gpus_of_one_kind():
    mixed = {
        "model": "qwen3-30b-a3b",
        "clients": [
            {"name": "h200", "gpu": "h200", "count": 2},
            {"name": "h100", "gpu": "h100-sxm", "count": 2},
        ],
    }
    designs = designs_of(together(**mixed))
    reason = designs.left_out["1 prefill + a bundle"]
    assert "gpu must be the same for all answers, got h100-sxm, h200" in reason
    assert bundle_design(designs, "2 prefill + 1A 1F")


# ------------------------------------------------------------------------------ the network


@pytest.mark.parametrize("name", sorted(gpu_names()))
def test_every_gpu_has_nodes_with_its_own_links(name):
    network = assumed_network([(name, 2)] * 3)
    fabric, gpu = Fabric(**_in_base_units(network)), load_gpu(name)
    fabric.admit([])
    node, link = fabric.resolved, gpu.interconnect
    assert node.num_gpus >= 6
    if link.domain is None or link.domain < 6:
        assert node.nvlink is None
        assert node.pcie == pytest.approx(link.bandwidth if link.kind == "pcie" else node.pcie)
    else:
        assert node.nvlink == pytest.approx(link.bandwidth)


def _in_base_units(network):
    rates = {k: float(v.split()[0]) * 1e9 for k, v in network.items() if k in ("pcie", "nvlink")}
    return network | rates


@pytest.mark.parametrize(
    ("asked", "nodes", "spans"),
    [
        ([("h100-sxm", 1)] * 8, None, False),
        ([("h100-sxm", 3)] * 4, 2, False),
        ([("h100-sxm", 5)] * 3, 3, False),
        ([("h100-sxm", 16)] * 2, 4, True),
        ([("gb200", 1)] * 40, None, False),
    ],
)
def test_there_are_as_many_nodes_as_clients_fill(asked, nodes, spans):
    network = assumed_network(asked)
    assert network.get("nodes") == nodes
    assert network.get("spans_nodes", False) == spans


def test_gpus_whose_links_were_changed_have_their_own(tmp_path):
    file = tmp_path / "slow.toml"
    file.write_text('based_on = "h100-sxm"\n[interconnect]\nbandwidth = "100 GB/s"\n')
    network = assumed_network([(str(file), 1)] * 2)
    assert network["nvlink"] == "100.0 GB/s"


def test_all_gpus_are_kept_in_number_and_kind():
    mixed = {
        "clients": [
            {"name": "a", "gpu": "h100-sxm", "count": 2, "tensor_parallel_size": 2},
            {"name": "b", "gpu": "a100-80gb-sxm", "data_parallel_size": 2},
        ]
    }
    scenario = together(**mixed)
    for each in designs_of(scenario).scenarios.values():
        assert gpus(each) == gpus(scenario)


def gpus(scenario):
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    found: Counter[str] = Counter()
    for client in as_data(scenario)["clients"]:
        found[client["gpu"]] += client["count"] * prod(client[size] for size in sizes)
    return found


# ------------------------------------------------------------------------------ the command

QUICK = ("--jobs", "1", "-q")


def test_the_command_compares_all_designs_of_a_file(mist):
    code, out, err = mist("together.yaml", "--designs", *QUICK)
    assert (code, err) == (0, "")
    assert "\nComparison of 9 scenarios, 3 GPUs each\n" in out
    assert max(map(len, out.splitlines())) <= 80
    rows = [line[2:28].strip() for line in out.splitlines()]
    assert [name for name in rows if name in OF_THREE][:9] == OF_THREE
    for words in ("Left out", "llama-3.1-8b has none", "Warnings", "{topology: hgx-h100}"):
        assert words in out


def test_figures_left_out_and_assumptions_are_in_file(mist, tmp_path):
    code, out, _ = mist("together.yaml", "--designs", "--json", "--out", "found", *QUICK)
    assert code == 0
    data = json.loads(out)
    assert data == json.loads((tmp_path / "found/comparison.json").read_text())
    assert list(data["scenarios"]) == OF_THREE
    assert list(data["left_out"]) == ["bundles of attention and FFN workers"]
    assert list(data["assumed"]) == ["network", "hybrids"]
    one = designs_of(together()).scenarios["1 prefill + 2 decode"]
    figures = data["scenarios"]["1 prefill + 2 decode"]
    assert figures["p99_ttft_ms"] == simulate(one).summary["p99_ttft_ms"]


def test_a_comparison_without_designs_tells_of_none(mist):
    code, out, _ = mist("together.yaml", "apart.yaml", "--json", *QUICK)
    assert code == 0
    assert not {"left_out", "assumed"} & json.loads(out).keys()


def test_designs_go_with_vary_and_goodput(mist):
    code, out, _ = mist(
        "together.yaml",
        "--designs",
        "--json",
        *QUICK,
        *("--vary", "clients.0.gpu=h100-sxm,h200", "--set", "clients.0.count=2"),
        *(
            "--set",
            "slo.tpot=null",
            "--goodput",
            "--as-is",
            "--rates",
            "5:2000",
            "--tolerance",
            "0.5",
        ),
    )
    assert code == 0
    data = json.loads(out)
    own = ["together 8192", "together 512", "together 2048", "1 prefill + 1 decode"]
    assert list(data["scenarios"]) == [
        f"gpu={gpu}: {n}" for gpu in ("h100-sxm", "h200") for n in own
    ]
    assert "gpu=h200: hybrids" in data["left_out"]
    assert data["goodput"].keys() == data["scenarios"].keys()


def test_a_case_without_designs_is_named(mist):
    cases = ("--case", "one:clients.0.count=1,clients.0.scheduler=static", "--case", "two:")
    code, out, err = mist("together.yaml", "--designs", *QUICK, *cases)
    assert (code, out) == (2, "")
    assert err.startswith("error: one: there is no other design for these clients")
    assert err.count("\n") == 1


def test_a_case_that_is_bad_input_has_no_designs_but_a_row(mist):
    cases = ("--case", "none:clients.0.count=0", "--case", "two:clients.0.count=2")
    code, out, _ = mist("together.yaml", "--designs", "--json", *QUICK, *cases)
    assert code == 0
    data = json.loads(out)
    assert data["failed"] == ["none"]
    assert data["scenarios"]["two: 1 prefill + 1 decode"]["p50_ttft_ms"] > 0


def test_designs_that_do_not_fit_are_rows_with_the_reason(mist):
    wide = ("--set", "clients.0.count=2", "--set", "clients.0.tensor_parallel_size=16")
    code, out, _ = mist("together.yaml", "--designs", "--json", *QUICK, *wide)
    assert code == 0
    data = json.loads(out)
    assert data["failed"] == ["together 8192", "together 512", "together 2048"]
    assert "tensor_parallel_size must be <= 8" in about(data, "together 512")[0]
    assert data["scenarios"]["1 prefill + 1 decode"]["p50_ttft_ms"] > 0


def test_designs_none_of_which_fits_are_one_error(mist):
    code, out, err = mist("together.yaml", "--designs", *QUICK, "--set", "model=deepseek-v3")
    assert (code, out) == (2, "")
    assert "deepseek-v3 does not fit on 1 x h100-sxm" in err


def test_any_number_of_processes_writes_the_same(mist, tmp_path):
    assert mist("together.yaml", "--designs", "--out", "one", *QUICK)[0] == 0
    assert mist("together.yaml", "--designs", "--out", "two", "--jobs", "2", "-q")[0] == 0
    sums = [(tmp_path / name / "SHA256SUMS").read_text() for name in ("one", "two")]
    assert sums[0] == sums[1]


def test_a_network_is_for_designs_that_hand_over():
    network = {"topology": "hgx-h100"}
    aggregated = {"network": network}
    with pytest.raises(ScenarioError, match="network: has no effect"):
        Scenario.from_dict(TOGETHER, aggregated)
    designs = designs_of(Splittable.from_dict(TOGETHER, aggregated)).scenarios
    has = {name: each.network is not None for name, each in designs.items()}
    assert set(has.values()) == {True, False}
    assert all(has[name] == ("prefill" in name or "hybrid" in name) for name in has)
    assert "network" not in designs_of(Splittable.from_dict(TOGETHER, aggregated)).assumed


def test_bundles_place_as_many_experts_on_every_card():
    """128 experts on seven GPUs: five cards, or three or six, have no equal shares."""
    fleet = {"model": "qwen3-30b-a3b", "clients.0.count": 8}
    names = [name for name in designs_of(together(**fleet)).scenarios if "A " in name]
    assert names
    assert all(128 % int(re.search(r"A (\d+)F", name)[1]) == 0 for name in names)
