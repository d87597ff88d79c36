"""Answers that flow between P-heavy and D-heavy clients (TaiChi) are exact, too.

Memory is scarce, so that the longest leave; what is asked of a token is near what a step takes, so
that some come back. Times meet: steps of all clients, moves, arrivals, and the time-outs of users.
Prompts and answers begin alike, so that those who leave share blocks with those who stay.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, isnan
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given, reject
from hypothesis import strategies as st

from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import Predictor
from mist_sim.lifecycle import Drain, Failures, Lifecycle, OnFailure
from mist_sim.metrics import Result
from mist_sim.reconfiguration import Change, Reconfigure
from mist_sim.routers import FlowingPolicy, LengthAwareRouter
from mist_sim.traces import ClosedLoop
from tests.effort import examples, features_seen, missing
from tests.property.cluster_strategies import (
    COSTS,
    LINKS,
    LINKS_IN_STEPS,
    PREDICTORS,
    SHARED,
    STEP,
    USERS,
    jobs_at_once,
    jobs_for,
    of_users_or_in_half_steps,
    with_times_that_meet,
)
from tests.property.strategies import arrival_times
from tests.reference.cluster import PLAIN_ROUTERS
from tests.reference.cluster_case import ClusterCase, Served, assert_cluster_exact
from tests.reference.comparison import EngineOptions
from tests.reference.engines import assert_nobody_is_inside
from tests.reference.predictors import EVEN
from tests.reference.run_lengths import assert_rows_do_not_show, records
from tests.reference.stepwise import Job, Outcome

ROLES = [["p_heavy", "d_heavy"]] * 3 + [
    ["p_heavy", "d_heavy", "d_heavy"],
    ["p_heavy", "p_heavy", "d_heavy"],
    ["p_heavy", "p_heavy", "d_heavy", "d_heavy"],
]


@st.composite
def policies(draw: st.DrawFn) -> FlowingPolicy:
    """Some whose limit a step is at, just above or below, and some that nobody ever reaches."""
    return FlowingPolicy(
        tpot=draw(st.sampled_from([STEP, 0.5 * STEP, 1.5 * STEP, 1.25 * STEP, 6e-4, 4e-3, 1.0])),
        approach_factor=draw(st.sampled_from([1.0, 0.96, 0.96, 0.5])),
        watermark=draw(st.sampled_from([0.95, 0.8, 0.75, 0.5, 0.3, 0.1, 1.0])),
        counts_seats=draw(st.booleans()),
        max_backflows=draw(st.sampled_from([None, None, 0, 1, 1, 2])),
    )


@st.composite
def engines(draw: st.DrawFn, role: str) -> EngineOptions:
    """Small ones, of which P-heavy ones take larger pieces of prompts."""
    max_num_seqs = draw(st.integers(1, 6))
    tokens = st.sampled_from([32, 48, 64] if role == "p_heavy" else [8, 16, 32])
    more: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {},
                {},
                {"data_parallel_size": 2},
                {"data_parallel_size": 2, "lockstep": True},
                {"threshold": 8},
                {"threshold": 8, "max_partial": 2},
                *[{"async_scheduling": True}] * 3,
                {"async_scheduling": True, "threshold": 8},
                {"async_scheduling": True, "data_parallel_size": 2},
                {"async_scheduling": True, "data_parallel_size": 2, "lockstep": True},
            ]
        )
    )
    return EngineOptions(
        "chunked",
        num_blocks=draw(st.sampled_from([14, 17, 20, 24, 40])),
        block_size=draw(st.sampled_from([4, 4, 8, 3])),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, draw(tokens)),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        max_model_len=draw(st.sampled_from([None, None, None, None, 60, 30])),
        whole_must_fit=draw(st.booleans()),
        caching=draw(st.booleans()),
        role=role,
        **more,
    )


@st.composite
def flowing(draw: st.DrawFn) -> ClusterCase:
    """Two to four clients, some of them equal, and jobs at given times or of users."""
    some: dict[str, EngineOptions] = {}

    def client(role: str) -> EngineOptions:
        if role not in some or draw(st.booleans()):
            some[role] = draw(engines(role))
        return some[role]

    clients = [client(role) for role in draw(st.sampled_from(ROLES).flatmap(st.permutations))]
    same = {"block_size": clients[0].block_size}
    times = draw(st.integers(2, 14).flatmap(arrival_times))
    jobs = draw(jobs_for(times, few=False, longest=30))
    return ClusterCase(
        tuple(replace(each, **same) for each in clients),
        tuple(jobs),
        draw(st.sampled_from(PLAIN_ROUTERS)),
        draw(st.none() | USERS),
        link=draw(LINKS),
        first_token=draw(st.sampled_from(["prefill", "decode"])),
        transfer=draw(st.sampled_from(["pull", "push"])),
        costs=draw(st.sampled_from(COSTS)),
        flows=draw(policies()),
    )


@st.composite
def crowds(draw: st.DrawFn) -> ClusterCase:
    """Small clients whose steps all end together, as do moves, arrivals and time-outs."""

    def client(role: str) -> EngineOptions:
        more: dict[str, Any] = draw(
            st.sampled_from(
                [
                    *[{}] * 3,
                    {"threshold": 8},
                    {"data_parallel_size": 2},
                    *[{"async_scheduling": True}] * 4,
                    {"async_scheduling": True, "data_parallel_size": 2},
                ]
            )
        )
        return EngineOptions(
            "chunked",
            num_blocks=draw(st.sampled_from([12, 13, 16, 16, 24])),
            block_size=4,
            max_num_seqs=draw(st.integers(2, 5)),
            max_num_batched_tokens=32 if role == "p_heavy" else draw(st.sampled_from([8, 16, 32])),
            caching=draw(st.sampled_from([True, True, False])),
            role=role,
            **more,
        )

    time_outs = draw(st.sampled_from([[0], [0, 0, 0, 4, 6, 9, 15, 22]]))
    contents = draw(st.sampled_from([SHARED, SHARED[1:], SHARED[1:2]]))
    job = jobs_at_once([3, 4, 7, 8, 14, 30], 24, time_outs, contents)
    p, d = client("p_heavy"), client("d_heavy")
    case = ClusterCase(
        (p,) * draw(st.sampled_from([1, 1, 2])) + (d,) * draw(st.sampled_from([1, 1, 2])),
        tuple(draw(st.lists(job, min_size=3, max_size=16))),
        draw(st.sampled_from(PLAIN_ROUTERS)),
        link=draw(LINKS_IN_STEPS),
        first_token=draw(st.sampled_from(["prefill", "decode"])),
        transfer=draw(st.sampled_from(["pull", "push"])),
        costs=draw(st.sampled_from(COSTS)),
        flows=FlowingPolicy(
            tpot=draw(st.sampled_from([STEP, 1.25 * STEP, 2 * STEP, 1.0])),
            approach_factor=draw(st.sampled_from([1.0, 0.96])),
            watermark=draw(st.sampled_from([0.95, 0.75, 0.5, 0.25, 0.1])),
            counts_seats=draw(st.sampled_from([False, False, True])),
            max_backflows=draw(st.sampled_from([None, None, 0, 1, 2])),
        ),
    )
    return draw(of_users_or_in_half_steps(case))


def features(case: ClusterCase, served: Served) -> set[str]:
    """What a case exercised."""
    cluster, found = served.cluster, set()
    role_at = {
        id(outcome): client.role for client in cluster.clients for outcome in client.outcomes
    }
    if is_stuck(served):
        found.add("stuck")
    for number, outcomes in enumerate(cluster.visits):
        down = [
            role_at[id(outcome)] == "d_heavy" for outcome in outcomes if outcome.status == "moved"
        ]
        found |= features_of_ways(down)
        if role_at[id(outcomes[-1])] == "p_heavy" and stays_too_slow(case, down, outcomes[-1]):
            found.add("stays where it is too slow")
        ends = {move.start: move.end for move in cluster.moves if move.job == number}
        for before, after in pairwise(outcomes):
            if before.status == "moved":
                found |= features_of_move(before, after, ends)
    ends = {step.end for step in served.steps}
    if any(move.end in ends for move in cluster.moves):
        found.add("a move ends with a step")
    if any(move.num_tokens == 0 for move in cluster.moves):
        found.add("nothing has to move")
    for client in cluster.clients:
        times = [each.left_at for each in client.outcomes if each.status == "moved"]
        if len(times) > len(set(times)):
            found.add("two leave together")
    return found


def features_of_ways(down: list[bool]) -> set[str]:
    """How an answer moved. down: of each of its moves, whether it went to a p_heavy client."""
    ways = {
        "a degradation": any(down),
        "a backflow": not all(down),
        "twice back and forth": sum(down) > 1,
    }
    return {name for name, is_so in ways.items() if is_so}


def stays_too_slow(case: ClusterCase, down: list[bool], last: Outcome) -> bool:
    """Tell whether an answer that has flowed back as often as it may takes too long for a token.

    down: of each of its moves, whether it went to a p_heavy client. last: its visit there.
    """
    policy, times = case.flows, last.token_times
    if policy is None or not down or len(times) < 2 or down.count(False) != policy.max_backflows:
        return False
    return times[-1] - times[0] > policy.tpot * policy.approach_factor * (len(times) - 1)


def features_of_move(before: Outcome, after: Outcome, ends: dict[float, float]) -> set[str]:
    """What happened to an answer that moved on; ends: of the moves of its blocks, by start."""
    found = set()
    has_begun = not isnan(after.started_at)
    if has_begun and after.started_at > before.left_at:
        found.add("a move waits for memory")
    if after.status == "timed_out":
        if not has_begun:
            found.add("gone before it moves")
        elif after.left_at < ends.get(after.started_at, inf):
            found.add("gone while it moves")
        else:
            found.add("gone later")
    if after.status == "rejected":
        found.add("moved to a client that is too small")
    if after.preempted_at:
        found.add("preempted after a move")
    return found


def assert_exact(case: ClusterCase, predictor: Predictor) -> Served:
    """Compare all records with the reference, or how both get stuck; return the reference."""
    served = case.stepwise(predictor)
    if is_stuck(served):
        with pytest.raises(ScenarioError, match="room for two of the longest requests"):
            case.simulate(predictor)
        return served
    return assert_cluster_exact(case, predictor)


def is_stuck(served: Served) -> bool:
    """Tell whether clients wait for one another's memory, so that some never end."""
    return any(outcome.status == "unfinished" for outcome in served.outcomes)


