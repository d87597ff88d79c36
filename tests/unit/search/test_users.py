"""Users in place of a rate: goodputs of closed loops, and plans for a number of users."""

from __future__ import annotations

import json
from math import inf

import pytest

from mist_sim import Scenario, ScenarioError
from mist_sim.rng import Streams
from mist_sim.search.bracketing import around, between
from mist_sim.search.goodput import GoodputOptions, find_goodput
from mist_sim.search.planning import PlanOptions, plan
from tests.reference.scenarios import synthetic
from tests.refusals import refused
from tests.unit.search.test_goodput import play
from tests.unit.search.test_plan import SHORT, asked, hunted, measured, run, verdict

QUEUE = {
    "workload": synthetic(
        400,
        1,
        1,
        {"type": "closed_loop", "concurrency": 3},
        pipeline=[{"type": "preprocess", "num_tokens": 1}],
    ),
    "clients": [
        {"name": "cpu", "type": "sequential", "serves": ["preprocess"], "base_time": "1 s"}
    ],
}


@pytest.mark.parametrize(("limit", "most"), [(1.5, 1), (2.5, 2), (10.5, 10), (100.5, 100)])
def test_so_many_users_wait_as_long_as_there_are_users(limit, most):
    """At one worker that takes 1 s each of N users waits for all others: a request takes N s."""
    found = find_goodput(Scenario.from_dict(QUEUE, {"slo": {"e2el": f"{limit} s"}}), jobs=1)
    assert (found.rate, found.interval[0]) == (most, most)
    assert most < found.interval[1] <= most * 1.03 + 1
    assert found.summary["unit"] == "users"
    assert found.settings == {"workload.arrivals.concurrency": most}
    rates = [trial.rate for trial in found.searches[0].trials]
    assert all(isinstance(rate, int) for rate in rates)
    assert len(set(rates)) == len(rates)


def test_users_who_keep_no_limit_are_told_that_one_alone_misses():
    found = find_goodput(Scenario.from_dict(QUEUE, {"slo": {"e2el": "500 ms"}}), jobs=1)
    assert found.status == "all missed"
    told = " ".join(map(str, found.warnings))
    assert "missed at the lowest number of users tried, 1 users" in told
    assert "requests that are alone miss E2E" in told


@pytest.mark.parametrize("most", [1, 2, 3, 5, 17, 200])
@pytest.mark.parametrize("begin", [4, 1000, (1, 400)])
def test_a_search_over_users_tries_each_number_once(most, begin):
    search = between(*begin, 0.02) if isinstance(begin, tuple) else around(begin, 0.02)
    bracket, tried = play(search, lambda users: users <= most)
    assert bracket.low <= most < bracket.high <= max(bracket.low + 1, bracket.low / 0.98)
    assert all(isinstance(each, int) for each in tried)


USERS = {
    "gpus": ("h100-sxm",),
    "users": 60,
    "think": 5.0,
    "designs": ("together",),
    "tensor_parallel_sizes": (1,),
    "max_gpus": 2,
    "most_requests": 2000,
}


@pytest.fixture(scope="module")
def found():
    return plan(asked(), PlanOptions(**USERS), jobs=1)


def test_a_plan_for_users_is_the_least_that_serves_them(found):
    """In the run that is shown X = N / (R + Z), and more users than asked for keep the limits."""
    summary = found.summary
    assert (summary["users"], summary["num_gpus"]) == (60, 1)
    assert "for 60 users, who think 5 s on average" in summary["title"]
    time = found.at_rate["mean_e2el_ms"] / 1e3
    assert summary["rate"] * (time + USERS["think"]) == pytest.approx(60, rel=0.06)
    assert found.goodput.unit == "users"
    assert found.goodput.interval[0] >= 60
    assert summary["headroom"] == found.goodput.rate / 60 - 1
    (load,) = [line.text for line in found.lines if line.name == "load"]
    assert load == f"60 users send {summary['rate']:.4g} /s"
    arrivals = found.scenario.workload.arrivals.make()
    assert arrivals.concurrency == 60
    assert arrivals.ramp_up > USERS["think"]  # nor do they begin all at once


