"""Laws of the accounts of a run: parts of latencies, and what clients did over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.metrics import Result
from tests.effort import examples
from tests.property.test_failures import lives
from tests.property.test_hand_overs import apart
from tests.property.test_laws import simulations
from tests.reference.latency_parts import latency_parts
from tests.reference.predictors import AWKWARD

TOTALS = {
    "visits": "num_visits",
    "prefill_tokens": "num_prefill_tokens",
    "output_tokens": "num_output_tokens",
    "busy": "busy",
}
INTERVALS = st.sampled_from([None, 0.01, 0.37, 1e9])


def assert_parts_are_the_latency(result: Result) -> None:
    """Every part is what a plain count of moments gives, and together they are the latency."""
    table = result.breakdown.set_index("request_id")
    parts = table.drop(columns="e2el")
    assert (parts.drop(columns="gateway", errors="ignore") >= 0).all(axis=None)
    assert parts.sum(axis=1).to_list() == pytest.approx(table["e2el"].to_list(), abs=1e-9)
    expected = latency_parts(result)
    for number, row in parts.iterrows():
        found = {name: seconds for name, seconds in row.items() if seconds and name != "gateway"}
        wanted = {name: seconds for name, seconds in expected[number].items() if seconds > 1e-9}
        assert {name: x for name, x in found.items() if x > 1e-9} == pytest.approx(wanted, abs=1e-9)
        assert row.get("gateway", 0.0) >= 0


def assert_intervals_add_up(result: Result, interval: float | None) -> None:
    """Rates times seconds are the totals of the clients."""
    table = result.over_time(interval)
    seconds = table["end"] - table["start"]
    assert (seconds > 0).all()
    for rate, total in TOTALS.items():
        sums = (table[rate] * seconds).groupby(table["client"]).sum()
        for client, number in zip(result.clients["client"], result.clients[total], strict=True):
            assert sums.get(client, 0.0) == pytest.approx(number, abs=1e-9)
    assert table["utilisation"].dropna().between(-1e-9, 1 + 1e-9).all()


@given(simulation=simulations(), interval=INTERVALS)
def test_one_visit_a_request(simulation, interval):
    result = simulation.run()
    assert_parts_are_the_latency(result)
    assert_intervals_add_up(result, interval)


@examples(100)
@given(case=apart(), interval=INTERVALS)
def test_prefill_and_decode_apart(case, interval):
    result = case.simulate(AWKWARD)
    assert_parts_are_the_latency(result)
    assert_intervals_add_up(result, interval)


@examples(100)
@given(case=lives(), interval=INTERVALS)
def test_clients_that_fail_and_start(case, interval):
    result = case.simulation().run()
    assert_parts_are_the_latency(result)
    assert_intervals_add_up(result, interval)
