"""The plain loop and the plain walk give what the general ones give: all records, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import PropertyMock, patch

import numpy as np
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from mist_sim import Scenario, simulate
from mist_sim.clients import LlmClient
from mist_sim.clients.engine import run_length
from mist_sim.clients.engine.loop import Engine
from mist_sim.clients.engine.plain import PlainEngine
from mist_sim.clients.engine.plain_swapping import PlainSwappingEngine
from mist_sim.clients.engine.replicas import Engines
from mist_sim.clients.engine.stepped import SteppedEngines, SteppedLane
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import Predictor
from mist_sim.metrics import ColumnRecorder, Result
from mist_sim.rng import Streams
from mist_sim.routers import ROUTERS, FlowingPolicy
from mist_sim.simulation import Simulation
from mist_sim.traces import ClosedLoop, Workload
from mist_sim.traces.arrivals import TraceArrivals
from mist_sim.traces.base import TraceRow
from mist_sim.traces.workload import Rows
from tests.effort import examples, features_seen, missing
from tests.property.strategies import (
    alike,
    cases,
    some_swap_space,
    with_arrivals_on_boundaries,
    with_time_outs_on_boundaries,
)
from tests.property.test_flowing import crowds, flowing
from tests.property.test_hand_overs import apart
from tests.reference.cluster import Costs
from tests.reference.cluster_case import ClusterCase
from tests.reference.comparison import Case, EngineOptions, workload
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
)
from tests.reference.scenarios import PRESSED, scenario
from tests.reference.stepwise import Job

NAMES = ("round_robin", "least_outstanding", "power_of_two", "load", "prefix_affinity")


def plain(case: Case) -> Case:
    """Return a case without what the plain loop does not have."""
    options = replace(
        case.options,
        order="fcfs",
        threshold=None,
        max_partial=1,
        windows=None,
        pipeline_parallel_size=1,
        lockstep=False,
        tiers=(),
        swap=None,
        drafting=None,
        prefill_schedule_interval=1,
    )
    return Case(options, case.jobs)


@st.composite
def engines(draw: st.DrawFn, longest: int = 120) -> Case:
    """An engine that the plain loop steps, planned ahead or not, mostly short of memory."""
    drawn = cases(longest=longest, policy="chunked", drafts=False) | alike()
    case = plain(draw(drawn.filter(lambda each: each.options.policy == "chunked")))
    return replace(
        case,
        options=replace(
            case.options,
            async_scheduling=draw(st.booleans()),
            uncached_first=draw(st.booleans()),
            caching=draw(st.booleans()),
            swap=draw(st.none() | some_swap_space(case.options.num_blocks, 1)),
        ),
    )


def crowd(number: int) -> Case:
    """Long answers side by side in memory for one or two: some give way, or give up meanwhile.

    Drawn evenly from a number, since few of Hypothesis's small cases get so far.
    """
    rng = Streams(number).generator("crowd")

    def draw(least: int, most: int) -> int:
        return int(rng.integers(least, most + 1))

    size = 2 ** draw(0, 2)
    jobs = [Job(0.0, draw(1, 12), draw(10, 40)) for _ in range(draw(3, 6))]
    later = sorted(rng.uniform(0.0, 0.1, draw(0, 3)))
    jobs += [Job(float(time), draw(1, 8), draw(1, 12)) for time in later]
    longest = max(-((job.num_prompt_tokens + job.num_output_tokens) // -size) for job in jobs)
    swap = SwapSpace(draw(1, draw(1, 3) * longest), 2.0**-9)
    options = EngineOptions(
        "chunked",
        num_blocks=longest + draw(-1, longest),
        block_size=size,
        max_num_seqs=8,
        max_num_batched_tokens=8 * draw(1, 4),
        caching=rng.random() < 0.5,
        uncached_first=rng.random() < 0.5,
        async_scheduling=rng.random() < 0.7,
        swap=swap if rng.random() < 0.7 else None,
    )
    ends = [step.end for step in Case(options, tuple(jobs)).stepwise(DYADIC).steps]
    for _ in range(draw(0, 4)):
        who = draw(0, 2)
        jobs[who] = replace(jobs[who], timeout=ends[draw(0, len(ends) - 1)])
    if rng.random() < 0.3:  # the same conversation, answers included
        jobs = [replace(job, content=((0, 60),)) for job in jobs]
    return Case(options, tuple(jobs))


def client(case: Case, predictor: Predictor, loop: str, name: str = "engine") -> LlmClient:
    made = case.options.client(predictor, name)
    made.config = replace(made.config, step_loop=loop)
    return made


def plain_workload(case: Case) -> Workload:
    """The jobs without limits, from rows as a trace has them."""
    rows = [
        TraceRow(
            job.num_prompt_tokens, job.num_output_tokens, job.arrival_time, content=job.content
        )
        for job in case.jobs
    ]
    return Workload(Rows(rows), TraceArrivals())


def all_bits(result: Result) -> dict[str, object]:
    """All that a run has recorded, how it was put together into runs included."""
    recorder = result.recorder
    names = ("requests", "visits", "gaps", "tokens", "drafts", "moves", "states", "losses")
    tables = {name: getattr(recorder, name) for name in names}
    tables |= {f"steps of {track}": table for track, table in enumerate(recorder.steps)}
    columns: dict[str, object] = {
        f"{name}.{column}": np.asarray(values).tobytes()
        for name, table in tables.items()
        for column, values in table.columns().items()
    }
    return columns | {
        "ends": [ends[:].tobytes() for ends in recorder.step_ends],
        "clients": result.clients.to_csv(),
        "summary": repr(result.summary),
    }


def general_walks() -> Any:
    return patch.object(
        Simulation, "_walks_are_plain", new_callable=PropertyMock, return_value=False
    )


def assert_same(found: dict[str, object], expected: dict[str, object]) -> None:
    assert [name for name in expected if found[name] != expected[name]] == []


def run_case(case: Case, predictor: Predictor, loop: str) -> Result:
    return Simulation(clients=[client(case, predictor, loop)], workload=workload(case.jobs)).run()


# --- the loop ---------------------------------------------------------------------------------


@pytest.mark.exact
@examples(300)
@given(
    case=engines(),
    predictor=st.sampled_from([AWKWARD, DYADIC, LINES, SHARING, HOSTED, SCALED_HOSTED]),
    data=st.data(),
)
def test_loops_give_the_same_bits(case, predictor, data):
    """Also where arrivals meet ends of steps, and senders give up there."""
    case = with_arrivals_on_boundaries(data, case, predictor)
    if data.draw(st.booleans()):
        case = with_time_outs_on_boundaries(data, case, predictor)
    expected = run_case(case, predictor, "general")
    assert_same(all_bits(run_case(case, predictor, "plain")), all_bits(expected))
    for feature in features(expected):
        event(feature)


@pytest.mark.exact
@examples(500)
@given(number=st.integers(0, 2**32))
@example(number=20770)  # without room on the host, a preempted one finds its own blocks
def test_crowds_get_the_same_bits(number):
    case = crowd(number)
    expected = run_case(case, DYADIC, "general")
    assert_same(all_bits(run_case(case, DYADIC, "plain")), all_bits(expected))
    for feature in features(expected):
        event(feature)


@pytest.mark.exact
@examples(200)
@given(case=cases(longest=60), predictor=st.sampled_from([LINES, HOSTED, SCALED_LINES]))
def test_lines_give_the_bits_of_the_predictor(case, predictor):
    """In whatever loop an engine takes by itself, some steps of decodes alone are timed by them."""
    expected = run_case(case, predictor, "general")
    assert_same(all_bits(run_case(case, predictor, "auto")), all_bits(expected))


@pytest.mark.exact
@pytest.mark.parametrize("ahead", [True, False])
def test_lines_let_the_first_step_wait_for_copies(ahead):
    """Answers of 60 tokens and more in 20 blocks of 8 tokens: some are swapped out."""
    swap = SwapSpace(40, 0.25)
    options = EngineOptions("continuous", 20, 8, 8, 128, async_scheduling=ahead, swap=swap)
    case = Case(options, tuple(Job(0.0, 8, 60 + 5 * number) for number in range(4)))
    expected = run_case(case, LINES, "general")
    assert_same(all_bits(run_case(case, LINES, "auto")), all_bits(expected))
    assert expected.summary["num_preemptions"]


@pytest.mark.exact
def test_loops_leave_the_same_blocks_to_those_who_run():
    """The third prompt would fit, but for the blocks that are reserved."""
    jobs = (Job(0.0, 40, 30), Job(0.0, 36, 30), Job(0.0, 30, 10))
    case = Case(EngineOptions("chunked", 30, 4, 8, 128, watermark=0.3), jobs)
    expected = run_case(case, AWKWARD, "general")
    assert_same(all_bits(run_case(case, AWKWARD, "plain")), all_bits(expected))
    assert expected.requests["queued"].gt(0).tolist() == [False, False, True]


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
    expected = run_case(case, DYADIC, "general")
    assert_same(all_bits(run_case(case, DYADIC, "plain")), all_bits(expected))
    assert expected.summary["num_preemptions"]


@pytest.mark.exact
@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("swap", [None, SwapSpace(3, 2.0**-9)])
def test_a_lone_answer_leaves_no_step_when_it_outgrows_memory(swap, ahead):
    options = EngineOptions(
        "chunked", 3, 4, 8, 64, caching=swap is None, swap=swap, async_scheduling=ahead
    )
    case = Case(options, (Job(0.0, 8, 10, content=((0, 8),)), Job(0.0, 2, 2)))
    expected = run_case(case, DYADIC, "general")
    assert_same(all_bits(run_case(case, DYADIC, "plain")), all_bits(expected))
    assert expected.requests["status"].tolist() == ["rejected", "finished"]


@pytest.mark.exact
@pytest.mark.parametrize("ahead", [True, False])
def test_single_steps_of_decodes_last_as_long_as_those_of_runs(ahead):
    """Answers end one after the other, so that between two ends there is one step."""
    options = EngineOptions("chunked", 100, 8, 8, 128, async_scheduling=ahead)
    case = Case(options, tuple(Job(0.0, 8, length) for length in range(2, 7)))
    expected = run_case(case, LINES, "general")
    assert_same(all_bits(run_case(case, LINES, "plain")), all_bits(expected))
    assert (expected.steps["num_steps"] == 1).sum() > 3


@examples(100)
@given(case=engines(longest=60), first=st.integers(1, 4), longest=st.integers(4, 64))
def test_loops_give_the_same_bits_however_long_runs_are(case, first, longest):
    with patch.multiple(run_length, _FIRST_RUN=first, _LONGEST_RUN=longest):
        expected = all_bits(run_case(case, DYADIC, "general"))
        assert_same(all_bits(run_case(case, DYADIC, "plain")), expected)


def features(result: Result) -> set[str]:
    """What a case exercised."""
    requests, steps = result.requests, result.steps
    found = {"preempted"} if requests["num_preemptions"].any() else set()
    if requests["num_cached_tokens"].any():
        found.add("cached")
    if (steps["num_chunks"] > 1).any():
        found.add("several prompts in a step")
    if ((steps["num_chunks"] > 0) & (steps["num_decodes"] > 0)).any():
        found.add("prompts beside decodes")
    if ((steps["num_chunks"] > 0) & (steps["num_steps"] > 1)).any():
        found.add("several steps with a prompt")
    found |= set(result.transfers["kind"])
    return found | {f"status {status}" for status in requests["status"].unique()}


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
    seen = features_seen(engines(), lambda case: features(run_case(case, DYADIC, "plain")), wanted)
    assert not missing(seen, wanted), seen


# --- prefill and decode apart -----------------------------------------------------------------


@st.composite
def roles(draw: st.DrawFn) -> ClusterCase:
    """Clients of prompts and of answers, with users who give up, each stepped by the plain loop."""
    return stepped_plainly(draw, draw(apart()))


def stepped_plainly(draw: st.DrawFn, case: ClusterCase) -> ClusterCase:
    """Return a case without what the plain loop does not have, planned ahead or not."""
    clients = []
    for options in case.clients:
        most = max(options.max_num_batched_tokens or 64, options.max_num_seqs)
        chunked = replace(options, policy="chunked", max_num_batched_tokens=most)
        made = plain(Case(chunked, ())).options
        clients.append(replace(made, async_scheduling=draw(st.booleans())))
    return replace(case, clients=tuple(clients))


@st.composite
def flows(draw: st.DrawFn) -> ClusterCase:
    """Clients between which answers flow, each stepped by the plain loop."""
    return stepped_plainly(draw, draw(flowing() | crowds()))


@pytest.mark.exact
def test_a_decode_lane_shares_blocks_from_the_plan_on_that_knows_of_the_first_prefix():
    """The last answer is preempted, and finds all but the token that its last plan lacked."""
    prompts = EngineOptions("chunked", 32, 1, 2, 64, caching=True, role="prefill")
    answers = EngineOptions("chunked", 84, 1, 7, 7, caching=True, async_scheduling=True)
    jobs = Job(0.0, 1, 1), Job(0.3046875, 29, 19), Job(0.3359375, 32, 8, content=((0, 40),))
    clients = prompts, prompts, replace(answers, role="decode")
    case = ClusterCase(clients, jobs, "round_robin", link=(2.0**24, 0.0))
    expected = assert_loops_are_the_same(case, DYADIC)
    assert expected.summary["num_preemptions"] == 1


@pytest.mark.exact
def test_an_answer_that_is_given_up_leaves_the_same_blocks():
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
    expected = assert_loops_are_the_same(case, DYADIC)
    assert expected.requests["num_cached_tokens"].any()


@pytest.mark.exact
def test_an_answer_preempted_as_it_joins_comes_back_when_all_its_blocks_are_free():
    """Its first piece would fit beside the other answer, as that of a new prompt may."""
    p = EngineOptions("chunked", 17, 4, 5, 32, role="p_heavy")
    d = EngineOptions("chunked", 20, 4, 5, 32, role="d_heavy", whole_must_fit=False)
    jobs = Job(0.0, 35, 3), Job(0.140625, 3, 40)
    flows = FlowingPolicy(tpot=2.0**-9)
    case = ClusterCase((p, d), jobs, "round_robin", link=(2.0**17, 0.0), flows=flows)
    expected = assert_loops_are_the_same(case, DYADIC)
    assert expected.requests["num_preemptions"].tolist() == [1, 0]


def assert_loops_are_the_same(case: ClusterCase, predictor: Predictor) -> Result:
    """Compare a case in both loops; return its result in the general one."""
    expected = in_loop(case, predictor, "general")
    assert_same(all_bits(in_loop(case, predictor, "plain")), all_bits(expected))
    return expected


def in_loop(case: ClusterCase, predictor: Predictor, loop: Any) -> Result:
    """Run a case whose clients all take one loop."""
    simulation = case.simulation(predictor)
    for made in simulation.clients:
        assert isinstance(made, LlmClient)
        made.config = replace(made.config, step_loop=loop)
    return simulation.run()


# --- the walk ---------------------------------------------------------------------------------


class Watched(ColumnRecorder):
    """A recorder of one's own, which may look at the records whenever a request ends."""


