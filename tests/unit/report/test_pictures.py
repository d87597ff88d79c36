"""Pictures show what the tables say: laws of intervals, and curves against the tables."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.metrics.tables import RunFolder
from mist_sim.report.pictures.catalog import (
    PICTURES,
    draw,
    edges,
    means,
    percentiles,
    rates,
    shares,
)
from tests.effort import examples
from tests.reference.scenarios import of_profile

pytest.importorskip("matplotlib")

SPLIT = {
    "model": "llama-3.1-8b",
    "workload": of_profile(120, "6 /s"),
    "clients": [
        {"name": "prefill", "gpu": "h100-sxm", "role": "prefill"},
        {"name": "decode", "gpu": "h100-sxm", "role": "decode"},
    ],
    "network": {"bandwidth": "20 GB/s", "latency": "1 ms"},
    "slo": {"ttft": "300 ms", "tpot": "20 ms"},
}
times = st.lists(st.floats(0, 100), min_size=1, max_size=50).map(np.array)


@pytest.fixture(scope="module")
def result():
    return simulate(Scenario.from_dict(SPLIT))


@given(times, st.integers(1, 40))
@examples(50)
def test_rates_times_seconds_are_the_events(moments, number):
    ends = edges(100.0, number)
    assert (rates(moments, ends) * np.diff(ends)).sum() == pytest.approx(len(moments))


@given(st.lists(st.tuples(*[st.floats(0, 100)] * 2, st.floats(0, 9)), max_size=30))
@examples(50)
def test_means_over_intervals_keep_the_area(periods):
    start = np.array([min(p[:2]) for p in periods], dtype=float)
    end = np.array([max(p[:2]) for p in periods], dtype=float)
    values = np.array([p[2] for p in periods], dtype=float)
    ends = edges(100.0, 7)
    area = (means(start, end, values, ends) * np.diff(ends)).sum()
    assert area == pytest.approx((values * (end - start)).sum(), abs=1e-6)


@given(times)
@examples(50)
def test_intervals_without_events_have_no_percentile(moments):
    ends = edges(100.0, 10)
    found = percentiles(moments, moments, ends, 50.0)
    is_empty = rates(moments, ends) == 0
    assert np.array_equal(np.isnan(found), is_empty)
    middle = np.flatnonzero(~is_empty)
    assert ((found[middle] >= ends[middle] - 1e-9) & (found[middle] <= ends[middle + 1])).all()
    assert np.array_equal(np.isnan(shares(moments, moments > 50, ends)), is_empty)


@pytest.mark.parametrize("name", list(PICTURES))
def test_every_picture_is_drawn_of_a_result_and_of_its_folder(name, result, tmp_path):
    result.save(tmp_path / "run", tables=["requests", "stages", "steps", "clients", "transfers",
                                          "over_time"])  # fmt: skip
    of_folder = draw(RunFolder(tmp_path / "run"), name)
    of_folder = of_folder.warned(result.warnings)
    assert of_folder.as_bytes("svg") == result.plot(name).as_bytes("svg")
    assert all(panel.marks for panel in of_folder.panels)


def test_the_load_counts_all_requests(result):
    rates, inside = draw(result, "load").panels
    (arrive, finish), (in_flight,) = rates.lines, inside.lines
    seconds = np.diff(arrive.x)[0]
    assert np.sum(arrive.y) * seconds == pytest.approx(120)
    assert np.sum(finish.y) * seconds == pytest.approx(120)
    area = np.sum(in_flight.y) * seconds
    assert area == pytest.approx(result.requests["e2el"].sum(), rel=1e-6)


def test_attainment_is_what_the_summary_says(result):
    drawn = draw(result, "attainment").panels[0].lines[0]
    requests = result.requests
    ends = edges(requests["arrival_time"].max() * (1 + 1e-9), len(drawn.y))
    counts, _ = np.histogram(requests["arrival_time"], ends)
    share = np.nansum(drawn.y * counts) / 100 / len(requests)
    assert share == pytest.approx(result.summary["good_request_fraction"])


def test_steps_of_the_picture_hold_the_tokens_of_the_table(result):
    steps = result.steps
    panel = draw(result, "batch").panels[0]
    decodes = next(each for each in panel.lines if each.name == "decode")
    mine = steps[steps["client"] == "decode"]
    weight = mine["end"] - mine["start"]
    mean = (mine["num_decodes"] * weight).sum() / weight.sum()
    assert np.average(decodes.y, weights=np.asarray(decodes.y) > 0) == pytest.approx(mean, rel=0.15)


def test_transfers_add_up_to_their_bytes(result):
    drawn = draw(result, "transfers").panels[0].lines[0]
    seconds = np.diff(drawn.x)[0]
    assert np.sum(drawn.y) * seconds == pytest.approx(result.transfers["num_bytes"].sum() / 1e9)


def test_many_clients_are_a_mean_and_a_range():
    crowd = simulate(
        Scenario.load("demo", overrides={"clients.0.count": 9, "workload.lengths.num_requests": 90})
    )
    names = [each.name for each in crowd.plot("memory").panels[0].lines]
    assert names == ["mean of 9 clients, and their range"]


def test_names_and_gaps_are_told(result, tmp_path):
    with pytest.raises(ScenarioError, match="no picture 'latncy'; did you mean 'latency'"):
        result.plot("latncy")
    result.save(tmp_path / "run")
    with pytest.raises(ScenarioError, match=r"no over_time\.parquet, so this was not recorded"):
        draw(RunFolder(tmp_path / "run"), "power")
    plain = simulate(Scenario.load("demo", overrides={"workload.lengths.num_requests": 20}))
    with pytest.raises(ScenarioError, match="no KV entries went"):
        plain.plot("transfers")
    with pytest.raises(ScenarioError, match="no request arrives after 99"):
        PICTURES["requests"].draw(plain, start=99.0)


def test_requests_of_a_window(result):
    (panel,) = PICTURES["requests"].draw(result, start=5.0, number=7).panels
    assert {row for each in panel.marks for row in each.y} == set(range(7))
    assert min(np.min(each.left) for each in panel.marks) >= 5.0
