"""One sheet of A4: what it says is the summary's, and however much there is to say, it is one."""

import json
import re
from dataclasses import replace

import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.hardware.prices import price_of
from mist_sim.metrics.spending import HOURS_A_MONTH
from mist_sim.metrics.tables import RunFolder
from mist_sim.report.pages.page import Card, billed, decision, limits_kept
from mist_sim.report.pages.run_page import run_page
from mist_sim.report.presenters import folder_page
from mist_sim.scenario import build
from tests.browser import needs_browser, pages_of
from tests.commands import mist

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

SHORT = {"workload.lengths.num_requests": 60}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sheet") / "run"
    simulate(Scenario.load("demo", overrides=SHORT)).save(folder)
    return folder


def test_the_sheet_says_question_answer_and_three_tiles(saved, tmp_path):
    summary = json.loads((saved / "summary.json").read_text())
    mist("report", saved, "--brief", "--out", tmp_path / "sheet.html")
    html = (tmp_path / "sheet.html").read_text(encoding="utf-8")
    assert re.search(
        r"<h1>Can 2 x llm .* with 90 % of requests good and p90 TTFT &lt;= 200 ms and p90 TPOT",
        html,
    )
    assert "How sure: " in html
    assert re.findall(r"<dt>(\w+)</dt>", html) == ["limits", "cost", "room"]
    kept = sum(each["kept"] for each in [*summary["slo"].values(), *summary["slo_shares"].values()])
    assert f"<dd>{kept} of 3 <small>kept" in html
    assert f"{HOURS_A_MONTH * 2 * price_of('h100-sxm', 'on_demand').dollars:,.0f}" in html
    assert html.count("<svg") == 1
    assert "Not given, so assumed: front_end." in html
    assert "44.5 us of a server" in html


def test_a_limit_within_error_is_kept_and_not_sure():
    slo = {"a": {"kept": True, "verdict": "within error"}, "b": {"kept": True, "verdict": "pass"}}
    tile = limits_kept(slo)
    assert (tile.value, "1 may turn out otherwise" in tile.note) == ("2 of 2", True)


@pytest.mark.parametrize(
    ("changes", "load", "sure"),
    [
        (SHORT, "28 requests a second", "unsure: too short to tell whether "),
        ({"workload.arrivals.rate": "500 /s"}, "500 requests a second", "unstable: queues grow"),
        ({"workload.arrivals": "all_at_once"}, "a burst of 1,000 requests", "sure beyond "),
        (
            {"workload.arrivals": {"type": "closed_loop", "concurrency": 4}} | SHORT,
            "4 users",
            "sure beyond ",
        ),
        (
            {"workload.arrivals": {"type": "schedule", "at": ["0 s"], "rates": ["9 /s"]}} | SHORT,
            r"\d\S+ requests a second on average",
            "unsure: ",
        ),
    ],
)
def test_the_sheet_asks_for_the_load_and_doubts_runs(changes, load, sure, tmp_path):
    slo = {"slo.ttft": "500 s", "slo.tpot": "500 s"}
    changes = {"workload.lengths.num_requests": 1000} | slo | changes
    result = simulate(Scenario.load("demo", changes))
    result.save(tmp_path / "run")
    for run_data in (result, RunFolder(tmp_path / "run")):
        brief = run_page(run_data, "a run").brief
        assert re.match(f"Can a run serve {load} with 90 % of", brief.question)
        assert brief.sure.startswith(f"How sure: {sure}")


def test_a_run_without_a_scenario_has_its_own_load():
    simulation = build(Scenario.load("demo", SHORT | {"slo.ttft": "1 s"}))
    brief = run_page(simulation.run(), "a run").brief
    assert re.match(r"Can a run serve \d\S+ requests a second on average with", brief.question)


@needs_browser
def test_it_prints_on_one_sheet_however_long(saved, tmp_path):
    page = folder_page(saved, "a name " * 80)
    tile = Card("limits", "1 of 1", "kept", note="long " * 100)
    brief = replace(page.brief, question="why " * 150, sure="sure " * 60, tiles=[tile] * 3)
    brief = replace(brief, assumed=["an assumption " * 5] * 30)
    warnings = ["a warning of many words " * 12] * 30
    for name, each in (("short", page), ("long", replace(page, brief=brief, warnings=warnings))):
        path = tmp_path / f"{name}.html"
        path.write_text(each.sheet(), encoding="utf-8")
        assert pages_of(path) == 1, name
    assert "... and 28 more: see the long report" in path.read_text(encoding="utf-8")


def test_what_has_no_sheet_says_what_has(tmp_path, capsys):
    few = ("--set", "workload.lengths.num_requests=20", "-q", "--jobs", 1, "--out", tmp_path / "s")
    mist("sweep", "demo", "clients.0.count=1,2", *few)
    mist("report", tmp_path / "s", "--brief", "--out", tmp_path / "s.html", code=2)
    assert "a run, a goodput, a plan, or a comparison" in capsys.readouterr().err
    assert not (tmp_path / "s.html").exists()