@pytest.mark.exact
@examples(200)
@given(
    several=st.lists(engines(longest=60), min_size=1, max_size=4),
    predictor=st.sampled_from([AWKWARD, DYADIC, EVEN, LINES]),
    router=st.sampled_from(NAMES),
    data=st.data(),
)
def test_walks_give_the_same_bits(several, predictor, router, data):
    """On equal clients as well, whose steps end at the same instants."""
    if data.draw(st.booleans()):
        several = several[:1] * len(several)
    jobs = with_arrivals_on_boundaries(data, several[0], predictor)

    def run(loop: str, recorder: ColumnRecorder | None = None) -> dict[str, object]:
        clients = [client(case, predictor, loop, str(k)) for k, case in enumerate(several)]
        simulation = Simulation(
            clients=clients, workload=plain_workload(jobs), router=ROUTERS[router]()
        )
        return all_bits(simulation.run(recorder=recorder))

    with general_walks():
        expected = run("general")
        assert_same(run("plain"), expected)
    assert_same(run("general"), expected)
    assert_same(run("plain"), expected)
    assert_same(run("plain", Watched()), expected)


# --- whole scenarios, with energy and the default engine --------------------------------------


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("workload", [{}, PRESSED], ids=["at ease", "pressed"])
def test_scenarios_give_the_same_bits(workload, ahead):
    given_ = workload | {"clients__0__async_scheduling": ahead, "clients__0__count": 2}
    found, expected = (
        simulate(scenario(**given_, clients__0__step_loop=loop)) for loop in ("plain", "general")
    )
    assert_same(all_bits(found), all_bits(expected))
    assert found.requests.to_csv() == expected.requests.to_csv()
    assert found.requests["energy"].gt(0).all()


