"""Events: one for each decision, with its reason; they say what tables say and change nothing."""

import json
from dataclasses import dataclass

import pandas as pd
import pytest

import mist_sim as mist
from mist_sim.core.events import KINDS
from mist_sim.errors import ScenarioError
from tests.commands import exit_code

SMALL = mist.KvCacheConfig(num_gpu_blocks_override=900)
CHUNKS = mist.ChunkedScheduler(max_num_seqs=64, max_num_batched_tokens=512)
SWAPS = mist.ChunkedScheduler(max_num_seqs=64, max_num_batched_tokens=512, preemption="swap")


@dataclass(frozen=True, kw_only=True)
class LongestGivesWay(mist.ChunkedScheduler):
    """While no seat is free, a request gives way to one of a third of its tokens."""

    def begin(self, lane):
        head = lane.head
        if head is None or lane.has_seat or not lane.running:
            return
        longest = max(lane.running, key=lambda each: each.num_tokens)
        if longest.num_tokens > 3 * head.num_tokens:
            lane.preempt(longest)


def llm(name="llm", **options):
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "max_model_len": 8192} | options
    return mist.llm_client(name, **options)


def run(clients, events, number=60):
    rows = [
        mist.TraceRow(
            600 + 7 * k + (3000 if k % 13 == 5 else 0),
            300,
            0.05 * k,
            content=((1000 + k % 9, 500), (10_000 + k, 100 + 7 * k)),
        )
        for k in range(number)
    ]
    network = mist.Link(bandwidth=25e9) if len(clients) > 1 else None
    workload = mist.Workload(mist.Rows(rows), mist.TraceArrivals())
    simulation = mist.Simulation(clients=clients, workload=workload, network=network)
    return simulation.run(events=events)


CASES = {
    "plain": lambda: [llm(kv_cache=SMALL)],
    "at once": lambda: [llm(kv_cache=SMALL, async_scheduling=False)],
    "chunks": lambda: [llm(kv_cache=SMALL, scheduler=CHUNKS)],
    "whole prompts": lambda: [llm(kv_cache=SMALL, scheduler=mist.ContinuousScheduler())],
    "pipeline": lambda: [llm(kv_cache=SMALL, scheduler=CHUNKS, pipeline_parallel_size=2)],
    "several engines": lambda: [
        llm(kv_cache=SMALL, data_parallel_size=2, scheduler=mist.ChunkedScheduler(max_num_seqs=8))
    ],
    "own": lambda: [llm(scheduler=LongestGivesWay(max_num_seqs=8, max_num_batched_tokens=2048))],
    "apart": lambda: [llm("p", role="prefill"), llm("d", role="decode")],
}


@pytest.mark.parametrize("case", CASES)
def test_events_say_what_the_tables_say(case):
    result, plain = run(CASES[case](), events=True), run(CASES[case](), events=False)
    assert result.requests.equals(plain.requests)
    assert result.steps.equals(plain.steps)
    assert result.summary == plain.summary
    events, requests = result.events, result.requests
    assert set(events.event) <= set(KINDS)
    assert events.time.is_monotonic_increasing
    assert (events.reason != "").all()
    counts = {kind: int((events.event == kind).sum()) for kind in KINDS}
    assert counts["preempted"] == requests.num_preemptions.sum()
    assert counts["ended"] == len(requests)
    assert counts["routed"] == result.clients.num_visits.sum()
    assert counts["admitted"] == counts["routed"] + counts["preempted"]
    assert counts["moved"] == len(result.transfers)
    assert (events.request_id.isna() == (events.event == "evicted")).all()


@pytest.mark.parametrize(
    ("case", "event", "reason"),
    [
        ("plain", "preempted", "no free KV blocks"),
        ("pipeline", "preempted", "no free KV blocks"),
        ("own", "preempted", "LongestGivesWay"),
        ("chunks", "cut", "tokens of the step"),
        ("pipeline", "cut", "tokens of the step"),
        ("plain", "evicted", "LruEviction"),
        ("apart", "moved", "hand_over from p to gpu"),
        ("plain", "routed", "RoundRobinRouter: prefill, one of 1"),
        ("plain", "ended", "finished"),
    ],
)
def test_each_says_why(case, event, reason):
    events = run(CASES[case](), events=True).events
    assert set(events.reason[events.event == event]) == {reason}


