"""Tables of experts: cells that cannot be are filled, and measured ones stay as they are."""

import numpy as np
import pandas as pd
from hypothesis import event, given
from hypothesis import strategies as st

from mist_sim.hardware.tables.base import measured_grid
from mist_sim.hardware.tables.expert_tables import AXES
from tests.effort import examples

TOKENS = (1.0, 2.0, 4.0, 16.0, 64.0)
EXPERTS = (1.0, 2.0, 8.0, 32.0, 64.0)


@st.composite
def tables(draw: st.DrawFn, noise: float) -> pd.DataFrame:
    """Rows of cells that can be: tokens for eight experts each reach no more than that."""
    base = draw(st.floats(5.0, 500.0))
    slopes = draw(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 20.0)))
    rows = []
    for tokens in TOKENS:
        for experts in EXPERTS:
            if experts <= 8 * tokens and (experts == 1.0 or draw(st.booleans())):
                wobble = 1 + noise * draw(st.floats(-1.0, 1.0)) if noise else 1.0
                time = (base + slopes[0] * tokens + slopes[1] * experts) * wobble
                rows.append({"tokens": tokens, "activated_experts": experts, "time_us": time})
    return pd.DataFrame(rows)


def cells(frame: pd.DataFrame):
    points, values, moved = measured_grid(frame, AXES, "time_us", "moe.csv")
    places = [np.searchsorted(at, frame[axis]) for at, axis in zip(points, AXES, strict=True)]
    return values, values[tuple(places)], moved


def rises(values: np.ndarray) -> bool:
    return all((np.diff(values, axis=axis) >= 0).all() for axis in range(2))


@given(frame=tables(0.0))
@examples(150)
def test_measured_cells_that_rise_are_met_to_bit(frame):
    values, found, moved = cells(frame)
    assert moved == []
    assert found.tolist() == frame["time_us"].tolist()
    assert rises(values)


@given(frame=tables(0.4))
@examples(150)
def test_only_cells_that_fall_with_more_work_are_moved_and_they_are_named(frame):
    values, found, moved = cells(frame)
    named = {tuple(place) for place in moved}
    event(f"moved: {bool(named)}")
    assert rises(values)
    rows = list(frame.itertuples())
    for row, value in zip(rows, found, strict=True):
        crossed = any(
            (row.time_us - other.time_us) * (sign := 1 if above else -1) > 0 and sign
            for other in rows
            for above in (True, False)
            if _comes_after(other, row, above=above)
        )
        assert ((row.tokens, row.activated_experts) in named) == crossed
        if not crossed and not named:
            assert value == row.time_us


def _comes_after(other, row, *, above: bool) -> bool:
    """Tell whether one is more work in both, or less in both, and not the same."""
    if not above:
        other, row = row, other
    more = other.tokens >= row.tokens and other.activated_experts >= row.activated_experts
    return more and other is not row


def test_an_impossible_corner_leaves_cell_beside_it_alone():
    """The case that was found: two tokens cannot reach 64 experts, and 423 us became 515."""
    rows = [(2, 8, 200.0), (2, 16, 423.0), (64, 8, 210.0), (64, 16, 430.0), (64, 64, 460.0)]
    frame = pd.DataFrame(rows, columns=["tokens", "activated_experts", "time_us"])
    values, found, moved = cells(frame)
    assert found.tolist() == [200.0, 423.0, 210.0, 430.0, 460.0]
    assert moved == []
    assert 423.0 <= values[0, 2] <= 460.0
