"""Pipelines that compute batches ahead find what those find that compute them one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, simulate
from mist_sim.clients.engine.queued.settled import Stretches
from mist_sim.metrics import Result
from tests.effort import examples
from tests.reference.cluster_case import ClusterCase
from tests.reference.comparison import EngineOptions
from tests.reference.predictors import EVEN
from tests.reference.stepwise import Job


def uniform(num_requests: int, *, prompt: int, output: int) -> dict[str, Any]:
    """Return lengths from 1 token to so many."""
    return {
        "type": "synthetic",
        "num_requests": num_requests,
        "prompt": {"type": "uniform", "low": 1, "high": prompt},
        "output": {"type": "uniform", "low": 1, "high": output},
    }


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, Any]:
    """A scenario with pipelines of one scheduler, which routers may ask and requests may leave."""
    ranks = draw(st.sampled_from([2, 3, 4]))
    client = {
        "name": "llm",
        "count": draw(st.integers(1, 2)),
        "gpu": "h100-sxm",
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": ranks,
        "async_scheduling": draw(st.booleans()),
        "engine": draw(st.sampled_from(["vllm-0.19", "vllm-0.24", "vllm-0.33"])),
        "kv_cache": {"num_gpu_blocks_override": draw(st.sampled_from([150, 400, 900, 4000]))},
        "scheduler": {"type": "chunked", "max_num_seqs": draw(st.sampled_from([3, 64]))},
    }
    lengths = uniform(draw(st.integers(3, 25)), prompt=1200, output=600)
    scenario: dict[str, Any] = {
        "model": "llama-3.1-70b",
        "seed": draw(st.integers(0, 10**6)),
        "workload": {"lengths": lengths, "arrivals": {"type": "poisson", "rate": "4 /s"}},
        "clients": [client],
        "router": draw(st.sampled_from(["round_robin", {"type": "load", "by": "kv_cache"}])),
    }
    if scenario["router"] != "round_robin" and draw(st.booleans()):
        scenario["view_interval"] = "50 ms"
    if draw(st.booleans()):
        scenario["workload"]["timeout"] = "3 s"
    return scenario


def columns(result: Result) -> dict[str, bytes]:
    """Return all that a run wrote down."""
    recorder = result.recorder
    tables = {f"steps {number}": table for number, table in enumerate(recorder.steps)}
    tables |= {name: getattr(recorder, name) for name in ("requests", "visits", "tokens", "gaps")}
    found = {
        f"{name} {column}": np.asarray(values).tobytes()
        for name, table in tables.items()
        for column, values in table.columns().items()
    }
    return found | {
        f"ends {track}": ends[:].tobytes() for track, ends in enumerate(recorder.step_ends)
    }


def assert_alike(scenario: dict[str, Any]) -> None:
    """Compare a run with one that computes no batch ahead."""
    said = Scenario.from_dict(scenario)
    ahead = columns(simulate(said))
    with patch.object(Stretches, "begin", lambda *_: None):
        assert columns(simulate(said)) == ahead


@pytest.mark.exact
@examples(40)
@given(scenario=pipelines())
def test_stretches_change_nothing(scenario: dict[str, Any]) -> None:
    assert_alike(scenario)


def one_client(lengths: dict[str, Any], arrivals: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Return a scenario of one pipeline. options: of its client, and `timeout` of the workload."""
    timeout = {"timeout": options.pop("timeout")} if "timeout" in options else {}
    scheduler = {"type": "chunked", "max_num_seqs": 64}
    client = {"name": "llm", "gpu": "h100-sxm", "tensor_parallel_size": 2, "scheduler": scheduler}
    workload = {"lengths": lengths, "arrivals": arrivals, **timeout}
    return {"model": "llama-3.1-70b", "workload": workload, "clients": [client | options]}


@pytest.mark.exact
def test_the_first_to_give_way_behind_a_stretch_leaves_the_blocks_that_are_known() -> None:
    """No block was shared before; the tokens in flight must be known by then."""
    lengths = uniform(76, prompt=1200, output=600)
    scenario = one_client(
        lengths,
        {"type": "constant", "rate": "3 /s"},
        timeout="10 s",
        pipeline_parallel_size=2,
        async_scheduling=True,
        engine="vllm-0.24",
        kv_cache={"num_gpu_blocks_override": 900},
    )
    assert_alike(scenario | {"seed": 604293})


@pytest.mark.exact
def test_a_stretch_ends_where_memory_comes_back_that_others_hold() -> None:
    """The blocks of prompts that begin alike are not free with the end of one of their answers."""
    lengths = {
        "type": "prefix_repetition",
        "num_requests": 60,
        "num_prefixes": 2,
        "prefix_len": 256,
        "suffix": {"type": "uniform", "low": 1, "high": 300},
        "output": {"type": "uniform", "low": 1, "high": 300},
    }
    arrivals, memory = {"type": "poisson", "rate": "4 /s"}, {"num_gpu_blocks_override": 300}
    assert_alike(one_client(lengths, arrivals, pipeline_parallel_size=2, kv_cache=memory))


@pytest.mark.exact
def test_a_stretch_ends_before_answers_that_plans_go_beyond() -> None:
    lengths = uniform(20, prompt=600, output=100)
    arrivals, ranks = {"type": "poisson", "rate": "4 /s"}, {"pipeline_parallel_size": 4}
    options = ranks | {"async_scheduling": True, "engine": "vllm-0.19"}
    assert_alike(one_client(lengths, arrivals, **options))


