"""Runs of so few requests that they say nothing: they steer no search, and are not begun."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mist_sim.errors import ScenarioError
from mist_sim.metrics import Slo
from mist_sim.metrics.stability import Stays
from mist_sim.scenario import Scenario
from mist_sim.scenario.loading import as_data
from mist_sim.search.bracketing import (
    COARSE,
    SHORT,
    Bracket,
    Race,
    SeedGoodput,
    around,
    between,
    drive,
    until_sure,
)
from mist_sim.search.goodput import GoodputOptions, so_far
from mist_sim.search.goodput_result import Goodput
from mist_sim.search.planning import PlanOptions
from mist_sim.search.planning import hunt as refining
from mist_sim.search.spaces import SearchOptions, read_space, search_space
from mist_sim.search.spaces.evaluation import Evaluation
from mist_sim.studies.built import Built
from mist_sim.studies.verdicts.request_times import Target, percentiles_of
from mist_sim.studies.verdicts.steady_state import OfClass, Seen, least_requests, look
from mist_sim.studies.verdicts.trials import Trial, told, try_rate
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
    goodput = Goodput((found,), target(0.9), TOLERANCE, 100, 2, "", "case")
    return " ".join(map(str, goodput.warnings))


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
def test_longest_run_that_is_too_short_is_refused(share):
    scenario, least = Scenario.from_dict(QUEUE), least_requests(share)
    for few in (1000, least - 1):
        with pytest.raises(ScenarioError, match=f"most_requests must be >= {least} where 99"):
            GoodputOptions(attainment=share, most_requests=few).target(scenario)
        GoodputOptions(attainment=share, most_requests=few, as_is=True).target(scenario)
    GoodputOptions(attainment=share, most_requests=least).target(scenario)


def test_of_trace_it_is_to_be_left_out(tmp_path):
    """Raising it, or asking for less, would tell no more of the same requests."""
    lines = [f"{at},10,5\n" for at in range(3)]
    (tmp_path / "t.csv").write_text("".join(["arrival_time,input,output\n", *lines]))
    trace = {"type": "csv", "path": str(tmp_path / "t.csv")}
    workload = {"trace": trace, "pipeline": QUEUE["workload"]["pipeline"]}
    scenario = Scenario.from_dict(QUEUE | {"workload": workload})
    with pytest.raises(ScenarioError, match="no effect on a trace.* got 1000; leave it out"):
        GoodputOptions(attainment=0.99, most_requests=1000).target(scenario)
    GoodputOptions(attainment=0.99).target(scenario)


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
    options = GoodputOptions(attainment=share)
    for times in (1, 4):
        task = options.trial((0,), built, 0, 1.0, target(share), times)
        assert task.arguments[6] == most * times
    limited = GoodputOptions(attainment=share, most_requests=500_000)
    assert limited.trial((0,), built, 0, 1.0, target(share), 4).arguments[6] == 500_000


def test_a_short_run_of_race_tells_of_attainment():
    assert GoodputOptions().pause([target(0.9), target(0.99)]) == SHORT
    assert GoodputOptions().pause([target(0.9), target(0.999)]) == 16_000
    assert GoodputOptions().pause([target(0.9999)]) is None
    assert GoodputOptions(most_requests=16_000).pause([target(0.999)]) is None
    assert GoodputOptions(most_requests=5000).pause([target(0.9)]) is None
    assert GoodputOptions(as_is=True).pause([target(0.9)]) is None


# ------------------------------------------------------------------- what they do to a search


def test_a_run_that_is_too_short_ends_search():
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


def test_a_design_that_is_out_is_placed_no_finer_than_short_runs_tell():
    """The first is ahead by a tenth, so that the bracket of the second would be halved."""
    middle = 13.017
    placed = []

    def run(pairs, pause):
        found = []
        for (number, _), (rate, _) in pairs:
            truth = 13.0 if number else 15.5
            half = 0.1 if rate < truth else -0.1
            trial = Trial(rate, 0, rate < truth, 0.9, True, margins=(-half - 0.01, -half + 0.01))
            is_silent = number and pause and abs(rate - middle) < 0.01
            found.append(silent_trial(rate, None) if is_silent else trial)
            placed.extend([rate] if is_silent else [])
            assert len(placed) < 5, "asks for the same rate again and again"
        return found

    race = Race(run, {(0, 0): [], (1, 0): []}, TOLERANCE, SHORT)
    race.go(
        {key: around(START, COARSE) for key in race.trials},
        lambda key: until_sure(around(START, TOLERANCE), race.trials[key], TOLERANCE),
    )
    assert len(placed) == 1
    assert race.out == {(1, 0)}
    assert race.brackets[1, 0].low == pytest.approx(11.8921)


def test_longer_runs_end_at_one_that_says_nothing():
    def rungs():
        yield [8.0, 10.0, 12.0, 14.0]

    def run(rate: float, times: int) -> Trial:
        if rate == 11.0:
            return silent_trial(rate, None)
        at, half = rate / 11 - 1, 0.15 / times
        known = None if abs(at) < half else at < 0
        return Trial(rate, 0, known, 0.9, True, None, 3000 * times, True, (at - half, at + half))

    found, rounds = searched(rungs(), run, may_lengthen=True)
    assert rounds[1:] == [[(10.0, 4), (12.0, 4)], [(11.0, 4)]]
    assert found.status == "undecided"


def test_bounds_of_an_undecided_goodput_begin_at_the_highest_rate_attained():
    """With several seeds at the lowest of these: 2 and 3; a rate above a missed one is none."""
    tried = [told_trial(2.0), silent_trial(4.0, 9000)]

    def bounds(*seeds):
        found = tuple(SeedGoodput.of(0, Bracket.of(told(trials)), trials) for trials in seeds)
        result = Goodput(found, target(0.9), TOLERANCE, 100, 2, "", "case")
        assert result.status == "undecided"
        return result.bounds

    assert bounds(tried) == (2.0, INF)
    assert bounds([*tried, told_trial(20.0)]) == (2.0, 20.0)
    assert bounds([*tried, told_trial(3.0)], tried) == (2.0, INF)
    assert bounds([silent_trial(1.0, 9000), told_trial(20.0)]) == (0.0, 20.0)


def test_the_limit_that_is_missed_first_is_one_of_a_run_that_tells():
    silent = replace(silent_trial(12.0, None), worst_limit="ttft")
    missed = replace(told_trial(20.0), worst_limit="tpot")
    for trials, limit in (([silent, missed], "tpot"), ([silent], None)):
        search = SeedGoodput.of(0, Bracket(None, None), trials)
        found = Goodput((search,), target(0.9), TOLERANCE, 100, 2, "", "case")
        assert found.first_limit == limit


def test_stopped_search_names_no_such_rate_as_missed():
    tried = {(0, 0): [told_trial(10.0), silent_trial(12.0, None)]}
    assert so_far(tried, [""]) == "2 rates tried, attained up to 10 /s, none missed yet"
    assert so_far({(0, 0): []}, [""]) == ""


def test_a_rare_class_is_told_of_by_as_many_requests_as_the_advice_says():
    number, every = 1000, 33
    ids, begin = np.arange(number), np.arange(number, dtype=float)
    mask = ids % every == 0
    stays, still = Stays(begin, begin + 0.5), np.zeros(number)
    ratios = np.full((1, number), 0.5)
    seen = Seen(ids, ratios, stays, still + 0.5, still, stays, [OfClass(mask, 0.9)])
    found = look(seen, 0.9, 0.01)
    assert found.attained is None
    assert "of a class" in found.reason
    enough = 80 / mask[number // 5 :].mean() / 0.8
    assert float(f"{found.needs:.1g}") >= enough


# ----------------------------------------------------------------------- who searches with them


def rows_of(
    monkeypatch, constraints: str = "{}", silent_one: str = "random", side_by_side: int = 8
) -> dict[str, str]:
    """Return why configurations are left out of which one is run in vain, by their routers."""
    base = Scenario.from_dict(QUEUE).resolved()
    take, tried = Evaluation._take, Evaluation._tried

    def silent_take(evaluation, each, found):
        silent = SeedGoodput.of(0, Bracket(None, None), [silent_trial(START, 16_000)])
        is_silent = each.name.endswith(silent_one)
        return take(evaluation, each, replace(found, searches=(silent,)) if is_silent else found)

    def silent_tried(evaluation, rates):
        found = tried(evaluation, rates)
        for each in found:
            if each.name.endswith(silent_one):
                found[each] = each.trial = silent_trial(rates[each], 16_000)
        return found

    monkeypatch.setattr(Evaluation, "_take", silent_take)
    monkeypatch.setattr(Evaluation, "_tried", silent_tried)
    text = "vary: {router: [round_robin, random, least_outstanding]}\n"
    text += f"constraints: {constraints}\nobjectives: "
    objective = "[p99_e2el]" if "attainment" in constraints else "[goodput]"
    indented = "".join(f"  {line}\n" for line in base.splitlines())
    Path("space.yaml").write_text(f"scenario:\n{indented}{text}{objective}\n")
    found = search_space(
        read_space("space.yaml"),
        SearchOptions(most_requests=1000, side_by_side=side_by_side),
        jobs=1,
    )
    return {row["name"].partition("=")[2]: row["reason"] for row in found.summary["rows"]}


@pytest.mark.parametrize("one", ["round_robin", "least_outstanding"])
def test_rows_of_a_space_say_that_runs_are_too_short(one, monkeypatch, tmp_path):
    """A run against the best so far that says nothing is no reason to stop, either."""
    monkeypatch.chdir(tmp_path)
    reason = rows_of(monkeypatch, silent_one=one, side_by_side=1)[one]
    assert "runs are too short to tell" in reason


def test_rows_judged_at_their_own_rate_give_reason(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    reason = rows_of(monkeypatch, "{attainment: 0.9}")["random"]
    assert "is not known to keep" in reason
    assert "too few requests have ended at 0.2 /s" in reason
    assert "nan" not in reason


@pytest.mark.parametrize(
    ("share", "given", "most"),
    [
        (0.9, None, 10_000),
        (0.9, 30_000, 10_000),
        (0.9, 2000, 2000),
        (0.999, None, 16_000),
        (0.999, 30_000, 16_000),
    ],
)
def test_the_goodput_of_a_plan_is_searched_with_as_many_as_tell(share, given, most, monkeypatch):
    scenario, asked = Scenario.from_dict(QUEUE), []

    def search(builts, options, driver, tried, takes_users):
        asked.append(options.longest(options.target(builts[0].scenario)))
        return ["found"]

    monkeypatch.setattr(refining, "search_goodputs", search)
    options = PlanOptions(gpus=("h100-sxm",), attainment=share, most_requests=given)
    question = SimpleNamespace(options=options, target=target(share), least_requests=0)
    assert refining.Refining(question, None, is_steady=True).goodput(scenario, None) == "found"
    assert asked == [most]
