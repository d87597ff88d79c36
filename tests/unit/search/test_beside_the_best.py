"""Designs run beside the best one with the same requests: which serve as much, and which do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mist_sim import Scenario
from mist_sim.rng import Streams
from mist_sim.scenario.loading import as_data
from mist_sim.search import compare
from mist_sim.search.goodput import GoodputOptions
from mist_sim.search.side_by_side import _tasks, batch_quantiles, run_side_by_side, surely_less
from mist_sim.studies.built import Built, Rates
from mist_sim.studies.driver import studying
from mist_sim.studies.subjects import seeds_from
from tests.reference.scenarios import of_profile

OPTIONS = GoodputOptions(most_requests=2000)
ONE = {
    "model": "llama-3.1-8b",
    "workload": of_profile(400, "14 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "500 ms", "tpot": "15 ms"},
}
CHUNK = "clients.0.scheduler.max_num_batched_tokens"


def scenarios(**changes):
    return {name: Scenario.from_dict(ONE, {CHUNK: n}) for name, n in changes.items()}


def shown(several, best, rate, options=OPTIONS, **rates):
    builts = {name: Built(each) for name, each in several.items()}
    with studying("test", {}, {}, jobs=1) as driver:
        found = dict.fromkeys(several, rate) | rates
        return run_side_by_side(best, found, builts, options, driver)


def test_the_same_design_serves_as_much():
    found = shown(scenarios(one=8192, twin=8192), "one", 13.5)
    assert found["twin"].is_equal
    assert found["twin"].tolerance == 0.02


def test_who_was_found_to_serve_less_is_no_equal():
    """Searches of short runs end a rung of 19 % apart: 3.36 is not as much as 4.00, within 10 %."""
    options = replace(OPTIONS, tolerance=0.1)
    several = scenarios(one=8192, twin=8192)
    found = shown(several, "one", 4.0, options, twin=3.36)["twin"]
    assert (found.not_more, found.not_less) == (True, False)
    assert shown(several, "one", 4.0, options, twin=3.7)["twin"].is_equal


def test_another_chunk_serves_less_and_surely_not_more():
    found = shown(scenarios(best=512, small=64), "best", 13.5)
    assert (found["small"].not_more, found["small"].not_less) == (True, False)
    turned = shown(scenarios(best=512, small=64), "small", 13.5)
    assert (turned["best"].not_more, turned["best"].not_less) == (False, True)


def test_the_tolerance_says_what_is_equal():
    several = scenarios(best=512, small=256)
    equal = {
        tolerance: shown(several, "best", 13.5, replace(OPTIONS, tolerance=tolerance))["small"]
        for tolerance in (0.001, 0.9)
    }
    assert not equal[0.001].is_equal
    assert equal[0.9].is_equal


def test_runs_are_as_long_as_the_options_say():
    built = Built(Scenario.from_dict(ONE))
    for options, num in ((OPTIONS, 2000), (GoodputOptions(), 30_000)):
        (task,) = _tasks("one", "same", built, 13.5, options)
        assert task.arguments[-1] == num


def test_a_comparison_gives_equals_a_star_each():
    several = scenarios(a=8192, b=8192, small=256)
    found = compare(several, goodput=replace(OPTIONS, most_requests=6000), jobs=1)
    assert found.best["goodput"][:2] == ["a", "b"]
    assert "b as much, within the --tolerance of 2 %" in found.verdict
    assert found.summary["beside"]["b"]["not_more"] is True


def test_other_seeds_than_those_of_searches_run_beside():
    built = Built(Scenario.from_dict(ONE, {"replications": 2}))
    tasks = _tasks("one", "same", built, 13.5, OPTIONS)
    assert [task.key[-1] for task in tasks] == list(seeds_from(0, 4)[2:])


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {"trace": {"type": "azure", "path": "t.csv"}}},
        {"slo": {"ttft": "500 ms", "tpot": "15 ms", "each": True}},
        {"warmup": "1 s"},
    ],
    ids=["trace", "several parts", "warm-up"],
)
def test_what_is_judged_as_it_stands_is_not_run_beside(changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"2023-11-16 18:17:{i:02}.0,100,10" for i in range(50))
    (tmp_path / "t.csv").write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    several = {name: Scenario.from_dict(ONE | changes) for name in "ab"}
    assert shown(several, "a", 1.0) == {}


def test_batches_are_of_the_same_requests_whatever_design():
    """All of 2,000 requests have ended; without load their times are those of lone requests."""
    quantiles = []
    for each in scenarios(one=8192, other=4096).values():
        changes = Rates(each).at(0.001)
        target = OPTIONS.target(each)
        quantiles.append(batch_quantiles(as_data(each), changes, 7, target, 2000))
    assert quantiles[0] == pytest.approx(quantiles[1], abs=0.02)
    assert len(quantiles[0]) == 32
    assert len(set(quantiles[0])) > 16


@pytest.mark.parametrize("lag", [0.0, 0.5])
def test_equal_designs_are_seldom_told_apart(lag):
    """Of 2,000 draws: 5 % and three standard deviations. A unit of difference shows in 90 %."""
    draws = Streams(1).generator("batches").normal(size=(2000, 33))
    series = draws[:, 1:] + lag * draws[:, :-1]
    zeros = [0.0] * 32
    wrong = sum(surely_less(each, zeros, 0.05) for each in series)
    assert wrong / 2000 < 0.05 + 3 * (0.05 * 0.95 / 2000) ** 0.5
    assert sum(surely_less(each - 1.0, zeros, 0.05) for each in series) > 1800
