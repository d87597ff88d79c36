"""Runs of so few requests that they say nothing: they steer no search, and are not begun."""

from functools import partial

import pytest

from mist_sim.errors import ScenarioError
from mist_sim.metrics import Slo
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.bracketing import around, between
from mist_sim.search.driving import drive
from mist_sim.search.goodput import GoodputOptions
from mist_sim.search.goodput_result import Goodput, SeedGoodput
from mist_sim.search.race import COARSE, SHORT, Race
from mist_sim.search.sure_search import until_sure
from mist_sim.search.verdicts.percentiles import percentiles_of
from mist_sim.search.verdicts.request_times import Target
from mist_sim.search.verdicts.steady_state import least_requests
from mist_sim.search.verdicts.trials import Trial, told, try_rate
from mist_sim.studies.built import Built
from mist_sim.studies.rates import Rates
from tests.reference.scenarios import synthetic

INF = float("inf")
NAN = float("nan")
GOODPUT, START, TOLERANCE = 17.0, 10.0, 0.02
SHARES = [(0.9, 200), (0.99, 1600), (0.999, 16_000)]
QUEUE = {
    "workload": synthetic(
        100,
        1,
        1,
        {"type": "poisson", "rate": "0.2 /s"},
        pipeline=[{"type": "preprocess", "num_tokens": 1}],
    ),
    "clients": [
        {"name": "cpu", "type": "sequential", "serves": ["preprocess"], "base_time": "1 s"}
    ],
    "slo": {"e2el": "30 s"},
}


def target(share: float) -> Target:
    return Target(slo=Slo(e2el=30.0), attainment=share)


def told_trial(rate: float, number: int = 3000) -> Trial:
    """Return a run whose verdict is known, of a service with a known goodput."""
    half = 0.1 if rate < GOODPUT else -0.1
    margins = -half - 0.01, -half + 0.01
    return Trial(rate, 0, rate < GOODPUT, 0.9, True, None, number, True, margins)


def silent_trial(rate: float, needs: int | None, number: int = 3000) -> Trial:
    """Return a run that says nothing. needs: None: a lower rate may tell."""
    reason = "too few requests have ended"
    return Trial(rate, 0, None, NAN, True, None, number, True, (-INF, INF), reason, needs)


def searched(search, run, *, may_lengthen: bool = False) -> tuple[SeedGoodput, list[list]]:
    """Return what a search finds, and the rounds it asks for. run: of a rate and times."""
    trials: list[Trial] = []
    rounds = []

    def runs(pairs):
        rounds.extend([[asked for _, asked in pairs]] if pairs else [])
        return [run(*asked) for _, asked in pairs]

    sure = until_sure(search, trials, TOLERANCE, may_lengthen=may_lengthen)
    found, _ = drive({(0, 0): sure}, runs, {(0, 0): trials})
    return SeedGoodput.of(0, found[0, 0], trials), rounds


def words(found: SeedGoodput) -> str:
    return " ".join(Goodput((found,), target(0.9), TOLERANCE, 100, 2, "", "case").warnings)


# ------------------------------------------------------------------------- how many are enough