def test_a_preempted_request_waits_until_it_is_admitted_again():
    result = run(CASES["plain"](), events=True)
    for request_id, events in result.events.groupby("request_id"):
        kinds = events.event.tolist()
        assert kinds[:2] == ["routed", "admitted"], request_id
        for number, kind in enumerate(kinds):
            if kind == "preempted":
                assert kinds[number + 1] == "admitted"
                assert events.reason.iloc[number + 1] == "again"


def test_a_swap_is_told():
    result = run([llm(kv_cache=SMALL, engine="vllm-0.10", scheduler=SWAPS)], events=True)
    preempted = result.events[result.events.event == "preempted"]
    assert len(preempted)
    assert set(preempted.reason) == {"no free KV blocks, copied to the host"}


def test_a_worker_admits_when_it_begins():
    tool = mist.SequentialClient("tools", serves=["tool_call"], num_workers=1)
    pipeline = mist.template([mist.ToolCall(duration=1.0), mist.Prefill, mist.Decode])
    workload = mist.Workload(mist.Profile(num_requests=5), mist.AllAtOnce(), pipeline)
    result = mist.Simulation(clients=[tool, llm()], workload=workload).run(events=True)
    admitted = result.events[
        (result.events.event == "admitted") & (result.events.client == "tools")
    ]
    began = result.stages[result.stages.stage == "tool_call"].started_at
    assert admitted.time.tolist() == sorted(began)


def test_a_run_that_kept_none_says_how_to_keep_them():
    result = run([llm()], events=False, number=3)
    with pytest.raises(ScenarioError, match="kept no events; give events=True to simulate"):
        _ = result.events


def test_the_command_writes_them_and_timelines_show_them(tmp_path, capsys):
    small = "workload.lengths.num_requests=20"
    assert exit_code("run", "demo", "--set", small, "--out", tmp_path / "run", "--events") == 0
    events = pd.read_parquet(tmp_path / "run" / "events.parquet")
    assert (events.event == "ended").sum() == 20
    file = tmp_path / "timeline.json"
    assert exit_code("timeline", tmp_path / "run", "--out", file) == 0
    drawn = [each for each in json.loads(file.read_text())["traceEvents"] if each["ph"] == "n"]
    assert sum(each["name"] == "admitted" for each in drawn) == (events.event == "admitted").sum()
    assert exit_code("run", "demo", "--events") == 2
    assert "--events has no effect without --out" in capsys.readouterr().err


def test_a_run_step_by_step_has_the_same_events():
    made = mist.start("demo", events=True)
    for _ in range(500):
        made.step()
    stepped = made.run().result()
    assert stepped.events.equals(mist.simulate("demo", events=True).events)


def test_each_step_says_what_it_decided():
    workload = mist.Workload.from_lists([600] * 40, [300] * 40, [0.05 * k for k in range(40)])
    simulation = mist.Simulation(clients=[llm(kv_cache=SMALL)], workload=workload)
    made, told = simulation.start(events=True), []
    while made.step():
        told += made.decisions
    kept = made.result().events
    kept = kept[~kept.event.isin(["moved", "ended"])]
    assert sorted(zip(kept.time, kept.event, kept.reason, strict=True)) == sorted(
        (each.time, each.event, each.reason) for each in told
    )
    assert {each.client for each in told} == {"llm"}
    preempted = next(each for each in told if each.event == "preempted")
    assert preempted.request_id in range(40)
    again = simulation.start(events=True)
    while not any(each.event == "preempted" for each in again.decisions):
        assert again.step()
    assert again.now == preempted.time
    assert again.run().decisions == []
    with pytest.raises(ScenarioError, match="keeps no events; give events=True to start"):
        _ = simulation.start().decisions