@pytest.mark.exact
@pytest.mark.parametrize("ahead", [True, False])
def test_prompts_that_begin_from_kept_entries_take_the_general_loop_where_answers_flow(ahead):
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

    def in_loop_of(loop: str) -> list[dict[str, Any]]:
        return [
            engine
            | {"name": role, "role": role, "step_loop": loop}
            | {"scheduler": {"type": "chunked", "max_num_batched_tokens": tokens[role]}}
            for role in tokens
        ]

    chosen, general = (
        simulate(Scenario.from_dict(said | {"clients": [*in_loop_of(loop), store]}))
        for loop in ("plain", "general")
    )
    assert_same(all_bits(chosen), all_bits(general))


def test_auto_takes_the_core_for_what_it_serves():
    def takes(**options: Any) -> list[type]:
        simulation = _built(scenario(**options))
        simulation.run()
        engines = simulation.clients[0]._engines
        return [type(engines), *(type(engine) for engine in engines.all)]

    swapping = {"type": "chunked", "preemption": "swap"}
    assert takes() == [SteppedEngines, SteppedLane]
    assert takes(clients__0__step_loop="step") == [SteppedEngines, SteppedLane]
    assert takes(clients__0__step_loop="plain") == [Engines, PlainEngine]
    assert takes(clients__0__scheduler=swapping) == [SteppedEngines, SteppedLane]
    plain = {"clients__0__step_loop": "plain", "clients__0__scheduler": swapping}
    assert takes(**plain) == [Engines, PlainSwappingEngine]
    assert takes(clients__0__step_loop="general") == [Engines, Engine]
    assert takes(clients__0__scheduler={"type": "mixed"}) == [Engines, Engine]