def test_dollars_are_those_of_the_rate_that_users_send(found):
    dollars = found.usd_per_hour / 3600
    tokens = found.at_rate["steady_output_throughput"]
    asked_for = found.at_rate["cost_per_million_output_tokens_usd"]
    assert asked_for == pytest.approx(1e6 * dollars / tokens, rel=0.1)


def test_the_users_of_a_closed_loop_are_those_of_its_plan():
    loop = {"type": "closed_loop", "concurrency": 6, "think_time": "5 s"}
    options = {name: each for name, each in USERS.items() if name not in ("users", "think")}
    options |= {"as_is": True, "most_requests": None}
    own = plan(asked(**{"workload.arrivals": loop}), PlanOptions(**options), jobs=1)
    assert "for 6 users, who think 5 s;" in own.title
    assert own.scenario.workload.arrivals.make().ramp_up == 0  # as it says


def random_task(number):
    """Return a small question drawn from a number: one or two GPUs, users, limits."""
    rng = Streams(number).generator("plans for users")
    gpus = tuple(rng.choice(["h100-sxm", "l40s", "a100-80gb-sxm"], 2, replace=False).tolist())
    scenario = asked(
        **{
            "workload.lengths.name": str(rng.choice(["azure-conv-2023", "sharegpt-300"])),
            "workload.lengths.num_requests": 200,
            "slo.ttft": f"{rng.choice([300, 1000])} ms",
            "slo.tpot": f"{rng.choice([12, 20, 40])} ms",
        }
    )
    users, think = int(rng.integers(5, 120)), float(rng.choice([0.0, 2.0, 10.0]))
    options = PlanOptions(
        gpus=gpus, tensor_parallel_sizes=(1, 2), users=users, think=think, **SHORT
    )
    return scenario, options


@pytest.mark.parametrize("number", [0, 1, 2])
def test_nothing_cheaper_is_passed_over(number):
    question, shop, space = measured(*random_task(number))
    hunt = hunted(question, shop, space)
    prices = [each.rank[0] for each in space if verdict(each, question)]
    best = hunt.best.candidate.rank[0] if hunt.best else inf
    assert best == min(prices, default=inf)


LOAD = ["--profile", "azure-conv-2023", "--ttft-ms", "500", "--tpot-ms", "30"]
BUY = ["--model", "llama-3.1-8b", "--gpus", "h100", "--max-gpus", "1", "--tp", "1", "-q"]


def test_users_from_the_command_line(found):
    done = run(*BUY, *LOAD, "--users", "20", "--think", "2s", "--as-is", "--json", "--jobs", "1")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert said["users"] == 20
    assert "20 users, who think 2 s on average" in said["title"]
    found.show()


test_loads_that_are_refused = refused(
    lambda options: plan(asked(), PlanOptions(**USERS | options)),
    ({"rate": 3.0}, "rate must be left out with users, who set it, got 3 /s and 60 users"),
    ({"users": None}, "think must be given with users, got 5 s alone"),
    ({"users": 0}, "users must be >= 1, got 0"),
    ({"think": -1.0}, "think must be finite and >= 0 s"),
)


def test_a_rate_is_none_of_a_closed_loop():
    loop = {"workload.arrivals": {"type": "closed_loop", "concurrency": 4}}
    with pytest.raises(ScenarioError, match="rate must be left out for a closed loop"):
        plan(asked(**loop), PlanOptions(gpus=("h100",), rate=3.0))


test_searches_over_users_that_are_refused = refused(
    lambda options, **how: find_goodput(Scenario.from_dict(QUEUE, {"slo.e2el": "2 s"}), options),
    (GoodputOptions(rates=(0.5, 8)), "rates must be LOW:HIGH in whole numbers of users"),
    (GoodputOptions(rates=(2, 8.5)), "rates must be LOW:HIGH in whole numbers of users"),
)


def test_what_binds_is_not_known_of_users():
    with pytest.raises(ScenarioError, match="why must be False for the users of a closed loop"):
        find_goodput(Scenario.from_dict(QUEUE, {"slo.e2el": "2 s"}), why=True)
