"""Drafts under asynchronous scheduling: who is planned for, and with how many blocks."""

import pytest

from mist_sim.models.speculative import SpeculativeConfig
from tests.reference.comparison import Case, EngineOptions, assert_exact
from tests.reference.predictors import ConstantPredictor
from tests.reference.stepwise import Job

SECOND = ConstantPredictor(1.0)


def drafting(rate: float, method: str = "ngram") -> SpeculativeConfig:
    return SpeculativeConfig(method=method, num_speculative_tokens=3, acceptance_rate=rate)


def case(rate: float, *jobs: Job, num_blocks: int = 100, method: str = "ngram") -> Case:
    drafts = drafting(rate, method)
    options = EngineOptions("chunked", num_blocks, 4, 4, 64, async_scheduling=True, drafting=drafts)
    return Case(options, jobs)


@pytest.mark.parametrize(("rate", "num_output_tokens", "first"), [(1.0, 5, 4.0), (0.0, 2, 3.0)])
def test_an_answer_whose_end_is_not_sure_is_computed_a_step_longer(rate, num_output_tokens, first):
    """vLLM leaves out who is sure to end: with one token to go, but not with four."""
    jobs = Job(0.0, 10, num_output_tokens), Job(1.5, 10, 1)
    engine = assert_exact(case(rate, *jobs), SECOND)
    assert engine.outcomes[0].finished_at == 2.0
    assert engine.outcomes[1].first_token_at == first


def test_tokens_behind_the_end_count_as_context_of_that_step():
    engine = assert_exact(case(1.0, Job(0.0, 10, 4), Job(0.0, 10, 9)), SECOND)
    batches = [step.batch for step in engine.steps]
    assert [batch.num_decodes for batch in batches] == [0, 2, 2]
    assert batches[2].context_sum == 14 + 14


def test_a_step_has_slots_for_all_drafts_of_the_step_in_flight():
    """Of 8 + 1 tokens, 4 and 4 more in the second step of the answer: 16, in four blocks of 4."""
    engine = assert_exact(case(0.0, Job(0.0, 8, 3)), SECOND)
    assert [step.num_peak_blocks for step in engine.steps] == [2, 3, 4]


def test_a_drafting_layer_writes_to_more_slots():
    engine = assert_exact(case(0.0, Job(0.0, 8, 3), method="eagle"), SECOND)
    assert [step.num_peak_blocks for step in engine.steps] == [2, 4, 5]


def test_who_needs_slots_for_drafts_that_nobody_knows_preempts():
    """Two answers in 7 blocks: each has 3 in its first step, and asks for a fourth."""
    jobs = Job(0.0, 8, 4), Job(0.0, 8, 4)
    engine = assert_exact(case(0.0, *jobs, num_blocks=7), SECOND)
    assert [len(outcome.preempted_at) for outcome in engine.outcomes] == [0, 1]
