"""What comparisons say of goodputs: headroom, what binds the winner, and who is out of the race."""

from math import inf

import pytest

from mist_sim import Scenario, ScenarioError
from mist_sim.report.elements import number
from mist_sim.scenario.loading import as_data
from mist_sim.search import designs_of
from mist_sim.search.comparison import compare
from mist_sim.search.goodput import GoodputOptions, find_goodput
from tests.unit.search.test_compare import RATES, TOGETHER, both


def test_headroom_is_goodput_over_rate_that_was_run():
    found = compare(both(), goodput=GoodputOptions(rates=RATES, as_is=True), jobs=1)
    for name in both():
        row = found.table.loc[name]
        assert row["headroom"] == pytest.approx(row["goodput"] / 20 - 1)
    assert "headroom" not in found.best, "the goodput has the star"


def test_the_winner_is_told_with_what_binds_it():
    """It is what `mist goodput --why` says of the winner alone."""
    options = GoodputOptions(rates=RATES, as_is=True)
    plain = compare(both(), goodput=options, jobs=1)
    found = compare(both(), goodput=options, why=True, jobs=1)
    rates = {case.name: case.goodput.rate for case in found.cases}
    best = max(rates, key=rates.__getitem__)
    alone = find_goodput(both()[best], options, why=True, jobs=1).binding
    first, _, told = plain.verdict.rpartition("; ")
    assert told in ("TTFT is the first to miss beyond.", "TPOT is the first to miss beyond.")
    assert found.verdict == f"{first}. {best}: {alone.sentence}"
    assert found.summary["goodput"][best]["binding"] == alone.summary


def test_why_is_asked_of_a_finished_journal(tmp_path):
    how = {"goodput": GoodputOptions(rates=RATES, as_is=True), "jobs": 1}
    how["journal"] = tmp_path / "journal"
    compare(both(), **how)
    before = how["journal"].read_bytes()
    later = compare(both(), why=True, resume=True, **how)
    added = how["journal"].read_bytes().removeprefix(before)
    assert later.summary == compare(both(), **{**how, "journal": None}, why=True).summary
    assert added.count(b"\n") == added.count(b'"key": ["binding"') > 0
    compare(both(), resume=True, **how)
    assert how["journal"].read_bytes() == before + added


def test_too_few_requests_for_the_share_are_told_before_anything_runs(tmp_path):
    """Else the runs that have finished are of a study that the remedy makes another one."""
    asked = both({"slo": {"ttft": "5 s", "attainment": 0.99}})
    how = {"jobs": 1, "journal": tmp_path / "journal"}
    for options in ({"most_requests": 1500}, {"most_requests": 1599, "tolerance": 0.9}):
        with pytest.raises(ScenarioError, match="most_requests must be >= 1600 where 99 %"):
            compare(asked, goodput=GoodputOptions(**options), **how)
    assert not how["journal"].exists()
    options = GoodputOptions(most_requests=1600, tolerance=0.9)
    compare(asked, goodput=options, **how)
    compare(asked, goodput=options, resume=True, **how)


def test_no_star_beside_one_that_attains_all_rates_tried():
    """The rates end below what the better design serves."""
    one = Scenario.from_dict(TOGETHER, {"clients.0.count": 1})
    many = Scenario.from_dict(TOGETHER, {"clients.0.count": 8})
    least = find_goodput(one, GoodputOptions(rates=(1.0, 64.0), as_is=True), jobs=1).rate
    options = GoodputOptions(rates=(1.0, 2 * least), as_is=True)
    for is_race in (False, True):
        found = compare({"one": one, "many": many}, goodput=options, why=True, race=is_race, jobs=1)
        assert found.best["goodput"] == found.best["goodput_per_gpu"] == []
        assert found.verdict.startswith("Undecided: many attains all rates tried, up to")
        assert not any(case.binding for case in found.cases)
        assert found.summary["goodput"]["many"]["bounds"] == [2 * least, inf]
        assert f"&gt; {number(2 * least)}" in found._repr_html_()
    nothing = compare(
        {"one": one, "many": many},
        goodput=GoodputOptions(rates=(1000.0, 2000.0), as_is=True),
        jobs=1,
    )
    assert nothing.verdict.startswith("No rate is attained")
    assert "&lt; 1,000" in nothing._repr_html_()


def test_a_race_names_same_winner_in_fewer_runs():
    """Of the same designs; who is out says so, and its goodput is no more than that of a search."""
    one = Scenario.from_dict(TOGETHER, {"clients.0.count": 1})
    scenarios = {"two": both()["together"], "one": one}
    options = GoodputOptions(rates=(1.0, 64.0), as_is=True)
    whole = compare(scenarios, goodput=options, jobs=1)
    raced = compare(scenarios, goodput=options, race=True, jobs=1)
    assert raced.best["goodput"] == whole.best["goodput"]
    for one, other in zip(raced.cases, whole.cases, strict=True):
        assert one.goodput.num_runs <= other.goodput.num_runs
        assert one.goodput.rate <= other.goodput.rate
        if not one.goodput.is_coarse:
            assert one.goodput.trials.equals(other.goodput.trials)
    coarse = [case.name for case in raced.cases if case.goodput.is_coarse]
    assert coarse
    assert not any(case.goodput.is_coarse for case in whole.cases)
    assert all(raced.summary["goodput"][name]["is_coarse"] for name in coarse)


def test_designs_on_another_footing_are_named_in_verdict():
    """Such as bundles, whose host time was not measured. Hybrids plan ahead as others do."""
    designs = designs_of(both()["together"])
    assert designs.uneven == ()
    hybrids = [each for name, each in designs.scenarios.items() if name.startswith("hybrid")]
    assert hybrids
    for each in hybrids:
        assert all(client["async_scheduling"] for client in as_data(each)["clients"])
    two = dict(list(designs.scenarios.items())[:2])
    plain = compare(two, jobs=1)
    found = compare(two, uneven=("bundles",), jobs=1)
    assert found.verdict == f"{plain.verdict} Not on the same footing (see the warnings): bundles."
    assert found.summary["uneven"] == ["bundles"]
    no_limits = {name: Scenario.from_dict(TOGETHER | {"slo": {}}) for name in "ab"}
    assert compare(no_limits, uneven=designs.uneven, jobs=1).verdict == ""