WANTED = (
    "a degradation",
    "a backflow",
    "twice back and forth",
    "stays where it is too slow",
    "a move waits for memory",
    "gone before it moves",
    "gone while it moves",
    "gone later",
    "moved to a client that is too small",
    "preempted after a move",
    "a move ends with a step",
    "nothing has to move",
    "two leave together",
    "stuck",
)


@pytest.mark.exact
@examples(150)
@given(case=flowing(), predictor=PREDICTORS, data=st.data())
def test_answers_that_flow_are_exact(case, predictor, data):
    case = with_times_that_meet(data, case, predictor)
    for feature in features(case, assert_exact(case, predictor)):
        event(feature)


@pytest.mark.exact
@examples(300)
@given(case=crowds())
def test_crowds_whose_answers_flow_are_exact(case):
    assert_exact(case, EVEN)


def full_clients(whole_must_fit: bool = True) -> ClusterCase:
    """A P-heavy client that keeps a prompt, a D-heavy one that keeps an answer; neither fits."""
    p = EngineOptions(
        "chunked",
        num_blocks=20,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        whole_must_fit=whole_must_fit,
        role="p_heavy",
    )
    d = replace(p, num_blocks=16, max_num_batched_tokens=32, role="d_heavy")
    return ClusterCase(
        (p, d),
        (Job(0.0, 52, 9), Job(0.0, 30, 9), Job(0.0, 3, 1), Job(0.0, 40, 1)),
        link=(2.0**25, 0.0),
        flows=FlowingPolicy(tpot=1.0, watermark=0.3),
    )