def _built(said: Scenario) -> Simulation:
    from mist_sim.scenario.build import build

    return build(said)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scheduler": {"type": "mixed"}}, "scheduler.type"),
        ({"scheduler": {"type": "chunked", "order": "priority"}}, "scheduler.order"),
        ({"scheduler": {"long_prefill_token_threshold": 64}}, "long_prefill_token_threshold"),
        ({"scheduler": {"prefill_schedule_interval": 4}}, "prefill_schedule_interval"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        (
            {
                "speculative_config": {
                    "method": "ngram",
                    "num_speculative_tokens": 2,
                    "acceptance_rate": 0.5,
                }
            },
            "speculative_config",
        ),
        ({"kv_cache": {"tiers": [{"name": "cpu", "capacity": "1 GiB"}]}}, "kv_cache.tiers"),
    ],
)
def test_plain_names_the_option_that_prevents_it(options, named):
    more = {"workload__priorities": {0: 1.0, 5: 1.0}} if "priority" in str(options) else {}
    changes = {f"clients__0__{key}": value for key, value in options.items()}
    with pytest.raises(ScenarioError, match=named):
        simulate(scenario(**changes, **more, clients__0__step_loop="plain"))


def test_unknown_loops_are_refused():
    with pytest.raises(ScenarioError, match="step_loop"):
        scenario(clients__0__step_loop="fast")
