"""Who keeps its limits at the rate that was run, and how sure that is, by hand."""

from math import inf, nan

import pytest

from mist_sim import Scenario, study
from mist_sim.metrics.keeping import USERS, Doubts, Kept, LimitOnShare, doubts_of, is_sure, sentence
from mist_sim.search.comparison import compare

LIMITS = [LimitOnShare("ttft", 0.9, 1.0), LimitOnShare("tpot", 0.9, 0.05)]


def run(tpot, good=0.95, ttft=100.0, low=-0.1, high=0.2, failed=0):
    """Return a summary; times in milliseconds. low, high: of the expected error."""
    bar = {"low": low, "high": high}
    return {
        "p90_ttft_ms": ttft,
        "p90_tpot_ms": tpot,
        "mean_ttft_ms": ttft,
        "mean_e2el_ms": 10 * ttft,
        "good_request_fraction": good,
        "completed": 100 - failed,
        "failed": failed,
        "expected_errors": {"llm": {"ttft": bar, "tpot": bar}},
    }


@pytest.mark.parametrize(
    ("tpot", "keeps", "sure"),
    [(41.6, True, True), (41.7, True, False), (55.5, False, False), (55.6, False, True)],
)
def test_what_the_error_of_step_times_may_turn_is_not_sure(tpot, keeps, sure):
    """50 ms are kept with an error of +20 % up to 41.67, and with one of -10 % up to 55.56."""
    assert is_sure(LIMITS, 0.9, [run(tpot)], keeps=keeps) is sure


def test_one_limit_that_is_surely_missed_is_enough():
    assert is_sure(LIMITS, 0.9, [run(51.0, ttft=5000.0)], keeps=False)
    assert not is_sure(LIMITS, 0.9, [run(51.0, ttft=1050.0)], keeps=False)


def test_requests_that_fail_do_not_keep_their_limits_by_faster_steps():
    assert is_sure(LIMITS, 0.9, [run(40.0, good=0.8, failed=11)], keeps=False)
    assert not is_sure(LIMITS, 0.9, [run(40.0, good=0.8, failed=10)], keeps=False)


def test_without_a_known_error_the_simulated_figure_counts():
    unknown = run(49.9) | {"expected_errors": {"llm": {"ttft": None, "tpot": None}}}
    assert is_sure(LIMITS, 0.9, [unknown], keeps=True)


@pytest.mark.parametrize(
    ("goods", "keeps", "sure"),
    [
        ((0.955, 0.956), True, True),
        ((0.90, 0.96), True, False),
        ((0.80, 0.89), False, False),
        ((0.80, 0.81), False, True),
    ],
)
def test_other_seeds_may_tell_otherwise(goods, keeps, sure):
    """Of two seeds the 95 % interval is 12.7 / sqrt(2) standard deviations to each side."""
    tpot = 20.0 if keeps else 90.0
    assert is_sure(LIMITS, 0.9, [run(tpot, good) for good in goods], keeps=keeps) is sure
    assert is_sure(LIMITS, None, [run(tpot, good) for good in goods], keeps=keeps)


def test_the_sentence_names_who_keeps_and_what_is_not_sure():
    good, near = Kept("a", 0.99, keeps=True, is_sure=True), Kept("b", 0.92, True, False)
    missed, nearly = Kept("c", 0.3, keeps=False, is_sure=True), Kept("d", 0.89, False, False)
    assert sentence([good, near, missed, nearly], where=" here", otherwise="More tells.") == (
        "2 of 4 keep their limits here: a, b. Within error: kept by b; missed by d. More tells."
    )
    assert sentence([good, good]) == "All keep their limits."
    assert sentence([missed, nearly]) == (
        "None keeps its limits; d comes nearest, with 89.0 % good requests. Within error: missed "
        "by d."
    )
    assert sentence([nearly, missed, nearly._replace(name="e", is_sure=True)]) == (
        "None keeps its limits; d, e come nearest, with 89.0 % good requests. Within error: missed "
        "by d."
    ), "all of a tie"
    assert sentence([]) == ""
    assert "a, a, a, a, a, a, a, a and 3 more." in sentence([*[good] * 11, missed])


