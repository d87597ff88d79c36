"""How far an answer may be off: which range a client gets, and how it is shown."""

import json
import re
from dataclasses import replace

import pytest

import mist_sim as mist
from mist_sim import Link, Scenario, Simulation, Workload, llm_client, load_gpu, simulate
from mist_sim.metrics.expected_errors import error_bar as in_package
from mist_sim.metrics.expected_errors import expected_errors, expected_ranges
from mist_sim.metrics.load import CLOSED, LOW_LOAD, OPEN, Load
from mist_sim.models import SpeculativeConfig
from mist_sim.report.run import error_range
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.reference.scenarios import of_profile

DENSE = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}


HERE = Load(LOW_LOAD, OPEN)  # of the runs here


def bar_of(metric="tpot", load=HERE, **options):
    """Return the bar of a client."""
    client = llm_client("llm", **DENSE | options)
    return in_package(client.traits.times.settings[metric], metric, load)


def run(*clients, **more):
    workload = Workload.from_lists([100] * 6, [20] * 6, [0.1 * k for k in range(6)])
    return Simulation(clients=clients, workload=workload, **more).run()


def printed(result, capsys):
    result.show()
    return capsys.readouterr().out


# --- which range a client gets ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"model": "qwen3-8b", "engine": "vllm-0.11"}, ()),
        ({"model": "qwen3-8b", "engine": "vllm-0.24"}, ("release",)),
        ({"model": "qwen2.5-14b", "engine": "vllm-0.11"}, ("model",)),
        ({"gpu": "l40s", "engine": "vllm-0.11"}, ("GPU", "kernel")),
    ],
)
def test_bar_names_nearest_run_and_what_is_other(options, other):
    bar = bar_of(load=Load(LOW_LOAD, CLOSED), **options)
    assert bar.low < bar.high
    assert bar.num_points >= 100
    assert bar.other == other


def test_each_respect_that_is_other_widens_or_keeps():
    near = {"model": "qwen3-32b", "tensor_parallel_size": 2, "engine": "vllm-0.12"}
    load = Load(LOW_LOAD, CLOSED)
    widths = [
        bar_of(load=load, **near | changes).width
        for changes in ({}, {"engine": "vllm-0.14"}, {"engine": "vllm-0.14", "gpu": "b200"})
    ]
    assert widths[0] < min(widths[1:])


@pytest.mark.parametrize(
    "options",
    [
        {"gpu": "l40s", "tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"gpu": "mi300x"},
        {"quantization": "nvfp4", "gpu": "b200"},
        {"predictor": ConstantPredictor(0.01)},
        {"predictor": lambda **parts: mist.RooflinePredictor(**parts, enforce_eager=True)},
        {
            "speculative_config": SpeculativeConfig(
                method="ngram", num_speculative_tokens=2, acceptance_rate=0.5
            )
        },
    ],
    ids=["pcie", "pipeline", "no architecture", "format", "own", "eager", "drafts"],
)
def test_what_is_like_nothing_measured_has_none(options):
    assert bar_of(**options) is None


def test_one_gpu_behind_pcie_has_no_link_to_be_wrong_about():
    assert bar_of(gpu="l40s") is not None


# --- what a result says -----------------------------------------------------------------------


def test_the_summary_has_the_ranges_of_every_client():
    result = run(llm_client("a", **DENSE), llm_client("b", **DENSE | {"gpu": "mi300x"}))
    found = json.loads(json.dumps(result.summary["expected_errors"]))
    assert found["b"]["tpot"]["low"] is None
    assert "no measured run" in found["b"]["tpot"]["like"]
    bar = bar_of()
    assert found["a"]["tpot"].pop("sensitivity")["growing"] == 0.0  # one request
    assert found["a"]["tpot"].pop("step_times") == [bar.low, bar.high]
    assert found["a"]["tpot"] == {
        "low": bar.low,
        "high": bar.high,
        "num_points": bar.num_points,
        "knows_kernel": bar.knows_kernel,
        "like": bar.like,
        "other": list(bar.other),
        "here": "llama-3.1-8b, dense bf16, h100-sxm, vLLM 0.33",
        "load": "low load",
        "arrivals": "open loops",
    }


def test_the_tables_show_value_range_and_basis(capsys):
    result = run(llm_client("a", **DENSE))
    bar, value = bar_of(), result.summary["mean_tpot_ms"]
    shown = f"TPOT {value:.2f} ms {error_range(bar.low, bar.high)} nearest of {bar.num_points}"
    told = " ".join(printed(result, capsys).split())
    assert f"{shown} measured: {bar.like}; other: {', '.join(bar.other)}" in told


def test_of_different_clients_the_widest_counts(capsys):
    near, far = {"gpu": "h100-sxm"}, {"gpu": "a100-80gb-sxm", "model": "qwen3-30b-a3b"}
    assert bar_of(**far).width > bar_of(**near).width
    out = printed(run(llm_client("near", **DENSE), llm_client("far", **DENSE | far)), capsys)
    assert re.search(r"TPOT .*\n? *widest, of far: nearest of", out)


def test_equal_clients_are_not_told_apart(capsys):
    out = printed(run(llm_client("one", **DENSE), llm_client("two", **DENSE)), capsys)
    assert "Expected error" in out
    assert "widest" not in out


def test_no_range_is_the_widest(capsys):
    unknown = llm_client("unknown", **DENSE | {"gpu": "mi300x"})
    out = printed(run(llm_client("known", **DENSE), unknown), capsys)
    assert out.count("widest, of unknown: not known: no measured run is like it") == 2


def test_client_with_role_answers_for_its_own_tokens():
    network = Link(bandwidth=50e9, latency=1e-3)
    first = llm_client("first", **DENSE, role="prefill")
    then = llm_client("then", **DENSE | {"gpu": "mi300x"}, role="decode")
    found = run(first, then, network=network).summary["expected_errors"]
    assert found["then"]["tpot"]["low"] is None
    assert list(found["first"]) == ["ttft"]
    assert found["first"]["ttft"] is not None


def test_an_engine_made_by_hand_is_like_nothing():
    engine = llm_engine(
        "llm",
        scheduler=mist.ChunkedScheduler(),
        predictor=ConstantPredictor(0.01),
        num_gpu_blocks=100,
    )
    assert run(engine).summary["expected_errors"] == {"llm": {"ttft": None, "tpot": None}}


def test_replications_have_the_ranges_once(capsys):
    scenario = {
        "model": DENSE["model"],
        "replications": 2,
        "workload": of_profile(5, "2 /s"),
        "clients": [{"name": "llm", "gpu": DENSE["gpu"]}],
    }
    found = mist.replicate(mist.Scenario.from_dict(scenario))
    assert found.summary["expected_errors"]["llm"]["tpot"]["like"] == bar_of().like
    assert not [name for name in found.runs if name.startswith("expected_errors")]
    assert bar_of().like in " ".join(printed(found, capsys).split())


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-0.06, 0.05, "± 6 %"),
        (-0.139, 0.2, "−14 to +20 %"),
        (-0.136, 0.111, "−14 to +11 %"),
        (-0.2, 0.05, "−20 to +5 %"),
        (0.18, 0.86, "+18 to +86 %"),
        (-0.1, 0.1, "± 10 %"),
    ],
)
def test_range_that_leans_to_side_shows_both_ends(low, high, text):
    assert error_range(low, high) == text


