"""Should I split? Answers by hand, and why losers lose."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mist_sim import Scenario, ScenarioError, Slo
from mist_sim.search.binding_result import Binding
from mist_sim.search.compared_case import Case, form_of
from mist_sim.search.comparison import compare
from mist_sim.search.goodput import GoodputOptions
from mist_sim.search.ranking import Beside, sentence
from mist_sim.search.slo_plane import SloPlane
from mist_sim.search.splitting import losers, split_of
from mist_sim.studies.verdicts.request_times import RequestTimes, Target
from tests.unit.search.test_compare import RATES, both

TARGET = Target(slo=Slo(ttft=0.5, tpot=0.015))


def case(name: str, good: float, ttft: float, tpot: float, **more: Any) -> Case:
    """Return a design of so many good requests, and 90th percentiles in milliseconds."""
    known = {"low": 0.0, "high": 0.0}
    summary = {
        "good_request_fraction": good,
        "p90_ttft_ms": ttft,
        "p90_tpot_ms": tpot,
        "stability": "stable",
        "completed": 90,
        "failed": 0,
        "slo": {},
        "expected_errors": {"llm": {"ttft": known, "tpot": known}},
        **more.pop("summary", {}),
    }
    form = more.pop("form", "apart" if "prefill" in name else "together")
    return Case(
        name, "", 4, (summary,), more.pop("goodput", None), target=TARGET, form=form, **more
    )


def served(rate: float, low: float, high: float, first: str = "tpot", **more: Any) -> Any:
    usual = {
        "is_steady": True,
        "is_coarse": False,
        "status": "found",
        "is_open": False,
        "warnings": (),
        "error_interval": None,
        "step_ends": None,
    }
    return SimpleNamespace(
        rate=rate,
        per_gpu=rate / 4,
        bounds=(low, high),
        first_limit=first,
        **(usual | {"binding": None, "warnings": (), "error_interval": None} | more),
    )


SMALL = case("together 512", 0.99, 119.0, 12.5)
LARGE = case("together 8192", 0.94, 100.0, 14.9)
HALVES = case("2 prefill + 2 decode", 1.0, 207.0, 11.1)


def test_both_keep_limits_so_there_is_no_need():
    hybrid = case("hybrid", 1.0, 50.0, 5.0, form="between")
    found = split_of([LARGE, SMALL, HALVES, hybrid])
    assert found.answer == "no"
    assert found.sentence == (
        "at this rate together 512 (99.0 % good) keeps the limits, as 2 prefill + 2 decode (100.0 "
        "% good) does."
    )
    assert found.turns == (  # below 207 ms of TTFT only designs together keep it: still no
        (
            "a limit on p90 TPOT below 12.5 ms (now 15 ms), which only designs apart keep, down to "
            "11.1 ms"
        ),
    )


def test_only_one_form_keeps_the_limits():
    slow = case("together", 0.6, 400.0, 20.0)
    found = split_of([slow, HALVES])
    assert (found.answer, found.together, found.apart) == ("yes", "", HALVES.name)
    assert found.sentence.startswith("2 prefill + 2 decode (100.0 % good) keeps the limits")
    assert "of those together together (60.0 % good) comes nearest" in found.sentence
    assert found.turns == ("a limit on p90 TPOT of 20 ms (now 15 ms), which together keeps, too",)
    late = case("1 prefill", 0.1, 3_040.0, 16.0)
    found = split_of([SMALL, late])
    assert found.answer == "no"
    assert found.turns == (
        (
            "a limit on p90 TTFT of 3,040 ms (now 500 ms) and p90 TPOT of 16 ms (now 15 ms), "
            "which 1 prefill keeps, too"
        ),
    )
    assert split_of([slow, late]).answer == "undecided"


def test_the_question_needs_both_forms_and_equal_gpus():
    assert split_of([SMALL, LARGE]) is None
    assert split_of([HALVES]) is None
    more = case("4 prefill", 1.0, 100.0, 10.0)
    assert split_of([SMALL, Case(**vars(more) | {"num_gpus": 8})]) is None


BINDING = Binding(
    rate=70.0, limit="tpot", resource="memory_bandwidth", gains={}, more={"memory_bandwidth": 0.05}
)


def test_goodputs_answer_with_lead_and_what_closes_it():
    one = case("together", 1.0, 1.0, 1.0, goodput=served(70.0, 68.0, 71.0, binding=BINDING))
    two = case("1 prefill", 1.0, 1.0, 1.0, goodput=served(77.0, 76.0, 78.0, "ttft"))
    found = split_of([one, two])
    assert found.answer == "yes"
    assert "1 prefill (77 /s, 76 to 78) serves most, 10 % more than together" in found.sentence
    assert found.turns == (
        "about 20 % more of what binds together (memory bandwidth)",
        (
            "a looser limit on TPOT, which together misses first, or a tighter one on TTFT, "
            "which 1 prefill does"
        ),
    )
    far = case("1 prefill", 1.0, 1.0, 1.0, goodput=served(140.0, 139.0, 141.0))
    found = split_of([one, far])
    assert found.turns == ()
    assert found.does_not_turn == "50 % more of what binds together (memory bandwidth)"


def test_goodputs_too_near_leave_it_open():
    one = case("together", 1.0, 1.0, 1.0, goodput=served(70.0, 60.0, 80.0))
    two = case("1 prefill", 1.0, 1.0, 1.0, goodput=served(72.0, 62.0, 82.0))
    assert split_of([one, two]).answer == "undecided"
    unbound = served(nan, 80.0, inf, status="all attained", is_open=True)
    assert split_of([one, case("1 prefill", 1.0, 1.0, 1.0, goodput=unbound)]).answer == "undecided"
    missed = served(nan, 0.0, 5.0, status="all missed")
    assert split_of([one, case("1 prefill", 0.0, 1.0, 1.0, goodput=missed)]).answer == "no"


def test_a_plane_says_at_which_limit_it_turns():
    """Together serves 2 /s within 30 ms of TPOT, apart 1 /s within 10 ms."""

    def times(tpot: float) -> RequestTimes:
        long = np.full(10, tpot)
        return RequestTimes(np.full(10, 0.1), long, np.full(10, 1.0))

    limits = np.array([0.01, 0.02, 0.04])
    plane = SloPlane(
        {
            "together": [times(0.03), times(0.03), times(9.0)],
            "1 prefill": [times(0.01), times(9.0), times(9.0)],
        },
        np.array([1.0, 2.0, 4.0]),
        np.array([0.2, 0.5]),
        limits,
        0.9,
        {"together": 4, "1 prefill": 4},
    )
    one = case("together", 1.0, 1.0, 1.0, goodput=served(70.0, 68.0, 71.0))
    two = case("1 prefill", 1.0, 1.0, 1.0, goodput=served(90.0, 89.0, 91.0))
    assert split_of([one, two], plane).turns == ("a limit on TPOT of 40 ms (now 15 ms)",)


def test_losers_are_explained_in_a_line():
    full = {"room": 0.04, "room_limit": "max_num_batched_tokens at p"}
    late = case("1 prefill", 0.1, 3_040.0, 10.0, summary=full)
    near = case("together", 0.88, 400.0, 15.3)
    assert losers([SMALL, HALVES, late, near], []) == {
        "1 prefill": "10.0 % good; p90 TTFT is 3,040 ms, 6.1 times its limit; no room in 96 % of "
        "the time, mostly for max_num_batched_tokens at p",
        "together": "88.0 % good; p90 TPOT is 15.3 ms, 2 % over its limit",
    }
    best = case("best", 1.0, 1.0, 1.0, goodput=served(80.0, 79.0, 81.0))
    less = case("less", 1.0, 1.0, 1.0, goodput=served(60.0, 59.0, 61.0, "ttft", is_coarse=True))
    none = case("none", 0.0, 1.0, 1.0, goodput=served(nan, 0.0, 1.0, status="all missed"))
    assert losers([best, less, none], ["best"]) == {
        "less": "at most 25 % less; TTFT misses first",
        "none": "attains no rate tried; TPOT misses first",
    }
    failed = Case.failed("wrong", ScenarioError("does not fit"))
    assert losers([best, failed], ["best"]) == {"wrong": "failed: does not fit"}


def test_forms_go_by_roles():
    forms = {name: form_of(scenario) for name, scenario in both().items()}
    assert forms == {"apart": "apart", "together": "together"}
    assert form_of(Scenario.load("taichi-hybrid")) == "between"
    assert form_of(Scenario.load("demo")) == "together"


def test_a_comparison_answers_and_explains():
    found = compare(both(), why=True, jobs=1)
    assert found.summary["split"]["answer"] == found.split.answer
    assert "Should I split?" in found._repr_html_()
    tight = {"slo.tpot": "5 ms"}
    lost = compare(both(tight), why=True, jobs=1)
    assert lost.summary["losers"] == lost.losers
    assert "Why the others lose" in lost._repr_html_()
    assert "losers" not in compare(both(tight), jobs=1).summary


def test_with_why_the_best_of_the_other_form_is_taken_apart():
    found = compare(both(), goodput=GoodputOptions(rates=RATES, as_is=True), why=True, jobs=1)
    assert [case.name for case in found.cases if case.binding] == ["apart", "together"]
    if found.split.answer in ("yes", "no"):
        told = (*found.split.turns, found.split.does_not_turn)
        assert any("of what binds" in each for each in told)


@pytest.mark.parametrize("overrides", [{"slo": {}, "cost": None}])
def test_without_limits_nobody_loses(overrides):
    with pytest.raises(ScenarioError, match="why must be False without limits and without"):
        compare(both(overrides), why=True, jobs=1)


@pytest.mark.parametrize(("high", "sure"), [(72.0, "; sure, even"), (80.0, "; not sure if")])
def test_verdict_and_split_say_the_same_of_winner(high, sure):
    """Also where another design serves as much as the winner."""

    def ends(off: tuple[float, float]) -> dict[str, Any]:
        return {"error_interval": off, "step_ends": off}

    two, twin, one = (
        case(name, 1.0, 1.0, 1.0, goodput=served(rate, rate - 1, rate + 1, **ends(off)))
        for name, rate, off in [
            ("2 prefill", 77.0, (75.0, 79.0)),
            ("1 prefill", 76.5, (74.5, 79.0)),
            ("together", 70.0, (68.0, high)),
        ]
    )
    twin = replace(twin, beside=Beside(two.name, 0.04, not_more=True, not_less=True))
    told = sentence([each.ranked for each in (one, two, twin)])
    split = split_of([one, two, twin]).sentence.partition("; TPOT")[0]
    assert f"10 % more than the next, together{split.partition('together')[2]}" in told
    assert sure in told
