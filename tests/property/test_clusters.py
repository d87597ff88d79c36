"""Several clients behind a router are exact too, and runs of any length give the same results.

Times meet: clients are often equal, jobs come at once or on the ends of steps, and users send the
next request when one ends.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.traces import ClosedLoop
from tests.effort import examples, features_seen, missing
from tests.property.cluster_strategies import (
    PREDICTORS,
    STEP,
    USERS,
    jobs_at_once,
    jobs_for,
    users_in_steps,
    with_time_outs_together,
)
from tests.property.strategies import arrival_times, cases, with_arrivals_on_boundaries
from tests.reference.cluster import PLAIN_ROUTERS
from tests.reference.cluster_case import ClusterCase, Served, assert_cluster_exact
from tests.reference.comparison import POLICIES, EngineOptions
from tests.reference.memory import SwapSpace
from tests.reference.predictors import EVEN
from tests.reference.run_lengths import assert_rows_do_not_show, records
from tests.reference.stepwise import Job


@st.composite
def clusters(draw: st.DrawFn) -> ClusterCase:
    """Two to four clients, most often with equal ones among them, whose jobs come one by one."""
    kinds = [
        draw(cases(max_jobs=4, longest=60)).options for _ in range(draw(st.sampled_from([1, 1, 2])))
    ]
    more = draw(st.lists(st.sampled_from(kinds), min_size=2 - len(kinds), max_size=2))
    clients = tuple(draw(st.permutations(kinds + more)))
    if len(clients) == 1:
        clients *= 2
    times = draw(st.integers(2, 12).flatmap(arrival_times))
    jobs = draw(jobs_for(times, few=draw(st.booleans())))
    return ClusterCase(clients, tuple(jobs), draw(st.sampled_from(PLAIN_ROUTERS)))


@st.composite
def closed_loops(draw: st.DrawFn) -> ClusterCase:
    """The same with users."""
    return replace(draw(clusters()), loop=draw(USERS))


@st.composite
def crowds(draw: st.DrawFn) -> ClusterCase:
    """Users of equal small clients whose steps all end together, as do their time-outs."""
    more: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {"async_scheduling": True},
                {"data_parallel_size": 2},
                {"data_parallel_size": 2, "async_scheduling": True},
                {"data_parallel_size": 2, "lockstep": True},
                {"pipeline_parallel_size": 2},
            ]
        )
    )
    num_lanes = more.get("pipeline_parallel_size", 1)
    swap = st.sampled_from([None, SwapSpace(9, 0.0), SwapSpace(16, STEP / 4)])
    options = EngineOptions(
        draw(st.sampled_from(sorted(POLICIES))),
        num_blocks=num_lanes * draw(st.sampled_from([12, 12, 16, 40])),
        block_size=4,
        max_num_seqs=num_lanes * draw(st.integers(1, 4)),
        max_num_batched_tokens=32,
        swap=draw(st.none() | swap),
        **more,
    )
    job = jobs_at_once([3, 30, 30], 18, time_outs=[0, 0, 3, 3, 4, 4, 9], contents=[()])
    jobs = draw(st.lists(job, min_size=3, max_size=16))
    return ClusterCase(
        (options,) * draw(st.sampled_from([1, 1, 2, 3])),
        tuple(jobs),
        draw(st.sampled_from(PLAIN_ROUTERS)),
        draw(users_in_steps(st.integers(2, 8) | st.just(3))),
    )


def features(case: ClusterCase, served: Served) -> set[str]:
    """What a case exercised."""
    found = set()
    if served.num_ties:
        found.add("steps of two clients end at the same time")
    if len({client for client, _ in served.cluster.sent}) > 1:
        found.add("several clients have jobs")
    ends = {step.end for step in served.steps}
    if any(job.arrival_time in ends for job in case.jobs):
        found.add("an arrival at the end of a step")
    statuses = {outcome.status for outcome in served.outcomes}
    return found | (statuses - {"finished"})


@pytest.mark.exact
@examples(100)
@given(case=clusters(), predictor=PREDICTORS, data=st.data())
def test_clients_that_share_jobs_are_exact(case, predictor, data):
    if data.draw(st.booleans(), label="on boundaries"):
        case = with_arrivals_on_boundaries(data, case, predictor)
    for feature in features(case, assert_cluster_exact(case, predictor)):
        event(feature)


@pytest.mark.exact
@examples(100)
@given(case=closed_loops(), predictor=PREDICTORS, data=st.data())
def test_users_of_several_clients_are_exact(case, predictor, data):
    if data.draw(st.booleans(), label="time-outs together"):
        case = with_time_outs_together(data, case, predictor)
    for feature in features(case, assert_cluster_exact(case, predictor)):
        event(feature)


@pytest.mark.deep
@pytest.mark.parametrize("strategy", [clusters(), closed_loops()], ids=["open", "closed"])
def test_each_hard_feature_of_clusters_is_reached(strategy):
    wanted = ("steps of two clients end at the same time", "timed_out", "rejected")
    seen = features_seen(strategy, lambda case: features(case, case.stepwise(EVEN)), wanted)
    assert not missing(seen, wanted), seen
    assert seen["several clients have jobs"] > seen["cases"] / 3, seen


@pytest.mark.exact
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("policy", ["chunked", "mixed", "continuous"])
def test_the_next_one_joins_when_the_first_of_those_that_wait_gives_up(policy, ahead):
    """A long answer runs, a long prompt does not fit beside it, and a short one waits behind."""
    options = EngineOptions(policy, 12, 4, 3, 32, async_scheduling=ahead)
    jobs = (Job(0.0, 30, 18), Job(0.0, 30, 4, timeout=5 * STEP), Job(0.0, 3, 5))
    case = ClusterCase((options,), jobs, loop=ClosedLoop(concurrency=3))
    short = assert_cluster_exact(case, EVEN).outcomes[2]
    assert short.started_at <= 6 * STEP


@pytest.mark.exact
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("num_others", "num_steps"), [(2, 2), (3, 3), (4, 3)])
def test_a_step_behind_the_end_of_an_answer_counts_while_the_run_goes_on(
    num_others, num_steps, is_first
):
    """An answer ends with the second step; the third is planned for it and gives nothing.

    num_others: steps after which the answer of the other client ends, and with it the run.
    """
    plain = EngineOptions("chunked", 12, 4, 4, 32)
    drafts = SpeculativeConfig(method="mtp", num_speculative_tokens=1, acceptance_rate=1.0)
    ahead = replace(plain, drafting=drafts, async_scheduling=True)
    clients, jobs = [ahead, plain], [Job(0.0, 8, 3), Job(0.0, 8, num_others)]
    turn = 1 if is_first else -1
    case = ClusterCase(tuple(clients[::turn]), tuple(jobs[::turn]))
    steps = assert_cluster_exact(case, EVEN).cluster.clients[0 if is_first else 1].steps
    assert [step.end for step in steps] == [k * STEP for k in range(1, num_steps + 1)]


@pytest.mark.exact
@pytest.mark.parametrize(("think_time", "num_steps"), [(0.0, 2), (STEP / 2, 2), (STEP, 3)])
def test_a_step_behind_the_last_answer_counts_while_its_user_thinks(think_time, num_steps):
    drafts = SpeculativeConfig(method="mtp", num_speculative_tokens=1, acceptance_rate=1.0)
    options = EngineOptions("chunked", 12, 4, 4, 32, drafting=drafts, async_scheduling=True)
    loop = ClosedLoop(concurrency=1, think_time=think_time)
    case = ClusterCase((options,), (Job(0.0, 8, 3),), loop=loop)
    assert len(assert_cluster_exact(case, EVEN).steps) == num_steps


@pytest.mark.exact
@examples(300)
@given(case=crowds())
def test_crowds_are_exact(case):
    assert_cluster_exact(case, EVEN)


@examples(60)
@given(case=clusters() | closed_loops() | crowds(), predictor=PREDICTORS, data=st.data())
def test_length_of_runs_changes_nothing_with_several_clients(case, predictor, data):
    if case.loop and data.draw(st.booleans(), label="time-outs together"):
        case = with_time_outs_together(data, case, predictor)
    assert_rows_do_not_show(lambda: case.simulate(predictor))


@examples(30)
@given(case=clusters() | closed_loops(), predictor=PREDICTORS)
def test_runs_repeat_and_a_simulation_can_run_again(case, predictor):
    simulation = case.simulation(predictor)
    first = records(simulation.run())
    assert records(simulation.run()) == first
    assert records(case.simulate(predictor)) == first
