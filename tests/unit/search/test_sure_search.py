"""A goodput's interval that is wide is narrowed by longer runs, where these may tell."""

from collections.abc import Generator

from mist_sim.search.bracketing import Bracket, Verdicts, until_sure
from mist_sim.studies.verdicts.trials import Trial


def trial(rate: float, attained: bool | None, low: float, high: float, number: int) -> Trial:
    """Return a run in steady state whose quantile's logarithm lies between two margins."""
    return Trial(
        rate,
        0,
        attained,
        0.9,
        is_whole=True,
        num_requests=number,
        is_steady=True,
        margins=(low, high),
        lasts=attained is None,
    )


def one_rung() -> Generator[list[float], Verdicts, Bracket]:
    """Ask for four rates at once, of which the middle two are near."""
    yield [8.0, 10.0, 10.2, 12.0]
    raise AssertionError("the ends are near, and nobody can tell there")


def asked_of(
    width: float, longer: float, *, may_lengthen: bool = True
) -> tuple[list[list[tuple[float, int]]], Bracket]:
    """Return what a search asks for whose runs have margins of a width, and where it ends.

    longer: width of runs with more requests.
    """
    trials: list[Trial] = []
    search = until_sure(one_rung(), trials, 0.02, may_lengthen=may_lengthen)
    asked = [next(search)]
    while True:
        for rate, times in asked[-1]:
            half = (longer if times > 1 else width) / 2
            at = rate / 10.1 - 1
            known = None if abs(at) < half else at < 0
            trials[:] = [each for each in trials if each.rate != rate]
            trials.append(trial(rate, known, at - half, at + half, 30_000 * times))
        try:
            asked.append(search.send({each.rate: each.seems_attained for each in trials}))
        except StopIteration as end:
            return asked, end.value


def test_both_ends_of_a_wide_interval_are_run_again_with_four_times_the_requests():
    asked, bracket = asked_of(width=0.2, longer=0.1)
    assert asked[1:] == [[(10.0, 4), (10.2, 4)]]
    assert (bracket.low, bracket.high) == (10.0, 10.2)


def test_nothing_is_longer_than_the_limit_that_is_asked_for():
    asked, bracket = asked_of(width=0.2, longer=0.1, may_lengthen=False)
    assert len(asked) == 1
    assert (bracket.low, bracket.high) == (10.0, 10.2)


def test_a_narrow_interval_is_left_as_it_is():
    asked, _ = asked_of(width=0.03, longer=0.01)
    assert len(asked) == 1
