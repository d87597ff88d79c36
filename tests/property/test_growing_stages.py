"""Conservation under branches, loops, tool waits and sessions, with little memory and limits."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pandas as pd
from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.clients import ApplicationClient, Client, LlmClient, SequentialClient
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.request import Stage
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.stages import BestOfN, ModelPass, Postprocess, ToolLoop, TreeSearch
from mist_sim.traces import (
    ClosedLoop,
    Rows,
    TimeLimits,
    TraceArrivals,
    TraceRow,
    Workload,
    completion_pipeline,
)
from tests.effort import examples
from tests.reference.engines import llm_engine
from tests.reference.predictors import AffinePredictor

GENERATOR, REWARD = "generator", "reward"
small = st.integers(1, 3)
reward = st.sampled_from([None, REWARD])

growing = st.one_of(
    st.builds(BestOfN, num_branches=st.integers(1, 5), reward_model=reward),
    st.builds(
        TreeSearch, num_branches=small, num_rounds=small, beam_width=small, reward_model=reward
    ),
    st.builds(
        ToolLoop,
        num_turns=st.integers(1, 4),
        duration=st.sampled_from([0.0, 0.05, 2.0]),
        num_result_tokens=st.integers(0, 9),
    ),
)
pipelines = st.one_of(
    st.just(()),
    st.tuples(growing),
    st.tuples(growing, st.just(Postprocess())),
    st.tuples(st.just(ModelPass(model=REWARD, text="prompt")), growing),
)


@st.composite
def rows(draw: Callable[..., Any]) -> list[TraceRow]:
    found, time, session = [], 0.0, 0
    for _ in range(draw(st.integers(1, 14))):
        time += draw(st.sampled_from([0.0, 0.001, 0.1]))
        session += draw(st.booleans())
        think = draw(st.sampled_from([0.0, 0.1, 3.0]))
        lengths = draw(st.tuples(st.integers(1, 40), st.integers(1, 12)))
        found.append(TraceRow(*lengths, time, session, think_time=think))
    return found


def engine(model: str, num_blocks: int) -> LlmClient:
    client = llm_engine(
        model,
        predictor=AffinePredictor(),
        scheduler=ChunkedScheduler(max_num_seqs=4, max_num_batched_tokens=32),
        num_gpu_blocks=num_blocks,
        block_size=4,
    )
    client.traits = replace(client.traits, model=model)
    return client


def simulated(
    trace: list[TraceRow],
    choices: list[tuple[Stage, ...]],
    *,
    sessions: bool,
    timeout: float,
    blocks: int,
) -> Result:
    """Run rows, each with the pipeline that its place chooses."""

    def pipeline(row: TraceRow) -> tuple[Stage, ...]:
        parts = choices[(row.num_prompt_tokens + row.num_output_tokens) % len(choices)]
        lengths = row.num_prompt_tokens, row.num_output_tokens
        return tuple(part.with_lengths(*lengths) for part in parts) or completion_pipeline(row)

    workload = Workload(
        Rows(trace),
        ClosedLoop(concurrency=2, sessions=True) if sessions else TraceArrivals(),
        pipeline,
        models={GENERATOR: 1.0},
        time_limits=TimeLimits(timeout=timeout) if timeout else None,
    )
    clients: list[Client] = [
        ApplicationClient("app", base_time=0.001),
        SequentialClient(
            "tools", serves=["tool_call", "postprocess"], base_time=0.03, num_workers=2
        ),
        engine(GENERATOR, blocks),
        engine(REWARD, 200),
    ]
    return Simulation(clients=clients, workload=workload).run()  # which checks what it conserves


@examples(120)
@given(
    rows(),
    st.lists(pipelines, min_size=2, max_size=4),
    st.booleans(),
    st.sampled_from([0.0, 0.0, 0.02, 0.2]),
    st.sampled_from([33, 200]),
)
def test_what_grows_is_accounted_for(trace, choices, sessions, timeout, blocks):
    options = {"sessions": sessions, "timeout": timeout, "blocks": blocks}
    result = simulated(trace, choices, **options)
    requests = result.requests.set_index("request_id")
    users = requests[requests["parent_id"].isna()]
    assert sorted(users.index) == list(range(len(trace)))
    children = requests[requests["parent_id"].notna()]
    parents = requests.loc[children["parent_id"].astype(int)]
    assert (children["arrival_time"].to_numpy() >= parents["arrival_time"].to_numpy()).all()
    served = parents["status"].to_numpy() == "finished"
    assert (children["status"][served] == "finished").all()
    ends = children["finished_at"].to_numpy()[served]
    assert (ends <= parents["finished_at"].to_numpy()[served]).all()
    finished = users[users["status"] == "finished"]
    pairs = [(row, choices[(row[0] + row[1]) % len(choices)]) for row in trace]
    expected = [_answer(*pairs[number]) for number in finished.index]
    assert finished["num_output_tokens"].tolist() == expected
    if sessions:
        _check_order(users, trace)
    _note(result, sessions, len(finished), len(trace))
    again = simulated(trace, choices, **options)
    pd.testing.assert_frame_equal(again.requests, result.requests)


def _answer(row: TraceRow, parts: tuple[Stage, ...]) -> int:
    """Return the tokens that the user gets."""
    num_output = row.num_output_tokens
    for part in parts:
        if isinstance(part, TreeSearch):
            return -(-num_output // part.num_rounds) * part.num_rounds
        if isinstance(part, ToolLoop):
            return num_output * part.num_turns
    return num_output


def _check_order(users: pd.DataFrame, trace: list[TraceRow]) -> None:
    """A turn is sent when the one before it has ended, and its wait is over."""
    for number, (one, other) in enumerate(pairwise(trace)):
        if one.session_id == other.session_id:
            sent = users.loc[number + 1, "arrival_time"]
            assert sent >= users.loc[number, "finished_at"] + other.think_time - 1e-9


def _note(result: Result, sessions: bool, num_finished: int, num_rows: int) -> None:
    kinds = set(result.stages["stage"])
    for kind in ("best_of_n", "tree_search", "tool_loop", "model_pass", "tool_call"):
        if kind in kinds:
            event(kind)
    event(f"sessions {sessions}")
    event("preempted" if result.requests["num_preemptions"].any() else "not preempted")
    event("all finished" if num_finished == num_rows else "some given up")
