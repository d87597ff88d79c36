"""Stages whose outcome appends stages or spawns children, and clients that leave work to others."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import pytest

from mist_sim import ConstantArrivals, Stage, Synthetic
from mist_sim.clients import Client, LlmClient, SequentialClient
from mist_sim.clients.scheduling import ContinuousScheduler
from mist_sim.core.request import Request
from mist_sim.core.visit import HeldKv, Moved, Served, Visit
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.metrics import Result
from mist_sim.simulation import Progress, Simulation
from mist_sim.stages import Decode, Prefill, ToolCall
from mist_sim.traces import FixedLength, TimeLimits, Workload
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor


@dataclass(frozen=True, kw_only=True)
class Plan(Stage):
    """Decides what comes next."""

    kind: ClassVar[str] = "plan"


class Planner(Client):
    """Decides at once; `decide` says what the outcome of a request's plan is."""

    def __init__(self, decide: Callable[[Visit], object]) -> None:
        super().__init__("planner", frozenset({"plan"}))
        self.decide = decide

    def accept(self, visit: Visit) -> None:
        self.begin(visit)
        visit.outcome = self.decide(visit)
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        raise NotImplementedError


def engine(name: str = "llm") -> LlmClient:
    return llm_engine(
        name, scheduler=ContinuousScheduler(), predictor=ConstantPredictor(1.0), num_gpu_blocks=100
    )


def tool(num_workers: int = 2) -> SequentialClient:
    return SequentialClient(
        "tool",
        serves=["tool_call"],
        service_time=lambda stage: stage.duration,
        num_workers=num_workers,
    )


def run(
    decide: Callable[[Visit], object],
    *,
    num_requests: int = 1,
    progress: Progress | None = None,
    **more: object,
) -> Result:
    """Requests, one every hundred seconds, whose pipeline is a plan and a prompt of 2 tokens."""
    workload = Workload(
        Synthetic(
            num_requests=num_requests, prompt=FixedLength(tokens=10), output=FixedLength(tokens=2)
        ),
        ConstantArrivals(rate=0.01),
        lambda row: (Plan(), Prefill(num_prompt_tokens=10), Decode(num_tokens=1)),
    )
    clients = [Planner(decide), tool(**more), engine()]
    return Simulation(clients=clients, workload=workload).run(progress)


def child(*stages: Stage) -> Request:
    return Request(0, None, stages)


def test_stages_that_outcome_appends_come_before_those_left():
    """A tool of 3 s, then the two steps of 1 s that were there before."""
    result = run(lambda visit: Served(then=(ToolCall(duration=3.0),)))
    assert result.stages["stage"].tolist() == ["plan", "tool_call", "prefill", "decode"]
    assert result.requests["e2el"].tolist() == [5.0]


@pytest.mark.parametrize(("num_workers", "e2el"), [(2, 7.0), (1, 10.0)])
def test_a_parent_waits_for_all_its_children(num_workers, e2el):
    """Tools of 5 and 3 s side by side, or one after the other; then two steps of 1 s."""
    children = (child(ToolCall(duration=5.0)), child(ToolCall(duration=3.0)))
    result = run(lambda visit: Served(children=children), num_workers=num_workers)
    requests = result.requests.set_index("request_id")
    assert requests.loc[0, "e2el"] == e2el
    assert sorted(requests.index) == [-2, -1, 0]
    assert requests.loc[[-1, -2], "parent_id"].tolist() == [0, 0]
    assert requests.loc[[-1, -2], "e2el"].tolist() == [5.0, 3.0 if num_workers == 2 else 8.0]
    parts = result.breakdown.set_index("request_id")
    assert parts.index.tolist() == [0]  # of users' requests alone
    assert parts.loc[0, ["plan", "prefill", "decode"]].tolist() == [e2el - 2, 1.0, 1.0]


def test_progress_counts_requests_of_the_workload_and_not_their_children(monkeypatch):
    """Five requests with two children each, and a clock that lets every one be told."""
    monkeypatch.setattr("mist_sim.simulation.monotonic", count(0).__next__)
    told = []
    children = (ToolCall(duration=1.0), ToolCall(duration=2.0))
    run(
        lambda visit: Served(children=tuple(map(child, children))),
        num_requests=5,
        progress=lambda num_ended, now: told.append(num_ended),
    )
    assert told == [1, 2, 3, 4, 5]


