"""Every run ends, or is refused: small runs in few blocks, with a limit on their plans."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import event, given

from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors import Predictor
from tests.effort import examples
from tests.property.strategies import in_few_blocks
from tests.reference.comparison import POLICIES, Case, EngineOptions, assert_exact
from tests.reference.predictors import AWKWARD
from tests.reference.stepwise import EndlessError, Job

MOST_PLANS = 20_000
"""A hundred times what a run of these takes."""


@contextmanager
def limited() -> Iterator[None]:
    """Fail where a reference makes too many plans."""
    counts: dict[str, int] = {}

    def counted(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def count(self: Any, *arguments: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            assert counts[name] <= MOST_PLANS, f"{name} goes on for ever"
            return make(self, *arguments)

        return count

    with ExitStack() as stack:
        for _, kind in POLICIES.values():
            make = counted(kind.__name__, kind.plan)
            stack.enter_context(patch.object(kind, "plan", make))
        yield


def ends_alike(case: Case, predictor: Predictor = AWKWARD) -> str:
    """Run a case both ways; return how both end."""
    with limited():
        try:
            case.options.stepwise(predictor, case.jobs)
        except EndlessError:
            with pytest.raises(ScenarioError, match="for ever") as refused:
                case.simulate(predictor)
            return "preempts" if "in a row" in str(refused.value) else "waits"
        assert_exact(case, predictor)
        return "ends"


@given(case=in_few_blocks())
@examples(1000)
def test_every_run_in_few_blocks_ends_or_is_refused(case):
    event(ends_alike(case))


TWO_IN_PIECES = (Job(0.0, 9, 4, 1), Job(0.0, 9, 4, 1))
PIECES_ALONE = EngineOptions(
    "chunked", 3, 4, 2, 8, order="priority", threshold=1, max_partial=2, whole_must_fit=False
)


@pytest.mark.parametrize("ahead", [False, True])
def test_two_of_equal_priority_preempt_each_other(ahead):
    case = Case(replace(PIECES_ALONE, async_scheduling=ahead), TWO_IN_PIECES)
    assert ends_alike(case) == "preempts"


@pytest.mark.parametrize(
    "remedy",
    [{"whole_must_fit": True}, {"threshold": None}, {"num_blocks": 6}, {"max_num_seqs": 1}],
    ids=lambda remedy: next(iter(remedy)),
)
def test_each_remedy_of_the_message_ends_them(remedy):
    assert ends_alike(Case(replace(PIECES_ALONE, **remedy), TWO_IN_PIECES)) == "ends"
