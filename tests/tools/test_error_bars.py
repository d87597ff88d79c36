"""How ranges of expected errors are found in measured points."""

import re
from dataclasses import replace

import pytest

from tests.conftest import ROOT
from tests.tools.bar_points import ADA, EXPERTS, FP8, HOPPER, NARROW, TWO_GPUS, WIDE, points
from tools.validation.error_bars import error_bar, is_inside
from tools.validation.held_out import left_out


def test_the_nearest_group_decides():
    both = points(NARROW) + points(WIDE, TWO_GPUS)
    assert error_bar(both, HOPPER, "tpot").high == pytest.approx(0.02)
    assert error_bar(both, TWO_GPUS, "tpot").high == pytest.approx(0.2)
    found = error_bar(both, FP8, "tpot")
    assert (found.num_points, found.like) == (30, "roofline, dense, Hopper")


def test_of_few_points_the_ends_are_the_extremes():
    """Of 19 or more, one of twenty lies beyond each end."""
    few = error_bar(points([0.5, *[1.0] * 14, 2.0]), HOPPER, "tpot")
    assert (few.low, few.high) == (-0.5, 1.0)
    many = error_bar(points([0.5, *[1.0] * 60, 2.0]), HOPPER, "tpot")
    assert (many.low, many.high) == (0.0, 0.0)


def test_a_group_needs_eight_points_of_four_series():
    others = points(WIDE, TWO_GPUS)
    for few in (points(NARROW[:7]), points(NARROW, series=3)):
        assert error_bar(few + others, HOPPER, "tpot").high == pytest.approx(0.2)
    assert error_bar(points(NARROW[:8]) + others, HOPPER, "tpot").high < 0.1


def test_kernels_of_its_own_widen_what_others_show():
    runs, kernels = points(NARROW), points(WIDE, ADA, is_whole=False)
    assert error_bar(runs, ADA, "tpot").high == pytest.approx(0.02)
    found = error_bar(runs + kernels, ADA, "tpot")
    assert (found.low, found.high) == (-0.2, 0.2)
    assert found.like == "roofline, dense, all GPUs; kernels of dense bf16, Ada"
    assert error_bar(kernels, ADA, "tpot") is None  # no run shows what comes beside kernels


def test_other_kinds_of_models_tell_only_with_kernels_of_its_own():
    runs = points(NARROW)
    assert error_bar(runs, EXPERTS, "tpot") is None
    kernels = points(WIDE, EXPERTS, is_whole=False)
    assert error_bar(runs + kernels, EXPERTS, "tpot").high == 0.2


def test_a_point_is_scored_without_its_series():
    """A series that is far off widens the bar of all others, and not its own."""
    off = [replace(point, factor=3.0, series="off", run="a run") for point in points(NARROW[:8])]
    near = [replace(point, run="a run") for point in points(NARROW)]
    found = left_out(off + near)
    assert len(found) == len(off + near)
    for point, bar in found:
        assert is_inside(point, bar) == (point.series != "off")
        if point.series == "off":
            assert bar.high == pytest.approx(0.02)
        else:
            assert bar.high >= 2.0


def test_a_range_moves_out_until_nine_in_ten_of_what_is_left_out_lie_inside():
    """Five series, of which the last lies beyond the others by a ratio of 1.1 / 1.01."""
    found = error_bar(points([0.98, 0.99, 1.0, 1.01, 1.1] * 3, series=5), HOPPER, "tpot")
    beyond = 1.1 / 1.01
    assert found.high == pytest.approx(1.1 * beyond - 1, abs=1e-3)
    assert found.low == pytest.approx(0.98 / beyond - 1, abs=1e-3)


def test_a_range_that_holds_does_not_move():
    assert error_bar(points(NARROW), HOPPER, "tpot").high == pytest.approx(0.02)


def test_what_was_simulated_twice_widens_once():
    again = [replace(point, factor=3.0, widens=False) for point in points(NARROW)]
    assert error_bar(points(NARROW) + again, HOPPER, "tpot").num_points == len(NARROW)


def test_nine_in_ten_of_the_page_lie_inside():
    """The law: 85 to 97 % of the points, of both metrics too; wider bars fail as well."""
    page = (ROOT / "docs/validation.md").read_text("utf-8")
    pattern = r"^\| \**all but the last\** \| (\w+) \| (\d+) \| (\d+) \("
    rows = re.findall(pattern, page, re.MULTILINE)
    assert [row[0] for row in rows] == ["TTFT", "TPOT", "E2E", "both"]
    for _, number, inside in rows:
        assert 0.85 <= int(inside) / int(number) <= 0.97
