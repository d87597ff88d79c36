"""Who wins a comparison: stars and the sentence below the table, by hand."""

from math import inf, nan

import pytest

from mist_sim.metrics.expected_errors import Range
from mist_sim.metrics.keeping import Doubts, Kept
from mist_sim.search.ranking import Beside, Ranked, sentence, starred


def case(name, rate=nan, interval=None, keeps=True, dollars=nan, good=0.95, first="TPOT"):
    figures = {
        "goodput": rate,
        "goodput_per_gpu": rate / 4,
        "cost_per_million_output_tokens_usd": dollars,
        "cost_per_million_output_tokens_at_goodput_usd": dollars,
        "good_request_fraction": good,
    }
    kept = None if keeps is None else Kept(name, good, keeps, is_sure=True)
    return Ranked(name, figures, interval, kept, first)


APART = case("apart", 90.0, (88.0, 92.0))
TOGETHER = case("together", 70.0, (68.0, 73.0))


def test_intervals_that_do_not_meet_are_sure():
    assert starred("goodput", "more", [APART, TOGETHER]) == ["apart"]
    assert starred("goodput_per_gpu", "more", [APART, TOGETHER]) == ["apart"]
    assert sentence([APART, TOGETHER]) == (
        "apart (90 /s, 88 to 92) serves most, 29 % more than together (70 /s, 68 to 73): "
        "these 95 % intervals of the runs do not overlap; errors of the step times, which "
        "may differ between GPUs and models, are not in them; TPOT is the first to miss beyond."
    )


OFF = Range(-0.2, 0.25)


def batch(name, seconds, error=OFF, **more):
    """Return a case without limits whose requests all come at once."""
    figures = {"goodput": nan, "goodput_per_gpu": nan, "duration": seconds, "failed": 0.0}
    found = Ranked(name, figures, None, None, has_rate=False, throughput_error=error)
    return found._replace(**more)


def test_without_limits_batch_that_finishes_first_is_named():
    assert sentence([batch("tp4", 105.0), batch("tp2", 100.0), batch("tp1", 900.0)]) == (
        "tp2 finishes first, after 100 s; tp4 takes 5.0 % longer (105 s), within the expected "
        "errors of the step times (tp2 80.0 to 125 s, tp4 84.0 to 131 s), so not sure if those of "
        "the two are off differently. The others take longer still."
    )
    assert "takes 2.0 times as long (200 s), more than the expected errors" in (
        sentence([batch("tp2", 100.0), batch("tp4", 200.0)])
    )
    assert "not known of both" in sentence([batch("a", 1.0), batch("b", 2.0, None)])
    assert sentence([batch("a", 100.0), batch("b", 100.01)]) == (
        "a and b finish at the same time, after 100 s."
    )


def test_seeds_that_differ_by_more_leave_first_open():
    one, two = ([{"duration": 100.0 + k} for k in moves] for moves in ((0, 3, 1), (4, 1, 3)))
    told = sentence([batch("a", 101.3, by_seed=one), batch("b", 102.7, by_seed=two)])
    assert "(103 s), not more than runs with other seeds differ." in told


def test_nobody_finishes_first_where_requests_come_at_a_rate_or_fail():
    late = batch("b", 2.0)
    assert sentence([batch("a", 1.0), late._replace(has_rate=True)]) == ""
    assert sentence([batch("a", 1.0), late._replace(figures=late.figures | {"failed": 1.0})]) == ""
    assert sentence([batch("a", 1.0)]) == ""


def test_intervals_with_a_rate_in_common_only_touch():
    low = TOGETHER._replace(interval=(68.0, 88.0))
    told = sentence([APART, low])
    assert "more than together (70 /s, 68 to 88): these 95 % intervals of the runs only touch" in (
        told
    )
    assert "only touch, at 88 /s; errors" in told
    assert "overlap" not in told


def test_all_are_counted_that_come_next_with_the_same_goodput():
    """The one whose interval goes further up is named, as the one that comes nearest."""
    other = TOGETHER._replace(name="other", interval=(66.0, 75.0))
    third = TOGETHER._replace(name="third")
    assert "more than other (70 /s, 66 to 75) and 1 other with as much: these" in (
        sentence([TOGETHER, APART, other])
    )
    assert " and 2 others with as much: these" in sentence([TOGETHER, APART, other, third])


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (((85.0, 95.0), (60.0, 80.0)), "; sure, even with the expected errors"),
        (((70.0, 95.0), (60.0, 80.0)), "not sure if the step times"),
    ],
)
def test_lead_is_held_against_errors_of_step_times(ends, words):
    best, second = (
        one._replace(error_interval=end, has_step_ends=True)
        for one, end in zip((APART, TOGETHER), ends, strict=True)
    )
    assert words in sentence([best, second])
    at_load = sentence([best._replace(has_step_ends=False), second])
    assert "sure, even" not in at_load