def case(keeps=True, dollars=10.0, **doubts):
    limits = {"p99_ttft_ms": {"value": 90.0, "limit": 100.0, "kept": keeps, "verdict": "pass"}}
    sure = {"is_sure": True, "is_long": True, "has_error": True} | doubts
    return {"keeps": keeps, "slo": limits, "usd_per_hour": dollars, **sure}


@pytest.mark.parametrize(
    ("cases", "question", "word", "level"),
    [
        ({"a": case(), "b": case(dollars=20.0)}, "May a take the place of b?", "Yes, a", "good"),
        ({"b": case(dollars=20.0), "a": case(keeps=False)}, "May a take", "No, a misses", "bad"),
        ({"a": case(is_sure=False), "b": case(dollars=20.0)}, "May a take", "Perhaps", "unsure"),
        (
            {"a": case(keeps=False, dollars=1.0), "b": case(), "c": case(dollars=20.0)},
            "Which is the cheapest",
            "b is the cheapest",
            "good",
        ),
    ],
)
def test_a_comparison_answers_whether_the_cheaper_will_do(cases, question, word, level):
    verdict, brief = decision(cases, Card("room", "-"))
    assert brief.question.startswith(question)
    assert verdict.word.startswith(word)
    assert verdict.level == level
    assert "p99 TTFT" in verdict.sentence
    assert "$ a month" in brief.tiles[1].unit


@pytest.mark.parametrize(
    "words", [("run", "demo", "--vary", "clients.0.count=2,4"),
              ("compare", "demo", "--vary", "clients.0.count=2,4")]
)  # fmt: skip
def test_varied_runs_have_the_sheet_of_a_comparison(words, tmp_path):
    few = ("--set", "workload.lengths.num_requests=60", "-q", "--jobs", 1, "--out", tmp_path / "s")
    mist(*words, *few)
    mist("report", tmp_path / "s", "--brief", "--out", tmp_path / "s.html")
    html = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert re.search(r"<h1>May count=2 take the place of count=4", html)
    assert re.findall(r"<dt>(\w+)</dt>", html) == ["limits", "cost", "room"]
    assert f"{HOURS_A_MONTH * 4 * price_of('h100-sxm', 'on_demand').dollars:,.0f}" in html


# ----------------------------------------------------------------------- prices


def test_dollars_an_hour_are_those_of_all_gpus(saved):
    summary = json.loads((saved / "summary.json").read_text())
    price = price_of("h100-sxm", "on_demand")
    assert summary["usd_per_hour"] == pytest.approx(2 * price.dollars)
    assert summary["price_origins"] == [f"{price.dollars:g} $/h, {price.origin}"]
    cards = [(card.name, card.unit) for card in folder_page(saved, "a run").cards]
    assert ("cost", "$ a month") in cards
    assert ("cost", "$ a million output tokens") in cards


@pytest.mark.parametrize(
    ("cost", "how"),
    [
        ({}, "is the rent"),
        ({"billing": "use"}, "is less"),
        ({"electricity": "5 $/kWh"}, "is more"),
        ({"price": "spot", "provider": "Lambda"}, "is unknown"),
    ],
)
def test_the_dollars_a_month_are_those_that_the_run_was_billed(cost, how):
    changes = {"workload.lengths.num_requests": 60, "workload.arrivals.rate": "2 /s", "cost": cost}
    result = simulate(Scenario.load("demo", overrides=changes))
    summary, tile = result.summary, billed(result.summary)
    rent = 2 * price_of("h100-sxm", "on_demand").dollars * HOURS_A_MONTH
    if how == "is unknown":
        assert "usd_per_hour" not in summary
        assert tile.value == "-"
        return
    month = float(tile.value.replace(",", ""))
    expected = HOURS_A_MONTH * 3600 * summary["cost_usd"] / summary["duration"]
    assert month == pytest.approx(expected, abs=1)
    by = {"is the rent": abs(month - rent) < 1, "is less": month < rent, "is more": month > rent}
    assert by[how]
    assert ("as billed" in tile.note) == (how != "is the rent")


def test_a_price_given_holds_and_one_unknown_is_not_invented():
    mine = simulate(
        Scenario.load("demo", SHORT | {"clients.0.gpu_price": "7 $/h", "cost": {}})
    ).summary
    assert mine["usd_per_hour"] == 14.0
    assert mine["price_origins"] == ["7 $/h, given"]
    none = simulate(Scenario.load("demo", SHORT | {"clients.0.gpu": "h100-nvl"})).summary
    assert "usd_per_hour" not in none


def test_without_a_sheet_the_page_refuses(saved):
    with pytest.raises(ScenarioError, match="leave out --brief"):
        replace(folder_page(saved, "a run"), brief=None).sheet()
