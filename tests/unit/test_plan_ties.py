"""Of two plans at one price the simpler wins; and what a plan says of a lone engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mist_sim.report.plan import _nearest
from mist_sim.search.planning.hunt import Tried
from mist_sim.search.planning.plan_words import _left, runner_up
from mist_sim.search.planning.space import Candidate

ENGINE: Any = SimpleNamespace(
    gpu="h100", gpu_name="h100", name="h100", width=1, num_gpus=1, dollars=2.0
)
ATTAINED: Any = SimpleNamespace(attained=True, seems_attained=True)


def tried(design: str, first: int, second: int = 0, room: float = 1.0) -> Tried:
    return Tried(Candidate(ENGINE, design, first, second), ATTAINED, room=room)


@pytest.mark.parametrize("room", [0.5, 1.0, 3.0])
def test_a_tie_goes_to_the_simpler_design(room):
    together, apart = tried("together", 2), tried("apart", 1, 1, room)
    assert min(apart, together, key=lambda each: each.rank) is together
    said = runner_up(together, [apart, together])
    assert ("less simple" in said) == (room >= 1)
    assert ("with less room" in said) == (room < 1)
    assert ("has more room" in said) == (room > 1)


def test_a_runner_up_names_cheaper_ones_without_a_run():
    best, second = tried("together", 1), tried("apart", 2, 2)
    untried = [Candidate(ENGINE, "apart", 1, 2), Candidate(ENGINE, "apart", 3, 2)]
    said = runner_up(best, [best, second], untried)
    assert "costs 300 % more. Not tried: 1 cheaper, from 6 $/h" in said


def test_a_cheaper_design_wins_however_it_is_set():
    cheap, dear = tried("apart", 1, 1), tried("together", 3, room=9.0)
    assert min(dear, cheap, key=lambda each: each.rank) is cheap


@pytest.mark.parametrize(
    ("name", "what"),
    [("one less", "request"), ("one prefill less", "prompt"), ("one decode less", "answer")],
)
def test_without_the_only_engine_nothing_is_served(name, what):
    said = _left(name, {"nobody": True})
    assert said.startswith(f"it is the only one: without it no {what} is ")


def test_each_gpu_has_a_row_of_those_shown():
    """Twelve rows are shown, of which others fill all but one."""
    row = {"verdict": "missed", "attainment": 0.9, "usd_per_hour": 1.0, "gpu": "h100"}
    rows = [row | {"name": f"h{number}"} for number in range(20)]
    far = row | {"name": "far", "gpu": "l40s", "attainment": 0.0}
    assert far in _nearest({"tried": [*rows, far], "name": "h0"})