@pytest.mark.exact
def test_an_answer_may_end_with_the_first_return_of_a_stretch_that_is_not_entered() -> None:
    lengths = uniform(22, prompt=1200, output=600)
    arrivals, ranks = {"type": "poisson", "rate": "4 /s"}, {"pipeline_parallel_size": 2}
    options = ranks | {"async_scheduling": False, "engine": "vllm-0.19"}
    assert_alike(one_client(lengths, arrivals, **options))


@pytest.mark.exact
def test_requests_count_as_waiting_before_they_come_to_a_pipeline() -> None:
    lengths = uniform(20, prompt=600, output=200)
    arrivals, ranks = {"type": "poisson", "rate": "4 /s"}, {"pipeline_parallel_size": 2}
    assert_alike(one_client(lengths, arrivals, overhead={"request": "50 ms"}, **ranks))


@pytest.mark.exact
@pytest.mark.parametrize("engine", ["vllm-0.19", "vllm-0.24", "vllm-0.33"])
@pytest.mark.parametrize("ahead", [False, True])
def test_stretches_go_on_behind_arrivals_and_begin_behind_preemptions(
    engine: str, ahead: bool
) -> None:
    """Where memory is short, arrivals wait behind others, and decodes lack blocks often."""
    found: Counter[str] = Counter()
    begin, keeps_waiting = Stretches.begin, Stretches.keeps_waiting

    def begun(self: Stretches, now: Any) -> Any:
        stretch = begin(self, now)
        found["behind a preemption"] += stretch is not None and bool(self._state.taken)
        return stretch

    def kept(self: Stretches, sequence: Any) -> bool:
        keeps = keeps_waiting(self, sequence)
        found["arrivals"] += keeps
        return keeps

    lengths = {
        "type": "synthetic",
        "num_requests": 60,
        "prompt": {"type": "uniform", "low": 1, "high": 600},
        "output": {"type": "uniform", "low": 200, "high": 1200},
    }
    parts = {"pipeline_parallel_size": 2, "kv_cache": {"num_gpu_blocks_override": 300}}
    options = parts | {"async_scheduling": ahead, "engine": engine}
    scenario = one_client(lengths, {"type": "poisson", "rate": "2 /s"}, **options)
    with patch.object(Stretches, "begin", begun), patch.object(Stretches, "keeps_waiting", kept):
        simulate(Scenario.from_dict(scenario))
    assert found["arrivals"] > 20
    if engine == "vllm-0.33" and ahead:  # only then tokens of those that give way are on their way
        assert found["behind a preemption"] > 5
    assert_alike(scenario)


def run_alike(options: EngineOptions, *jobs: Job) -> Result:
    """Compare a run of one small client with one that computes no batch ahead; return this one."""
    case = ClusterCase((options,), jobs, "round_robin")
    ahead = columns(case.simulate(EVEN))
    with patch.object(Stretches, "begin", lambda *_: None):
        expected = case.simulate(EVEN)
    assert columns(expected) == ahead
    return expected


@pytest.mark.exact
def test_no_stretch_begins_before_an_answer_preempted_in_flight_comes_back() -> None:
    """All but its last token is in the cache, so that it fits beside the other answer."""
    pipeline = {"pipeline_parallel_size": 2, "batch_queue": True, "async_scheduling": True}
    options = EngineOptions("chunked", 20, 4, 6, 32, caching=True, drains_preempted=True)
    job = Job(0.0, 1, 44, content=((0, 40),))
    expected = run_alike(replace(options, **pipeline), job, job)
    assert expected.summary["num_preemptions"] == 1


@pytest.mark.exact
def test_a_stretch_ends_where_a_more_urgent_request_overtakes_one_that_lacks_memory() -> None:
    """The second prompt does not fit beside the first answer; the third, of priority 0, does."""
    options = EngineOptions("chunked", 20, 4, 6, 64, order="priority", batch_queue=True)
    jobs = Job(0.0, 16, 40), Job(0.03125, 64, 2, priority=1), Job(0.0625, 4, 5)
    expected = run_alike(replace(options, pipeline_parallel_size=2), *jobs)
    assert expected.requests["first_token_at"].argsort().tolist() == [0, 2, 1]


def test_most_batches_are_computed_ahead() -> None:
    """Otherwise the test above would compare what is the same anyway."""
    found: Counter[str] = Counter()
    settle = Stretches.settle

    def noted(self: Stretches, stretch: Any, num_over: int, num_planned: int) -> Any:
        found["ahead"] += num_over
        found["cut"] += num_over < stretch.num_over
        return settle(self, stretch, num_over, num_planned)

    lengths = {
        "type": "synthetic",
        "num_requests": 40,
        "prompt": {"type": "fixed", "tokens": 500},
        "output": {"type": "fixed", "tokens": 200},
    }
    parts = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    scenario = {
        "model": "llama-3.1-70b",
        "workload": {"lengths": lengths, "arrivals": {"type": "poisson", "rate": "2 /s"}},
        "clients": [{"name": "llm", "gpu": "h100-sxm", **parts}],
    }
    with patch.object(Stretches, "settle", noted):
        result = simulate(Scenario.from_dict(scenario))
    num_batches = sum(len(ends) for ends in result.recorder.step_ends)
    assert found["ahead"] > 0.5 * num_batches
    assert found["cut"] > 0
