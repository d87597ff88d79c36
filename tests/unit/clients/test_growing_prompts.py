"""Stages that lengthen what follows, and input tokens that are counted over visits, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from mist_sim import Stage
from mist_sim.clients import Client, LlmClient
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.hand_over import HandOver
from mist_sim.core.request import Content, Request, token_totals
from mist_sim.core.visit import HeldKv, Longer, Served, Visit
from mist_sim.errors import ScenarioError
from mist_sim.metrics import ApiPrices
from mist_sim.metrics.spending import api_cost
from mist_sim.routers import RoundRobinRouter
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, Postprocess, Prefill, Preprocess, Reasoning, ToolCall
from mist_sim.testing import check_client, check_stage
from mist_sim.traces import (
    Retries,
    Rows,
    TimeLimits,
    TraceArrivals,
    TraceRow,
    Workload,
)
from tests.reference.apart import TwoSpeeds, link
from tests.reference.apart import engine as block_engine
from tests.reference.engines import llm_engine
from tests.refusals import refused
from tests.unit.clients.test_growing_pipelines import Plan, Planner, child, engine, run, tool

PASSAGES = Longer(Prefill, 30)


def grown(*changes: Longer, **more: object) -> Callable[[Visit], Served]:
    return lambda visit: Served(changes=changes, **more)


# --- what is counted ----------------------------------------------------------------------------


def test_passages_lengthen_a_prompt():
    """A prompt of 10 tokens and 30 of passages: 40 are computed, and 40 are input."""
    result = run(grown(PASSAGES))
    assert result.requests["num_prompt_tokens"].tolist() == [40]
    assert result.summary["total_input_tokens"] == 40
    assert result.clients.set_index("client")["num_prefill_tokens"]["llm"] == 40
    assert result.requests["num_output_tokens"].tolist() == [2]


def big_engine(**more: object) -> LlmClient:
    return llm_engine(
        "llm", scheduler=ChunkedScheduler(), predictor=TwoSpeeds(), num_gpu_blocks=10_000, **more
    )


def test_an_api_asks_for_all_prompts():
    """40 tokens of a request's prompt and 50 of an appended one at 1 $ a token."""
    prices = ApiPrices(input=1e6, output=0.0)
    more = (Prefill(num_prompt_tokens=50),)
    result = run(grown(PASSAGES, then=more))
    assert api_cost(prices, result.recorder.requests.columns()).tolist() == [90.0]


def test_an_appended_answer_that_context_cuts_is_truncated():
    turn = (Prefill(num_prompt_tokens=20), Decode(num_tokens=50))
    workload = Workload.from_lists([10], [2], [0.0], pipeline=two_turns)
    planner = Planner(lambda visit: Served(then=turn))
    result = Simulation(clients=[planner, big_engine(max_model_len=30)], workload=workload).run()
    assert result.requests["num_output_tokens"].tolist() == [10 + 2 + 2]
    assert result.summary["num_truncated"] == 1


def two_turns(row: TraceRow) -> tuple[Stage, ...]:
    """A plan, and two turns; the second prompt repeats the first."""
    first, second = (Prefill(num_prompt_tokens=n) for n in (10, 16))
    return Plan(), first, Decode(num_tokens=1), second, Decode(num_tokens=1)


def test_what_children_find_lengthens_their_parent():
    """The stage after them says how much, since it begins when all have ended."""

    def decide(visit: Visit) -> Served:
        if visit.stages[0].round:
            return Served(changes=(PASSAGES,))
        return Served(then=(Again(round=1),), children=(child(ToolCall(duration=4.0)),))

    workload = Workload.from_lists(
        [10], [2], [0.0], pipeline=lambda row: (Again(), Prefill(num_prompt_tokens=10))
    )
    result = Simulation(clients=[Planner(decide), tool(), engine()], workload=workload).run()
    assert result.requests.set_index("request_id")["num_prompt_tokens"].to_dict() == {-1: 0, 0: 40}
    assert result.summary["mean_e2el_ms"] == 5000