@pytest.mark.parametrize(("share", "least"), SHARES)
def test_so_many_requests_tell_and_half_of_them_do_not(share, least):
    assert least_requests(share) == target(share).least_requests == least
    run = partial(try_rate, as_data(Scenario.from_dict(QUEUE)), {}, 1, 0.2, target(share), 100)
    assert run(least).tells
    few = run(least // 2)
    assert not few.tells
    assert not few.seems_attained
    if least // 2 > 200:
        assert few.is_too_short
        assert float(f"{few.needs:.1g}") >= least, "as the advice rounds it"


def test_percentiles_count_and_where_all_must_be_good_the_workload_stands_as_it_is():
    p99 = percentiles_of({"p99_ttft": "1 s"})
    assert Target(slo=Slo(e2el=1.0), percentiles=p99).least_requests == 1600
    assert Target(slo=Slo(e2el=1.0), attainment=1.0, percentiles=p99).least_requests == 0


@pytest.mark.parametrize("share", [0.99, 0.999])
def test_a_longest_run_that_is_too_short_is_refused(share):
    scenario, least = Scenario.from_dict(QUEUE), least_requests(share)
    for few in (1000, least - 1):
        with pytest.raises(ScenarioError, match=f"most_requests must be >= {least} where 99"):
            GoodputOptions(attainment=share, most_requests=few).target(scenario)
        GoodputOptions(attainment=share, most_requests=few, as_is=True).target(scenario)
    GoodputOptions(attainment=share, most_requests=least).target(scenario)


def test_the_command_refuses_it_in_one_message(mist, tmp_path):
    (tmp_path / "queue.yaml").write_text(Scenario.from_dict(QUEUE).resolved())
    asked = "queue.yaml", "--attainment", "0.99", "--most-requests", "1000"
    code, out, error = mist("goodput", *asked)
    assert (code, out) == (2, "")
    said = "most_requests must be >= 1600 where 99 % must be good, got 1000"
    assert " ".join(error.split()).count(said) == 1


@pytest.mark.parametrize(("share", "most"), [(0.9, 30_000), (0.999, 30_000), (0.9999, 160_000)])
def test_without_a_limit_the_longest_run_tells(share, most):
    built = Built(Scenario.from_dict(QUEUE))
    rates = Rates(built.scenario, built)
    options = GoodputOptions(attainment=share)
    for times in (1, 4):
        task = options.trial((0,), built, rates, 0, 1.0, target(share), times)
        assert task.arguments[6] == most * times
    limited = GoodputOptions(attainment=share, most_requests=500_000)
    assert limited.trial((0,), built, rates, 0, 1.0, target(share), 4).arguments[6] == 500_000


def test_a_short_run_of_a_race_tells_of_the_attainment():
    assert GoodputOptions().pause([target(0.9), target(0.99)]) == SHORT
    assert GoodputOptions().pause([target(0.9), target(0.999)]) == 16_000
    assert GoodputOptions().pause([target(0.9999)]) is None
    assert GoodputOptions(most_requests=16_000).pause([target(0.999)]) is None
    assert GoodputOptions(most_requests=5000).pause([target(0.9)]) is None
    assert GoodputOptions(as_is=True).pause([target(0.9)]) is None


# ------------------------------------------------------------------- what they do to a search


def test_a_run_that_is_too_short_ends_the_search():
    found, rounds = searched(around(START, TOLERANCE), lambda rate, _: silent_trial(rate, 16_000))
    assert rounds == [[(START, 1)]]
    assert found.status == "undecided"
    assert "--most-requests 20000 may tell. the goodput is not known" in words(found)
    assert "nan" not in words(found)
    assert "no goodput" not in words(found)


def test_what_is_attained_below_such_a_run_is_no_goodput():
    def run(rate: float, _: int) -> Trial:
        return told_trial(rate) if rate < 15 else silent_trial(rate, 16_000)

    found, rounds = searched(around(START, TOLERANCE), run)
    assert rounds == [[(START, 1)], [(2 * START, 1)]]
    assert found.status == "undecided"
    assert (found.bracket.low, found.bracket.high) == (START, None)
    assert found.interval[1] == INF


def test_longer_runs_are_tried_where_they_may_be():
    def run(rate: float, times: int) -> Trial:
        return told_trial(rate) if rate < 15 or times > 1 else silent_trial(rate, 16_000)

    found, rounds = searched(around(START, TOLERANCE), run, may_lengthen=True)
    assert rounds[2] == [(20.0, 4)]
    assert found.status == "found"
    assert found.bracket.low <= GOODPUT <= found.bracket.high <= 1.05 * found.bracket.low


@pytest.mark.parametrize("search", [around(160.0, TOLERANCE), between(1.0, 160.0, TOLERANCE)])
def test_an_overload_that_says_nothing_is_searched_below(search):
    """So many are on their way there that none has ended in its turn; below them runs tell."""

    def run(rate: float, _: int) -> Trial:
        return told_trial(rate) if rate < 50 else silent_trial(rate, None, number=10)

    found, _ = searched(search, run)
    assert found.status == "found"
    assert found.bracket.low <= GOODPUT <= found.bracket.high
    assert not words(found), "what says nothing above a missed rate is not named"


def test_it_is_not_the_end_of_a_goodput_where_nothing_above_tells():
    def run(rate: float, _: int) -> Trial:
        return told_trial(rate) if rate < 12 else silent_trial(rate, None, number=10)

    found, _ = searched(around(START, TOLERANCE), run)
    assert found.status == "undecided"
    assert START <= found.bracket.low < 12
    assert found.bracket.high is None
    assert "too few requests have ended. the goodput is not known, since runs at 12" in words(found)


def test_a_run_that_says_nothing_counts_as_missed_above_a_missed_rate_only():
    silent = [silent_trial(rate, None) for rate in (5.0, 19.0, 30.0)]
    assert told([*silent, told_trial(10.0), told_trial(20.0)]) == {
        10.0: True,
        20.0: False,
        30.0: False,
    }
    assert told(silent) == {}


def test_a_race_whose_short_runs_say_nothing_goes_on_with_whole_ones():
    short = []

    def run(pairs, pause):
        short.extend(asked for _, asked in pairs if pause)
        return [silent_trial(rate, 16_000) if pause else told_trial(rate) for _, (rate, _) in pairs]

    race = Race(run, {(0, 0): []}, TOLERANCE, SHORT)
    race.go(
        {(0, 0): around(START, COARSE)},
        lambda key: until_sure(around(START, TOLERANCE), race.trials[key], TOLERANCE),
    )
    assert short == [(START, 1)]
    found = race.brackets[0, 0]
    assert found.low <= GOODPUT <= found.high