@pytest.mark.parametrize("unknown", ["apart", "together", "third"])
def test_nothing_is_sure_without_a_known_error(unknown):
    third = case("third", 50.0, (49.0, 51.0))
    cases = [
        each._replace(doubts=Doubts(has_error=each.name != unknown))
        for each in (APART, TOGETHER, third)
    ]
    told = sentence(cases)
    assert f"not sure, since the error of the step times of {unknown} is not known" in told
    assert told.count("sure") == 1
    assert starred("goodput", "more", cases) == starred("goodput_per_gpu", "more", cases) == []


def test_no_star_on_joules_under_an_assumed_cap():
    cases = [
        each._replace(figures=each.figures | {"energy_j": joules})
        for each, joules in ((APART, 1.0), (TOGETHER, 2.0))
    ]
    assert starred("energy_j", "less", cases) == ["apart"]
    assert starred("energy_j", "less", [cases[0]._replace(has_cap=True), cases[1]]) == []


@pytest.mark.parametrize(
    ("windows", "stars"),
    [(("steady", "steady"), ["apart"]), (("sent", "sent"), []), (("steady", "whole"), [])],
)
def test_tokens_are_starred_over_like_windows(windows, stars):
    tokens = "steady_output_throughput"
    cases = [
        each._replace(figures={tokens: rate}, window=window)
        for each, rate, window in zip((APART, TOGETHER), (185.0, 167.0), windows, strict=True)
    ]
    assert starred(tokens, "more", cases) == stars


OPEN = case("open", interval=(80.0, inf), first=None)


def test_one_that_attains_all_rates_tried_may_be_the_best():
    """It has no goodput, and a star on the best of the others would be on the worst of all."""
    assert starred("goodput", "more", [APART, OPEN]) == []
    with_gpus = OPEN._replace(figures=OPEN.figures | {"num_gpus": 4.0})
    assert starred("goodput_per_gpu", "more", [APART, with_gpus]) == []
    assert sentence([TOGETHER, OPEN, APART]) == (
        "Undecided: open attains all rates tried, up to 80 /s; of the others apart (90 /s, 88 to "
        "92) serves most. A higher end of --rates may tell."
    )
    twin = OPEN._replace(name="twin", is_steady=False)
    assert sentence([twin, OPEN]) == (
        "Undecided: twin, open attain all rates tried, up to 80 /s. A higher end of --rates, or a "
        "workload of more requests, may tell."
    )


def test_one_that_misses_all_rates_tried_serves_less_than_the_lowest():
    missed = case("missed", interval=(0.0, 60.0), first="TTFT")
    assert starred("goodput", "more", [APART, missed]) == ["apart"]
    assert sentence([missed, APART]).startswith("apart alone attains a rate: 90 /s")
    assert sentence([missed, missed]) == "No rate is attained; TTFT misses first."
    unknown = missed._replace(interval=(0.0, inf))
    assert starred("goodput", "more", [APART, unknown]) == []
    assert sentence([unknown, APART]).startswith(
        "Undecided between apart (90 /s, 88 to 92) and missed (not known)"
    )
    above = missed._replace(interval=(0.0, 120.0))
    assert "missed (less than 120 /s)" in sentence([above, APART])


def test_an_undecided_one_attains_some_rates_and_not_all_tried():
    """It is no design that attains all rates, and none that attains no rate."""
    between = case("between", interval=(20.0, 60.0))._replace(is_undecided=True)
    above = between._replace(name="above", interval=(20.0, inf))
    assert not above.is_open
    assert sentence([between, above]) == (
        "Undecided: between (20 /s or more, less than 60 /s), above (20 /s or more); "
        "--most-requests or --replications may tell."
    )
    assert sentence([APART, between]) == (
        "apart (90 /s, 88 to 92) serves more than between (20 /s or more, less than 60 /s); TPOT "
        "is the first to miss beyond."
    )
    assert starred("goodput", "more", [APART, between]) == ["apart"]
    assert starred("goodput", "more", [APART, above]) == []


def test_the_lead_over_lower_bound_is_upper_one():
    """A design that was searched only coarsely may serve more than its figure."""
    coarse = TOGETHER._replace(is_coarse=True)
    assert "serves most, up to 29 % more than together" in sentence([APART, coarse])


