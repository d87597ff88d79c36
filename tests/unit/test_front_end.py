"""The front end: what users wait for outside of the engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, simulate
from mist_sim.core.front_end import MEASURED, NONE, ApiServers, FrontEnd
from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.commands import from_vllm
from tests.effort import examples
from tests.reference.scenarios import synthetic

FIXED = replace(NONE, request=4e-3, response=2e-3)
OFF = dict.fromkeys(("request", "prompt_token", "stream_token", "response"), "0 s") | {
    "output_token": "0 s",
    "hop": "0 s",
}
SIMPLE = {"request": "4 ms", "stream_token": "0 s", "response": "2 ms", "output_token": "0 s"}


def scenario(front_end, arrivals=None, **more):
    return Scenario.from_dict(
        {
            "model": "llama-3.1-8b",
            "front_end": front_end,
            "workload": synthetic(
                40, (20, 900), (2, 60), arrivals or {"type": "poisson", "rate": "8 /s"}
            ),
            "clients": [{"name": "llm", "gpu": "h100-sxm"}],
        }
        | more
    )


def test_a_process_takes_requests_one_at_a_time():
    servers = ApiServers(replace(NONE, request=4e-3, prompt_token=1e-6))
    assert servers.enters_at(1.0, 1000, 10) == pytest.approx(1.005)
    assert servers.enters_at(1.001, 0, 10) == pytest.approx(1.009)
    assert servers.enters_at(2.0, 0, 10) == pytest.approx(2.004)


def test_several_processes_share_the_requests():
    servers = ApiServers(FIXED, 2)
    found = [servers.enters_at(0.0, 1, 1) for _ in range(5)]
    assert found == pytest.approx([0.004, 0.004, 0.008, 0.008, 0.012])


@given(
    count=st.integers(1, 4),
    gaps=st.lists(st.floats(0, 0.05), min_size=1, max_size=30),
    prompts=st.lists(st.integers(1, 4000), min_size=30, max_size=30),
)
@examples(100)
def test_requests_enter_in_order_and_none_sooner_than_it_can(count, gaps, prompts):
    options = MEASURED.or_else(NONE)
    servers = ApiServers(replace(options, prompt_token=1e-6), count)
    now, before = 0.0, 0.0
    for gap, prompt in zip(gaps, prompts, strict=False):
        now += gap
        enters_at = servers.enters_at(now, prompt, 100)
        assert enters_at >= max(before, now + 4.25e-3 + 1e-6 * prompt - 1e-12)
        before = enters_at


@pytest.mark.parametrize(("rate", "is_full"), [(70.0, False), (85.0, True)])
def test_streams_leave_less_of_a_process_to_those_who_arrive(rate, is_full):
    """One process of vLLM served 76.5 requests/s with 198 tokens each (pull request 17546)."""
    servers = ApiServers(MEASURED)
    arrivals = np.cumsum(np.full(6000, 1 / rate))
    waits = [servers.enters_at(float(now), 0, 198) - now for now in arrivals]
    assert (waits[-1] > 1.0) == is_full
    quiet = ApiServers(MEASURED).enters_at(0.0, 0, 198)
    assert waits[-1] > 2 * quiet


def test_users_wait_for_the_front_end_and_engines_do_not():
    with_it, without = simulate(scenario(SIMPLE)), simulate(scenario(OFF))
    ours, theirs = (each.columns("requests") for each in (with_it, without))
    assert ours["arrival_time"] == pytest.approx(theirs["arrival_time"])
    queued = [each.recorder.visits.columns()["queued_at"] for each in (with_it, without)]
    assert (queued[0] - queued[1]).min() >= 4e-3 - 1e-9
    share = with_it.summary["latency_breakdown_ms"]["front_end"]
    assert share["p50"] == pytest.approx(6.0)
    assert with_it.summary["mean_ttft_ms"] - without.summary["mean_ttft_ms"] == pytest.approx(
        6.0, abs=1.5
    )
    assert with_it.summary["mean_tpot_ms"] == pytest.approx(without.summary["mean_tpot_ms"], 0.01)


def test_the_parts_of_the_latency_add_up():
    table = simulate(scenario({})).columns("breakdown")
    parts = sum(np.asarray(table[name]) for name in ("queue", "prefill", "decode", "front_end"))
    assert parts == pytest.approx(np.asarray(table["e2el"]), abs=1e-9)


def test_tpot_is_what_vllm_bench_divides():
    columns = simulate(scenario({})).columns("requests")
    e2el, ttft, tokens = (
        np.asarray(columns[name]) for name in ("e2el", "ttft", "num_output_tokens")
    )
    assert np.asarray(columns["tpot"]) == pytest.approx((e2el - ttft) / (tokens - 1))


@pytest.mark.parametrize("sessions", [False, True])
def test_users_think_after_they_have_the_answer(sessions):
    loop = {"type": "closed_loop", "concurrency": 1, "think_time": "10 ms", "sessions": sessions}
    columns = simulate(scenario(SIMPLE, loop)).columns("requests")
    order = np.argsort(columns["arrival_time"])
    arrivals, ends = (np.asarray(columns[name])[order] for name in ("arrival_time", "finished_at"))
    assert arrivals[1:] - ends[:-1] == pytest.approx(10e-3)


def test_who_gives_up_in_the_front_end_never_reaches_an_engine():
    result = simulate(scenario(SIMPLE).changed({"workload.timeout": "3 ms"}))
    assert result.summary["num_timed_out"] == 40
    assert not len(result.recorder.visits.columns()["request_id"])
    columns = result.columns("requests")
    assert np.asarray(columns["e2el"]) == pytest.approx(3e-3)


def test_a_hop_lies_between_prefill_and_decode():
    clients = [{"name": role, "role": role, "gpu": "h100-sxm"} for role in ("prefill", "decode")]
    network = {"bandwidth": "400 Gb/s", "latency": "0 s"}

    def gaps(front_end):
        apart = {"clients": clients, "network": network}
        result = simulate(scenario(front_end, {"type": "constant", "rate": "1 /s"}, **apart))
        visits = result.recorder.visits.columns()
        decodes = visits["stages"] == visits["stages"][-1]
        ends = visits["finished_at"][~decodes]
        return visits["queued_at"][decodes] - ends

    assert gaps(OFF) == pytest.approx(0.0, abs=1e-12)
    assert gaps(OFF | {"hop": "5 ms"}) == pytest.approx(5e-3)
    assert gaps(SIMPLE) == pytest.approx(6e-3)


def test_the_default_is_named_as_assumed_and_what_is_said_is_not():
    assert simulate(scenario({})).summary["assumed"] == {"llm": ["front_end"]}
    said = SIMPLE | {"prompt_token": "0 s"}
    assert "assumed" not in simulate(scenario(said)).summary


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [("request", "-1 ms", "finite and >= 0"), ("api_server_count", 0, ">= 1")],
)
def test_times_and_counts_that_are_none_are_refused(option, value, rule):
    with pytest.raises(ScenarioError, match=f"front_end.*{rule}"):
        scenario({option: value})


def test_a_command_line_says_how_many_processes_there_are():
    found = from_vllm(["vllm serve Qwen/Qwen3-32B --api-server-count 4"], gpu="h100-sxm")
    assert found.keys["front_end"] == {"api_server_count": 4}
    with pytest.raises(ScenarioError, match="whole number > 0"):
        from_vllm(["vllm serve Qwen/Qwen3-32B --api-server-count none"], gpu="h100-sxm")


def test_processes_are_counted_as_vllm_starts_them():
    """One for each data-parallel replica of each client that takes prompts."""
    said = scenario({}, clients=[{"name": "a", "gpu": "h100-sxm", "data_parallel_size": 2}])
    slow = {"request": "1 s", "stream_token": "0 s"}
    both = simulate(said.changed({"front_end": slow, "clients.0.count": 2}))
    queued = np.sort(both.recorder.visits.columns()["queued_at"])
    assert queued[4] - queued[0] > 0.99
    assert queued[3] - queued[0] < 0.9
    one = simulate(said.changed({"front_end": slow | {"api_server_count": 1}}))
    queued = np.sort(one.recorder.visits.columns()["queued_at"])
    assert queued[1] - queued[0] == pytest.approx(1.0)


def test_fields_that_are_said_leave_the_others_as_they_were():
    found = FrontEnd(response=0.0).or_else(MEASURED)
    assert found == replace(MEASURED, response=0.0)
