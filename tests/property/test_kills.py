"""Commands that are stopped at random moments lose no results and leave no process: a few cases.

`make kills` does 500.
"""

import time

import pytest

from tests.kills import SIGNALS, VERBS, campaign, case_of
from tests.processes import SEES_PROCESSES

NUMBER = 15


def test_cases_reach_all_verbs_signals_and_moments():
    cases = [case_of(seed) for seed in range(300)]
    assert {case.verb for case in cases} == set(VERBS)
    assert {case.signal for case in cases} == set(SIGNALS)
    places = {(case.verb, case.moment) for case in cases}
    assert all((name, "start") in places for name, verb in VERBS.items() if verb.has_workers)
    assert all((n, "journal") in places for n, verb in VERBS.items() if verb.out == "results")
    assert {case.before for case in cases} == {"nothing", "empty", "earlier", "theirs"}
    assert {case.again for case in cases} == {True, False}


@pytest.mark.deep
@pytest.mark.skipif(not SEES_PROCESSES, reason="needs /proc")
def test_commands_that_are_stopped_lose_nothing_and_leave_nobody():
    pytest.importorskip("sklearn", reason="mist fit needs it")
    first = time.time_ns() // 10**6
    failed = campaign(range(first, first + NUMBER), lambda line: None)
    assert not failed, "\n".join(failed)
