"""Runs that are stopped on their way compute what whole runs do."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, ScenarioError, simulate, start
from tests.effort import examples

FEW = {"workload.lengths.num_requests": 60}
PRESETS = ["demo", "taichi-hybrid", "seesaw"]


def scenario(name: str) -> Scenario:
    return Scenario.load(name, overrides=FEW if name != "seesaw" else {})


@pytest.mark.parametrize("name", PRESETS)
def test_events_lead_to_the_same_end(name):
    run = start(scenario(name))
    times = [run.now]
    while run.step():
        times.append(run.now)
    assert times == sorted(times)
    assert run.has_ended
    assert not run.step()
    assert_same(run.result(), simulate(scenario(name)))


@examples(10)
@given(name=st.sampled_from(PRESETS[:2]), stops=st.lists(st.floats(0, 30), max_size=5))
def test_stops_on_the_way_change_nothing(name, stops):
    run = start(scenario(name))
    for stop in sorted(stops):
        run.run(stop)
        assert run.has_ended or run.now == stop
        if name == "demo":  # where no request is between two clients
            held = sum(view.num_outstanding for view in run.views.values())
            assert held == run.num_sent - run.num_ended
        run.step()
    assert_same(run.run().result(), simulate(scenario(name)))


def test_views_are_as_of_the_time_of_stop():
    by_step, by_time = start(scenario("demo")), start(scenario("demo"))
    while by_step.now < 8.0 and by_step.step():
        pass
    by_time.run(by_step.now).step()
    assert counts(by_time.run(math.nextafter(by_step.now, 9))) == counts(by_step)


def counts(run) -> list[tuple[int, int]]:
    return [(view.num_running, view.num_outstanding) for view in run.views.values()]


def assert_same(one, other) -> None:
    assert repr(one.summary) == repr(other.summary)  # nan is no number, and equal here
    assert one.requests.equals(other.requests)
    assert one.steps.equals(other.steps)
    assert one.title == other.title


@pytest.mark.parametrize(
    ("until", "rule"), [(-1, "finite and >= "), (math.inf, "finite"), ("soon", "number of seconds")]
)
def test_bad_times_are_refused(until, rule):
    run = start(scenario("demo"))
    with pytest.raises(ScenarioError, match=f"until must be .*{rule}"):
        run.run(until)


def test_results_are_those_of_whole_runs():
    run = start(scenario("demo"))
    with pytest.raises(ScenarioError, match="call run"):
        run.run(1.0).result()


def test_a_later_run_takes_the_clients():
    from mist_sim.scenario import build

    simulation = build(scenario("demo"))
    first, second = simulation.start(), simulation.start()
    with pytest.raises(ScenarioError, match="a later one"):
        first.step()
    assert second.run().has_ended