@pytest.mark.parametrize(("high", "stars"), [(90.6, ["apart"]), (90.7, []), (95.0, [])])
def test_intervals_may_meet_by_three_percent(high, stars):
    """88 x 1.03 = 90.64."""
    near = case("near", 89.0, (85.0, high))
    assert starred("goodput", "more", [near, APART]) == stars
    assert sentence([near, APART]).startswith(
        "Undecided between apart (90 /s, 88 to 92) and near"
    ) != (stars == ["apart"])


def test_a_workload_as_it_stands_has_no_intervals_to_be_sure_of():
    one, other = (case._replace(is_steady=False) for case in (APART, TOGETHER))
    assert sentence([one, other]) == (
        "apart serves most, 90 /s: 29 % more than together, for the workload as it stands; short "
        "ones flatter; TPOT is the first to miss beyond."
    )
    near = other._replace(interval=(85.0, 95.0))
    assert sentence([one, near]).endswith("for the workload as it stands; short ones flatter.")


def beside(of, not_more, not_less, best="apart"):
    return of._replace(beside=Beside(best, 0.02, not_more, not_less))


def test_designs_that_surely_serve_as_much_share_star():
    near = beside(case("near", 89.0, (85.0, 95.0)), not_more=True, not_less=True)
    cases = [TOGETHER, near, APART]
    assert starred("goodput", "more", cases) == ["apart", "near"]
    alone = sentence([TOGETHER, APART])
    assert sentence(cases) == alone.replace(
        "serves most, 29 % more than",
        "serves most, and near as much, within the --tolerance of 2 % (95 %), by runs of the same "
        "requests; that is 29 % more than the next,",
    )
    twin = APART._replace(name="twin")
    assert starred("goodput", "more", [APART, twin]) == []
    assert sentence([APART, twin]).startswith("Undecided between apart")
    twin = beside(twin, not_more=True, not_less=True)
    assert starred("goodput", "more", [APART, twin]) == ["apart", "twin"]
    both = "serves most, and near and twin as much, within the --tolerance of 2 % (95 %)"
    assert both in sentence([APART, near, twin])


def test_a_design_that_surely_serves_little_more_takes_no_star_and_has_none():
    near = beside(case("near", 89.0, (85.0, 95.0)), not_more=True, not_less=False)
    assert starred("goodput", "more", [near, APART]) == ["apart"]
    assert sentence([near, APART]).startswith(
        "apart (90 /s, 88 to 92) serves most to within the --tolerance of 2 %: near (89 /s, 85 to "
        "95) serves at most 2 % more (95 %), by runs of the same requests; errors"
    )


@pytest.mark.parametrize("of", [{"not_more": False, "not_less": True}, {"best": "another"}])
def test_design_that_may_serve_more_leaves_it_undecided(of):
    near = beside(case("near", 89.0, (85.0, 95.0)), **{"not_more": True, "not_less": True} | of)
    assert starred("goodput", "more", [near, APART]) == []
    assert sentence([near, APART]).startswith("Undecided between apart (90 /s, 88 to 92) and near")


def test_what_is_known_of_the_goodput_is_known_a_gpu_where_gpus_are_as_many():
    near = beside(case("near", 89.0, (85.0, 95.0)), not_more=True, not_less=True)
    assert starred("goodput_per_gpu", "more", [near, APART]) == ["apart", "near"]
    open_end = near._replace(interval=(0.0, 95.0))
    assert starred("goodput_per_gpu", "more", [open_end, APART]) == ["apart", "near"]
    fewer = near._replace(figures=near.figures | {"goodput_per_gpu": 89.0 / 3.95})
    assert starred("goodput_per_gpu", "more", [fewer, APART]) == []


def test_star_is_for_those_that_keep_their_limits():
    cheap = case("cheap", keeps=False, dollars=1.0, good=0.3)
    dear = case("dear", dollars=2.0)
    figure = "cost_per_million_output_tokens_usd"
    assert starred(figure, "less", [cheap, dear]) == ["dear"]
    assert starred(figure, "less", [cheap, cheap._replace(name="other")]) == []
    at_goodput = "cost_per_million_output_tokens_at_goodput_usd"
    assert starred(at_goodput, "less", [cheap, dear]) == ["cheap"], "which keeps them there"


def test_an_overloaded_one_has_no_star():
    cheap, doubts = case("a", dollars=1.0), Doubts(is_overloaded=True)
    cheap = cheap._replace(doubts=doubts, kept=cheap.kept._replace(doubts=doubts))
    cases = [cheap, case("b", dollars=2.0), case("c", dollars=3.0)]
    assert starred("cost_per_million_output_tokens_usd", "less", cases) == ["b"]
    assert sentence(cases).startswith("2 of 3 keep their limits at this rate: b, c. Overloaded")