@pytest.mark.exact
@pytest.mark.parametrize("whole_must_fit", [True, False])
def test_clients_that_wait_for_one_another_are_told_of(whole_must_fit):
    """Where first pieces are enough, the last prompt would be begun and given up for ever."""
    assert is_stuck(assert_exact(full_clients(whole_must_fit), EVEN))


@pytest.mark.exact
@pytest.mark.parametrize("shortage", [0, 1])
def test_memory_for_two_is_enough(shortage):
    """The prompt of 14 blocks has to fit beside the answer of 8, which waits for its room."""
    case = full_clients()
    p, d = case.clients
    clients = (p, replace(d, num_blocks=22 - shortage))
    served = assert_exact(replace(case, clients=clients, jobs=case.jobs[:2]), EVEN)
    assert is_stuck(served) == bool(shortage)


def flowing_engine(role: str, num_blocks: int, max_num_seqs: int, **more: Any) -> EngineOptions:
    """Return a small engine whose blocks have four tokens."""
    return EngineOptions("chunked", num_blocks, 4, max_num_seqs, role=role, **more)


@pytest.mark.exact
def test_blocks_that_come_back_as_a_step_ends_do_not_count_for_who_leaves_with_it():
    """The copy of one answer ends with the fourth step of another, which shares its prompt.

    Then only the other one's blocks are in use, more than the watermark, and held ones do not count
    any more. But the step is over.
    """
    case = ClusterCase(
        (
            flowing_engine("p_heavy", 16, 5, max_num_batched_tokens=32),
            flowing_engine("d_heavy", 16, 2, max_num_batched_tokens=8, caching=True),
        ),
        (Job(0.0, 12, 7, content=SHARED[2]), Job(0.0, 12, 3, content=SHARED[2])),
        link=(2.0**20, 0.0),
        flows=FlowingPolicy(tpot=1.0, watermark=0.25),
    )
    assert assert_exact(case, EVEN).outcomes[0].finished_at == 8 * STEP


