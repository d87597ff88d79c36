"""How far an answer may be off under a kind of load: whose points count, and how they score."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.metrics.expected_errors import Range, end_to_end
from mist_sim.metrics.load import DECODE_HEAVY, LOADS, LONG_PROMPTS, LOW_LOAD, OTHER_LOAD
from tests.conftest import ROOT
from tests.effort import examples
from tests.tools.bar_points import ADA, FP8, HOPPER, NARROW, TWO_GPUS, WIDE, points
from tools.validation.error_bars import LEAST, error_bar
from tools.validation.held_out import cells

MOST = 0.97  # of nine in ten, as chance leaves

BIASED = [0.1 + factor for factor in NARROW]  # 1.08 to 1.12


def both_loads():
    return points(NARROW) + points(BIASED, load=LONG_PROMPTS)


def test_each_load_has_the_range_of_its_own_points():
    low = error_bar(both_loads(), HOPPER, "tpot", LOW_LOAD)
    long = error_bar(both_loads(), HOPPER, "tpot", LONG_PROMPTS)
    assert (low.low, low.high) == (-0.02, 0.02)
    assert (long.low, long.high) == (0.08, 0.12)
    for bar, load in ((low, LOW_LOAD), (long, LONG_PROMPTS)):
        assert (bar.load, bar.num_points, bar.few_of_load) == (load, 15, False)
    both = error_bar(both_loads(), HOPPER, "tpot")
    assert (both.low, both.high, both.num_points) == (-0.02, 0.12, 30)


@pytest.mark.parametrize("few", [0, 3, 7])
def test_with_few_points_of_a_load_its_range_is_that_of_all_widened(few):
    some = points([0.7] * few, series=2, load=DECODE_HEAVY)
    found = error_bar(both_loads() + some, HOPPER, "tpot", DECODE_HEAVY)
    group = error_bar(both_loads() + some, HOPPER, "tpot")
    assert found.few_of_load
    assert found.num_points == 30 + few
    assert found.low <= min(group.low, -0.3 if few else 0.0)
    assert found.high >= group.high


def test_three_series_are_few_however_many_points_they_have():
    some = points(WIDE, series=3, load=DECODE_HEAVY)
    assert error_bar(both_loads() + some, HOPPER, "tpot", DECODE_HEAVY).few_of_load
    some = points(WIDE, series=4, load=DECODE_HEAVY)
    assert not error_bar(both_loads() + some, HOPPER, "tpot", DECODE_HEAVY).few_of_load


def test_with_few_points_the_nearest_wider_group_tells_of_the_load():
    near, far = points(BIASED, TWO_GPUS, load=OTHER_LOAD), points(WIDE, FP8, load=OTHER_LOAD)
    found = error_bar(points(NARROW) + near + far, HOPPER, "tpot", OTHER_LOAD)
    assert (found.low, found.high) == (-0.02, 0.12)
    assert (found.few_of_load, found.like) == (True, "roofline, dense bf16, Hopper, one GPU")
    found = error_bar(points(NARROW) + far, HOPPER, "tpot", OTHER_LOAD)
    assert (found.low, found.high) == (-0.2, 0.2)


def test_a_load_asks_its_own_kernels():
    kernels = points(WIDE, ADA, is_whole=False)
    others = points(BIASED, ADA, load=LONG_PROMPTS, is_whole=False)
    found = error_bar(both_loads() + kernels + others, ADA, "tpot", LONG_PROMPTS)
    assert (found.low, found.high, found.num_points) == (0.08, 0.12, 30)
    found = error_bar(both_loads() + kernels + others, ADA, "tpot", LOW_LOAD)
    assert (found.low, found.high, found.num_points) == (-0.2, 0.2, 30)


def factor_lists(least, most):
    return st.lists(st.floats(0.5, 2.0), min_size=least, max_size=most)


@examples(60)
@given(factor_lists(8, 30), factor_lists(0, 12), st.integers(1, 5), st.integers(4, 6))
def test_no_range_of_few_points_is_narrower_than_the_groups(many, few, few_series, series):
    found = points(many, series=series) + points(few, series=few_series, load=DECODE_HEAVY)
    group = error_bar(found, HOPPER, "tpot")
    bar = error_bar(found, HOPPER, "tpot", DECODE_HEAVY)
    if bar.few_of_load:
        assert bar.low <= group.low
        assert bar.high >= group.high
        assert all(bar.low <= round(factor - 1, 3) <= bar.high for factor in few)


@examples(60)
@given(factor_lists(8, 40), factor_lists(8, 40), st.integers(4, 7))
def test_every_cell_holds_85_of_100_points_left_out(low, heavy, series):
    """`LEAST`, whatever the errors; nine in ten of enough points."""
    found = points(low, series=series) + points(heavy, series=series, load=DECODE_HEAVY)
    for cell in cells(found):
        assert cell.after >= LEAST
        assert cell.new[0] < cell.new[1] or len(set(low)) == 1 or len(set(heavy)) == 1


def test_a_cell_shows_what_one_range_for_all_loads_missed():
    """Of long prompts alone the upper ends are known where low loads hide them."""
    hidden = points(NARROW * 8) + points(BIASED, load=LONG_PROMPTS)
    found = {cell.load: cell for cell in cells(hidden)}
    assert set(found) == {LOW_LOAD, LONG_PROMPTS}
    assert found[LONG_PROMPTS].before < LEAST <= found[LONG_PROMPTS].after
    assert found[LONG_PROMPTS].old[1] < found[LONG_PROMPTS].new[1]
    assert (found[LONG_PROMPTS].num_points, found[LONG_PROMPTS].num_series) == (15, 4)


def test_cells_of_the_page_hold_85_to_97_of_100():
    """Cells with a range of their own; those with few points hold as many, or more.

    What holds a model that was left out holds single series of known ones as well, so the lesser
    share of the two counts.
    """
    page = (ROOT / "docs/background/error_bars.md").read_text("utf-8")
    pattern = (
        r"^\| [^|]+ \| ([\w -]+)(\*?) \| (\w+) \| (\d+) \| (\d+) \| \d+ % \| (\d+) % \| ([\d-]+)"
    )
    rows = re.findall(pattern, page, re.MULTILINE)
    assert {row[0] for row in rows} == set(LOADS)
    assert {row[2] for row in rows} == {"TTFT", "TPOT"}
    assert any(row[-1] != "-" for row in rows)
    for _, few, _, num_points, num_series, inside, by_model in rows:
        assert bool(few) == (int(num_points) < 8 or int(num_series) < 4)
        least = min(int(inside), int(inside if by_model == "-" else by_model))
        assert 100 * LEAST <= least <= (100 if few else 100 * MOST)


def test_end_to_end_lies_between_its_parts():
    first, rest = Range(-0.2, 0.4), Range(-0.1, 0.1)
    assert end_to_end(first, rest, 1.0) == first
    assert end_to_end(first, rest, 0.0) == rest
    assert end_to_end(first, rest, 0.5) == pytest.approx((-0.15, 0.25))