def test_the_agent_of_the_guide_equals_hand_count():
    """Request k asks again k times, each time with 200 tokens more than the declared 10."""
    num_left = [0, 1, 2, 3]

    def decide(visit: Visit) -> Served:
        number = visit.request.request_id
        if not num_left[number]:
            return Served()
        num_left[number] -= 1
        prompt = Prefill(num_prompt_tokens=visit.request.num_prompt_tokens + 200)
        tools = tuple(child(ToolCall(duration=s)) for s in (1.0, 2.0))
        return Served(then=(prompt, Decode(num_tokens=4), Plan()), children=tools)

    clients = [Planner(decide), tool(), big_engine()]
    workload = Workload.from_lists(
        [10] * 4,
        [2] * 4,
        [100.0 * k for k in range(4)],
        pipeline=lambda row: (Prefill(num_prompt_tokens=10), Decode(num_tokens=1), Plan()),
    )
    result = Simulation(clients=clients, workload=workload).run()
    own = result.requests.query("request_id >= 0")
    assert own["num_prompt_tokens"].tolist() == [10, 220, 430, 640]
    assert own["num_output_tokens"].tolist() == [2, 7, 12, 17]
    assert result.summary["total_input_tokens"] == 1300
    assert result.clients["num_prefill_tokens"].sum() == 1300


@dataclass(frozen=True, kw_only=True)
class Again(Stage):
    """Decides, and decides again in another round."""

    kind: ClassVar[str] = "plan"
    round: int = 0


# --- attempts, losses, hand-overs ---------------------------------------------------------------


def test_another_attempt_begins_from_what_was_declared():
    """The first one finds more than 25 s allow for, the second one nothing."""
    seen = []

    def decide(visit: Visit) -> Served:
        request = visit.request
        seen.append((request.num_prompt_tokens, request.content))
        more = (ToolCall(duration=90.0),) if len(seen) == 1 else ()
        return Served(then=more, changes=(Longer(Prefill, 30 if more else 3),), content=((8, 40),))

    workload = Workload(
        Rows([TraceRow(10, 2, 0.0, content=((1, 10),))]),
        TraceArrivals(),
        lambda row: (Plan(), Prefill(num_prompt_tokens=10), Decode(num_tokens=1)),
        time_limits=TimeLimits(timeout=25.0),
        retries=Retries(max_attempts=2),
    )
    result = Simulation(clients=[Planner(decide), tool(), engine()], workload=workload).run()
    assert seen == [(10, ((1, 10),))] * 2
    row = result.requests.iloc[0]
    assert (row["status"], row["num_attempts"], row["num_prompt_tokens"]) == ("finished", 2, 13)
    assert result.summary["num_truncated"] == 0


def planned(row: TraceRow) -> tuple[Stage, ...]:
    decode = Decode(num_tokens=row.num_output_tokens - 1)
    return Plan(), Prefill(num_prompt_tokens=row.num_prompt_tokens), decode


@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_a_grown_prompt_is_handed_over(transfer):
    """40 tokens in ten blocks of 1,000 bytes; a decode client of nine could never hold them."""
    requests = {}
    for num_gpu_blocks in (11, 9):
        clients = [
            Planner(grown(PASSAGES)),
            block_engine("prefill"),
            block_engine("decode", num_gpu_blocks=num_gpu_blocks),
        ]
        result = Simulation(
            clients=clients,
            workload=Workload.from_lists([10], [3], [0.0], pipeline=planned),
            network=link(),
            hand_over=HandOver(transfer=transfer),
        ).run()
        requests[num_gpu_blocks] = result.requests.iloc[0]
        if num_gpu_blocks == 11:
            assert result.transfers[["num_tokens", "num_bytes"]].values.tolist() == [[40, 10_000]]
            assert result.summary["total_input_tokens"] == 40
    assert requests[11]["status"] == "finished"
    assert "exceed the KV cache" in requests[9]["reason"]


class Prefiller(Client):
    """Prompts at once, and says what came of it."""

    def __init__(self, decide: Callable[[Visit], object]) -> None:
        super().__init__("own", frozenset({"prefill"}))
        self.decide = decide
        self.reserves = True

    def accept(self, visit: Visit) -> None:
        self.begin(visit)
        visit.first_token_at = self.env.now
        visit.num_output_tokens = 1
        if visit.is_followed:
            visit.held_kv = HeldKv(
                self.name,
                lambda: None,
                num_tokens=10,
                num_prompt_tokens=10,
                num_output_tokens=1,
                last_token_at=self.env.now,
            )
        visit.outcome = self.decide(visit)
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        raise NotImplementedError


# --- limits and routers -------------------------------------------------------------------------


def test_an_engine_refuses_prompt_that_became_too_long():
    workload = Workload.from_lists([10], [2], [0.0], pipeline=planned)
    clients = [Planner(grown(PASSAGES)), big_engine(max_model_len=40)]
    row = Simulation(clients=clients, workload=workload).run().requests.iloc[0]
    assert row["status"] == "rejected"
    rule = "llm: a prompt of 40 tokens leaves no room for an answer in max_model_len=40"
    assert row["reason"] == rule


