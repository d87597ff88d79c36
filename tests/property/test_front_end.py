"""The queue of the front end: what it counts, when, and that every loop gives it the same."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.core.front_end import NONE, ApiServers
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from tests.effort import examples
from tests.property.loop_cases import client, engines, general_walks, plain_workload
from tests.property.strategies import (
    ahead,
    ahead_together,
    alike_in_windows,
    cases,
    overloads,
    queued,
    with_time_outs_on_boundaries,
)
from tests.property.test_step_core import assert_same_steps, one_by_one
from tests.reference.comparison import Case, workload
from tests.reference.predictors import AWKWARD, DYADIC, LINES

BUSY = replace(NONE, request=2e-3, prompt_token=1e-6, stream_token=1e-4)
PREDICTORS = st.sampled_from([AWKWARD, DYADIC, LINES])


def run(case: Case, predictor: Any, **more: Any) -> Result:
    parts = {"clients": [client(case, predictor)], "workload": workload(case.jobs)}
    return Simulation(**(parts | more), front_end=BUSY).run()


def asked(case: Case, predictor: Any) -> tuple[Result, list[tuple[float, int]]]:
    """Return a run, and what its engines had streamed whenever a request arrived."""
    seen: list[tuple[float, int]] = []
    enters_at = ApiServers.enters_at

    def noting(self: ApiServers, now: float, num_prompt_tokens: int) -> float:
        seen.append((now, self._processes[0].streamed()))
        return enters_at(self, now, num_prompt_tokens)

    with patch.object(ApiServers, "enters_at", noting):
        return run(case, predictor), seen


ANY = st.one_of(
    cases(longest=80), engines(80), queued(), ahead(), ahead(drafts=True), ahead_together(),
    alike_in_windows(), overloads(),
)  # fmt: skip


@pytest.mark.exact
@examples(300)
@given(case=ANY, predictor=PREDICTORS, data=st.data())
def test_what_engines_have_emitted_is_counted_and_no_more(case, predictor, data):
    """By the end of every step, and also of answers that are given up."""
    if data.draw(st.booleans()):
        case = with_time_outs_on_boundaries(data, case, predictor)
    result, seen = asked(case, predictor)
    visits, times = result.recorder.visits.columns(), []
    for each, first in zip(visits["request_id"], visits["first_token_at"], strict=True):
        others = result.token_times(int(each)).tolist()[1:]
        times += [float(first), *others]  # as the engine emits it, not as it goes out
    assert seen == [(now, sum(time <= now for time in times)) for now, _ in seen]


@pytest.mark.exact
@examples(200)
@given(case=engines(80), predictor=PREDICTORS, data=st.data())
def test_all_walks_behind_front_end_give_same_bits(case, predictor, data):
    walk = plain_workload(case)
    found = one_by_one(lambda: run(case, predictor, workload=walk))
    with general_walks():
        assert_same_steps(run(case, predictor, workload=walk), found)
    if data.draw(st.booleans()):
        case = with_time_outs_on_boundaries(data, case, predictor)
    one_by_one(lambda: run(case, predictor))
