"""Prompts that wait for their turn while others decode (`prefill_schedule_interval`)."""

from dataclasses import replace

import pytest

from mist_sim import ChunkedScheduler, Scenario, llm_client, simulate
from mist_sim.errors import ScenarioError
from mist_sim.scenario.engines.versions import VERSIONS
from tests.reference.comparison import Case, EngineOptions, assert_exact
from tests.reference.predictors import AWKWARD
from tests.reference.stepwise import Job

ENGINE = EngineOptions(
    "chunked",
    num_blocks=5_000,
    block_size=4,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    prefill_schedule_interval=4,
    local_cadence=True,
    held_spares_hits=True,
)
ANSWER = Job(0.0, 10, 40)  # decodes while others come


def prompts(case):
    """Return the prompts in each step, as long as any is to come."""
    steps = assert_exact(case, AWKWARD).steps
    found = [len(step.batch.chunks) for step in steps]
    return found[: max(number for number, some in enumerate(found) if some) + 1]


def at_step(number):
    """Return a time within a step of those who decode alone."""
    return assert_exact(Case(ENGINE, (ANSWER,)), AWKWARD).steps[number].start + 1e-6


@pytest.mark.parametrize("ahead", [False, True])
def test_a_prompt_has_a_step_in_every_four(ahead):
    options = replace(ENGINE, async_scheduling=ahead)
    jobs = (ANSWER, Job(at_step(8), 150, 2))
    first = 10 if ahead else 9
    assert prompts(Case(options, jobs)) == [1] + [0] * (first - 1) + [1, 0, 0, 0, 1, 0, 0, 0, 1]


def test_steps_count_from_the_last_that_carried_prompt():
    jobs = (ANSWER, Job(at_step(1), 10, 2))
    assert prompts(Case(ENGINE, jobs)) == [1, 0, 0, 0, 1]


def test_nobody_waits_where_nobody_decodes():
    assert prompts(Case(ENGINE, (Job(0.0, 200, 5),))) == [1, 1, 1, 1]


def test_no_step_is_held_while_more_wait_than_a_step_admits():
    jobs = (ANSWER, *(Job(at_step(6), 60, 30) for _ in range(4)))
    # two in each step, until all are admitted; then the last of them stands still
    assert prompts(Case(ENGINE, jobs)) == [1, 0, 0, 0, 0, 0, 0, 2, 2, 2, 0, 0, 0, 1]


@pytest.mark.parametrize("spares", [True, False])
def test_a_prompt_that_is_cached_but_for_its_last_token_does_not_wait(spares):
    options = replace(ENGINE, caching=True, held_spares_hits=spares)
    first = Job(0.0, 16, 40, content=((1, 50),))
    again = Job(at_step(1), 13, 2, content=((1, 13),))
    expected = [1, 1] if spares else [1, 0, 0, 0, 1]
    assert prompts(Case(options, (first, again))) == expected


@pytest.mark.parametrize("lockstep", [True, False])
def test_engines_in_lockstep_count_steps_together(lockstep):
    options = replace(ENGINE, data_parallel_size=2, lockstep=lockstep, local_cadence=not lockstep)
    others = (replace(ANSWER, arrival_time=at_step(2)), Job(at_step(5), 10, 2))
    client = assert_exact(Case(options, (ANSWER, *others)), AWKWARD)
    carrying = [
        [number for number, step in enumerate(lane.steps) if step.batch.chunks]
        for lane in client.tracks
    ]
    assert carrying == ([[0, 8], [0]] if lockstep else [[0, 6], [0]])


@pytest.mark.parametrize("length", [500, 5_000])
def test_long_answers_are_few_plans(length):
    """None of them depends on the length of the answers."""
    jobs = (replace(ANSWER, num_output_tokens=length), Job(at_step(8), 150, length))
    result = Case(ENGINE, jobs).simulate(AWKWARD)
    assert len(result.steps) < 25


def client(**options):
    return llm_client("llm", **options)


def test_it_is_refused_where_it_is_not_simulated():
    scheduler = ChunkedScheduler(prefill_schedule_interval=2)
    with pytest.raises(ScenarioError, match="prefill_schedule_interval 1 with pipeline_parallel"):
        client(scheduler=scheduler, pipeline_parallel_size=2)
    with pytest.raises(ValueError, match="prefill_schedule_interval must be >= 1, got 0"):
        ChunkedScheduler(prefill_schedule_interval=0)


def token_times(**overrides):
    overrides |= {"workload.lengths.num_requests": 200, "workload.arrivals.rate": "20 /s"}
    result = simulate(Scenario.load("demo", overrides=overrides))
    return result.requests["finished_at"].tolist()


def test_engines_alone_follow_it_from_0_33_on():
    """Before, it was for data-parallel engines that share experts."""
    rules = {name: version.rules.local_cadence for name, version in VERSIONS.items()}
    assert [name for name, follows in rules.items() if follows] == ["vllm-0.33"]
    every, fourth = ({"clients.0.scheduler.prefill_schedule_interval": n} for n in (1, 4))
    assert token_times(engine="vllm-0.24", **fourth) == token_times(engine="vllm-0.24", **every)
    assert token_times(engine="vllm-0.33", **fourth) != token_times(engine="vllm-0.33", **every)
