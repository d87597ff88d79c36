"""Requests that wait at the gateway, or are refused there: by hand, every answer takes seconds."""

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest

from mist_sim.admission import Admission, LimitAdmission, SaturationAdmission
from mist_sim.clients.scheduling import ContinuousScheduler
from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams
from mist_sim.routers import ROUTERS
from mist_sim.scenario import Scenario, simulate
from mist_sim.simulation import Simulation
from mist_sim.traces import ClosedLoop, Retries, Rows, TimeLimits, TraceArrivals, TraceRow, Workload
from tests.reference.engines import llm_engine
from tests.refusals import refused


class OneSecond:
    """Steps of a second, so that an answer takes as many seconds as it has tokens."""

    def step_time(self, batch):
        return 1.0

    def run(self, batch, growth, num_steps):
        return np.ones(num_steps)


LOOP = ClosedLoop(concurrency=3)


def engines(number=1, num_gpu_blocks=1000, max_num_seqs=256):
    return [
        llm_engine(
            f"llm-{k}",
            scheduler=ContinuousScheduler(max_num_seqs=max_num_seqs),
            predictor=OneSecond(),
            num_gpu_blocks=num_gpu_blocks,
        )
        for k in range(number)
    ]


def row(output, at, **more):
    return TraceRow(10, output, at, **more)


def run(rows, gateway, clients=None, router=None, **workload):
    return Simulation(
        clients=clients or engines(),
        workload=Workload(Rows(rows), workload.pop("arrivals", TraceArrivals()), **workload),
        gateway=gateway,
        router=router,
    ).run()


def ends(result):
    return list(zip(result.requests.status, result.requests.finished_at, strict=True))


def finished(result):
    return result.requests.finished_at.tolist()


# --- a limit ------------------------------------------------------------------------------------


def test_requests_go_in_one_at_a_time():
    found = run([row(3, 0.0), row(2, 0.5), row(4, 1.0)], LimitAdmission(max_requests=1))
    assert finished(found) == [3.0, 5.0, 9.0]
    assert found.requests.queued.tolist() == [0.0, 2.5, 4.0]
    assert found.summary["latency_breakdown_ms"]["gateway"]["mean"] == pytest.approx(6500 / 3)


