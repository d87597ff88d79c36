"""Differences between designs, by runs with the same seed."""

from statistics import fmean

import pytest

from mist_sim import Scenario, ScenarioError
from mist_sim.metrics.replications import estimate
from mist_sim.search.comparison import compare
from mist_sim.studies import replicate
from tests.reference.scenarios import of_profile

DATA = {
    "model": "llama-3.1-8b",
    "workload": of_profile(60, "20 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "replications": 3,
}
ONE, TWO = (Scenario.from_dict(DATA, {"clients.0.count": count}) for count in (1, 2))


@pytest.fixture(scope="module")
def runs():
    return replicate(ONE, jobs=1), replicate(TWO, jobs=1)


def test_a_difference_is_that_of_pairs(runs):
    one, two = runs
    found = one.difference(two, "mean_ttft_ms")
    first, second = ([run["mean_ttft_ms"] for run in each.summaries] for each in (one, two))
    pairs = [a - b for a, b in zip(first, second, strict=True)]
    assert found == estimate(pairs)
    assert found.mean == pytest.approx(
        one.estimate("mean_ttft_ms").mean - two.estimate("mean_ttft_ms").mean
    )
    assert two.difference(one, "mean_ttft_ms").mean == pytest.approx(-found.mean)
    assert one.difference(one, "mean_ttft_ms") == (0.0, 0.0)


def test_a_comparison_has_the_differences_of_its_scenarios(runs):
    one, two = runs
    found = compare({"one": ONE, "two": TWO}, jobs=1)
    table = found.differences("p50_ttft_ms")
    difference = two.difference(one, "p50_ttft_ms")
    assert tuple(table.loc["one"]) == (0.0, 0.0, 0.0)
    assert tuple(table.loc["two"]) == pytest.approx(
        (difference.mean, difference.low, difference.high)
    )
    other = found.differences("p50_ttft_ms", base="two")
    assert other.loc["one", "difference"] == pytest.approx(-difference.mean)
    means = found.table["p50_ttft_ms"]
    assert fmean(table["difference"]) == pytest.approx((means["two"] - means["one"]) / 2)


def test_bad_input_is_one_message(runs):
    one, _ = runs
    other = replicate(Scenario.from_dict(DATA, {"seed": 7}), jobs=1)
    with pytest.raises(ScenarioError, match="other must be runs with the same seeds"):
        one.difference(other, "mean_ttft_ms")
    with pytest.raises(ScenarioError, match="'mean_tfft_ms'.*did you mean 'mean_ttft_ms'"):
        one.difference(one, "mean_tfft_ms")
    found = compare({"one": ONE, "two": TWO}, jobs=1)
    with pytest.raises(ScenarioError, match="base must be one of one, two, got 'tow'; did you"):
        found.differences("p50_ttft_ms", base="tow")
    with pytest.raises(ScenarioError, match="figure must be one of num_gpus, .* got 'x'"):
        found.differences("x")