@pytest.mark.parametrize(("high", "stars"), [(92.6, ["dear"]), (98.0, [])])
def test_dollars_at_goodput_are_as_sure_as_goodput(high, stars):
    """Dollars a token fall as the rate grows: 1.00 x 90 / 88 beside 1.06 x 91 / high, and 3 %."""
    dear = case("dear", 90.0, (88.0, 92.0), dollars=1.0)
    near = case("near", 91.0, (89.0, high), dollars=1.06)
    figure = "cost_per_million_output_tokens_at_goodput_usd"
    assert starred(figure, "less", [near, dear]) == stars
    unbounded = dear._replace(interval=(0.0, 92.0))
    assert starred(figure, "less", [unbounded, near._replace(interval=(89.0, 92.6))]) == []


@pytest.mark.parametrize(
    ("one", "other", "stars"),
    [
        ((10.0, 20.0), (11.0, 21.0), ["one"]),
        ((10.0, 20.0), (11.0, 19.9), []),
        ((10.0,), (10.1,), ["one"]),
    ],
)
def test_with_seeds_a_star_is_for_a_difference_that_all_seeds_show(one, other, stars):
    """By the runs with the same seed; of one run each, the figure alone counts."""
    figure = "cost_per_million_output_tokens_usd"
    cases = [
        case(name, dollars=sum(values) / len(values))._replace(
            by_seed=[{figure: value} for value in values]
        )
        for name, values in (("one", one), ("other", other))
    ]
    assert starred(figure, "less", cases) == stars


def test_without_a_search_sentence_counts_who_keeps_limits():
    bad = case("bad", keeps=False, good=0.4)
    good = case("good")
    assert sentence([bad, good]).startswith("1 of 2 keep their limits at this rate: good.")
    assert sentence([good, good]).startswith("All keep their limits")
    assert sentence([bad, case("worse", keeps=False, good=0.1)]) == (
        "None keeps its limits at this rate; bad comes nearest, with 40.0 % good requests. "
        "--goodput finds the rates that they serve."
    )
    assert sentence([good._replace(kept=None), bad._replace(kept=None)]) == ""


def test_what_failed_is_named_apart_and_not_counted():
    bad, good = case("bad", keeps=False, good=0.4), case("good")
    failed = case("failed", keeps=None, good=nan)
    other = failed._replace(name="other")
    assert sentence([failed, bad, good, other]) == (
        "1 of 2 keep their limits at this rate: good. --goodput tells who serves most. "
        "Not judged: failed, other."
    )
    assert sentence([good, failed]) == (
        "All keep their limits at this rate. --goodput tells who serves most. Not judged: failed."
    )
    assert sentence([APART, failed, TOGETHER]).endswith(" beyond. Not judged: failed.")


def test_one_alone_and_none_at_all():
    none = case("none", nan, (0.0, 60.0), first="TTFT")
    assert sentence([APART, none]) == (
        "apart alone attains a rate: 90 /s; TPOT is the first to miss beyond."
    )
    assert sentence([none, none._replace(interval=(0.0, 1.0))]) == (
        "No rate is attained; TTFT misses first."
    )


def test_lead_smaller_than_known_bias_has_no_star():
    """Measured tokens take 24 to 57 % longer than simulated ones of one design, or of both."""
    slow = {"tpot": Range(0.24, 0.57)}
    figures = {"p90_tpot_ms": 10.0, "p90_ttft_ms": 100.0}
    best = APART._replace(figures=APART.figures | figures, biases=slow)
    worse = {"p90_tpot_ms": 11.2, "p90_ttft_ms": 112.0}
    other = TOGETHER._replace(figures=TOGETHER.figures | worse)
    assert starred("goodput", "more", [best, other]) == []
    assert starred("p90_tpot_ms", "less", [best, other]) == []
    assert starred("p90_ttft_ms", "less", [best, other]) == ["apart"]
    assert sentence([best, other]) == (
        "Undecided between apart (90 /s, 88 to 92) and together (70 /s, 68 to 73); their step "
        "times are off by more than that, to one side."
    )
    for both in ([best, other._replace(biases=slow)], [best._replace(biases={}), other]):
        assert starred("goodput", "more", both) == ["apart"]
        assert starred("p90_tpot_ms", "less", both) == ["apart"]
    far = other._replace(figures=other.figures | {"p90_tpot_ms": 15.8})
    assert starred("p90_tpot_ms", "less", [best, far]) == ["apart"]