@pytest.mark.parametrize("num_clients", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_a_limit_is_a_queue_before_several_servers(seed, num_clients):
    """Kiefer and Wolfowitz: each in turn goes to the server that is free first."""
    draws = Streams(seed).generator("gateway")
    times = np.cumsum(draws.exponential(2.5 / num_clients, 200)).tolist()
    outputs = draws.geometric(0.4, 200).tolist()
    found = run(
        [row(output, at) for output, at in zip(outputs, times, strict=True)],
        LimitAdmission(max_requests=1),
        engines(num_clients),
        ROUTERS["least_outstanding"](),
    )
    free, expected = [0.0] * num_clients, []
    for output, at in zip(outputs, times, strict=True):
        first = free.index(min(free))
        free[first] = max(free[first], at) + output
        expected.append(free[first])
    assert np.allclose(finished(found), expected, rtol=0, atol=1e-9)


def test_tokens_count_with_what_is_predicted():
    rows = [row(2, 0.0, num_predicted_tokens=20), row(2, 0.0, num_predicted_tokens=11), row(2, 0.0)]
    found = run(rows, LimitAdmission(max_tokens=50))
    assert finished(found) == [2.0, 4.0, 4.0]  # 30 and 21 tokens are too many together, 21 + 10 not


def test_a_request_beyond_the_tokens_goes_in_alone():
    assert finished(run([row(2, 0.0), row(2, 0.0)], LimitAdmission(max_tokens=5))) == [2.0, 4.0]


def test_those_who_find_too_many_waiting_are_refused():
    found = run([row(3, t / 4) for t in range(4)], LimitAdmission(max_requests=1, max_waiting=2))
    assert ends(found) == [("finished", t) for t in (3.0, 6.0, 9.0)] + [("rejected", 0.75)]
    assert found.requests.reason[3] == "busy, max_waiting=2 requests wait at the gateway"
    none = run(
        [row(3, 0.0), row(3, 1.0), row(3, 3.5)], LimitAdmission(max_requests=1, max_waiting=0)
    )
    assert ends(none) == [("finished", 3.0), ("rejected", 1.0), ("finished", 6.5)]


def test_a_refused_request_may_be_sent_again():
    retries = Retries(max_attempts=3, backoff=2.5, jitter=0.0)
    found = run(
        [row(3, 0.0), row(3, 1.0)], LimitAdmission(max_requests=1, max_waiting=0), retries=retries
    )
    assert ends(found) == [("finished", 3.0), ("finished", 6.5)]


def test_urgent_requests_go_in_first_and_a_class_fills_its_share():
    rows = [row(2, 0.0), row(2, 0.1, priority=5), row(2, 0.2), row(2, 0.3, priority=-1)]
    assert finished(run(rows, LimitAdmission(max_requests=1))) == [2.0, 8.0, 6.0, 4.0]


def test_class_fills_its_share_and_lets_others_pass():
    rows = [row(4, 0.0, label=label) for label in ("batch", "batch", "chat", "chat")]
    gateway = LimitAdmission(max_requests=2, shares={"batch": 0.5})
    assert finished(run(rows, gateway)) == [4.0, 8.0, 4.0, 8.0]
    few = LimitAdmission(max_requests=2, shares={"batch": 0.1})  # one at least
    assert finished(run(rows, few)) == [4.0, 8.0, 4.0, 8.0]
    first, later = [[row(4, at, label="chat")] * 4 for at in (0.0, 0.5)]
    quarter = LimitAdmission(max_requests=4, shares={"batch": 0.25})
    found = run([*first, row(4, 0.25, label="batch"), *later], quarter)
    assert finished(found)[4] == 8.0  # its share is free, and it waits in line for the limit alone


def test_a_class_that_waits_for_its_share_lets_no_other_be_refused():
    rows = [row(4, 0.0, label="batch"), row(4, 0.0, label="batch"), row(4, 1.0, label="chat")]
    gateway = LimitAdmission(max_requests=4, max_waiting=1, shares={"batch": 0.25})
    found = run(rows, gateway)
    assert found.summary["completed"] == 3
    assert found.requests.queued[2] == 0.0


def test_models_have_limits_of_their_own():
    clients = engines(2)
    for client, model in zip(clients, "ab", strict=True):
        client.traits = replace(client.traits, model=model)
    rows = [row(4, 0.0, model=name) for name in "aab"]
    assert finished(run(rows, LimitAdmission(max_requests=1), clients)) == [4.0, 8.0, 4.0]


def test_who_waits_gives_up_at_its_limits():
    found = run(
        [row(9, 0.0), row(1, 1.0), row(1, 2.0)],
        LimitAdmission(max_requests=1),
        time_limits=TimeLimits(ttft_timeout=7.5),
    )
    assert ends(found) == [("finished", 9.0), ("timed_out", 8.5), ("timed_out", 9.5)]


def test_users_of_a_closed_loop_wait_too():
    found = run(
        [row(2, None)] * 6, LimitAdmission(max_requests=2), arrivals=ClosedLoop(concurrency=3)
    )
    assert finished(found) == [2.0, 2.0, 4.0, 4.0, 6.0, 6.0]


# --- saturation ---------------------------------------------------------------------------------


def test_requests_wait_while_queues_are_long():
    rows = [row(4, 0.0)] * 4
    gateway = SaturationAdmission(queue_depth=1, interval=0.5)
    found = run(rows, gateway, engines(max_num_seqs=1))
    assert finished(found) == [4.0, 8.0, 12.0, 16.0]
    waits = found.requests.queued - (found.requests.finished_at - 4)
    assert waits.abs().max() < 1e-9
    assert found.stages.groupby("request_id").queued_at.min().tolist() == [0.0, 0.5, 4.5, 8.5]


def test_less_urgent_requests_are_refused_while_memory_is_full():
    rows = [row(9, 0.0), row(9, 1.5), row(9, 2.5, priority=3)]
    gateway = SaturationAdmission(kv_cache_utilization=0.5, sheds_from=3, interval=1.0)
    found = run(rows, gateway, engines(num_gpu_blocks=4))
    assert ends(found)[2] == ("rejected", 2.5)
    assert found.requests.reason[2] == "busy, clients are saturated and its priority is 3"


# --- one of one's own -----------------------------------------------------------------------------


@dataclass
class Rate(Admission):
    """A token bucket: one request in so many seconds."""

    every: float = 2.0
    next_at: float = 0.0

    def delay(self, request, gateway):
        if gateway.time < self.next_at:
            return self.next_at - gateway.time
        self.next_at = gateway.time + self.every
        return 0


@pytest.mark.parametrize("times", [[0.0] * 3, [0.0, 0.5, 5.0]])
def test_a_rate_of_ones_own(times):
    gateway = Rate()
    for _ in range(2):  # each run has a copy of its own
        found = run([row(1, at) for at in times], gateway)
        ins = found.stages.groupby("request_id").queued_at.min()
        assert ins.tolist() == [0.0, 2.0, 4.0 if times[2] == 0 else 5.0]
    assert gateway == Rate()


@pytest.mark.parametrize(
    ("name", "method", "rule"),
    [
        ("delay", lambda *_: -1, r"delay must return 0 or seconds >= 1e-06 .* got -1"),
        ("delay", lambda *_: 1e-9, r"delay must return 0 or seconds >= 1e-06 .* got 1e-09"),
        ("delay", lambda *_: None, "delay must return 0 or seconds .* got None"),
        ("delay", lambda *_: float("nan"), "delay must return 0 or seconds .* got nan"),
        ("delay", lambda *_: inf, "delay lets request 0 wait until one ends at 0 s, and none is"),
        ("refusal", lambda *_: None, "refusal must return a text, empty .* got None"),
        ("queue", lambda *_: "chat", "queue must return a whole number, got 'chat'"),
    ],
)
def test_wrong_answers_are_told(name, method, rule):
    kind = type("Mine", (Admission,), {name: lambda self, *given: method(*given)})
    with pytest.raises(ScenarioError, match=f"Mine.{rule}"):
        run([row(1, 0.0)], kind())


@pytest.mark.parametrize("gateway", ["limit", LimitAdmission, 3])
def test_what_is_no_admission_is_told_at_call(gateway):
    with pytest.raises(ScenarioError, match="gateway must be a child of mist_sim.Admission"):
        run([row(1, 0.0)], gateway)


# --- in a scenario ----------------------------------------------------------------------------

SCENARIO = {
    "model": "llama-3.1-8b",
    "workload": {
        "lengths": {"type": "profile", "num_requests": 400},
        "arrivals": {"type": "poisson", "rate": "12 /s"},
    },
    "clients": [{"name": "llm", "gpu": "l40s", "count": 2}],
    "gateway": {"type": "limit", "max_requests": 8},
}


def test_a_queue_at_the_gateway_is_an_overload():
    found = simulate(Scenario.from_dict(SCENARIO)).summary
    free = simulate(Scenario.from_dict({**SCENARIO, "gateway": None})).summary
    assert found["stability"] == "unstable"
    assert found["completed"] == free["completed"] == 400
    assert found["mean_tpot_ms"] < free["mean_tpot_ms"]
    assert found["mean_ttft_ms"] > free["mean_ttft_ms"]


@pytest.mark.parametrize(
    "lifecycle",
    [
        {
            "failures": [{"clients": ["llm-0", "llm-1"], "at": "5 s", "repair": "20 s"}],
            "on_failure": {"policy": "retry", "max_retries": 3},
        },
        {
            "autoscaling": [
                {
                    "clients": "llm",
                    "min": 0,
                    "initial": 0,
                    "policy": {"type": "queue_length", "target": 8},
                }
            ],
            "start_up": {"time": "20 s"},
        },
    ],
)
def test_a_limit_holds_while_no_client_is_up(lifecycle):
    found = simulate(Scenario.from_dict({**SCENARIO, "lifecycle": lifecycle}))
    stays = found.stages.groupby("request_id").agg({"queued_at": "min", "finished_at": "max"})
    here = [
        int(((stays.queued_at <= at) & (stays.finished_at > at)).sum()) for at in stays.queued_at
    ]
    assert found.summary["completed"] == 400
    assert max(here) == 16


def test_requests_on_their_way_count_as_queues():
    """With milliseconds in the front end, clients do not have yet who was let in just now."""
    gateway = {"type": "saturation", "queue_depth": 3}
    long = {
        "type": "synthetic",
        "num_requests": 300,
        "prompt": {"type": "fixed", "tokens": 300},
        "output": {"type": "fixed", "tokens": 900},
    }
    said = {**SCENARIO, "gateway": gateway}
    said["workload"] = {**SCENARIO["workload"], "lengths": long}
    for front_end in ({}, {"request": "0 s", "prompt_token": "0 s", "response": "0 s"}):
        found = simulate(Scenario.from_dict({**said, "front_end": front_end}))
        assert found.steps.num_waiting.max() <= 8


test_bad_options_are_told = refused(
    lambda gateway: simulate(Scenario.from_dict({**SCENARIO, "gateway": gateway})),
    ({"type": "limit"}, "gateway: max_requests or max_tokens must be set"),
    ({"type": "limit", "max_requests": 0}, "gateway.max_requests: must be >= 1, got 0"),
    (
        {"type": "limit", "max_requests": 9, "shares": {"chat": 0.5}},
        "gateway.shares.chat: no request is of this class; workload.lengths has none",
    ),
    ({"type": "saturation", "interval": "0 s"}, "gateway.interval: must be finite and >= 1e-06 s"),
    ({"type": "limits"}, "no admission named 'limits'; did you mean 'limit'"),
)
