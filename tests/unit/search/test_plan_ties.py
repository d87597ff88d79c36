"""Of two plans at one price the simpler wins, or the roomier; and what is said of a lone engine."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from mist_sim import Scenario
from mist_sim.report.plan import _nearest
from mist_sim.search import PlanOptions
from mist_sim.search.planning.bounds import demand_of
from mist_sim.search.planning.candidates import Candidate, candidates, engines_of
from mist_sim.search.planning.hunt import Budget, Hunt, Tried
from mist_sim.search.planning.plan_result import _left, runner_up
from mist_sim.search.planning.question import Question
from mist_sim.studies.driver import Driver
from mist_sim.studies.verdicts.trials import Trial
from tests.reference.scenarios import of_profile

ENGINE: Any = SimpleNamespace(
    gpu="h100",
    gpu_name="h100",
    name="h100",
    width=1,
    num_gpus=1,
    dollars=2.0,
    chunks=(2048,),
    settings=(),
)
ATTAINED: Any = SimpleNamespace(attained=True, seems_attained=True, rate=6.0)


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


def chunked(chunk: int, room: float, missed: float, last: float = 0.0) -> Tried:
    candidate = Candidate(ENGINE, "together", 1, chunks=(chunk,))
    return Tried(candidate, ATTAINED, room=room, missed=missed, last=last)


@pytest.mark.parametrize(
    ("rooms", "said"),
    [
        ((1.15, 1.19), "; both keep the limits at 1.15 times the rate and miss 1.19 times: which "),
        ((3.06, inf), "; both keep the limits at 3.06 times the rate: which has more room is not "),
        ((1.0, inf), "; which has more room was not tried."),
    ],
)
def test_a_tie_is_told_and_goes_to_the_engines_own_chunk(rooms, said):
    """As much room as the race tells is not as much room; a flag that gains nothing is not set."""
    own, other = chunked(2048, *rooms), chunked(8192, *rooms, last=-1.0)
    assert min(other, own, key=lambda each: each.rank) is own
    assert said in runner_up(own, [other, own])


def race(monkeypatch, capacities, budget=None, flattering=0.0):
    """Return a hunt of three chunks of an engine after their race, and the runs of it.

    capacities: multiples of the rate that each chunk serves. flattering: added in short runs, which
    are undecided.
    """
    asked = {
        "model": "llama-3.1-8b",
        "workload": of_profile(60, "4 /s", name="azure-conv-2023"),
        "clients": [{"name": "llm", "gpu": "l40s"}],
        "slo": {"ttft": "2 s"},
    }
    options = PlanOptions(
        gpus=("l40s",), max_gpus=1, designs=("together",), tensor_parallel_sizes=(1,)
    )
    question = Question(Scenario.from_dict(asked), options)
    shop = engines_of(question)
    question.measure(shop.engines[0].built)
    space = list(candidates(shop.engines, question))
    hunt = Hunt(question, demand_of(question, shop.engines[0]), space, Driver("plan", 1), budget)
    runs = []

    def trial(candidate, most, rate):
        is_short = most == 6_000 and rate is not None
        most_of = capacities[candidate.chunks[0]] + flattering * is_short
        margin = (rate or hunt.rate) / hunt.rate / most_of - 1
        runs.append((candidate.chunks[0], most, (rate or hunt.rate) / hunt.rate))
        verdict = None if is_short and flattering else margin <= 0
        return Trial(
            rate or hunt.rate, 0, verdict, 1.0, True, num_requests=most, margins=(margin, margin)
        )

    def trials(chosen, most, rate):
        return {each: trial(each, most, rate) for each in chosen}

    monkeypatch.setattr(hunt, "_trials", trials)
    hunt.search()
    hunt.equals()
    return hunt, runs


def test_a_race_goes_on_between_the_last_rate_kept_and_the_first_missed(monkeypatch):
    """Steps of 15 % leave both at 1.15 of the rate."""
    hunt, _ = race(monkeypatch, {512: 1.1, 2048: 1.26, 8192: 1.18})
    assert hunt.best.candidate.chunks == (2048,)
    second = next(each for each in hunt.tried.values() if each.candidate.chunks == (8192,))
    assert 1.15 <= second.room < second.missed <= hunt.best.room < hunt.best.missed
    assert (
        "less room: it serves 1.15 to 1.24 times the rate, this one 1.24 to 1.32 times"
        in runner_up(hunt.best, [hunt.best, second])
    )


def test_a_race_is_not_decided_by_short_runs_that_do_not_tell(monkeypatch):
    hunt, runs = race(monkeypatch, {512: 1.1, 2048: 1.26, 8192: 1.2}, flattering=0.5)
    assert hunt.best.candidate.chunks == (2048,)
    assert {most for _, most, factor in runs if factor > 1} == {6_000, 30_000}


def test_what_a_race_spends_counts(monkeypatch):
    """A spent budget leaves the steps of a race, and a tie."""
    hunt, runs = race(monkeypatch, {512: 1.1, 2048: 1.26, 8192: 1.25}, Budget(requests=18_000))
    assert hunt.best.candidate.chunks == (2048,)  # the engine's own
    assert {round(factor, 4) for *_, factor in runs} == {1, 1.15, round(1.15**2, 4)}
    assert hunt.budget.num_spent == sum(most for _, most, _ in runs)


def test_a_runner_up_names_cheaper_ones_without_run():
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
