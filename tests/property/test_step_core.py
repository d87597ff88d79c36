"""The engine core gives what the other loops give, step by step: all records, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st

from mist_sim import simulate
from mist_sim.clients import LlmClient
from mist_sim.clients.engine import stepped
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.kv_cache import EngineMemory
from mist_sim.core.front_end import FrontEnd
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import Predictor
from mist_sim.metrics import ColumnRecorder, Result
from mist_sim.routers import ROUTERS
from mist_sim.simulation import Simulation
from tests.effort import examples
from tests.property import test_failures, test_layouts
from tests.property.strategies import with_arrivals_on_boundaries, with_time_outs_on_boundaries
from tests.property.test_plain_loop import (
    NAMES,
    Watched,
    client,
    crowd,
    engines,
    features,
    flows,
    general_walks,
    in_loop,
    plain_workload,
    roles,
    run_case,
)
from tests.reference.comparison import Case, EngineOptions, assert_exact
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
from tests.reference.scenarios import scenario
from tests.reference.stepwise import Job

TABLES = ("requests", "visits", "tokens", "drafts", "moves", "states", "losses")
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
        steps = {
            "chunks": each["num_chunks"],
            "new": new,
            "decodes": decodes,
            "context": each["context_sum"] + ahead * decodes,
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


@pytest.mark.exact
@examples(300)
@given(case=engines(), predictor=st.sampled_from(PREDICTORS), data=st.data())
def test_the_core_takes_the_steps_of_both_loops(case, predictor, data):
    """Also where arrivals meet ends of steps, and senders give up there."""
    case = with_arrivals_on_boundaries(data, case, predictor)
    if data.draw(st.booleans()):
        case = with_time_outs_on_boundaries(data, case, predictor)
    expected = run_case(case, predictor, "general")
    assert_same_steps(run_case(case, predictor, "step"), expected)
    assert_same_steps(run_case(case, predictor, "plain"), expected)
    with without_fast_forward():
        assert_same_steps(run_case(case, predictor, "step"), expected)
    for feature in features(expected):
        event(feature)


@pytest.mark.exact
@examples(500)
@given(number=st.integers(0, 2**32))
def test_crowds_take_the_same_steps_in_the_core(number):
    case = crowd(number)
    expected = run_case(case, DYADIC, "general")
    assert_same_steps(run_case(case, DYADIC, "step"), expected)
    with without_fast_forward():
        assert_same_steps(run_case(case, DYADIC, "step"), expected)
    for feature in features(expected):
        event(feature)


@pytest.mark.exact
@examples(300)
@given(case=roles(), predictor=st.sampled_from([AWKWARD, DYADIC, EVEN, LINES]))
def test_the_core_takes_the_steps_of_prefill_and_decode_apart(case, predictor):
    expected = in_loop(case, predictor, "general")
    assert_same_steps(in_loop(case, predictor, "step"), expected)
    assert_same_steps(in_loop(case, predictor, "plain"), expected)
    with without_fast_forward():
        assert_same_steps(in_loop(case, predictor, "step"), expected)
    for feature in features(expected):
        event(feature)


@pytest.mark.exact
@examples(300)
@given(case=flows(), predictor=st.sampled_from([AWKWARD, DYADIC, EVEN, LINES]))
def test_the_core_takes_the_steps_of_answers_that_flow(case, predictor):
    try:
        expected = in_loop(case, predictor, "general")
    except ScenarioError:  # answers wait for one another's memory
        reject()
    assert_same_steps(in_loop(case, predictor, "step"), expected)
    with without_fast_forward():
        assert_same_steps(in_loop(case, predictor, "step"), expected)
    for feature in features(expected):
        event(feature)


@pytest.mark.exact
@examples(200)
@given(case=engines(longest=60), predictor=st.sampled_from([AWKWARD, DYADIC]), data=st.data())
def test_the_core_equals_the_reference(case, predictor, data):
    case = with_arrivals_on_boundaries(data, case, predictor)
    if data.draw(st.booleans()):
        case = with_time_outs_on_boundaries(data, case, predictor)
    with patch.object(EngineOptions, "client", in_core):
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
    """A client that changes its layout leaves the core with all that is inside."""
    case = data.draw(cases(predictor, engines(longest=60)))
    with patch.object(EngineOptions, "client", in_core):
        found = of.assert_exact(case, predictor)
    for feature in of.features(found):
        event(feature)


_made = EngineOptions.client


def in_core(options: EngineOptions, predictor: Predictor, name: str = "engine") -> LlmClient:
    """Return the client of these options, stepped by the core."""
    made = _made(options, predictor, name)
    made.config = replace(made.config, step_loop="step")
    return made


@pytest.mark.exact
@examples(200)
@given(
    several=st.lists(engines(longest=60), min_size=1, max_size=4),
    predictor=st.sampled_from([AWKWARD, DYADIC, EVEN, LINES]),
    router=st.sampled_from(NAMES),
    data=st.data(),
)
def test_walks_to_the_core_give_the_same_steps(several, predictor, router, data):
    """On equal clients as well, whose steps end at the same instants, and beside other loops."""
    if data.draw(st.booleans()):
        several = several[:1] * len(several)
    jobs = with_arrivals_on_boundaries(data, several[0], predictor)
    front_end = data.draw(st.sampled_from([None, BUSY]))
    mixed = data.draw(st.lists(st.sampled_from(["step", "plain"]), min_size=4, max_size=4))

    def run(*loops: str, recorder: ColumnRecorder | None = None) -> Result:
        clients = [client(case, predictor, loops[k], str(k)) for k, case in enumerate(several)]
        simulation = Simulation(
            clients=clients,
            workload=plain_workload(jobs),
            router=ROUTERS[router](),
            front_end=front_end,
        )
        return simulation.run(recorder=recorder)

    with general_walks():
        assert_same_steps(run(*4 * ["step"]), run(*4 * ["general"]))
    expected = run(*4 * ["general"])
    assert_same_steps(run(*4 * ["step"]), expected)
    assert_same_steps(run(*mixed), expected)
    assert_same_steps(run(*4 * ["step"], recorder=Watched()), expected)


def test_clients_of_one_entry_count_their_own_tokens():
    """Else a front end waits for what the servers of others stream."""
    one = client(Case(EngineOptions("chunked", 100, 8, 8, 64), ()), DYADIC, "plain")
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
def test_scenarios_give_the_same_requests_in_the_core(said):
    """With energy, and with policies that look at engines between two events."""
    found, expected = (
        simulate(scenario(**said, clients__0__step_loop=loop)) for loop in ("step", "general")
    )
    assert found.requests.to_csv() == expected.requests.to_csv()
    assert found.clients.to_csv() == expected.clients.to_csv()


def test_the_core_refuses_a_lane_of_ones_own():
    class OwnLane(Lane):
        """A lane that the core does not know."""

    class OwnClient(LlmClient):
        lane_type = OwnLane

    made = client(Case(EngineOptions("chunked", 100, 8, 8, 64), ()), DYADIC, "step")
    memory = EngineMemory(num_gpu_blocks=100)
    with pytest.raises(ScenarioError, match="lane_type OwnLane"):
        OwnClient("llm", made.config, predictor=made.predictor, memory=memory)
