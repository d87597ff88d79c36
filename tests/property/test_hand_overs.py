"""Prefill and decode on clients of their own are exact, too.

Memory is scarce on both sides. Times meet: moves take as long as some steps, jobs come at once, and
users give up while their blocks move.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.metrics import Result
from mist_sim.models.speculative import SpeculativeConfig
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
from tests.property.strategies import arrival_times, cases
from tests.reference.cluster import PLAIN_ROUTERS, StepwiseCluster
from tests.reference.cluster_case import ClusterCase, Served, assert_cluster_exact
from tests.reference.comparison import POLICIES, EngineOptions
from tests.reference.engines import assert_nobody_is_inside
from tests.reference.memory import SwapSpace
from tests.reference.predictors import EVEN
from tests.reference.run_lengths import assert_rows_do_not_show
from tests.reference.stepwise import Job, Windows

JOINED = sorted(set(POLICIES) - {"static"})
ROLES = [["prefill", "decode"]] * 3 + [
    ["prefill", "decode", "decode"],
    ["prefill", "prefill", "decode"],
    ["prefill", None],
    ["prefill", None, "decode"],
    ["prefill", "prefill", None, "decode", "decode"],
]


@st.composite
def apart(draw: st.DrawFn) -> ClusterCase:
    """One to five clients, some of them equal, and jobs that most often fit everywhere."""
    some: dict[str | None, list[EngineOptions]] = {}

    def client(role: str | None) -> EngineOptions:
        if (known := some.get(role)) and draw(st.booleans()):
            return known[0]
        policy = None if role == "prefill" else draw(st.sampled_from(JOINED))
        options = draw(cases(max_jobs=4, longest=60, policy=policy)).options
        some.setdefault(role, []).append(replace(options, role=role))
        return some[role][-1]

    roles = draw(st.sampled_from(ROLES).flatmap(st.permutations))
    clients = tuple(client(role) for role in roles)
    times = draw(st.integers(2, 12).flatmap(arrival_times))
    jobs = draw(jobs_for(times, few=draw(st.booleans())))
    router = draw(st.sampled_from(PLAIN_ROUTERS))
    case = ClusterCase(clients, tuple(jobs), router, link=draw(LINKS))
    return draw(with_options(case))


def with_options(case: ClusterCase) -> st.SearchStrategy[ClusterCase]:
    """Return a case with some way to hand over; answers do not begin with drafts."""
    drafts = any(options.drafting and options.role != "prefill" for options in case.clients)
    first_tokens = ["prefill"] if drafts else ["prefill", "decode"]
    return st.builds(
        replace,
        st.just(case),
        first_token=st.sampled_from(first_tokens),
        transfer=st.sampled_from(["pull", "push"]),
        costs=st.sampled_from(COSTS),
    )


def in_a_loop(case: st.SearchStrategy[ClusterCase]) -> st.SearchStrategy[ClusterCase]:
    return st.builds(lambda case, loop: replace(case, loop=loop), case, USERS)


@st.composite
def crowds_apart(draw: st.DrawFn) -> ClusterCase:
    """Small clients whose steps all end together, as do moves, arrivals and time-outs."""

    def client(role: str, policies: list[str]) -> EngineOptions:
        more: dict[str, Any] = draw(
            st.sampled_from(
                [
                    {},
                    {},
                    {"async_scheduling": True},
                    {"data_parallel_size": 2},
                    {"data_parallel_size": 2, "lockstep": True},
                    {"pipeline_parallel_size": 2},
                ]
            )
        )
        num_lanes = more.get("pipeline_parallel_size", 1)
        swap = st.sampled_from([None, SwapSpace(9, 0.0), SwapSpace(16, STEP / 4)])
        return EngineOptions(
            draw(st.sampled_from(policies)),
            num_blocks=num_lanes * draw(st.sampled_from([12, 12, 13, 16, 40])),
            block_size=4,
            max_num_seqs=num_lanes * draw(st.integers(1, 4)),
            max_num_batched_tokens=32,
            swap=draw(st.none() | swap) if role == "decode" else None,
            caching=draw(st.sampled_from([True, True, False])),
            role=role,
            **more,
        )

    contents = draw(st.sampled_from([SHARED, SHARED[1:]]))
    job = jobs_at_once([3, 4, 7, 8, 30, 30], 18, [0, 0, 3, 4, 5, 6, 9], contents)
    prefill = client("prefill", sorted(POLICIES))
    decode = client("decode", JOINED)
    case = ClusterCase(
        (prefill,) * draw(st.sampled_from([1, 1, 2]))
        + (decode,) * draw(st.sampled_from([1, 1, 2])),
        tuple(draw(st.lists(job, min_size=3, max_size=16))),
        draw(st.sampled_from(PLAIN_ROUTERS)),
        link=draw(LINKS_IN_STEPS),
    )
    return draw(with_options(draw(of_users_or_in_half_steps(case))))


def features(case: ClusterCase, served: Served) -> set[str]:
    """What a case exercised."""
    cluster, found = served.cluster, set()
    decodes = [outcomes[1] for outcomes in cluster.visits if len(outcomes) > 1]
    if any(outcome.preempted_at for outcome in decodes):
        found.add("a decode is preempted")
    if any(outcome.swapped_tokens for outcome in decodes):
        found.add("a decode is swapped")
    moves = {move.job: move for move in cluster.moves}
    for number, outcomes in enumerate(cluster.visits):
        if number not in moves:
            if len(outcomes) > 1 and outcomes[1].status != "finished":
                found.add(f"{outcomes[1].status} before the move")
            continue
        move = moves[number]
        if outcomes[1].status == "timed_out":
            found.add("gone while blocks move" if outcomes[1].left_at < move.end else "gone later")
        if move.num_tokens < case.jobs[number].num_prompt_tokens:
            found.add("a part is not moved")
        if move.start > outcomes[0].left_at:
            found.add("a move waits")
    ends = {step.end for step in served.steps}
    if any(move.end in ends for move in cluster.moves):
        found.add("a move ends with a step")
    found |= pushed_features(cluster)
    if case.first_token == "decode":
        found |= {f"{name}, first token from decode" for name in found}
    if case.transfer == "push":
        found |= {f"{name}, pushed" for name in found}
    return found


def pushed_features(cluster: StepwiseCluster) -> set[str]:
    """What happened to those that waited elsewhere for their prompts."""
    found = set()
    for number, awaited in cluster.awaited.items():
        outcome = awaited.live.outcome
        if not awaited.has_begun:
            found.add(f"{outcome.status} before its prompt")
        elif outcome.started_at > cluster.jobs[number].arrival_time:
            found.add("a prompt waits for memory elsewhere")
        if awaited.prompt.left_at > outcome.left_at:
            found.add("gone while its prompt goes on")
        if awaited.prompt.status == "rejected":
            found.add("nobody sends what is awaited")
    return found


FROM_PREFILL = (
    "a decode is preempted",
    "a decode is swapped",
    "timed_out before the move",
    "rejected before the move",
    "gone while blocks move",
    "gone later",
    "a part is not moved",
    "a move waits",
    "a move ends with a step",
)
PUSHED = (
    "a prompt waits for memory elsewhere",
    "rejected before its prompt",
    "timed_out before its prompt",
    "gone while its prompt goes on",
    "nobody sends what is awaited",
)
WANTED = (
    *FROM_PREFILL,
    *(f"{name}, first token from decode" for name in FROM_PREFILL),
    *(f"{name}, pushed" for name in FROM_PREFILL if name != "a move waits"),
    *PUSHED,
)


@pytest.mark.exact
@examples(150)
@given(case=apart() | in_a_loop(apart()), predictor=PREDICTORS, data=st.data())
def test_prefill_and_decode_apart_are_exact(case, predictor, data):
    case = with_times_that_meet(data, case, predictor)
    for feature in features(case, assert_cluster_exact(case, predictor)):
        event(feature)


@pytest.mark.exact
@examples(300)
@given(case=crowds_apart())
def test_crowds_apart_are_exact(case):
    assert_cluster_exact(case, EVEN)


@pytest.mark.exact
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("transfer", "first_token"), [("pull", "decode"), ("push", "decode"), ("push", "prefill")]
)
def test_the_limit_of_a_first_token_ends_with_it_to_the_bit(transfer, first_token, num_steps):
    """The prompt takes a step, the move two, and the first step of a long run another one."""
    options = EngineOptions(
        "chunked", num_blocks=40, block_size=4, max_num_seqs=2, max_num_batched_tokens=32
    )
    case = ClusterCase(
        tuple(replace(options, role=role) for role in ("prefill", "decode")),
        (Job(0.0, 8, 30, ttft_timeout=num_steps * STEP),),
        link=(4 * 1024 / STEP, 0.0),
        first_token=first_token,
        transfer=transfer,
    )
    assert_cluster_exact(case, EVEN)


@pytest.mark.exact
def test_a_prompt_sent_after_its_client_has_planned_waits_for_the_next_step():
    """Memory for the third prompt is taken when the fourth step of both clients ends.

    The first client has planned by then, though within steps computed ahead; so the prompt begins
    a step later.
    """
    options = EngineOptions(
        "chunked",
        num_blocks=40,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        threshold=8,
        max_partial=2,
    )
    jobs = (Job(0.0, 8, 30), Job(STEP, 60, 2), Job(3.5 * STEP, 8, 2))
    case = ClusterCase(
        tuple(replace(options, role=role) for role in ("prefill", "decode")),
        jobs,
        link=(2.0**80, 0.0),
        transfer="push",
    )
    served = assert_cluster_exact(case, EVEN)
    assert served.cluster.visits[2][0].started_at == 5 * STEP


@pytest.mark.exact
@pytest.mark.parametrize("num_full_groups", [0, 1, 2])
def test_an_answer_goes_on_in_the_pages_that_its_windows_have(num_full_groups):
    """Its drafts begin a new block, whose pages a window group takes from the block it has left."""
    options = EngineOptions(
        "chunked",
        num_blocks=6 + 3 * num_full_groups,
        block_size=25,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        windows=Windows(9, num_full_groups, 2),
    )
    drafting = SpeculativeConfig(method="ngram", num_speculative_tokens=1, acceptance_rate=0.5)
    case = ClusterCase(
        (replace(options, role="prefill"), replace(options, role="decode", drafting=drafting)),
        (Job(0.0, 49, 9),),
        link=(2.0**80, 0.0),
    )
    assert assert_cluster_exact(case, EVEN).outcomes[0].status == "finished"


@pytest.mark.exact
def test_an_answer_that_comes_leaves_pages_for_the_first_step_of_another():
    """Two answers of 147 pages have 42 more in their first steps, and there are 188."""
    drafting = SpeculativeConfig(method="mtp", num_speculative_tokens=3, acceptance_rate=0.9)
    prompts = EngineOptions("continuous", 7, 27, 9, None, role="prefill")
    answers = EngineOptions(
        "continuous", 188, 1, 11, 79, windows=Windows(44, 2, 1), drafting=drafting, role="decode"
    )
    case = ClusterCase(
        (answers, prompts, prompts), (Job(0.0, 33, 26), Job(0.0, 16, 40)), link=(3e6, 0.0)
    )
    moves = assert_cluster_exact(case, EVEN).cluster.moves
    assert moves[1].start > moves[0].end


@st.composite
def alike_and_ahead(draw: st.DrawFn) -> ClusterCase:
    """Answers that begin alike, in small blocks, on a client that plans ahead.

    Their prompts come slowly, so that it makes many plans on the spot, and others find in the step
    after what these have cached.
    """
    size = draw(st.sampled_from([1, 2, 4]))
    prefill = EngineOptions(
        "chunked",
        num_blocks=draw(st.sampled_from([12, 16, 40])),
        block_size=size,
        max_num_seqs=draw(st.integers(1, 4)),
        max_num_batched_tokens=32,
        caching=True,
        role="prefill",
    )
    decode = replace(
        prefill,
        num_blocks=draw(st.sampled_from([12, 16, 40])),
        max_num_seqs=draw(st.integers(1, 4)),
        role="decode",
        async_scheduling=True,
    )
    most = min(prefill.num_blocks, decode.num_blocks) * size - 2
    prompts = st.sampled_from([1, 2, 5, 7, 12]).map(lambda tokens: min(tokens, most // 2))
    answers = st.sampled_from([1, 2, 5, 9]).map(lambda tokens: min(tokens, most // 2))
    content = st.sampled_from([((0, 40),)] * 4 + [()])
    halves = sorted(draw(st.lists(st.integers(0, 12), min_size=3, max_size=10)))
    jobs = tuple(
        Job(half * STEP / 2, draw(prompts), draw(answers), content=draw(content)) for half in halves
    )
    return ClusterCase(
        (prefill, decode),
        jobs,
        link=(draw(st.sampled_from([2.0**80, 1024 / STEP, 4096 / STEP])), 0.0),
        first_token=draw(st.sampled_from(["prefill", "decode"])),
        transfer=draw(st.sampled_from(["push", "pull"])),
    )


@pytest.mark.exact
@given(case=alike_and_ahead())
def test_answers_alike_on_a_client_that_plans_ahead_are_exact(case):
    assert_cluster_exact(case, EVEN)


@pytest.mark.exact
def test_others_find_what_a_plan_made_on_the_spot_has_cached():
    """All prompts but the last begin alike; their answers meet on the second client."""
    prefill = EngineOptions(
        "chunked",
        num_blocks=12,
        block_size=2,
        max_num_seqs=2,
        max_num_batched_tokens=32,
        caching=True,
        role="prefill",
    )
    decode = replace(prefill, num_blocks=16, max_num_seqs=4, role="decode", async_scheduling=True)
    lengths = [(7, 2), (5, 2), (11, 1), (12, 2), (12, 2), (1, 9), (5, 4)]
    alike = tuple(Job(0.0, *tokens, content=((0, 40),)) for tokens in lengths)
    case = ClusterCase(
        (prefill, decode),
        (*alike, Job(0.0, 12, 1)),
        link=(1024 / STEP, 0.0),
        first_token="decode",
        transfer="push",
    )
    assert_cluster_exact(case, EVEN)


@pytest.mark.exact
@pytest.mark.parametrize("content", SHARED[:2])
def test_a_plan_made_ahead_finds_what_one_made_on_the_spot_has_cached(content):
    """Another client's entries wake the engine, whose first step fills a block of a known prompt.

    The plan of the next step, which is ahead, has no room for that answer. When it comes back, it
    finds both of its blocks.
    """
    options = EngineOptions("continuous", 12, 4, 4, 32, data_parallel_size=2, role="prefill")
    case = ClusterCase(
        (
            options,
            EngineOptions(
                "chunked", 13, 4, 4, 32, caching=True, async_scheduling=True, role="decode"
            ),
        ),
        (
            Job(0.0, 30, 1),
            Job(0.0, 8, 2, content=content),
            Job(0.0, 3, 1, timeout=3 * STEP),
            Job(0.0, 6, 1),
        ),
        loop=ClosedLoop(concurrency=3),
        link=(2.0**25, 2 * STEP),
        first_token="decode",
        transfer="push",
    )
    preempted = assert_cluster_exact(case, EVEN).cluster.visits[1][1]
    assert preempted.preempted_at


@pytest.mark.exact
@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_a_run_ends_before_the_step_that_is_planned_behind_its_last_answer(transfer):
    """With drafts the plan does not know that both tokens of the step before are the last ones."""
    options = EngineOptions("chunked", 12, 4, 4, 32, role="prefill")
    drafts = SpeculativeConfig(method="mtp", num_speculative_tokens=1, acceptance_rate=1.0)
    decode = replace(options, role="decode", drafting=drafts, async_scheduling=True)
    case = ClusterCase((options, decode), (Job(0.0, 8, 5),), link=(2.0**80, 0.0), transfer=transfer)
    served = assert_cluster_exact(case, EVEN)
    assert [step.end for step in served.steps] == [STEP, 2 * STEP, 3 * STEP]


def late_prompts(
    num_ranks: tuple[int, int], jobs: tuple[tuple[float, int, int], ...]
) -> ClusterCase:
    """A pipeline of so many ranks for prompts, one for answers.

    jobs: the time of each in steps, its prompt, its answer.
    """
    roles = zip(("prefill", "decode"), num_ranks, strict=True)
    return ClusterCase(
        tuple(
            EngineOptions(
                "chunked",
                num_blocks=40 * ranks,
                block_size=4,
                max_num_seqs=4 * ranks,
                max_num_batched_tokens=32,
                threshold=8,
                max_partial=2,
                pipeline_parallel_size=ranks,
                role=role,
            )
            for role, ranks in roles
        ),
        tuple(Job(time * STEP, prompt, output) for time, prompt, output in jobs),
        link=(2.0**80, 0.0),
        transfer="push",
    )


@pytest.mark.exact
@pytest.mark.parametrize(
    ("num_ranks", "jobs"),
    [
        # a pipeline tells the others that it has planned
        ((1, 2), ((0, 60, 2), (1, 60, 2))),
        # it does not take back a pass that began at its turn, to let a prompt join
        ((2, 1), ((0, 60, 2), (1.5, 8, 2), (2.5, 8, 2))),
        ((2, 2), ((0, 60, 2), (1.5, 8, 2), (2.5, 8, 2))),
        # nor to let a lane go first that has only now something to do
        ((2, 1), ((0, 8, 2), (0.5, 60, 30), (3, 8, 2), (6, 8, 2))),
    ],
)
def test_a_prompt_sent_after_a_pipeline_has_planned_waits_for_its_next_pass(num_ranks, jobs):
    assert_cluster_exact(late_prompts(num_ranks, jobs), EVEN)


@st.composite
def sent_late(draw: st.DrawFn) -> ClusterCase:
    """Pushed prompts of which several have pieces in a step, so that more may join; ties abound."""
    parallel = [
        {},
        {"pipeline_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"pipeline_parallel_size": 3},
        {"pipeline_parallel_size": 2, "data_parallel_size": 2},
        {"pipeline_parallel_size": 2, "data_parallel_size": 2, "lockstep": True},
    ]

    def client(role: str, max_num_seqs: int, **more: Any) -> EngineOptions:
        more |= draw(st.sampled_from(parallel if role == "prefill" else parallel[:3]))
        num_lanes = more.get("pipeline_parallel_size", 1)
        return EngineOptions(
            "chunked",
            num_blocks=num_lanes * 40,
            block_size=4,
            max_num_seqs=num_lanes * max_num_seqs,
            max_num_batched_tokens=32,
            caching=caching,
            role=role,
            **more,
        )

    caching = draw(st.booleans())
    prefill = client("prefill", 4, threshold=draw(st.sampled_from([4, 8])), max_partial=3)
    decode = client("decode", draw(st.sampled_from([1, 2, 4])))
    clients = [prefill, decode, *draw(st.sampled_from([[], [], [prefill]]))]
    gaps = st.sampled_from([0, 0, 0.5, 0.5, 1, 1.5, 2, 3])
    lengths = st.sampled_from([8, 20, 60]), st.sampled_from([2, 2, 5, 30])
    job = st.tuples(gaps, *lengths, st.sampled_from(SHARED))
    jobs, now = [], 0.0
    for gap, prompt, output, content in draw(st.lists(job, min_size=3, max_size=12)):
        now += gap * STEP
        jobs.append(Job(now, prompt, output, content=content))
    return ClusterCase(
        tuple(draw(st.permutations(clients))),
        tuple(jobs),
        draw(st.sampled_from(["round_robin", "least_outstanding"])),
        link=(2.0**80, draw(st.sampled_from([0.0, 0.0, STEP]))),
        first_token=draw(st.sampled_from(["prefill", "decode"])),
        transfer="push",
    )


@pytest.mark.exact
@examples(300)
@given(case=sent_late())
def test_prompts_sent_when_steps_begin_are_exact(case):
    assert_cluster_exact(case, EVEN)


@pytest.mark.deep
def test_each_hard_feature_is_reached():
    seen = features_seen(
        apart() | crowds_apart(), lambda case: features(case, case.stepwise(EVEN)), WANTED
    )
    assert not missing(seen, WANTED), seen


@examples(30)
@given(case=apart() | in_a_loop(apart()) | crowds_apart() | sent_late(), predictor=PREDICTORS)
def test_the_length_of_runs_changes_nothing(case, predictor):
    assert_rows_do_not_show(lambda: case.simulate(predictor))


# --- laws -------------------------------------------------------------------------------------


@examples(60)
@given(case=apart() | in_a_loop(apart()) | crowds_apart(), predictor=PREDICTORS)
def test_nothing_is_held_and_every_token_comes_after_the_one_before(case, predictor):
    simulation = case.simulation(predictor)
    result = simulation.run()
    assert_nobody_is_inside(*(lane.core for client in simulation.clients for lane in client.lanes))
    assert_causes_come_before_effects(case, result)


def assert_causes_come_before_effects(case: ClusterCase, result: Result) -> None:
    """The first token is of the client that `first_token` says; moves lie between the visits."""
    visits: Any = result.recorder.visits.columns()
    moves = result.transfers
    moves = moves[moves["kind"] == "hand_over"].set_index("request_id")
    assert moves.index.is_unique
    drafts = any(options.drafting for options in case.clients)
    for row in result.requests.itertuples():
        mine = np.flatnonzero(visits["request_id"] == row.request_id)
        first, last = mine[0], mine[-1]
        times = result.token_times(row.request_id)
        assert (np.diff(times) >= 0).all() if drafts else (np.diff(times) > 0).all()
        assert len(times) == row.num_output_tokens
        if not len(times):
            continue
        # a token of the step in which a sender gives up came too late
        in_time = times[0] if times[0] <= row.finished_at else np.nan
        assert np.array_equal([row.first_token_at], [in_time], equal_nan=True)
        is_late = case.first_token == "decode" and first != last
        if row.request_id not in moves.index:
            assert first == last or len(times) == 1
            first_tokens = visits["first_token_at"][mine]
            assert times[0] == np.nanmin(first_tokens)
            continue
        assert times[0] == visits["first_token_at"][last if is_late else first]
        handed_at = visits["finished_at"][first]
        assert is_late or handed_at == times[0]
        move = moves.loc[row.request_id]
        assert handed_at <= move.start
        if case.transfer == "pull":
            assert handed_at == visits["queued_at"][last]
            assert move.start == visits["started_at"][last]
        else:
            assert visits["started_at"][last] <= visits["queued_at"][first]
        assert (times[not is_late :] > move.end).all()
        assert move.source == result.client_names[visits["client_id"][first]]
