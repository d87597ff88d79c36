"""What routers see that ask the clients every so often."""

from dataclasses import replace

import pytest

from mist_sim import (
    LeastOutstandingRouter,
    LoadRouter,
    PolledRouter,
    RandomRouter,
    SequentialClient,
    Simulation,
    Workload,
)
from mist_sim.environment import POLL, Environment
from mist_sim.errors import InvariantError
from mist_sim.stages import Postprocess, Preprocess
from mist_sim.testing import check_router


def workers(count: int, seconds: float = 10.0) -> list[SequentialClient]:
    return [
        SequentialClient(str(k), serves=["preprocess"], base_time=seconds) for k in range(count)
    ]


def sent_at(*times: float) -> Workload:
    def stages(row):
        return (Preprocess(num_tokens=10),)

    return Workload.from_lists([10] * len(times), [1] * len(times), list(times), pipeline=stages)


def homes(result) -> list[str]:
    return list(result.stages.sort_values("request_id").client)


def routed(*times: float, router=None, seconds: float = 10.0, **polls) -> list[str]:
    """Return where requests go that arrive at two workers behind a gateway that polls."""
    router = PolledRouter(router=router or LeastOutstandingRouter(), **polls)
    simulation = Simulation(
        clients=workers(2, seconds), workload=sent_at(*times), router=router, seed=1
    )
    return homes(simulation.run())


@pytest.mark.parametrize("router", [None, LoadRouter(), LoadRouter(by="tokens_remaining")])
def test_between_polls_gateway_knows_only_what_it_sent(router):
    times = 0.1, 0.2, 0.3, 1.1
    known = routed(*times, router=router, view_interval=1.0)
    assert known == ["0", "1", "0", "1"]
    forgotten = routed(*times, router=router, view_interval=1.0, counts_sent=False)
    assert forgotten == ["0", "0", "0", "1"]


def test_who_ended_since_the_poll_still_counts():
    times = 0.1, 0.15, 0.45, 1.05
    routes = routed(*times, seconds=0.25, view_interval=0.5)
    assert routes == ["0", "1", "0", "0"]  # at 0.45 s the first two are gone
    assert routed(0.1, 0.45, 0.6, seconds=0.25, view_interval=0.5) == ["0", "1", "0"]
    assert routed(0.1, 0.45, 0.6, seconds=0.25, view_interval=0.01) == ["0", "0", "1"]


def test_poll_that_is_event_comes_first_as_well():
    """The first task ends at 0.9 s; the arrival at 1 s was scheduled before the poll at 1 s was."""
    router = LoadRouter(by="tokens_remaining")
    assert routed(0.5, 1.0, router=router, seconds=0.4, view_interval=0.25) == ["0", "0"]


def test_a_request_that_is_chosen_for_ahead_counts_until_the_next_poll():
    """It comes to the worker at 10 s, so that a poll at 1 s finds nobody there."""
    before = SequentialClient("before", serves=["preprocess"], num_workers=9, base_time=10.0)
    before.traits = replace(before.traits, asks_ahead=True)
    after = [SequentialClient(name, serves=["postprocess"], base_time=1.0) for name in "xy"]
    times = [0.1, 1.1, 1.2]
    workload = Workload.from_lists(
        [9] * 3, [1] * 3, times, pipeline=lambda row: (Preprocess(num_tokens=9), Postprocess())
    )
    router = PolledRouter(router=LeastOutstandingRouter(), view_interval=1.0)
    result = Simulation(clients=[before, *after], workload=workload, router=router).run()
    last = result.stages[result.stages.stage == "postprocess"].sort_values("request_id")
    assert list(last.client) == ["x", "x", "y"]


def test_the_router_that_polls_draws_from_same_stream():
    plain = Simulation(
        clients=workers(2), workload=sent_at(*range(9)), router=RandomRouter(), seed=1
    )
    polled = routed(*range(9), router=RandomRouter(), view_interval=0.3)
    assert polled == homes(plain.run())


class CountingEnvironment(Environment):
    num_polls = 0

    def at(self, time, phase=1):
        CountingEnvironment.num_polls += phase == POLL
        return super().at(time, phase)


@pytest.mark.parametrize(
    ("router", "most"),
    [(LeastOutstandingRouter(), 0), (LoadRouter(), 0), (LoadRouter(by="kv_cache"), 45)],
)
def test_idle_time_costs_no_polls(router, most, monkeypatch):
    """A worker has two tasks of 10 s in eleven days; counts need no event at all."""
    monkeypatch.setattr("mist_sim.simulation.Environment", CountingEnvironment)
    CountingEnvironment.num_polls = 0
    assert routed(0.0, 1e6, router=router, view_interval=0.5) == ["0", "0"]
    assert CountingEnvironment.num_polls <= most


class Stuck(SequentialClient):
    def accept(self, visit):
        self.begin(visit)


def test_polls_end_when_nothing_else_is_left_to_happen():
    clients = [Stuck("a", serves=["preprocess"], base_time=1.0)]
    router = PolledRouter(router=LoadRouter(by="kv_cache"), view_interval=1.0)
    simulation = Simulation(clients=clients, workload=sent_at(0.0, 0.5), router=router)
    with pytest.raises(InvariantError, match="nothing left to happen"):
        simulation.run()


@pytest.mark.parametrize("interval", [0.0, -1.0, float("inf"), float("nan")])
def test_an_interval_is_finite_and_positive(interval):
    with pytest.raises(ValueError, match="view_interval must be finite and > 0"):
        PolledRouter(router=RandomRouter(), view_interval=interval)


def test_it_passes_the_checks_of_routers():
    check_router(lambda: PolledRouter(router=RandomRouter(), view_interval=0.1))