@pytest.mark.exact
def test_what_was_sent_is_there_before_an_answer_that_leaves_looks_for_a_place():
    """Both clients are empty then: the blocks of another answer have just come from the first."""
    p = flowing_engine("p_heavy", 13, 2, max_num_batched_tokens=32)
    d = flowing_engine("d_heavy", 13, 2, max_num_batched_tokens=8, caching=True)
    case = ClusterCase(
        (p, p, d),
        (Job(0.0, 5, 15), Job(0.0, 1, 12, content=SHARED[2])),
        link=(2.0**20, 0.0),
        flows=FlowingPolicy(tpot=1.25 * STEP, approach_factor=1.0, watermark=0.5),
    )
    before, last = assert_exact(case, EVEN).cluster.moves[-2:]
    assert (before.source, before.end) == (0, last.start)
    assert last.client == 0


@pytest.mark.exact
def test_what_was_sent_is_there_before_a_user_sends_who_thought_meanwhile():
    """A prompt looks for the emptier client as a copy ends that began after its user did."""
    p = flowing_engine("p_heavy", 24, 2, max_num_batched_tokens=32)
    d = flowing_engine("d_heavy", 24, 2, max_num_batched_tokens=16)
    lengths = (1, 1), (1, 2), (1, 6), (1, 3), (13, 5), (5, 11), (1, 2), (5, 2), (1, 2)
    case = ClusterCase(
        (p, d, d),
        tuple(Job(0.0, *tokens) for tokens in lengths),
        "random",
        loop=ClosedLoop(concurrency=2, think_time=STEP),
        link=(2.0**21, 0.0),
        transfer="push",
        flows=FlowingPolicy(tpot=1.0, watermark=0.1, counts_seats=True),
    )
    assert_exact(case, EVEN)


