"""How sure a plan is: that its limits are kept, and that nothing cheaper keeps them."""

from __future__ import annotations

import pytest

from mist_sim import Scenario
from mist_sim.metrics.expected_errors import Range, verdict_of
from mist_sim.search import PlanOptions, plan
from mist_sim.search.planning.bounds import demand_of
from mist_sim.search.planning.candidates import candidates, engines_of
from mist_sim.search.planning.hunt import Hunt
from mist_sim.search.planning.plan_result import _margin, _need, _one_less_confidence
from mist_sim.search.planning.question import Question
from mist_sim.studies.driver import Driver
from mist_sim.studies.verdicts.trials import Trial
from tests.reference.scenarios import of_profile

ASKED = {
    "model": "llama-3.1-8b",
    "workload": of_profile(60, "20 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "h100-sxm", "engine": "vllm-0.15"}],  # measured
    "slo": {"ttft": "500 ms", "tpot": "25 ms"},
}
ONE_KIND = {"gpus": ("h100-sxm",), "tensor_parallel_sizes": (1,), "designs": ("together",)}


def smaller(keeps, monkeypatch):
    """Return the choice and its runs with fewer engines than eight that keep the limits."""
    options = PlanOptions(max_gpus=8, **ONE_KIND)
    question = Question(Scenario.from_dict(ASKED), options)
    shop = engines_of(question)
    question.measure(shop.engines[0].built)
    space = list(candidates(shop.engines, question))
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1))
    runs = []

    def trials(chosen, most, rate):
        runs.extend((each.first, most) for each in chosen)
        return {
            each: Trial(1.0, 0, each.first >= keeps, 0.95, is_whole=True, margins=(-0.3, 0.1))
            for each in chosen
        }

    monkeypatch.setattr(hunt, "_trials", trials)
    hunt.run([each for each in space if each.first == 8][:1])
    runs.clear()
    hunt._shrink()
    return hunt.best.candidate.first, runs


def test_a_choice_that_does_with_an_engine_less_is_made_smaller(monkeypatch):
    number, runs = smaller(6, monkeypatch)
    assert number == 6
    assert runs == [(7, 30_000), (6, 30_000), (5, 30_000)]


def one_less(*, attains, undecided=False, verdict="miss"):
    slo = {"p90_ttft_ms": {"verdict": verdict}}
    return {
        "one less": {"attains": attains, "undecided": undecided, "nobody": False, "slo": slo},
    }


def test_nothing_is_sure_without_a_known_error():
    less = one_less(attains=False)
    assert _need({"one_less": less, "is_cheapest": True, "unknown": ["own"]}) == "unsure"
    less["one less"]["slo"]["p90_ttft_ms"]["error_known"] = False
    assert _need({"one_less": less, "is_cheapest": True, "unknown": []}) == "unsure"


@pytest.mark.parametrize(
    ("less", "is_cheapest", "how"),
    [
        (one_less(attains=False), True, "sure"),
        (one_less(attains=False), False, "likely"),
        (one_less(attains=False, verdict="within error"), True, "likely"),
        (one_less(attains=True, verdict="pass"), True, "unsure"),
        (one_less(attains=True, verdict="pass", undecided=True), True, "likely"),
        ({}, True, "sure"),
    ],
)
def test_a_purchase_is_as_sure_as_it_is_that_nothing_cheaper_does(less, is_cheapest, how):
    assert _need({"one_less": less, "is_cheapest": is_cheapest, "unknown": []}) == how


@pytest.mark.parametrize("less", [one_less(attains=False), one_less(attains=True, verdict="pass")])
def test_far_from_all_measurements_fewer_engines_are_no_sure_verdict(less):
    assert [_one_less_confidence(less, far) for far in (False, True)] == ["sure", "likely"]


@pytest.mark.deep
def test_a_plan_that_left_cheaper_candidates_open_is_not_sure(monkeypatch):
    monkeypatch.setattr(Hunt, "_next_runs", lambda _: {})
    monkeypatch.setattr(Hunt, "_shrink", lambda _: None)
    scenario = Scenario.from_dict(ASKED, {"slo": {"ttft": "20 s"}})
    options = PlanOptions(max_gpus=9, rate=60.0, most_requests=1000, **ONE_KIND)
    found = plan(scenario, options, jobs=1)
    assert found.not_tried
    told = {line.name: line.confidence for line in found.lines}
    assert told["limits"] == "sure"
    assert told["buy"] in ("likely", "unsure")


@pytest.mark.parametrize(("number", "rate"), [(4, 50.0), (60, 20.0)])
def test_workload_too_short_to_tell_makes_nothing_sure(number, rate):
    scenario = Scenario.from_dict(ASKED, {"workload.lengths.num_requests": number})
    found = plan(scenario, PlanOptions(max_gpus=1, rate=rate, as_is=True, **ONE_KIND), jobs=1)
    told = {line.name: line.confidence for line in found.lines}
    assert {told[name] for name in ("buy", "limits", "headroom")} == {"unsure"}
    assert any(
        "for the workload as it stands; short ones flatter" in str(w) for w in found.warnings
    )
    assert any(str(warning).startswith("Too short to tell") for warning in found.warnings)


def test_a_warning_counts_the_candidates_left():
    scenario = Scenario.from_dict(ASKED, {"slo": {"ttft": "20 s"}})
    found = plan(scenario, PlanOptions(max_gpus=1, as_is=True, **ONE_KIND), jobs=1)
    (limits,) = (line.text for line in found.lines if line.name == "limits")
    assert " of 20,000 ms (pass)" in limits


def test_workload_long_enough_to_tell_may_be_sure():
    scenario = Scenario.from_dict(ASKED, {"workload.lengths.num_requests": 1500})
    found = plan(scenario, PlanOptions(max_gpus=1, rate=5.0, as_is=True, **ONE_KIND), jobs=1)
    assert found.lines[0].confidence == "sure"
    told = [str(each) for each in found.warnings if each.kind.name == "plan"]
    assert told == ["Judged for the workload as it stands; short ones flatter."]


@pytest.mark.parametrize(
    ("value", "other", "verb"),
    [
        (30.0, [], "4 x h200, 13.78 $/h, makes it sure"),
        (30.0, ["kernel", "release"], "keeps all limits through its error, though too little"),
        (39.0, [], "4 x h200, 13.78 $/h, may miss within its error, too"),
    ],
)
def test_a_margin_within_the_error_is_told_first(value, other, verb):
    bar = {"low": -0.2, "high": 0.2, "other": other}

    def summary(tpot):
        verdict = verdict_of(True, tpot, 40.0, Range(-0.2, 0.2))
        limit = {"p95_tpot_ms": {"value": tpot, "limit": 40.0, "kept": True, "verdict": verdict}}
        return {"slo": limit, "expected_errors": {"llm": {"ttft": bar, "tpot": bar}}}

    text = _margin(summary(38.2), {"one_more": {"4 x h200, 13.78 $/h,": summary(value)}})
    assert "keeps TPOT 40 ms only if it is at most 4.7 % longer" in text
    assert "± 20 %" in text
    assert verb in text
    assert _margin(summary(30.0), {"one_more": {}}) == ""