def test_children_have_children():
    def decide(visit: Visit) -> Served:
        depth = 0 if visit.request.request_id == 0 else -visit.request.request_id
        more = (child(Plan()),) if depth < 3 else ()
        return Served(children=more)

    result = run(decide)
    assert result.requests.set_index("request_id")["parent_id"].dropna().to_dict() == {
        -1: 0,
        -2: -1,
        -3: -2,
    }


def test_a_parent_fails_with_its_child():
    nobody_serves = child(Prefill(num_prompt_tokens=10**6))
    result = run(lambda visit: Served(children=(child(ToolCall(duration=4.0)), nobody_serves)))
    row = result.requests.set_index("request_id").loc[0]
    assert row["status"] == "rejected"
    assert "exceed the KV cache" in row["reason"]
    assert row["finished_at"] == 100.0 or row["finished_at"] <= 4.0


def test_a_child_that_is_lost_breaks_conservation(monkeypatch):
    def forget(self: Planner, visit: Visit) -> None:
        if visit.request.parent_id is None:
            Client.finish(self, visit)

    monkeypatch.setattr(Planner, "finish", forget)
    with pytest.raises(InvariantError, match="never ended, first -1"):
        run(lambda visit: Served(children=(child(Plan()),)))


@pytest.mark.parametrize("limit", ["timeout", "ttft_timeout"])
def test_a_parent_is_given_up_while_it_waits_for_its_children(limit):
    """A tool of 5 s, and a user who waits for 2 s, for the answer or its first token."""
    workload = Workload(
        Synthetic(num_requests=1, prompt=FixedLength(tokens=10), output=FixedLength(tokens=2)),
        ConstantArrivals(rate=1.0),
        lambda row: (Plan(), Prefill(num_prompt_tokens=10)),
        time_limits=TimeLimits(**{limit: 2.0}),
    )
    planner = Planner(lambda visit: Served(children=(child(ToolCall(duration=5.0)),)))
    result = Simulation(clients=[planner, tool(), engine()], workload=workload).run()
    row = result.requests.set_index("request_id").loc[0]
    assert (row["status"], row["e2el"]) == ("timed_out", 2.0)


# --- visits that leave some of a stage to others ----------------------------------------------


class Relay(Client):
    """Emits `num_tokens` tokens at most, one a second, and leaves the others to the next client."""

    def __init__(self, name: str, num_tokens: int) -> None:
        super().__init__(name, frozenset({"prefill", "decode"}))
        self.num_tokens = num_tokens
        self.released: list[float] = []

    def accept(self, visit: Visit) -> None:
        self.env.process(self.work(visit))

    def abort(self, visit: Visit) -> None:
        raise NotImplementedError

    def work(self, visit: Visit):
        self.begin(visit)
        total = sum(getattr(stage, "num_tokens", 1) for stage in visit.stages)
        num_tokens = min(total, self.num_tokens)
        visit.first_token_at = self.env.now + 1.0
        yield self.env.timeout(num_tokens)
        visit.num_output_tokens = num_tokens
        if visit.kv is not None:
            visit.kv.release()
        if num_tokens < total:
            visit.outcome = Moved(total - num_tokens)
            visit.held_kv = HeldKv(
                self.name,
                lambda: self.released.append(self.env.now),
                num_tokens=10,
                num_prompt_tokens=10,
                num_output_tokens=num_tokens,
                last_token_at=self.env.now,
            )
        self.finish(visit)


def test_a_visit_that_is_moved_is_followed_to_the_next_client():
    """Ten tokens in visits of at most four, one a second: gaps of 1 s, and all is counted."""
    clients = [Relay("a", 4), Relay("b", 4)]
    workload = Workload.from_lists([10], [10], [0.0])
    result = Simulation(clients=clients, workload=workload).run()
    row = result.requests.iloc[0]
    assert (row["status"], row["num_output_tokens"], row["e2el"]) == ("finished", 10, 10.0)
    assert (row["ttft"], row["tpot"]) == (1.0, 1.0)
    assert result.stages["client"].tolist() == ["a", "a", "a", "b"]
    assert (clients[0].released, clients[1].released) == ([8.0, 10.0], [])


def test_a_move_leaves_at_least_a_token():
    with pytest.raises(ValueError, match="num_tokens must be >= 1, got 0"):
        Moved(0)


def test_stage_without_parts_cannot_be_left_in_part():
    with pytest.raises(TypeError, match="'plan' cannot be left in part"):
        Plan().with_rest(1)
    rule = (
        r"planner: the outcome of request 0 must not be Moved after the stage Plan\(\) at 0.0 s: "
        "a stage 'plan' cannot be left in part"
    )
    with pytest.raises(ScenarioError, match=rule):
        run(lambda visit: Moved(1))