@pytest.mark.exact
def test_memory_of_who_gave_up_while_blocks_came_is_free_when_the_step_has_ended():
    """The last request looks for the emptier client in the middle of that step."""
    p = flowing_engine("p_heavy", 13, 5, max_num_batched_tokens=32)
    d = flowing_engine("d_heavy", 24, 5, max_num_batched_tokens=32)
    case = ClusterCase(
        (p, p, d, d),
        tuple(
            Job(0.0, prompt, 2, timeout=4 * STEP if prompt == 29 else inf)
            for prompt in (29, 21, 5, 1, 1)
        ),
        "least_outstanding",
        loop=ClosedLoop(concurrency=3, ramp_up=4 * STEP),
        link=(2.0**21, 0.0),
        transfer="push",
        flows=FlowingPolicy(tpot=1.0, approach_factor=1.0, watermark=0.5),
    )
    clients = {move.job: move.client for move in assert_exact(case, EVEN).cluster.moves}
    assert clients[4] == 3


@pytest.mark.exact
def test_who_comes_after_a_step_of_that_time_was_planned_joins_the_one_after_it():
    """The last prompt waits for room at the D-heavy client, which plans after the other one."""
    p = flowing_engine(
        "p_heavy", 12, 2, max_num_batched_tokens=32, caching=True, async_scheduling=True
    )
    d = flowing_engine("d_heavy", 12, 2, max_num_batched_tokens=8, caching=True)
    case = ClusterCase(
        (p, d),
        tuple(Job(0.0, 3, num_tokens) for num_tokens in (1, 5, 2, 1, 1)),
        "round_robin",
        loop=ClosedLoop(concurrency=3),
        link=(2.0**25, 0.0),
        first_token="decode",
        transfer="push",
        flows=FlowingPolicy(tpot=STEP, approach_factor=1.0, watermark=0.1, max_backflows=0),
    )
    assert_exact(case, EVEN)


@pytest.mark.exact
def test_blocks_that_come_back_to_a_client_that_plans_nothing_are_free_at_once():
    """Two copies end as an answer looks for the emptier of their sources, which are idle."""
    p = flowing_engine(
        "p_heavy", 12, 2, max_num_batched_tokens=32, caching=True, async_scheduling=True
    )
    d = flowing_engine("d_heavy", 12, 2, max_num_batched_tokens=8, caching=True)
    times = (0.0, 7, 1), (0.0, 3, 1), (0.0, 30, 2), (STEP / 2, 3, 1), (STEP / 2, 3, 1)
    case = ClusterCase(
        (p, p, d),
        tuple(Job(*each, content=((0, 40),)) for each in times),
        "round_robin",
        link=(2.0**21, 2 * STEP),
        first_token="decode",
        flows=FlowingPolicy(tpot=STEP, approach_factor=1.0, watermark=0.95),
    )
    assert assert_exact(case, EVEN).cluster.moves[-1].client == 0


@pytest.mark.exact
def test_a_prompt_that_begins_when_its_time_was_up_before_ends_when_it_was_up():
    """The D-heavy client, which plans ahead, makes room for it before it knows."""
    p = flowing_engine("p_heavy", 16, 2, max_num_batched_tokens=32)
    d = flowing_engine("d_heavy", 10, 5, max_num_batched_tokens=32, async_scheduling=True)
    case = ClusterCase(
        (p, d),
        (Job(0.0, 20, 2), Job(0.0, 1, 17), Job(STEP, 21, 1, timeout=6.5 * STEP)),
        "round_robin",
        link=(2.0**21, 0.0),
        first_token="decode",
        transfer="push",
        flows=FlowingPolicy(tpot=1.0),
    )
    cluster = assert_exact(case, EVEN).cluster
    prompt, answer = cluster.visits[2]
    assert answer.finished_at == 7.5 * STEP < prompt.finished_at < answer.left_at


