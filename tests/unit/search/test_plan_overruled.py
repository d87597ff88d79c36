"""A plan's answer keeps its limits in the run that it reports, or says that it does not."""

from __future__ import annotations

import pytest

from mist_sim import Scenario
from mist_sim.metrics.expected_errors import Range, verdict_of
from mist_sim.search import PlanOptions, plan
from mist_sim.search.planning.bounds import demand_of
from mist_sim.search.planning.candidates import candidates, engines_of
from mist_sim.search.planning.hunt import Hunt, Refining
from mist_sim.search.planning.plan import _best, _notes
from mist_sim.search.planning.plan_result import _margin
from mist_sim.search.planning.question import Question
from mist_sim.studies.driver import Driver
from mist_sim.studies.verdicts.trials import Trial
from tests.reference.scenarios import of_profile

ASKED = {
    "model": "llama-3.1-8b",
    "workload": of_profile(60, "20 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "500 ms"},
}
ONE_KIND = {"gpus": ("h100-sxm",), "tensor_parallel_sizes": (1,), "designs": ("together",)}
ENOUGH = 3  # engines, by the runs that judge
OVER = {"limit": 500.0, "value": 529.0, "kept": False, "verdict": "within error"}


def answered(misses, monkeypatch, changes=None, **options):
    """Return the answer and its hunt where reported runs miss by `misses` (engines, requests)."""
    scenario = Scenario.from_dict(ASKED, changes)
    question = Question(scenario, PlanOptions(max_gpus=8, **ONE_KIND, **options))
    shop = engines_of(question)
    question.measure(shop.engines[0].built)
    space = list(candidates(shop.engines, question))
    driver = Driver("plan", 1)
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, driver)

    def trials(chosen, most, rate):
        found = {each: each.first >= ENOUGH for each in chosen}
        return {
            each: Trial(1.0, 0, keeps, 0.9 + each.first / 100, is_whole=True, is_steady=True)
            for each, keeps in found.items()
        }

    def figures(self, cases, number):
        is_over = misses(cases["at rate"].clients[0].count, number)
        slo = {"p90_ttft_ms": OVER | {"kept": not is_over}}
        return {"at rate": {"slo": slo, "good_request_fraction": 0.8 if is_over else 0.95}}

    monkeypatch.setattr(hunt, "_trials", trials)
    monkeypatch.setattr(Refining, "figures", figures)
    hunt.search()
    return _best(question, hunt, Refining(question, driver, is_steady=True)), hunt


def test_a_run_that_misses_by_chance_is_judged_by_a_longer_one(monkeypatch):
    answer, hunt = answered(lambda _, number: number <= 3_000, monkeypatch)
    assert answer.best.candidate.first == ENOUGH
    assert answer.number == 30_000
    assert answer.earlier == "3,000 requests: p90 TTFT 529 of 500 ms"
    assert not hunt.overruled
    (told,) = _notes(hunt, answer, hunt._question)
    assert told == (
        "The answer misses over 3,000 requests: p90 TTFT 529 of 500 ms. Shown is a run over 30,000 "
        "requests, which keeps the limits."
    )


def test_one_that_misses_in_the_longer_run_gives_way_to_the_next(monkeypatch):
    answer, hunt = answered(lambda engines, _: engines <= ENOUGH + 1, monkeypatch)
    assert answer.best.candidate.first == ENOUGH + 2
    assert (answer.number, answer.earlier) == (3_000, "")
    assert {each.first for each in hunt.overruled} == {ENOUGH, ENOUGH + 1}
    for each in hunt.overruled:
        judged = hunt.tried[each]
        assert (judged.trial.verdict, judged.trial.attainment) == ("missed", 0.8)
        assert judged.trial.num_requests == 30_000
    assert not hunt.left


def test_answer_that_misses_in_every_run_is_unsure(monkeypatch):
    answer, hunt = answered(lambda *_: True, monkeypatch)
    assert answer.best.candidate.first == ENOUGH
    assert answer.best.candidate in hunt.overruled
    assert hunt.best is None
    first, *_, last = _notes(hunt, answer, hunt._question)
    assert "and misses over 30,000 requests: p90 TTFT 529 of 500 ms." in first
    assert last.startswith("No candidate that was tried keeps the limits so long")


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        (
            {
                "workload.arrivals": {
                    "type": "day",
                    "peak": "30 /s",
                    "low": "9 /s",
                    "peak_at": "60 s",
                }
            },
            {},
        ),
        ({}, {"most_requests": 3_000}),
    ],
)
def test_no_longer_run_is_made_where_it_would_be_another_load_or_too_long(
    changes, options, monkeypatch
):
    lengths = set()
    answer, _ = answered(lambda _, number: lengths.add(number), monkeypatch, changes, **options)
    assert answer.best.candidate.first == ENOUGH
    answered(lambda _, number: lengths.add(number) or True, monkeypatch, changes, **options)
    assert lengths == {3_000}


def test_a_plan_says_that_its_own_run_misses(monkeypatch):
    whole = Refining.figures

    def figures(self, cases, *number):
        found = whole(self, cases, *number)
        return {name: each | {"slo": {"p90_ttft_ms": OVER}} for name, each in found.items()}

    monkeypatch.setattr(Refining, "figures", figures)
    scenario = Scenario.from_dict(ASKED, {"workload.arrivals.rate": "2 /s"})
    found = plan(scenario, PlanOptions(max_gpus=1, as_is=True, **ONE_KIND), jobs=1)
    lines = {line.name: line for line in found.lines}
    assert {lines[name].confidence for name in ("buy", "limits", "headroom")} == {"unsure"}
    assert "; TTFT is 5.8 % over its limit in the run shown" in lines["buy"].text
    (row,) = (row for row in found.tried if row["name"] == found.name)
    assert row["verdict"] == "missed"
    assert "misses over the whole workload: p90 TTFT 529 of 500 ms" in str(found.warnings[0])


def test_limit_that_is_missed_within_error_is_sentence():
    bar = {"low": -0.2, "high": 0.2, "other": []}
    verdict = verdict_of(False, 529.0, 500.0, Range(-0.2, 0.2))
    limit = {"p90_ttft_ms": OVER | {"verdict": verdict}}
    summary = {"slo": limit, "expected_errors": {"llm": {"ttft": bar, "tpot": bar}}}
    text = _margin(summary, {"one_more": {}})
    assert text == "; TTFT is 5.8 % over its limit in the run shown; its error is ± 20 %"