# --- bars of what was not measured -------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"memory_bandwidth": 4e12}, "has figures of your own; the measurements are for h100-sxm"),
        ({"based_on": ""}, "is a GPU of your own, whose kernels were not timed"),
        ({"name": "renamed"}, ""),
    ],
)
def test_a_gpu_of_ones_own_has_no_bar(changes, why):
    gpu = replace(load_gpu("h100-sxm"), **changes)
    client = llm_client("llm", gpu=gpu)
    expected = expected_errors({"llm": client.traits.times.settings})["llm"]["tpot"]
    if why:
        assert (expected["low"], expected["high"], expected["num_points"]) == (None, None, 0)
        assert why in expected["like"]
    else:
        assert expected["low"] < expected["high"]


def test_a_capped_gpu_has_no_bar():
    client = llm_client("llm", gpu="h100-sxm", power_limit=450.0)
    expected = expected_errors({"llm": client.traits.times.settings})["llm"]["ttft"]
    assert expected["like"].startswith("not known: a power cap")


def test_engines_on_several_nodes_have_no_bar_and_the_table_says_why():
    scenario = Scenario.load(
        "demo",
        overrides={
            "workload.lengths.num_requests": 20,
            "clients.0.count": 1,
            "clients.0.tensor_parallel_size": 16,
            "clients.0.model": "llama-3.1-405b",
            "network": {"topology": "hgx-h100", "nodes": 2, "spans_nodes": True},
        },
    )
    result = simulate(scenario)
    expected = result.summary["expected_errors"]["llm"]
    assert {metric: bar["like"] for metric, bar in expected.items()} == dict.fromkeys(
        ("ttft", "tpot"), "not known: GPUs on several nodes; only ranks on one node were measured"
    )
    assert expected["tpot"]["low"] is None


def test_gaps_are_off_as_tpot_is():
    both = {"ttft": {"low": -0.2, "high": 0.5}, "tpot": {"low": -0.1, "high": 0.1}}
    decodes = {"tpot": both["tpot"]}
    for clients, expected in (
        ({"a": both}, (-0.1, 0.1)),
        ({"p": {"ttft": both["ttft"]}, "d": decodes}, (-0.1, 0.1)),
        ({"a": both, "d": {"tpot": None}}, None),
    ):
        assert expected_ranges({"expected_errors": clients})["itl"] == expected


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (-0.66, 478.47, "−66 % to over 10 times"),
        (-0.66, 9.01, "−66 % to over 10 times"),
        (-0.66, 8.99, "−66 to +899 %"),
    ],
)
def test_a_bar_without_an_upper_end_of_use_is_in_words(low, high, shown):
    assert error_range(low, high) == shown


# --- how far an answer is from measurements ----------------------------------------------------


def test_what_is_far_says_so_before_all_else(capsys):
    out = printed(run(llm_client("a", **DENSE | {"gpu": "l40s"})), capsys)
    first, _, rest = out.partition("Workload")
    brief = "No measurement of this kernel on this GPU; other: GPU, kernel, release, load."
    assert brief in " ".join(first.split())
    below = " ".join(rest.partition("Warnings")[2].split())
    assert "Here llama-3.1-8b, dense bf16, l40s, vLLM 0.33; the nearest is" in below


def test_a_kernel_measured_on_this_gpu_is_not_said_to_be_unknown(capsys):
    out = printed(run(llm_client("a", **DENSE | {"gpu": "a100-80gb-sxm"})), capsys)
    first = " ".join(out.split("Workload")[0].split())
    assert "No measurement like this" in first


def test_what_has_no_bar_says_so_before_all_else(capsys):
    out = printed(run(llm_client("a", **DENSE | {"gpu": "mi300x"})), capsys)
    assert "No error bar: no measured run is like it" in out.split("Workload")[0]
