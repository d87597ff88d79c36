"""What kind of load a run had: one kind for every run, by its lengths and its batch."""

import json
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mist_sim as mist
from mist_sim import Scenario, Simulation, Workload, llm_client
from mist_sim.core.front_end import NONE
from mist_sim.metrics.expected_errors import expected_ranges
from mist_sim.metrics.load import (
    BURSTS,
    CLOSED,
    DECODE_HEAVY,
    LOADS,
    LONG_PROMPTS,
    LOW_LOAD,
    OPEN,
    OTHER_LOAD,
    load_of,
    mean_batch,
)
from tests.effort import examples
from tests.reference.scenarios import of_profile

CLIENT = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}


@pytest.mark.parametrize(
    ("prompt", "output", "batch", "load"),
    [
        (2048, 1, 1, LONG_PROMPTS),
        (2047.9, 1, 16, LOW_LOAD),
        (2047.9, 1, 16.1, OTHER_LOAD),
        (500, 500, 17, DECODE_HEAVY),
        (500, 499, 17, OTHER_LOAD),
        (500, 5000, 2, LOW_LOAD),
        (4096, 9999, 128, LONG_PROMPTS),
        (100, 1, nan, OTHER_LOAD),  # nothing is decoded: nobody knows how busy it was
    ],
)
def test_the_first_rule_that_holds_decides(prompt, output, batch, load):
    assert load_of(prompt, output, batch) == load


LENGTH = st.floats(1, 1e6)


@examples(50)
@given(LENGTH, LENGTH, st.floats(0, 1e4), st.floats(1, 100))
def test_more_of_one_thing_never_leads_back(prompt, output, batch, times):
    """Longer prompts end as long prompts, more requests never as low load, and so on."""
    load = load_of(prompt, output, batch)
    assert load in LOADS
    if load == LONG_PROMPTS:
        assert load_of(prompt * times, output, batch) == load
    if load == DECODE_HEAVY:
        assert load_of(prompt, output * times, batch * times) == load
    if load != LOW_LOAD:
        assert load_of(prompt, output, batch * times) == load
    assert load_of(inf, output, batch) == LONG_PROMPTS


def run(prompt, output, together, *, rounds=1):
    """Serve so many requests at a time, one round after the other."""
    num = together * rounds
    arrivals = [1000.0 * (k // together) for k in range(num)]
    workload = Workload.from_lists([prompt] * num, [output] * num, arrivals)
    clients = [llm_client("llm", **CLIENT)]
    return Simulation(clients=clients, workload=workload, front_end=NONE).run()


@pytest.mark.parametrize("together", [1, 7, 30])
def test_idle_time_does_not_count_in_the_batch(together):
    """All begin and end together, so that each step decodes them all."""
    assert mean_batch(run(64, 20, together, rounds=3).recorder) == pytest.approx(together)


def test_without_a_decode_there_is_no_batch():
    assert mean_batch(run(64, 1, 3).recorder) != mean_batch(run(64, 2, 3).recorder)
    assert str(mean_batch(run(64, 1, 3).recorder)) == "nan"


def test_steps_before_the_warm_up_do_not_count():
    recorder = run(64, 20, 4, rounds=2).recorder
    assert str(mean_batch(recorder, after=2000.0)) == "nan"
    assert mean_batch(recorder, after=500.0) == pytest.approx(4)


@pytest.mark.parametrize(
    ("prompt", "output", "together", "load"),
    [
        (4096, 8, 2, LONG_PROMPTS),
        (100, 300, 3, LOW_LOAD),
        (100, 300, 40, DECODE_HEAVY),
        (300, 100, 40, OTHER_LOAD),
    ],
)
def test_the_summary_has_the_load(prompt, output, together, load):
    result = run(prompt, output, together)
    bars = json.loads(json.dumps(result.summary["expected_errors"]))["llm"]
    assert [bar["load"] for bar in bars.values()] == [load, load]
    assert {bar["arrivals"] for bar in bars.values()} == {BURSTS}


def test_how_requests_arrive_is_told_by_their_times():
    scenario = {"model": "llama-3.1-8b", "clients": [{"name": "a", "gpu": "h100-sxm"}]}
    for arrivals, expected in (
        ("all_at_once", BURSTS),
        ({"type": "closed_loop", "concurrency": 4}, CLOSED),
        ({"type": "poisson", "rate": "2 /s"}, OPEN),
    ):
        workload = of_profile(20, "2 /s") | {"arrivals": arrivals}
        result = mist.simulate(Scenario.from_dict(scenario | {"workload": workload}))
        assert result.summary["expected_errors"]["a"]["tpot"]["arrivals"] == expected


def test_without_a_finished_request_no_load_is_known():
    workload = Workload.from_lists([10**6], [10], [0.0])
    result = Simulation(clients=[llm_client("llm", **CLIENT)], workload=workload).run()
    assert result.summary["completed"] == 0
    bars = result.summary["expected_errors"]["llm"]
    assert {bar["load"] for bar in bars.values()} == {None}
    assert all(bar["low"] < bar["high"] for bar in bars.values())  # those of any load


# --- one record for all who judge by it ---------------------------------------------------------


def test_ranges_of_a_run():
    summary = run(300, 100, 40).summary
    found, bars = expected_ranges(summary), summary["expected_errors"]["llm"]
    for metric, bar in bars.items():
        assert found[metric] == (bar["low"], bar["high"])
    share = summary["mean_ttft_ms"] / summary["mean_e2el_ms"]
    for end in range(2):
        mixed = share * found["ttft"][end] + (1 - share) * found["tpot"][end]
        assert found["e2el"][end] == pytest.approx(mixed)


def bars_of(low, high):
    return {"low": low, "high": high, "num_points": 9, "like": "", "load": "", "other": []}


def test_of_several_clients_the_widest_counts_and_none_is_wider_than_all():
    near, far = bars_of(-0.1, 0.1), bars_of(0.0, 0.5)
    summary = {"mean_ttft_ms": 1.0, "mean_e2el_ms": 4.0}
    clients = {"a": {"ttft": near}, "b": {"tpot": near}, "c": {"tpot": far}}
    found = expected_ranges({**summary, "expected_errors": clients})
    assert (found["ttft"], found["tpot"]) == ((-0.1, 0.1), (0.0, 0.5))
    assert found["e2el"] == pytest.approx((-0.025, 0.4))
    for unknown in (None, bars_of(None, None)):
        clients["d"] = {"tpot": unknown}
        found = expected_ranges({**summary, "expected_errors": clients})
        of_unknown = {"tpot": None, "itl": None, "e2el": None, "throughput": None}
        assert found == {"ttft": (-0.1, 0.1), **of_unknown}


@pytest.mark.parametrize("means", [{}, {"mean_ttft_ms": nan, "mean_e2el_ms": nan}])
def test_what_has_no_mean_has_no_range_of_e2e(means):
    bars = {"llm": {"ttft": bars_of(-0.1, 0.1), "tpot": bars_of(-0.1, 0.1)}}
    found = expected_ranges({"expected_errors": bars, **means})
    assert found["e2el"] is None
    assert found["tpot"] == (-0.1, 0.1)


def test_no_client_that_times_steps_no_ranges():
    assert set(expected_ranges({}).values()) == {None}


def test_replications_have_them_too():
    scenario = {
        "model": CLIENT["model"],
        "replications": 2,
        "workload": of_profile(5, "2 /s"),
        "clients": [{"name": "llm", "gpu": CLIENT["gpu"]}],
    }
    found = expected_ranges(mist.replicate(Scenario.from_dict(scenario)).summary)
    assert all(low < high for low, high in found.values())
