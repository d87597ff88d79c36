"""Interpolation between measured seconds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.hardware.interpolation import seconds_plane
from tests.refusals import refused

GRID = seconds_plane([1, 2, 4], [0, 100], [[1.0, 2.0], [2.0, 3.0], [4.0, 5.0]])


def test_nodes_are_met_and_the_middle_is_between():
    assert GRID.at(2, 100) == 3.0
    assert GRID.at(3, 50) == pytest.approx(3.5)


def test_beyond_the_last_node_the_slope_goes_on_and_below_the_first_it_holds():
    assert GRID.at(8, 0) == pytest.approx(8.0)
    assert GRID.at(1, 300) == pytest.approx(4.0)
    assert GRID.at(0, -5) == 1.0
    assert (GRID.fixed.top, GRID.moving.top) == (4, 100)


def test_noise_never_makes_more_work_shorter():
    noisy = seconds_plane([1, 2, 3], [0, 1], [[1.0, 1.2], [0.9, 1.1], [1.5, 1.4]])
    assert noisy.at(2, 0) == 1.0
    assert noisy.at(3, 1) == 1.5
    assert noisy.at(9, 9) >= noisy.at(3, 1)


def test_one_node_is_a_constant():
    assert seconds_plane([5], [7], [[0.25]]).at(100, 100) == 0.25


@given(x=st.integers(0, 50), y=st.floats(0, 5_000), step=st.floats(0, 90), count=st.integers(1, 30))
def test_many_have_the_bits_of_one(x, y, step, count):
    seconds = np.cumsum(np.cumsum(np.linspace(0.1, 0.7, 35).reshape(5, 7) ** 2, axis=0), axis=1)
    grid = seconds_plane([1, 3, 7, 20, 33], [0, 16, 99, 512, 1000, 1001, 4000], seconds)
    ys = y + step * np.arange(float(count))
    assert grid.along(x, ys).tolist() == [grid.at(x, one) for one in ys.tolist()]


test_what_is_no_grid_is_refused = refused(
    seconds_plane,
    ([], [0], [[]], "fixed must have points that increase"),
    ([1, 1], [0], [[1.0], [1.0]], "fixed must have points that increase"),
    ([1], [0, 1], [[1.0]], "seconds must have the shape"),
    ([1], [0], [[0.0]], "seconds must be finite and > 0"),
    error=ValueError,
)