@pytest.mark.exact
def test_a_request_that_gave_up_waits_as_routers_see_it_until_a_plan_knows():
    """Meanwhile it gets memory, and others choose between its engine and the other one."""
    p = flowing_engine("p_heavy", 12, 2, max_num_batched_tokens=32)
    d = flowing_engine(
        "d_heavy", 16, 5, max_num_batched_tokens=16, async_scheduling=True, data_parallel_size=2
    )
    jobs = [(0, 14, 8, inf), (0, 1, 1, inf), (2, 14, 10, 15), (6, 1, 4, inf)]
    jobs += [(6, 2, 2, inf), (7, 6, 3, inf), (7, 1, 11, inf)]
    case = ClusterCase(
        (p, d),
        tuple(Job(at * STEP, *tokens, timeout=wait * STEP) for at, *tokens, wait in jobs),
        "random",
        link=(2.0**25, 0.0),
        first_token="decode",
        flows=FlowingPolicy(tpot=STEP, approach_factor=1.0, watermark=0.25),
    )
    visits = assert_exact(case, EVEN).cluster.visits[2]
    assert any(each.finished_at < each.started_at for each in visits)


def one_that_flows(*, ahead: bool, tpot: float = 1.0) -> ClusterCase:
    """One answer, longer than the D-heavy client's watermark of 16 tokens."""
    more: dict[str, Any] = {"async_scheduling": ahead}
    return ClusterCase(
        (
            flowing_engine("p_heavy", 40, 2, max_num_batched_tokens=32, **more),
            flowing_engine("d_heavy", 40, 2, max_num_batched_tokens=8, **more),
        ),
        (Job(0.0, 8, 30),),
        "round_robin",
        link=(2.0**25, 0.0),
        flows=FlowingPolicy(tpot=tpot, approach_factor=1.0, watermark=0.1, max_backflows=1),
    )


@pytest.mark.exact
@pytest.mark.parametrize(("ahead", "found"), [(False, [1, 9, 1, 1, 18]), (True, [1, 10, 2, 2, 15])])
def test_who_leaves_is_part_of_a_step_that_is_planned_already(ahead, found):
    """Each visit but the first and the last has a token more where steps are planned ahead."""
    (outcomes,) = assert_exact(one_that_flows(ahead=ahead, tpot=STEP / 2), EVEN).cluster.visits
    assert [len(outcome.token_times) for outcome in outcomes] == found


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("halves", range(20, 30))
def test_who_stays_since_nobody_takes_him_leaves_when_somebody_is_back(ahead, halves):
    """The only taker drains as an answer is to leave, with any step before or after."""
    simulation = one_that_flows(ahead=ahead, tpot=STEP / 2).simulation(EVEN)
    drain = Drain(clients=(simulation.clients[1].name,), at=halves * STEP / 2, back=4 * STEP)
    simulation.lifecycle = Lifecycle(drains=(drain,))
    assert len(simulation.run().transfers) == 4


@pytest.mark.deep
def test_each_hard_feature_of_flows_is_reached():
    seen = features_seen(
        flowing() | crowds(), lambda case: features(case, case.stepwise(EVEN)), WANTED
    )
    assert not missing(seen, WANTED), seen


@examples(30)
@given(case=flowing() | crowds(), predictor=PREDICTORS)
def test_the_length_of_runs_changes_no_flow(case, predictor):
    assume(not is_stuck(case.stepwise(predictor)))
    assert_rows_do_not_show(lambda: case.simulate(predictor))


@examples(30)
@given(case=flowing() | crowds(), predictor=PREDICTORS, data=st.data())
def test_runs_repeat_where_prompts_go_by_length(case, predictor, data):
    """Runs of any length give the same records; who is late is drawn, or rejected."""
    options = {
        "ttft": data.draw(st.sampled_from([2 * STEP, 4 * STEP, 0.1]), label="ttft"),
        "if_none": data.draw(st.sampled_from(["random", "soonest", "reject"]), label="if none"),
        "estimate_error": data.draw(st.sampled_from([0.0, 0.3, 2.0]), label="error"),
    }

    def simulate() -> Result:
        simulation = case.simulation(predictor)
        simulation.router = LengthAwareRouter(**options)
        return simulation.run()

    try:
        simulate()
    except ScenarioError:
        reject()  # they get stuck
    assert_rows_do_not_show(simulate)


