"""A race of designs whose goodput is known: what is run, and where its searches end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from mist_sim.search.bracketing import (
    COARSE,
    DOWN,
    SHORT,
    Asked,
    Race,
    SearchKey,
    SureSearch,
    around,
    drive,
    seeming,
    until_sure,
)
from mist_sim.studies.verdicts.trials import Trial

OWN_RATE, TOLERANCE, WHOLE = 4.0, 0.02, 30_000
NEAR = {True: 0.15, False: 0.04}  # of the goodput: a short run, or a whole one, is undecided


@dataclass
class Designs:
    """Designs by number. flattered: what short runs think of some. runs: (number, rate, short)."""

    goodputs: dict[int, float]
    flattered: dict[int, float] = field(default_factory=dict)
    failing: tuple[int, ...] = ()
    runs: list[tuple[int, float, bool]] = field(default_factory=list)

    def run(
        self, pairs: Sequence[tuple[SearchKey, Asked]], pause: int | None = None
    ) -> list[Trial | None]:
        assert pause in (None, SHORT)
        found: list[Trial | None] = []
        for (number, seed), (rate, _) in pairs:
            is_short = pause is not None
            self.runs.append((number, rate, is_short))
            if number in self.failing:
                found.append(None)
                continue
            truth = self.goodputs[number]
            if is_short:
                truth = self.flattered.get(number, truth)
            at, half = rate / truth - 1, NEAR[is_short]
            known = None if abs(at) < half else at < 0
            length = SHORT if is_short else WHOLE
            margins = at - half, at + half
            found.append(Trial(rate, seed, known, 0.9, True, None, length, True, margins))
        return found


def raced(designs: Designs, seeds: Sequence[int] = (0,)) -> Race:
    keys = [(number, seed) for number in designs.goodputs for seed in seeds]
    race = Race(designs.run, {key: [] for key in keys}, TOLERANCE, SHORT)
    race.go({key: around(OWN_RATE, COARSE) for key in keys}, lambda key: whole(race.trials[key]))
    return race


def whole(trials: list[Trial]) -> SureSearch:
    return until_sure(around(OWN_RATE, TOLERANCE), trials, TOLERANCE, may_lengthen=False)


def alone(designs: Designs, number: int) -> list[Trial]:
    trials: list[Trial] = []
    drive({(number, 0): whole(trials)}, designs.run, {(number, 0): trials})
    return trials


def test_best_is_searched_as_if_it_were_alone():
    goodputs = {0: 15.3, 1: 7.1, 2: 15.1, 3: 2.2}
    race = raced(Designs(goodputs))
    for number in (0, 2):
        lone = alone(Designs(goodputs), number)
        assert race.brackets[number, 0] == seeming(lone)
        undecided = [trial for trial in race.trials[number, 0] if trial.attained is None]
        assert undecided
        assert all(trial.num_requests == WHOLE for trial in undecided)
        assert [t.rate for t in race.trials[number, 0]] == [t.rate for t in lone]
    assert race.out == {(1, 0), (3, 0)}


@pytest.mark.parametrize("behind", [0.5, 3.1, 7.1, 9.0, 12.5])
def test_who_is_out_is_known_to_miss_what_the_best_attains(behind):
    race = raced(Designs({0: 15.3, 1: behind}))
    assert race.out == {(1, 0)}
    attained = max(trial.rate for trial in race.trials[0, 0] if trial.attained)
    assert min(t.rate for t in race.trials[1, 0] if t.attained is False) <= attained
    low, high = race.brackets[1, 0].low, race.brackets[1, 0].high
    assert low is not None
    assert high is not None
    assert low <= behind <= high
    fine = max(min(attained / high, 1.5), 1 + 2 * TOLERANCE)
    assert (
        high / low <= fine * DOWN**2
    )  # at most two steps down to a rate that is attained for sure


def test_one_near_the_best_is_searched_whole():
    race = raced(Designs({0: 15.3, 1: 14.6}))
    assert race.out == set()
    assert race.brackets[1, 0] == seeming(alone(Designs({1: 14.6}), 1))


def test_those_behind_take_three_whole_runs_at_most():
    designs = Designs({0: 15.3, 1: 7.1, 2: 3.1})
    raced(designs)
    for number in (1, 2):
        assert sum(who == number and not is_short for who, _, is_short in designs.runs) <= 3


@pytest.mark.parametrize("thought", [7.2, 8.0, 9.0])
def test_one_that_short_runs_flatter_is_not_said_to_serve_more_than_it_does(thought):
    race = raced(Designs({0: 15.3, 1: 7.1}, flattered={1: thought}))
    assert race.brackets[1, 0].low <= 7.1
    assert race.brackets[1, 0].low >= 7.1 / 1.5


@pytest.mark.parametrize("behind", [3.1, 9.0, 12.5])
def test_rates_tried_can_be_set_again(behind):
    designs = Designs({0: 15.3, 1: behind})
    raced(designs)
    assert all(rate == float(f"{rate:.6g}") for _, rate, _ in designs.runs)


def test_no_run_is_repeated_but_undecided_short_ones():
    designs = Designs({0: 15.3, 1: 15.1, 2: 7.1})
    raced(designs)
    assert len(set(designs.runs)) == len(designs.runs)
    again = {(who, rate) for who, rate, is_short in designs.runs if not is_short}
    for who, rate in again & {(who, rate) for who, rate, is_short in designs.runs if is_short}:
        assert abs(rate / designs.goodputs[who] - 1) < NEAR[True]


def test_a_design_that_short_runs_belittle_comes_back():
    designs = Designs({0: 9.0, 1: 16.4}, flattered={1: 7.2})
    race = raced(designs)
    assert (1, 0) not in race.out
    assert race.brackets[1, 0] == seeming(alone(Designs({1: 16.4}), 1))


def test_each_seed_has_a_race_of_its_own():
    race = raced(Designs({0: 15.3, 1: 7.1}), seeds=(0, 1))
    assert race.out == {(1, 0), (1, 1)}
    assert race.brackets[0, 0] == race.brackets[0, 1]


def test_a_design_that_fails_leaves_the_others():
    race = raced(Designs({0: 15.3, 1: 7.1, 2: 9.0}, failing=(2,)))
    assert set(race.brackets) == {(0, 0), (1, 0)}
    assert race.out == {(1, 0)}
