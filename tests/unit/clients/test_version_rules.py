"""What engines decide by their version alone."""

from dataclasses import replace

import pytest

from tests.reference.comparison import Case, EngineOptions, assert_exact
from tests.reference.predictors import AWKWARD
from tests.reference.stepwise import Job


def chunks(case):
    """Return the tokens of each prompt in every step."""
    steps = assert_exact(case, AWKWARD).steps
    return [[new for new, _ in step.batch.chunks] for step in steps if step.batch.chunks]


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(("spares", "expected"), [(False, [[20]] * 5), (True, [[64], [36]])])
def test_a_threshold_is_not_for_who_is_alone_where_the_version_says_so(
    spares, expected, async_scheduling
):
    options = EngineOptions(
        "chunked",
        num_blocks=100,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        threshold=20,
        threshold_spares_one=spares,
        max_partial=2,
        async_scheduling=async_scheduling,
    )
    alone = Case(options, (Job(0.0, 100, 2),))
    assert chunks(alone) == expected
    together = Case(options, (Job(0.0, 100, 2), Job(0.0, 30, 2)))
    assert chunks(together)[0] == [20, 20]
    crowded = Case(replace(options, max_num_seqs=1), together.jobs)
    assert chunks(crowded)[0] == [20]  # who waits counts


def test_it_holds_again_when_somebody_comes():
    options = EngineOptions(
        "chunked",
        num_blocks=200,
        block_size=4,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        threshold=20,
        threshold_spares_one=True,
    )
    first, second = Job(0.0, 200, 2), Job(1e-6, 8, 2)
    assert chunks(Case(options, (first,))) == [[64], [64], [64], [8]]
    assert chunks(Case(options, (first, second)))[:3] == [[64], [20], [20]]