@st.composite
def lives(draw: st.DrawFn, names: Sequence[str]) -> tuple[Lifecycle, Reconfigure | None]:
    """Clients that fail and drain, and sliders that move, most often when steps end."""
    instants = st.integers(1, 60).map(lambda halves: halves * STEP / 2)
    some = st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True).map(tuple)
    failure = st.builds(
        Failures,
        clients=some,
        at=st.lists(instants, min_size=1, max_size=2, unique=True).map(sorted).map(tuple),
        repair=st.sampled_from([None, STEP / 2, STEP, 5 * STEP, 20 * STEP]),
    )
    drain = st.builds(
        Drain, clients=some, at=instants, back=st.sampled_from([None, 4 * STEP, 20 * STEP])
    )
    lifecycle = Lifecycle(
        failures=tuple(draw(st.lists(failure, max_size=2))),
        drains=tuple(draw(st.lists(drain, max_size=2))),
        on_failure=OnFailure(
            policy=draw(st.sampled_from(["retry", "resume"])),
            max_retries=draw(st.sampled_from([0, 3, 50])),
        ),
    )
    times = draw(st.lists(instants, max_size=2, unique=True).map(sorted))
    positions = st.tuples(st.integers(1, len(names) - 1), st.sampled_from([8, 16, 32]))
    changes = []
    for time in times:
        num_p, s_d = draw(positions)
        changes.append(Change(at=time, num_p=num_p, s_p=32, s_d=s_d))
    return lifecycle, Reconfigure(schedule=tuple(changes)) if changes else None


@examples(150)
@given(case=crowds() | flowing(), data=st.data())
def test_answers_that_flow_between_clients_that_come_and_go(case, data):
    """All that is sent ends, which every run checks itself, whatever steps are put together.

    Where nothing happens to anybody, the records are those without a lifecycle.
    """
    names = [client.name for client in case.simulation(EVEN).clients]
    lifecycle, sliders = data.draw(lives(names))

    def simulate(*, lives: bool = True) -> Result:
        simulation = case.simulation(EVEN)
        simulation.lifecycle = lifecycle if lives else None
        simulation.reconfigure = sliders
        return simulation.run()

    try:
        result = simulate()
    except ScenarioError:
        reject()  # they get stuck
    for row in result.requests.itertuples():
        times = result.token_times(row.request_id)
        assert (np.diff(times) > 0).all()
        assert len(times) == row.num_output_tokens
    if not (lifecycle.failures or lifecycle.drains):
        assert records(simulate(lives=False)) == records(result)
    if result.recorder.losses.columns()["retried"].any():
        event("lost and sent elsewhere")
    assert_rows_do_not_show(simulate)


# --- laws -------------------------------------------------------------------------------------


@examples(60)
@given(case=flowing() | crowds(), predictor=PREDICTORS)
def test_nothing_is_held_and_no_token_is_lost_on_the_way(case, predictor):
    assume(not is_stuck(case.stepwise(predictor)))
    simulation = case.simulation(predictor)
    result = simulation.run()
    assert_nobody_is_inside(*(lane.core for client in simulation.clients for lane in client.lanes))
    assert_answers_go_on_where_they_left(case, result)


def assert_answers_go_on_where_they_left(case: ClusterCase, result: Result) -> None:
    """Tokens come one after the other; none while an answer moves; roles take turns."""
    roles = dict(zip(result.client_names, (each.role for each in case.clients), strict=True))
    moves = result.transfers[result.transfers["kind"] == "hand_over"]
    for row in result.requests.itertuples():
        times = result.token_times(row.request_id)
        assert (np.diff(times) > 0).all()
        assert len(times) == row.num_output_tokens
        mine = moves[moves["request_id"] == row.request_id]
        for move, then in pairwise(mine.itertuples()):
            assert move.client == then.source
            assert move.end < then.start
        for move in mine.itertuples():
            assert roles[move.source] != roles[move.client]
            assert not ((times > move.start) & (times <= move.end)).any()
