"""Percentiles that a goodput keeps on top of its limits, such as MIST's p50 beside its p90."""

from math import nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mist_sim import Scenario, ScenarioError, Slo
from mist_sim.cli.app import app
from mist_sim.metrics.keeping import LimitOnShare
from mist_sim.metrics.stability import Stays
from mist_sim.metrics.stats import intervals
from mist_sim.rng import Streams
from mist_sim.search import GoodputOptions, SearchOptions, find_goodput, search_space
from mist_sim.search.spaces import read_space
from mist_sim.studies.verdicts.request_times import RequestTimes, Target, percentiles_of
from mist_sim.studies.verdicts.steady_state import OfClass, Seen, look
from tests.effort import examples
from tests.reference.scenarios import of_profile

ASKED = {
    "model": "llama-3.1-8b",
    "workload": of_profile(120, "20 /s", name="azure-conv-2023"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "300 ms"},
}
NUM = 4000


def goodput(attainment=0.9, percentiles=None, ttft="300 ms"):
    options = GoodputOptions(
        as_is=True,
        attainment=attainment,
        percentiles=percentiles_of(percentiles or {"p1_ttft": "9 h"}),
    )
    return find_goodput(Scenario.from_dict(ASKED, {"slo.ttft": ttft}), options, jobs=1).rate


def test_a_goodput_with_percentiles_is_the_least_of_those_of_each():
    """Same requests and random streams at every rate, so that this is exact to the tolerance."""
    nine_in_ten, half = goodput(), goodput(0.5, ttft="45 ms")
    both = goodput(percentiles={"p50_ttft": "45 ms"})
    assert half < nine_in_ten
    assert both == pytest.approx(half, rel=0.025)
    assert goodput(percentiles={"p50_ttft": "300 ms"}) == nine_in_ten


@examples(200)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=60), st.integers(1, 99))
def test_a_percentile_is_kept_where_its_share_of_the_requests_keeps_its_limit(times, percent):
    found = RequestTimes(np.array(times), np.zeros(len(times)), np.ones(len(times)))
    target = Target(slo=Slo(ttft=100.0), percentiles=(LimitOnShare("ttft", percent / 100, 1.0),))
    kept = sum(time <= 1.0 for time in times)
    missed, number, share = target.misses(found)[1]
    is_kept = missed <= target.most_missed(number, share.asked)
    assert is_kept == (100 * kept >= percent * len(times))
    assert target.ratios(found).shape == (2, len(times))
    assert [each.asked for each in target.shares.values()] == [0.9, percent / 100]
    assert target.num_missed(found) == 0  # of the slo's own limits


@pytest.mark.parametrize(("level", "attained"), [(0.3, True), (2.0, False)])
def test_a_look_in_steady_state_holds_each_row_to_its_own_share(level, attained):
    """Nine in ten are far below their limit; half of them decide."""
    rng = Streams(1).generator("times")
    drawn = np.exp(0.3 * rng.standard_normal(NUM))
    arrival = np.cumsum(rng.exponential(0.1, NUM))
    rows = np.array([0.2 * drawn, level * drawn])
    stays, queue = Stays(arrival, arrival + 1.0), Stays(arrival, arrival)
    seen = Seen(
        np.arange(NUM),
        rows,
        stays,
        np.full(NUM, 1.0),
        rng.random(NUM),
        queue,
        [None, OfClass(None, 0.5)],
    )
    found = look(seen, 0.9, 0.001)
    assert found.attained is attained
    assert found.attainment == 1.0


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({}, "percentiles must be a mapping, such as {p50_ttft: 2 s}"),
        ({"p50_tbt": "2 s"}, "'p50_tbt' is no percentile"),
        ({"p100_ttft": "2 s"}, "'p100_ttft' is no percentile"),
        ({"p50_ttft": 2}, "p50_ttft: "),
        ({"p50_ttft": "0 s"}, "p50_ttft: must be > 0 s"),
    ],
)
def test_what_is_no_percentile_is_refused(given_, message):
    with pytest.raises(ScenarioError, match=message.replace("{", r"\{")):
        percentiles_of(given_)


SPACE = """\
scenario: {asked}
vary: {{clients.0.count: [1, 2]}}
constraints: {{at_goodput: {percentiles}}}
objectives: [{objective}]
"""


def space(tmp_path, percentiles="{p50_ttft: 45 ms}", objective="goodput"):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE.format(asked=ASKED, percentiles=percentiles, objective=objective))
    return path


def test_a_search_keeps_them_at_its_goodputs(tmp_path):
    found = search_space(
        read_space(space(tmp_path)), SearchOptions(as_is=True, thorough=True), jobs=1
    )
    rates = [row["figures"]["goodput"] for row in found.rows]
    assert rates[0] == pytest.approx(goodput(percentiles={"p50_ttft": "45 ms"}), rel=0.025)
    assert rates[1] > 1.5 * rates[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "usd_per_hour"}, "constraints.at_goodput has no effect without a goodput"),
        ({"percentiles": "{p50_tbt: 1 s}"}, "constraints.at_goodput: 'p50_tbt' is no percentile"),
        ({"percentiles": "2 s"}, "constraints.at_goodput: percentiles must be a mapping"),
    ],
)
def test_a_space_says_what_is_wrong_with_them(tmp_path, changes, message):
    with pytest.raises(ScenarioError, match=message):
        read_space(space(tmp_path, **changes))


def test_mist_goodput_takes_and_shows_them(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(str(ASKED))
    command = ["goodput", str(path), "--as-is", "--rates", "10:40", "-q", "--jobs", "1"]
    done = CliRunner().invoke(app, [*command, "--percentile", "p50_ttft=45 ms"])
    assert done.exit_code == 0, done.output
    assert "90 % keep all limits: TTFT 300 ms; p50 TTFT 45 ms" in " ".join(done.output.split())
    done = CliRunner().invoke(app, [*command, "--percentile", "p50_ttft"])
    assert done.exit_code == 2
    assert "--percentile must be NAME=TIME" in done.output


def test_intervals_lie_apart_or_there_are_none():
    assert list(intervals(1.0, 3.0, 4)) == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert intervals(1.0, 1.0, 4) is None
    assert intervals(1.0, nextafter(1.0, 2.0), 4) is None
    assert intervals(0.0, 5e-324, 4) is None
