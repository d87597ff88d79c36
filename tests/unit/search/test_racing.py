"""Which searches of a comparison may end, since another design surely serves more."""

import pytest

from mist_sim.search.bracketing import beaten
from mist_sim.studies.verdicts.trials import Trial

MARGINS = {True: (-0.2, -0.1), False: (0.1, 0.2), None: (-0.1, 0.05)}


def trials(**verdicts):
    """Runs by rate: `r30=True` is attained at 30 a second, None undecided and seems attained."""
    return [
        Trial(float(name[1:]), 0, known, 0.9, is_whole=True, is_steady=True, margins=MARGINS[known])
        for name, known in verdicts.items()
    ]


LEADER = trials(r50=True, r60=True, r80=False)


def ends(found, leader=LEADER):
    return "loser" in beaten({"leader": leader, "loser": found})


def test_one_that_misses_where_another_attains_is_searched_as_finely_as_it_is_behind():
    assert ends(trials(r30=True, r40=False)), "40 / 30 is less than 60 / 40"
    assert not ends(trials(r40=True, r55=False)), "55 / 40 is more than 60 / 55"
    assert ends(trials(r52=True, r55=False))


def test_far_behind_it_is_still_known_within_half():
    assert not ends(trials(r4=True, r8=False))
    assert ends(trials(r4=True, r6=False))


def test_who_may_still_be_as_good_goes_on():
    assert not ends(trials(r59=True, r61=False))
    assert not ends(trials(r59=True, r60=False)), "not below the leader's rate"
    assert not ends(trials(r59=True))


def test_undecided_rates_beat_nobody_and_are_not_beaten():
    assert not ends(trials(r30=True, r40=False), trials(r60=None, r80=False))
    assert not ends([*trials(r30=True), Trial(40.0, 0, None, 0.9, True, margins=(-0.01, 0.3))])
    assert not ends(trials(r30=None, r40=False)), "its lower end only seems attained"
    assert ends(trials(r30=True, r35=None, r40=False))


def test_one_without_a_rate_goes_on_until_it_has_one():
    assert not ends(trials(r30=False, r40=False))


def test_one_that_is_not_monotone_goes_on():
    assert not ends(trials(r30=True, r35=False, r38=True, r40=False))


@pytest.mark.parametrize("num", [1, 5])
def test_the_leader_itself_goes_on(num):
    assert beaten(dict.fromkeys(range(num), LEADER)) == []
