"""Plans of other scenarios: limits of classes, split engines, other schedulers, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from mist_sim import Scenario, ScenarioError
from mist_sim.errors import TraceError
from mist_sim.search import PlanOptions, plan
from mist_sim.search.planning.candidates import engines_of
from mist_sim.search.planning.question import Question
from tests.reference.scenarios import of_profile

EXAMPLES = Path(__file__).parents[3] / "examples" / "scenarios"
ASKED = {
    "model": "llama-3.1-8b",
    "workload": of_profile(60, "20 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "500 ms", "tpot": "25 ms"},
}
FEW = {"gpus": ("h100-sxm",), "designs": ("together",), "as_is": True}


def planned(changes=None, **options):
    return plan(Scenario.from_dict(ASKED, changes or {}), PlanOptions(**FEW | options), jobs=1)


def classes(*names):
    """A workload of classes, and limits on the classes of these names."""
    length = {"prompt": {"type": "fixed", "tokens": 200}, "output": {"type": "fixed", "tokens": 9}}
    kinds = {"chat": length, "doc": length}
    return {
        "workload.lengths": {"type": "mix", "num_requests": 60, "classes": kinds},
        "slo": {"ttft": "300 ms", "classes": {name: {"tpot": "25 ms"} for name in names}},
    }


def test_limit_that_no_request_has_is_left_out():
    found = planned(classes("chat", "doc"), tensor_parallel_sizes=(1,), max_gpus=1)
    assert list(found.at_rate["slo"]) == ["chat.p90_tpot_ms", "doc.p90_tpot_ms"]
    assert "The limit on TTFT of requests of no class is left out" in str(found.warnings[0])
    assert "nan" not in " ".join(line.text for line in found.lines)


def test_a_limit_of_requests_of_no_class_stays():
    found = planned(classes("chat"), tensor_parallel_sizes=(1,), max_gpus=1)
    assert list(found.at_rate["slo"]) == ["p90_ttft_ms", "chat.p90_tpot_ms"]
    assert not any("left out" in str(warning) for warning in found.warnings)


def test_engines_for_prompts_may_take_smaller_steps():
    """Of prompts computed in one step, the first waits for the last."""
    lengths = {
        "type": "synthetic",
        "num_requests": 400,
        "prompt": {"type": "fixed", "tokens": 2000},
        "output": {"type": "fixed", "tokens": 20},
    }
    changes = {"workload.lengths": lengths, "workload.arrivals.rate": "12 /s"}
    options = {"tensor_parallel_sizes": (1,), "max_gpus": 2, "designs": ("apart",)}
    found = planned(changes | {"slo": {"ttft": "160 ms"}}, **options)
    verdicts = {row["design"]: row["verdict"] for row in found.tried}
    assert verdicts == {
        "1 prefill + 1 decode": "missed",
        "1 prefill x 2048 + 1 decode": "attained",
    }
    (said,) = (line.text for line in found.lines if line.name == "design")
    assert said == "apart: 1 for prompts (2,048 tokens a step), 1 for answers"
    assert "--max-num-batched-tokens 2048" in found.deployment.commands[0]


def test_a_price_of_the_scenario_is_that_of_its_own_gpu():
    own = {"clients.0.gpu_price": "1 $/h", "cost": {}}

    def dollars(**options):
        asked = PlanOptions(gpus=("l40s", "h100"), tensor_parallel_sizes=(1,), **options)
        question = Question(Scenario.from_dict(ASKED, own), asked)
        found = {each.gpu: each.dollars for each in engines_of(question).engines}
        return found, [*question.own_prices]

    found, told = dollars()
    assert found["h100"] == 1.0 != found["l40s"]
    assert told == ["Price as given: 1 $/h for each h100-sxm (clients.0.gpu_price)."]
    found, told = dollars(prices={"h100-sxm": 2.0})
    assert found["h100"] == 2.0
    assert not told
    own["clients.0.gpu_price"] = "0 $/h"  # a choice by price needs one
    found, told = dollars()
    assert found["h100"] > 2.0
    assert "--price h100-sxm=DOLLARS" in told[0]


ONE = {"tensor_parallel_sizes": (1,), "max_gpus": 1}


def test_a_plan_names_price_that_it_was_given():
    found = planned({"clients.0.gpu_price": "1 $/h", "cost": {}}, **ONE)
    assert found.usd_per_hour == 1.0
    assert "Price as given: 1 $/h for each h100-sxm" in str(found.warnings[0])


@pytest.mark.parametrize(
    ("split", "name", "said"),
    [
        ({"data_parallel_size": 2}, "h100-sxm DP 2", "data parallel size 2"),
        ({"pipeline_parallel_size": 2}, "h100-sxm PP 2", "pipeline parallel size 2"),
    ],
)
def test_engine_is_named_with_all_that_splits_it(split, name, said):
    changes = {f"clients.0.{key}": value for key, value in split.items()}
    options = {"tensor_parallel_sizes": (1, 2), "max_gpus": 2}
    found = planned(changes, **options)
    assert found.name.startswith(f"1 x {name}, ")
    assert {row["name"].split(",")[0] for row in found.tried} == {f"1 x {name}"}
    lines = {line.name: line.text for line in found.lines}
    assert lines["buy"].startswith("2 x h100-sxm, 5.9 $/h")
    assert lines["each engine"] == f"llama-3.1-8b on 2 GPUs, {said}"
    assert list(found.left_out) == [name.replace("h100-sxm", "h100-sxm TP 2")]


def test_a_scheduler_that_cuts_no_prompts_has_plan():
    scheduler = {"clients.0.scheduler": {"type": "continuous"}, "workload.arrivals.rate": "2 /s"}
    found = planned(scheduler, tensor_parallel_sizes=(1,), max_gpus=1)
    assert found.name == "1 x h100-sxm, together"
    assert found.deployment.notes == ("No argument of vLLM says scheduler.type: continuous.",)
    assert "--max-num-batched-tokens" not in found.deployment.commands[0]


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        (
            {"cost": {"price": "spot"}},
            {"gpus": ("rubin",)},
            "the price excludes 4 of 4, such as rubin: gpu_price must be given for rubin",
        ),
        (
            {"clients.0.max_model_len": 70_000_000},
            {},
            "the scenario excludes 4 of 4, such as h100-sxm: max_model_len",
        ),
        (
            {"cost": {"price": "spot"}},
            {"gpus": ("rubin", "h100-sxm"), "max_gpus": 1, "rate": 900.0},
            "relax the limits; rubin is left out: gpu_price must be given for rubin",
        ),
    ],
)
def test_an_engine_is_left_out_for_the_reason_that_is_said(changes, options, said):
    with pytest.raises(ScenarioError) as caught:
        planned(changes, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_that_cannot_be_read_is_at_fault_and_no_engine(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("ts_ms,prompt_tokens,output_tokens,status\n5,9,9,200\n", "utf-8")
    asked = ASKED | {"workload": {"trace": {"type": "csv", "path": str(path)}}}
    with pytest.raises(TraceError) as caught:
        plan(Scenario.from_dict(asked), PlanOptions(**FEW), jobs=1)
    told = str(caught.value)
    assert told.startswith(f"{path}:1: no column 'timestamp'")
    assert "needed are timestamp, prompt_tokens, output_tokens; say" in told  # no status
    assert "--set workload.trace.time_column=NAME" in told


def test_the_reason_that_is_counted_is_the_one_that_is_shown():
    scenario = Scenario.from_dict(ASKED, {"cost": {"price": "spot"}})
    options = PlanOptions(**FEW | {"gpus": ("rubin",), "tensor_parallel_sizes": (3, 1, 2)})
    assert [each.kind for each in engines_of(Question(scenario, options)).others] == [
        "the model's sizes",
        "the price",
        "the price",
    ]
    with pytest.raises(ScenarioError, match="the price excludes 2 of 3, such as rubin: gpu_price"):
        plan(scenario, options)


def test_a_plan_of_several_models_is_refused_by_their_names():
    models = {"llama-3.1-8b": 0.8, "llama-3.1-70b": 0.2}
    clients = [{"name": name, "model": name, "gpu": "h100-sxm"} for name in models]
    clients[1]["tensor_parallel_size"] = 2
    said = (
        r"a plan is of one model, got workload\.models of llama-3\.1-8b, llama-3\.1-70b; plan each"
    )
    with pytest.raises(ScenarioError, match=said):
        planned({"clients": clients, "workload.models": models, "model": None})


def test_a_scenario_with_other_clients_is_refused_by_their_name():
    scenario = Scenario.load(EXAMPLES / "news_search.yaml", {"slo.ttft": "1 s"})
    with pytest.raises(ScenarioError, match="must all be of type llm for a plan.*'docs' of type r"):
        plan(scenario, PlanOptions(gpus=("h100",)))
