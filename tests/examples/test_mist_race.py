"""The race of examples/mist_studies: who wins, whatever the order, and what a run may tell."""

import importlib
import sys
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT

FOLDER = ROOT / "examples" / "mist_studies"


@pytest.fixture(scope="module")
def modules():
    """The study's own modules, which lie beside it, as Python finds them when it runs."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in ("designs", "measuring", "race")}
    finally:
        sys.path.remove(str(FOLDER))


def race_of(modules, most, dollars, bounds=None, starts=None):
    """A race of designs that keep the limits below known rates, and the runs that it makes."""
    designs, measuring, race = (modules[name] for name in ("designs", "measuring", "race"))
    some = list(designs.together())[: len(most)]
    runs = []

    def run(pair):
        design, rate = pair
        runs.append(pair)
        place = some.index(design)
        if rate > most[place]:
            return None
        return measuring.Measured(design, dollars[place], rate=rate, throughput=rate * 100.0)

    ones = [1.0] * len(some)
    return (
        some,
        runs,
        race.Race(
            tokens=100.0,
            dollars=dict(zip(some, dollars, strict=True)),
            starts=dict(zip(some, starts or ones, strict=True)),
            bounds=dict(zip(some, bounds or [inf] * len(some), strict=True)),
            run=run,
        ),
    )


rates = st.floats(0.05, 50.0)
races = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*(st.lists(rates, min_size=n, max_size=n) for _ in range(3)))
)


@given(races)
def test_no_design_is_ahead_of_the_winner_by_more_than_two_steps(modules, race):
    """2 % to take the lead, and 2 % of rates that are not tried between kept and missed."""
    most, dollars, starts = race
    some, _, found = race_of(modules, most, dollars, starts=starts)
    winner = found.best(some)
    value = {design: rate / price for design, rate, price in zip(some, most, dollars, strict=True)}
    given_up = starts[0] / 2**5 > most[0]
    if winner is None:
        assert all(start / 2**5 > rate for start, rate in zip(starts, most, strict=True))
    elif not given_up:
        assert value[winner.design] * 1.02**2 * (1 + 1e-9) >= max(value.values())
        assert winner.rate <= most[some.index(winner.design)]
        assert winner.throughput == winner.rate * 100.0


@given(races)
def test_winner_is_never_worse_than_design_to_beat(modules, race):
    most, dollars, _ = race
    some, _, found = race_of(modules, most, dollars)
    first = found.best(some[:1])
    if first is not None:
        assert found.best(some, first).tokens_per_dollar >= first.tokens_per_dollar


def test_what_is_proved_to_be_too_slow_is_not_run(modules):
    some, runs, found = race_of(modules, [1.0, 5.0, 5.0], [1.0] * 3, bounds=[inf, 0.9, inf])
    assert found.best(some).design == some[2]
    assert some[1] not in {design for design, _ in runs}


def test_one_run_tells_of_design_that_is_behind(modules):
    some, runs, found = race_of(modules, [1.0] + [0.9] * 20, [1.0] * 21)
    assert found.best(some).design == some[0]
    assert [design for design, _ in runs if design != some[0]] == some[1:]


@pytest.mark.parametrize(
    ("seen", "lasts", "lengths"),
    [
        ({"p90": 5.0}, False, 1),  # twice over the limit
        ({"stability": "unstable"}, False, 1),
        ({"refused": 1}, False, 1),
        ({"p90": 2.5}, False, 3),  # a short run does not tell
        ({"stability": "too short to tell"}, False, 3),
        ({}, True, 3),
    ],
)
def test_only_long_run_tells_that_limits_are_kept(modules, monkeypatch, seen, lasts, lengths):
    designs, measuring, race = (modules[name] for name in ("designs", "measuring", "race"))
    question = measuring.Question(
        FOLDER / "code.yaml", p50="0.75 s", whole=1, paper=next(designs.together())
    )
    plain = measuring.Measured(question.paper, 1.0, p50=0.1, p90=1.0, stability="stable")
    asked = []

    def measured(question, design, **changes):
        asked.append(changes)
        return replace(plain, **seen)

    monkeypatch.setattr(race, "measure", measured)
    found = race.attempt(question, (10, 20, 30), (question.paper, 2.0))
    assert (found is not None) is lasts
    assert [each["lengths.num_requests"] for each in asked] == [10, 20, 30][:lengths]
    assert {each["arrivals.rate"] for each in asked} == {"2.0 /s"}