@pytest.mark.parametrize(
    ("overs", "nearest"),
    [
        ((4.5, 3.5), "b comes nearest, 250 % over a limit"),
        ((2.0, 2.0), "a, b come nearest, 100 % over a limit"),
        ((inf, 1.02), "b comes nearest, 2 % over a limit"),
        ((inf, inf), "a comes nearest, with 40.0 % good"),
        ((0.9, 2.0), "a comes nearest, with 40.0 % good"),  # too many failed
        ((nan, nan), "a comes nearest, with 40.0 % good"),
    ],
)
def test_what_decides_tells_who_comes_nearest(overs, nearest):
    cases = [
        Kept(name, good, keeps=False, is_sure=True, over=over)
        for name, good, over in zip("ab", (0.4, 0.3), overs, strict=True)
    ]
    assert f"limits; {nearest}" in sentence(cases)


@pytest.mark.parametrize(
    ("told", "overloaded", "short"),
    [
        (["stable"], False, False),
        (["unstable"], True, True),
        (["too short to tell"], False, True),
        (["unstable", "stable"], False, False),
        (["unstable", "too short to tell", "stable"], False, True),
        ([None], False, False),
    ],
)
def test_most_runs_tell_whether_a_case_is_overloaded(told, overloaded, short):
    """None: of a closed loop, whose clients cannot be overloaded."""
    found = doubts_of(LIMITS, [run(40.0) | {"stability": each} for each in told])
    assert found == Doubts(overloaded, short, has_error=True)


def test_a_limit_without_a_known_error_is_doubt():
    bar = {"low": -0.1, "high": 0.1}
    unknown = run(40.0) | {"expected_errors": {"llm": {"ttft": bar, "tpot": None}}}
    assert not doubts_of(LIMITS, [unknown]).has_error
    assert doubts_of(LIMITS[:1], [unknown]).has_error


def test_doubts_are_named():
    cases = [
        Kept("a", 1.0, True, True),
        Kept("b", 1.0, True, True, Doubts(is_overloaded=True, is_short=True)),
        Kept("c", 1.0, True, True, Doubts(is_short=True, has_error=False)),
    ]
    assert sentence(cases) == (
        "2 of 3 keep their limits: a, c. Overloaded, so that a longer run would miss: b. "
        "Too short to tell whether queues grow: c. Error of the step times not known: c."
    )
    assert sentence([cases[2]] * 3).endswith(
        "grow: all 3. Error of the step times not known: all 3."
    )
    overloaded = (
        "None keeps its limits and carries the rate. "
        "Overloaded, so that a longer run would miss: b."
    )
    assert sentence(cases[1:2]) == overloaded
    missed = Kept("d", 0.5, False, True, Doubts(is_overloaded=True, is_short=True))
    assert sentence([cases[1], missed]) == overloaded


def test_overload_is_none_that_limits_on_gaps_see():
    """However long the run, seats bound the gaps between tokens; only requests wait longer."""
    limits = [LimitOnShare("tpot", 0.99, 0.040)]
    told = run(40.0) | {"stability": "unstable"}
    doubts = doubts_of(limits, [told])
    assert doubts.is_overloaded
    assert not doubts.sees_queues
    assert doubts_of([*limits, *LIMITS], [told]).sees_queues
    cases = [Kept("a", 1.0, True, True, doubts), Kept("b", 0.5, False, True, Doubts())]
    assert sentence(cases) == (
        "None keeps its limits and carries the rate. Overloaded, which limits on gaps between "
        "tokens do not see: a; add one on TTFT."
    )


def test_who_has_no_rate_is_told_to_search_users():
    changes = {"workload.arrivals": {"type": "closed_loop", "concurrency": 4}}
    users = Scenario.load("demo", overrides=changes | {"workload.lengths.num_requests": 20})
    seqs = {"clients.0.scheduler.max_num_seqs": [8, 16]}
    found = study(users, vary=seqs, jobs=1).verdict
    for told in (found, compare({"a": users, "b": users}, jobs=1).verdict):
        assert "mist goodput tells how many users" in told
        assert "--goodput" not in told
    assert "mist " not in study(users, vary={USERS: [2, 4]}, jobs=1).verdict