def test_routers_see_the_grown_prompt():
    seen = []

    class Looks(RoundRobinRouter):
        def choose(self, request: Request, stage: Stage, candidates) -> int:
            seen.append((stage.kind, request.num_prompt_tokens, stage.num_input_tokens))
            return super().choose(request, stage, candidates)

    workload = Workload.from_lists([10], [2], [0.0], pipeline=planned)
    Simulation(
        clients=[Planner(grown(PASSAGES)), engine()], workload=workload, router=Looks()
    ).run()
    assert seen == [("plan", 10, 0), ("prefill", 40, 40)]


# --- content ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "content"),
    [
        (Served(), ((1, 6), (2, 8))),
        (Served(changes=(Longer(Prefill, 0),)), ((1, 6), (2, 8))),
        (Served(changes=(PASSAGES,)), ((1, 6), (2, 4))),
        (Served(changes=(Longer(Prefill, -5),)), ((1, 5),)),
        (Served(changes=(Longer(Decode, 9),)), ((1, 6), (2, 8))),
        (Served(changes=(PASSAGES,), content=((9, 40),)), ((9, 40),)),
        (Served(changes=(PASSAGES,), content=()), ()),
        (Served(then=(Prefill(num_prompt_tokens=20),)), ((1, 6), (2, 8))),
    ],
)
def test_content_covers_what_did_not_change(outcome, content):
    """A prompt of 10 tokens, and four of its answer behind it."""
    seen = []

    class Looks(RoundRobinRouter):
        def choose(self, request: Request, stage: Stage, candidates) -> int:
            seen.append(request.content)
            return super().choose(request, stage, candidates)

    workload = Workload(
        Rows([TraceRow(10, 5, 0.0, content=((1, 6), (2, 8)))]), TraceArrivals(), planned
    )
    Simulation(
        clients=[Planner(lambda visit: outcome), engine()], workload=workload, router=Looks()
    ).run()
    assert seen[-1] == content


def test_passages_with_content_are_found_again():
    """Two prompts of 8 tokens with the same 8 of passages behind them, in blocks of 4.

    The third one has other passages; all but the last token of what is known are cached.
    """
    found: dict[int, Content] = {0: ((1, 8), (5, 8)), 1: ((1, 8), (5, 8)), 2: ((1, 8), (6, 8))}

    def decide(visit: Visit) -> Served:
        return Served(changes=(Longer(Prefill, 8),), content=found[visit.request.request_id])

    rows = [TraceRow(8, 2, float(k), content=((1, 8),)) for k in range(3)]
    clients = [Planner(decide), block_engine(None, name="llm", enable_prefix_caching=True)]
    workload = Workload(Rows(rows), TraceArrivals(), planned)
    result = Simulation(clients=clients, workload=workload).run()
    assert result.requests["num_cached_tokens"].tolist() == [0, 12, 8]
    assert result.summary["total_input_tokens"] == 48


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (Longer(ToolCall, 1), "no stage 'tool_call' is ahead, but prefill -> decode"),
        (Longer(Plan, 1), "no stage 'plan' is ahead, but prefill -> decode"),
        (Longer(Prefill, -10), "num_prompt_tokens must be > 0, got 0"),
        (Longer(Decode, -2), "num_tokens must be >= 0, got -1"),
    ],
)
def test_a_change_that_cannot_be_names_client_request_and_stage(change, rule):
    place = r"planner: the outcome of request 0 after the stage Plan\(\) at 0.0 s: "
    with pytest.raises(ScenarioError, match=place + rule):
        run(grown(change))


def test_a_stage_without_length_does_not_become_longer():
    workload = Workload.from_lists(
        [10], [2], [0.0], pipeline=lambda row: (Plan(), ToolCall(duration=1.0))
    )
    clients = [Planner(grown(Longer(ToolCall, 1))), tool()]
    with pytest.raises(ScenarioError, match="a stage 'tool_call' has no length that can change"):
        Simulation(clients=clients, workload=workload).run()


@pytest.mark.parametrize(
    "outcome",
    [
        Served(changes=(Longer(Decode, 3),)),
        Served(then=(Postprocess(),)),
        Served(children=(Request(0, None, (Postprocess(),)),)),
        Served(content=((1, 3),)),
    ],
)
def test_what_has_begun_does_not_change(outcome):
    """Pushed entries: the decode client has taken its place before the prompt begins."""
    simulation = Simulation(
        clients=[Prefiller(lambda visit: outcome), block_engine("decode")],
        workload=Workload.from_lists([10], [3], [0.0]),
        network=link(),
        hand_over=HandOver(transfer="push"),
    )
    with pytest.raises(ScenarioError, match="own: .* the stage 'decode' has begun at decode"):
        simulation.run()


