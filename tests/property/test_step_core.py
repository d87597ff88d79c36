"""The engine core gives what the stepwise reference gives, to the bit, however steps are taken."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import event, example, given, reject
from hypothesis import strategies as st

from mist_sim import Scenario, simulate
from mist_sim.clients.engine import stepped
from mist_sim.core.front_end import FrontEnd
from mist_sim.core.recorder import Recorder
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import Predictor
from mist_sim.metrics import Result
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.routers import ROUTERS, FlowingPolicy
from mist_sim.simulation import Simulation
from mist_sim.traces import ClosedLoop
from tests.effort import examples, features_seen, missing
from tests.property import test_failures, test_layouts
from tests.property.loop_cases import (
    NAMES,
    Watched,
    above_tiers,
    client,
    copying,
    crowd,
    engines,
    features,
    flows,
    general_walks,
    pipeline,
    plain_workload,
    roles,
    run_case,
    states_apart,
    virtual_engines,
)
from tests.property.strategies import (
    cases,
    fetched,
    queued_in_states,
    queued_in_windows,
    with_arrivals_on_boundaries,
    with_time_outs_on_boundaries,
)
from tests.property.test_progress import ends_alike
from tests.reference.cluster import Costs
from tests.reference.cluster_case import ClusterCase
from tests.reference.comparison import Case, EngineOptions, assert_exact
from tests.reference.memory import SwapSpace
from tests.reference.predictors import (
    AWKWARD,
    DYADIC,
    EVEN,
    HOSTED,
    LINES,
    SCALED_HOSTED,
    SCALED_LINES,
    SHARING,
    SLOWER,
)
from tests.reference.scenarios import PRESSED, scenario
from tests.reference.stepwise import Job

TABLES = ("requests", "visits", "tokens", "drafts", "moves", "states", "made_up", "losses")
BUSY = FrontEnd(
    request=2.0**-9, prompt_token=0.0, stream_token=2.0**-10, response=2.0**-9, output_token=0.0
)
"""A front end that answers keep busy, so that requests enter by what engines have given."""
PREDICTORS = [AWKWARD, DYADIC, LINES, SHARING, HOSTED, SLOWER, SCALED_LINES, SCALED_HOSTED]


def step_by_step(result: Result) -> dict[str, Any]:
    """All that a run has recorded, however its steps were put together into rows.

    Gaps in the order of time: other loops write those of a row when it ends.
    """
    recorder = result.recorder
    found: dict[str, Any] = {
        f"{name}.{column}": np.asarray(values).tobytes()
        for name in TABLES
        for column, values in getattr(recorder, name).columns().items()
    }
    gaps = recorder.gaps.columns()
    found["gaps"] = sorted(zip(*(gaps[name].tolist() for name in sorted(gaps)), strict=True))
    for track, table in enumerate(recorder.steps):
        rows = table.columns()
        number = rows["num_steps"].astype(int)
        ahead = np.concatenate([np.arange(each) for each in number] or [np.arange(0)])
        each = {name: np.repeat(rows[name], number) for name in rows}
        new, decodes = each["num_prefill_tokens"], each["num_decodes"]
        tokens = recorder.decode_tokens(track)
        before = np.cumsum(tokens) - tokens  # of all steps
        first = np.repeat(before[np.cumsum(number) - number], number)
        steps = {
            "chunks": each["num_chunks"],
            "new": new,
            "decodes": decodes,
            "tokens": tokens,
            "context": each["context_sum"] + before - first,
            "before": each["chunk_context_sum"] + ahead * new,
            "gaps": np.where(ahead == 0, each["num_gaps"], decodes),
        }
        found |= {f"{name} of {track}": values.tolist() for name, values in steps.items()}
        found[f"sums of {track}"] = [
            int(rows[name].sum()) for name in ("num_prefill_pairs", "num_extrapolated")
        ]
        ends = recorder.step_ends[track][:]
        found[f"ends of {track}"] = ends.tobytes()
        last = np.cumsum(number) - 1
        starts = ends[last] - rows["start"] - rows["busy"]
        found[f"busy of {track}"] = bool((abs(starts) < 1e-9).all())
    return found


def at_ends(result: Result) -> dict[tuple[int, int], int]:
    """Blocks in use at the end of each row, by track and step.

    Not the requests that wait then: other loops write a row behind the arrival that cuts it.
    """
    return {
        (track, int(last)): int(used)
        for track, table in enumerate(result.recorder.steps)
        for rows in [table.columns()]
        for last, used in zip(
            np.cumsum(rows["num_steps"].astype(int)), rows["num_used_blocks"], strict=True
        )
    }


def assert_same_steps(found: Result, expected: Result) -> None:
    mine, theirs = step_by_step(found), step_by_step(expected)
    assert [name for name in theirs if mine.get(name) != theirs[name]] == []
    mine_at, theirs_at = at_ends(found), at_ends(expected)
    both = mine_at.keys() & theirs_at.keys()
    assert {k: (mine_at[k], theirs_at[k]) for k in both if mine_at[k] != theirs_at[k]} == {}
    assert summary(found) == summary(expected)
    same = pytest.approx(expected.summary["std_itl_ms"], rel=1e-12, nan_ok=True)
    assert found.summary["std_itl_ms"] == same  # its sum has the order of the gaps


def summary(result: Result) -> dict[str, str]:
    """All figures but sums over rows, and the room, which counts a row by its last step."""
    figures = result.summary
    sums = ("room", "room_limit", "utilisation", "std_itl_ms")
    return {key: repr(figures[key]) for key in figures if key not in sums}


def without_fast_forward() -> Any:
    return patch.object(stepped, "FAST_FORWARD", False)


def one_by_one(run: Callable[[], Result]) -> Result:
    """Compare a run with one whose steps are all taken one by one; return it."""
    found = run()
    with without_fast_forward():
        assert_same_steps(run(), found)
    return found


def exact(case: Case, predictor: Predictor) -> Result:
    """Compare a case with the reference as well; return its result.

    The reference knows a host by other options (`Host`), and no factors of a part of a step.
    """
    if predictor in (AWKWARD, DYADIC):
        assert_exact(case, predictor)
    return one_by_one(lambda: run_case(case, predictor))


def disturbed(data: st.DataObject, case: Case, predictor: Predictor) -> Case:
    """Let arrivals meet ends of steps, and at times senders give up there."""
    case = with_arrivals_on_boundaries(data, case, predictor)
    return with_time_outs_on_boundaries(data, case, predictor) if data.draw(st.booleans()) else case


def show(found: Result) -> None:
    for feature in features(found):
        event(feature)


@pytest.mark.exact
@examples(300)
@given(case=engines(), predictor=st.sampled_from(PREDICTORS), data=st.data())
def test_the_core_equals_the_reference_step_by_step(case, predictor, data):
    """Also where arrivals meet ends of steps, and senders give up there."""
    case = disturbed(data, case, predictor)
    show(exact(case, predictor))


def test_decodes_that_miss_an_empty_plan_join_again():
    """With the blocks that they have filled meanwhile, which others may read with them."""
    options = EngineOptions(
        "chunked", 15, 32, 16, 79, order="priority", caching=True, loaded_first=False
    )
    lengths = ((65, 28, 194), (120, 64, 53), (101, 63, 33), (41, 65, 123), (84, 64, 0))
    jobs = [Job(0.0, new, more, content=((0, alike),)) for new, more, alike in lengths]
    case = Case(options, (*jobs[:-1], replace(jobs[-1], content=())))
    exact(case, SCALED_LINES)


@pytest.mark.exact
@examples(400)
@given(case=engines(drafts=None), predictor=st.sampled_from(PREDICTORS), data=st.data())
def test_the_core_drafts_as_the_reference(case, predictor, data):
    case = disturbed(data, case, predictor)
    show(exact(case, predictor))


@pytest.mark.exact
@examples(500)
@given(number=st.integers(0, 2**32))
def test_crowds_take_the_same_steps_in_the_core(number):
    case = crowd(number)
    show(exact(case, DYADIC))


@pytest.mark.exact
@examples(400)
@given(number=st.integers(0, 2**32), predictor=st.sampled_from([AWKWARD, DYADIC, LINES]))
def test_steps_go_on_while_the_core_copies_blocks(number, predictor):
    case = copying(number)
    show(exact(case, predictor))


@pytest.mark.exact
@examples(400)
@example(number=183114, predictor=DYADIC)  # one preempted in flight comes back in pieces
@given(number=st.integers(0, 2**32), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_the_core_loads_from_tiers_as_the_reference(number, predictor):
    case = above_tiers(number)
    if ends_alike(case, predictor) != "ends":
        reject()
    show(one_by_one(lambda: run_case(case, predictor)))


@pytest.mark.exact
@examples(200)
@given(case=virtual_engines(), predictor=st.sampled_from([AWKWARD, DYADIC, SLOWER]), data=st.data())
def test_virtual_engines_take_turns_as_in_the_reference(case, predictor, data):
    case = disturbed(data, case, predictor)
    if ends_alike(case, predictor) != "ends":
        reject()
    show(one_by_one(lambda: run_case(case, predictor)))


@pytest.mark.exact
@examples(400)
@given(number=st.integers(0, 2**32), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_a_queue_of_batches_equals_the_reference(number, predictor):
    case = pipeline(number)
    assert_exact(case, predictor)
    show(one_by_one(lambda: run_case(case, predictor)))


@pytest.mark.exact
@examples(200)
@given(
    case=queued_in_windows() | queued_in_states(),
    predictor=st.sampled_from([AWKWARD, DYADIC]),
    data=st.data(),
)
def test_a_queue_of_batches_with_windows_equals_reference(case, predictor, data):
    case = disturbed(data, case, predictor)
    assert_exact(case, predictor)


@pytest.mark.exact
@examples(150)
@given(case=states_apart(), predictor=st.sampled_from([AWKWARD, DYADIC]), data=st.data())
def test_states_are_kept_where_prompts_have_all_their_memory(case, predictor, data):
    case = disturbed(data, case, predictor)
    assert_exact(case, predictor)
    show(one_by_one(lambda: run_case(case, predictor)))


@pytest.mark.exact
@examples(300)
@given(
    case=engines(longest=60) | engines(longest=60, drafts=None),
    size=st.integers(2, 4),
    predictor=st.sampled_from(PREDICTORS),
    data=st.data(),
)
def test_the_core_takes_steps_of_lanes_in_lockstep(case, size, predictor, data):
    options = replace(case.options, lockstep=True, data_parallel_size=size)
    case = with_arrivals_on_boundaries(data, Case(options, case.jobs), predictor)
    if data.draw(st.booleans()):
        case = with_time_outs_on_boundaries(data, case, predictor)
    show(exact(case, predictor))


@pytest.mark.exact
@examples(300)
@given(case=roles(), predictor=st.sampled_from([AWKWARD, DYADIC, EVEN, LINES]))
def test_core_takes_steps_of_prefill_and_decode_apart(case, predictor):
    show(one_by_one(case.simulation(predictor).run))


@pytest.mark.exact
@examples(300)
@given(case=flows(), predictor=st.sampled_from([AWKWARD, DYADIC, EVEN, LINES]))
def test_the_core_takes_steps_of_answers_that_flow(case, predictor):
    try:
        found = one_by_one(case.simulation(predictor).run)
    except ScenarioError:  # answers wait for one another's memory
        reject()
    for feature in features(found):
        event(feature)


@pytest.mark.exact
@examples(200)
@given(predictor=st.sampled_from([AWKWARD, DYADIC]), data=st.data())
def test_the_core_equals_the_reference(predictor, data):
    plain, drafting = engines(longest=60), engines(longest=60, drafts=None)
    without_states = plain.filter(lambda case: case.options.state_cache == "none")
    case = data.draw(plain | drafting | fetched(without_states) | fetched(drafting))
    case = disturbed(data, case, predictor)
    assert_exact(case, predictor)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("of", "cases"),
    [(test_failures, test_failures.failing_cases), (test_layouts, test_layouts.changing)],
    ids=["failures", "changes of layout"],
)
@examples(150)
@given(data=st.data(), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_failures_and_changes_of_layout_equal_the_reference(of, cases, data, predictor):
    """Also where all that is inside comes from one loop to the other."""
    case = data.draw(cases(predictor, engines(longest=60)))
    found = of.assert_exact(case, predictor)
    for feature in of.features(found):
        event(feature)


def test_two_whom_no_plan_knows_change_their_layout():
    """They come during the last step of an engine that ranks who waits, and are alike."""
    options = EngineOptions("chunked", 100, 4, 2, 16, order="shortest_prompt_first")
    jobs = Job(0.0, 8, 30), Job(0.0, 9, 30), Job(0.0301, 5, 3), Job(0.0302, 5, 3)
    change = test_layouts.Change(0.0303, options, 0.1)
    test_layouts.assert_exact(test_layouts.ChangingCase(Case(options, jobs), (change,)), DYADIC)


@pytest.mark.exact
@examples(200)
@given(
    several=st.lists(
        engines(longest=60) | engines(longest=60, drafts=None), min_size=1, max_size=4
    ),
    predictor=st.sampled_from([AWKWARD, DYADIC, EVEN, LINES]),
    router=st.sampled_from(NAMES),
    data=st.data(),
)
def test_all_walks_to_the_core_give_same_steps(several, predictor, router, data):
    """On equal clients as well, whose steps end at the same instants."""
    if data.draw(st.booleans()):
        several = several[:1] * len(several)
    jobs = with_arrivals_on_boundaries(data, several[0], predictor)
    front_end = data.draw(st.sampled_from([None, BUSY]))

    def run(recorder: Recorder | None = None) -> Result:
        clients = [client(case, predictor, str(k)) for k, case in enumerate(several)]
        simulation = Simulation(
            clients=clients,
            workload=plain_workload(jobs),
            router=ROUTERS[router](),
            front_end=front_end,
        )
        return simulation.run(recorder=recorder)

    assert_same_walks(run)


def assert_same_walks(run: Callable[..., Result]) -> Result:
    """Compare all walks of a run, with steps taken at once and one by one; return the plain one."""
    found = one_by_one(run)
    with general_walks():
        assert_same_steps(one_by_one(run), found)
    assert_same_steps(run(recorder=Watched()), found)
    return found


@pytest.mark.exact
@pytest.mark.parametrize("front_end", [None, replace(BUSY, response=0.25)])
def test_a_lost_step_of_an_answer_that_has_ended_counts_if_it_ends_before_the_run(front_end):
    """Its plan does not know that the first answer has all; the other one ends during that step.

    With a front end the run lasts until both users have their answers.
    """
    drafting = SpeculativeConfig(method="ngram", num_speculative_tokens=1, acceptance_rate=1.0)
    options = EngineOptions("chunked", 100, 8, 8, 64, drafting=drafting, async_scheduling=True)
    jobs = Case(options, (Job(0.0, 8, 21), Job(2.0**-10, 8, 21)))

    def run(recorder: Recorder | None = None) -> Result:
        clients = [client(jobs, DYADIC, name) for name in ("one", "other")]
        simulation = Simulation(clients=clients, workload=plain_workload(jobs), front_end=front_end)
        return simulation.run(recorder=recorder)

    found = assert_same_walks(run)
    num_steps = [len(ends[:]) for ends in found.recorder.step_ends]
    assert num_steps == ([11, 11] if front_end is None else [12, 12])


def test_clients_of_one_entry_count_their_own_tokens():
    """Else a front end waits for what the servers of others stream."""
    one = client(Case(EngineOptions("chunked", 100, 8, 8, 64), ()), DYADIC)
    other = one.named("other")
    jobs = Case(EngineOptions("chunked", 100, 8, 8, 64), (Job(0.0, 4, 3), Job(0.0, 4, 5)))
    Simulation(clients=[one, other], workload=plain_workload(jobs)).run()
    assert [one.num_streamed(), other.num_streamed()] == [3, 5]


QUEUES = {"clients": ["llm"], "policy": {"type": "queue_length", "target": 2}}


@pytest.mark.parametrize(
    "said",
    [
        {"clients__0__count": 2, "lifecycle": {"autoscaling": [QUEUES]}},
        {
            "clients__0__count": 2,
            "lifecycle": {"failures": [{"clients": ["llm-0"], "at": ["1 s"]}]},
        },
        {"clients__0__data_parallel_size": 2, "router": "least_outstanding"},
        {"clients__0__count": 3, "router": "load"},
        {"clients__0__kv_cache": {"num_gpu_blocks_override": 90}},
    ],
    ids=["autoscaled", "failing", "replicas", "a router that looks", "short of memory"],
)
def test_scenarios_give_same_requests_one_step_after_other(said):
    """With energy, and with policies that look at engines between two events."""
    found = simulate(scenario(**said))
    with without_fast_forward():
        singly = simulate(scenario(**said))
    assert found.requests.to_csv() == singly.requests.to_csv()
    assert found.clients.to_csv() == singly.clients.to_csv()


@pytest.mark.exact
@examples(200)
@given(case=cases(longest=60), predictor=st.sampled_from([LINES, HOSTED, SCALED_LINES]))
def test_lines_give_the_bits_of_the_predictor(case, predictor):
    """In whatever loop an engine takes by itself, some steps of decodes alone are timed by them."""
    exact(case, predictor)


@pytest.mark.exact
@pytest.mark.parametrize("ahead", [True, False])
def test_lines_let_the_first_step_wait_for_copies(ahead):
    """Answers of 60 tokens and more in 20 blocks of 8 tokens: some are swapped out."""
    swap = SwapSpace(40, 0.25)
    options = EngineOptions("continuous", 20, 8, 8, 128, async_scheduling=ahead, swap=swap)
    case = Case(options, tuple(Job(0.0, 8, 60 + 5 * number) for number in range(4)))
    found = exact(case, LINES)
    assert found.summary["num_preemptions"]


@pytest.mark.exact
def test_loops_leave_same_blocks_to_those_who_run():
    """The third prompt would fit, but for the blocks that are reserved."""
    jobs = (Job(0.0, 40, 30), Job(0.0, 36, 30), Job(0.0, 30, 10))
    case = Case(EngineOptions("chunked", 30, 4, 8, 128, watermark=0.3), jobs)
    found = exact(case, AWKWARD)
    assert found.requests["queued"].gt(0).tolist() == [False, False, True]


@pytest.mark.exact
def test_who_gave_way_finds_what_others_fill_in_the_same_step():
    """All have one conversation, and a block filled by that step lets one back in after it."""
    lengths = ((8, 27), (9, 37), (5, 21), (12, 18))
    jobs = [Job(0.0, *each, content=((0, 60),)) for each in lengths]
    jobs.append(Job(0.016835274803812507, 6, 12, content=((0, 60),)))
    options = EngineOptions(
        "chunked", 11, 4, 8, 8, caching=True, uncached_first=True, async_scheduling=True
    )
    case = Case(options, tuple(jobs))
    found = exact(case, DYADIC)
    assert found.summary["num_preemptions"]


@pytest.mark.exact
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("swap", [None, SwapSpace(3, 2.0**-9)])
def test_a_lone_answer_leaves_no_step_when_it_outgrows_memory(swap, ahead):
    options = EngineOptions(
        "chunked", 3, 4, 8, 64, caching=swap is None, swap=swap, async_scheduling=ahead
    )
    case = Case(options, (Job(0.0, 8, 10, content=((0, 8),)), Job(0.0, 2, 2)))
    found = exact(case, DYADIC)
    assert found.requests["status"].tolist() == ["rejected", "finished"]


@pytest.mark.exact
@pytest.mark.parametrize("ahead", [True, False])
def test_single_steps_of_decodes_last_as_long_as_those_of_runs(ahead):
    """Answers end one after the other, so that between two ends there is one step."""
    options = EngineOptions("chunked", 100, 8, 8, 128, async_scheduling=ahead)
    case = Case(options, tuple(Job(0.0, 8, length) for length in range(2, 7)))
    found = exact(case, LINES)
    assert (found.steps["num_steps"] == 1).sum() > 3


@pytest.mark.deep
def test_each_hard_feature_is_reached():
    wanted = (
        "preempted",
        "cached",
        "several prompts in a step",
        "prompts beside decodes",
        "several steps with a prompt",
        "status rejected",
        "status timed_out",
    )
    seen = features_seen(engines(), lambda case: features(run_case(case, DYADIC)), wanted)
    assert not missing(seen, wanted), seen


@pytest.mark.exact
def test_a_decode_lane_shares_blocks_from_the_plan_on_that_knows_of_the_first_prefix():
    """The last answer is preempted, and finds all but the token that its last plan lacked."""
    prompts = EngineOptions("chunked", 32, 1, 2, 64, caching=True, role="prefill")
    answers = EngineOptions("chunked", 84, 1, 7, 7, caching=True, async_scheduling=True)
    jobs = Job(0.0, 1, 1), Job(0.3046875, 29, 19), Job(0.3359375, 32, 8, content=((0, 40),))
    clients = prompts, prompts, replace(answers, role="decode")
    case = ClusterCase(clients, jobs, "round_robin", link=(2.0**24, 0.0))
    found = one_by_one(case.simulation(DYADIC).run)
    assert found.summary["num_preemptions"] == 1


@pytest.mark.exact
def test_answer_that_is_given_up_leaves_same_blocks():
    """Others find what a plan knew of one whose user gave up at a client that plans ahead."""
    p = EngineOptions("chunked", 40, 4, 5, 64, caching=True, async_scheduling=True, role="p_heavy")
    d = EngineOptions("chunked", 16, 4, 2, 64, caching=True, role="d_heavy")
    one, other = ((0, 40),), ((1, 8), (2, 30))
    jobs = (
        Job(0.0, 8, 12, content=one, timeout=0.0234375),
        Job(0.0, 30, 17, content=other, timeout=0.03515625),
        Job(0.0, 4, 6, content=other, timeout=0.0234375),
        Job(0.0, 30, 6, content=one),
        Job(0.0, 30, 2, content=other),
        Job(0.0, 14, 5, content=one, timeout=0.0859375),
        Job(0.0, 30, 20, content=other),
    )
    step = 2.0**-8
    case = ClusterCase(
        (p, p, d),
        jobs,
        "round_robin",
        ClosedLoop(concurrency=3),
        link=(2.0**25, step),
        costs=Costs(start=step, block=step / 8, block_afterwards=step / 4),
        flows=FlowingPolicy(tpot=1.0, watermark=0.5, max_backflows=None),
    )
    found = one_by_one(case.simulation(DYADIC).run)
    assert found.requests["num_cached_tokens"].any()


@pytest.mark.exact
def test_an_answer_preempted_as_it_joins_comes_back_when_all_its_blocks_are_free():
    """Its first piece would fit beside the other answer, as that of a new prompt may."""
    p = EngineOptions("chunked", 17, 4, 5, 32, role="p_heavy")
    d = EngineOptions("chunked", 20, 4, 5, 32, role="d_heavy", whole_must_fit=False)
    jobs = Job(0.0, 35, 3), Job(0.140625, 3, 40)
    flows = FlowingPolicy(tpot=2.0**-9)
    case = ClusterCase((p, d), jobs, "round_robin", link=(2.0**17, 0.0), flows=flows)
    found = one_by_one(case.simulation(DYADIC).run)
    assert found.requests["num_preemptions"].tolist() == [1, 0]


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("workload", [{}, PRESSED], ids=["at ease", "pressed"])
def test_scenarios_give_the_same_bits(workload, ahead):
    given_ = workload | {"clients__0__async_scheduling": ahead, "clients__0__count": 2}
    found = one_by_one(lambda: simulate(scenario(**given_)))
    assert found.requests["energy"].gt(0).all()


@pytest.mark.exact
@pytest.mark.parametrize("ahead", [True, False])
def test_prompts_that_begin_from_kept_entries_are_the_same_where_answers_flow(ahead):
    engine = {"gpu": "h100-sxm", "async_scheduling": ahead}
    engine["kv_cache"] = {"enable_prefix_caching": False, "num_gpu_blocks_override": 2600}
    tokens = {"p_heavy": 2048, "d_heavy": 512}
    level = {"name": "dram", "capacity": "40 GB", "read_bandwidth": "25 GB/s", "latency": "80 ns"}
    lengths = {"type": "prefix_repetition", "num_requests": 60, "num_prefixes": 4}
    lengths |= {"prefix_len": 6000, "suffix": {"type": "fixed", "tokens": 400}}
    said = {
        "model": "llama-3.1-8b",
        "network": {"topology": "hgx-h100", "nodes": 2},
        "workload": {
            "lengths": lengths | {"output": {"type": "lognormal", "mean": 200, "std": 100}},
            "arrivals": {"type": "poisson", "rate": "4 /s"},
            "pipeline": ["kv_retrieval", "prefill", "decode"],
        },
        "hand_over": {"first_token": "decode", "policy": {"type": "flowing", "tpot": "9 ms"}},
    }
    store = {"name": "kv", "type": "kv_retrieval", "hits": "stored", "levels": [level]}

    clients = [
        engine
        | {"name": role, "role": role}
        | {"scheduler": {"type": "chunked", "max_num_batched_tokens": tokens[role]}}
        for role in tokens
    ]
    one_by_one(lambda: simulate(Scenario.from_dict(said | {"clients": [*clients, store]})))
