"""The sentence on the winner of a search: a run that did not tell leaves the question open."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from mist_sim.search.goodput import GoodputOptions
from mist_sim.search.ranking import NEAR
from mist_sim.search.spaces.evaluation import prepare
from mist_sim.search.spaces.space_result import SpaceSearch
from mist_sim.studies.verdicts.trials import Trial
from tests.reference.random_spaces import space

ASKED = space("goodput_per_gpu")
PREPARED = ASKED.configurations()
prepare(PREPARED, ASKED.objectives, ASKED.constraints, GoodputOptions(), judged=False)
BEST, OTHER = PREPARED[0], PREPARED[1]  # one and two H100
LOW, RATE, HIGH = 9.9, 10.0, 10.1


def sentence(attained, by, status="stopped"):
    """Return the sentence where another one was run at a rate that is ahead of LOW by a share."""
    found = {"rate": RATE, "bounds": (LOW, HIGH), "interval": (LOW, HIGH), "status": "found"}
    more = {"is_steady": True, "is_coarse": False, "first_limit": None}
    goodput = SimpleNamespace(**found, **more, warnings=[], searches=[])
    figures = {"goodput": RATE, "goodput_per_gpu": RATE}
    best = replace(BEST, status="front", figures=figures, goodput=goodput)
    per_gpu = OTHER.known["num_gpus"] / BEST.known["num_gpus"]
    trial = Trial(LOW * (1 + by) * per_gpu, 0, attained, 0.89, is_whole=True, is_steady=True)
    told = [best, replace(OTHER, status=status, trial=trial)]
    return SpaceSearch.of(ASKED, {}, [*told, *PREPARED[2:]], told).sentence


def test_one_whose_run_did_not_tell_may_be_the_best():
    assert f"undecided against {OTHER.name}, by" in sentence(None, NEAR + 0.01)


@pytest.mark.parametrize(
    ("attained", "by"), [(False, NEAR + 0.01), (None, NEAR - 0.01)], ids=["missed", "near"]
)
def test_a_miss_and_a_rate_that_is_hardly_ahead_leave_the_winner_sure(attained, by):
    assert "no other may be more than 3 % better" in sentence(attained, by)