test_an_outcome_has_tuples = refused(
    lambda fields: Served(**fields),
    ({"then": Prefill(num_prompt_tokens=1)}, "then must be a tuple of Stage, got Prefill"),
    ({"changes": PASSAGES}, "changes must be a tuple of Longer"),
    ({"children": (1,)}, "children must be a tuple of Request"),
    error=TypeError,
)


def test_lists_will_do():
    assert Served([ToolCall(duration=1.0)], changes=[PASSAGES]) == Served(
        (ToolCall(duration=1.0),), changes=(PASSAGES,)
    )


def test_content_is_made_of_spans():
    with pytest.raises(ValueError, match=r"content must be pairs .*got \(1, 0\) in it"):
        Served(content=((1, 0),))


@pytest.mark.parametrize("stage", ["prefill", Prefill(num_prompt_tokens=1), int])
def test_a_change_names_a_class_of_stages(stage):
    with pytest.raises(TypeError, match="stage must be a class of stages, such as Prefill"):
        Longer(stage, 1)


def test_numbers_that_numpy_draws_are_whole_numbers():
    assert type(Longer(Prefill, np.int64(3)).num_tokens) is int


# --- checks of plugins --------------------------------------------------------------------------


class Finds(Client):
    """Lengthens each prompt by what it draws."""

    most = 50

    def __init__(self, name: str = "docs") -> None:
        super().__init__(name, ("rag",))

    def start(self, env, client_id, recorder):
        super().start(env, client_id, recorder)
        self.draws = self.streams.generator("docs")

    def accept(self, visit: Visit) -> None:
        self.begin(visit)
        visit.outcome = Served(changes=(Longer(Prefill, self.draws.integers(self.most)),))
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        raise NotImplementedError


class Forgets(Finds):
    """Changes a stage that pipelines do not have."""

    def accept(self, visit: Visit) -> None:
        self.begin(visit)
        visit.outcome = Served(changes=(Longer(Reasoning, 1),))
        self.finish(visit)


def test_a_client_that_lengthens_prompts_passes_the_check():
    check_client(Finds)


def test_check_tells_of_stage_that_is_not_ahead():
    with pytest.raises(AssertionError, match="docs: .*no stage 'reasoning' is ahead"):
        check_client(Forgets)


@dataclass(frozen=True, kw_only=True)
class Embed(Stage):
    """Prompts a small model."""

    kind: ClassVar[str] = "embed"
    num_tokens: int = 0

    def __post_init__(self) -> None:
        if self.num_tokens < 0:
            raise ValueError(f"num_tokens must be >= 0, got {self.num_tokens}")

    @property
    def num_input_tokens(self) -> int:
        return self.num_tokens

    def longer(self, num_tokens: int) -> Embed:
        return type(self)(num_tokens=self.num_tokens + num_tokens)


class Doubles(Embed):
    def longer(self, num_tokens: int) -> Embed:
        return Doubles(num_tokens=self.num_tokens + 2 * num_tokens)


class Ignores(Embed):
    def longer(self, num_tokens: int) -> Embed:
        return self


class Changes(Embed):
    def longer(self, num_tokens: int) -> Embed:
        return Embed(num_tokens=self.num_tokens + num_tokens)


class CountsTwice(Embed):
    @property
    def num_input_tokens(self) -> int:
        return 2 * self.num_tokens


@pytest.mark.parametrize("cls", [Embed, Prefill, Decode, Reasoning, Postprocess, Preprocess])
def test_stages_with_a_length_pass_the_check(cls):
    check_stage(cls)


def test_a_stage_of_ones_own_is_input_where_it_says_so():
    prompt = Embed(num_tokens=5)
    assert token_totals((prompt, prompt.longer(2), ToolCall(duration=1.0))) == (12, 0)


test_the_check_of_stages_asks_for_lengths = refused(
    check_stage,
    (Ignores, "longer must add what it is told"),
    (Changes, "longer must return a stage of its class"),
    (Doubles, "num_input_tokens must grow by 3 with the stage, or not at all, got 6"),
    (CountsTwice, "num_input_tokens must grow by 3 with the stage, or not at all, got 6"),
    error=AssertionError,
)
