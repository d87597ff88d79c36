"""What a request costs in Python calls, the same in every run, and which loop saves them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.calls import COUNTED_ON, MOST_MORE, RECORDED
from benchmarks.loops import found
from tests.conftest import ROOT

STALE = 0.03  # by what part a recorded figure may be too large before it has to be written anew


@pytest.fixture(scope="module")
def calls() -> dict[str, float]:
    """In a process of its own: other tests leave more, or less, that is remembered."""
    command = [sys.executable, "-m", "benchmarks.calls", "--json"]
    env = os.environ | {"MIST_SIM_CORE": "python"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=env)
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.version_info[:2] != COUNTED_ON, reason="other Pythons count other calls")
def test_no_change_adds_calls_unnoticed(calls):
    """`python -m benchmarks.calls` prints what to record where a change is worth its calls."""
    assert set(calls) == set(RECORDED)
    more = {name: calls[name] / RECORDED[name] - 1 for name in calls}
    assert {name: part for name, part in more.items() if not -STALE < part <= MOST_MORE} == {}


def test_the_loop_that_is_chosen_costs_fewer_calls(calls):
    """As Python; it is all that `step_loop` changes (`tests/property/test_step_core.py`)."""
    assert calls["default"] < calls["general loop"]


def test_the_core_serves_most_scenarios():
    loops = found()
    num_fast = sum("general" not in dict(here) for here in loops.values())
    assert num_fast >= 0.8 * len(loops)
