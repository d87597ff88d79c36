"""The ends of steps: what is packed comes back to the bit, in few bytes."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.core import step_ends
from mist_sim.core.step_ends import StepEnds
from tests.effort import examples

TIMES = st.floats(0.0, 1e300)


@st.composite
def ends_of_runs(draw: st.DrawFn) -> list[float]:
    """Ends as engines give them, in runs whose steps take a little longer each, or any."""
    now, ends = draw(TIMES), []
    for first, more, number in draw(
        st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e-3), st.integers(1, 12)), max_size=12)
    ):
        for step in range(number):
            now += first + more * step
            ends.append(now)
    return sorted([*ends, *draw(st.lists(TIMES, max_size=5))])


def of(ends: list[float], at_once: int) -> StepEnds:
    """The ends, appended so many at a time, packed in between in pieces of eight."""
    found = StepEnds()
    for first in range(0, len(ends), at_once):
        found.latest.extend(ends[first : first + at_once])
        found.pack()
    return found


@pytest.fixture(autouse=True, scope="module")
def _short_pieces():
    with mock.patch.object(step_ends, "_PIECE", 8):
        yield


@examples(200)
@given(ends=ends_of_runs(), at_once=st.integers(1, 40), data=st.data())
def test_packed_ends_are_read_to_the_bit(ends, at_once, data):
    found, array = of(ends, at_once), np.array(ends)
    assert len(found) == len(ends)
    assert np.array(list(found)).tobytes() == found[:].tobytes() == array.tobytes()
    places = st.integers(-3, len(ends) + 3)
    first, last = data.draw(places), data.draw(places)
    assert found[first:last].tobytes() == array[first:last].tobytes()
    steps = np.array(sorted(data.draw(st.sets(st.integers(0, max(len(ends) - 1, 0))))), dtype=int)
    if ends:
        assert found[int(steps[0] if len(steps) else -1)] in ends
        assert found.of(steps).tolist() == array[steps].tolist()
    with pytest.raises(IndexError):
        found[len(ends)]


@examples(100)
@given(ends=ends_of_runs(), at_once=st.integers(1, 40), times=st.lists(TIMES, max_size=9))
def test_steps_that_have_ended_at_time_are_counted(ends, at_once, times):
    asked = np.array([*times, *ends[:: max(len(ends) // 9, 1)], np.inf])
    numbers = of(ends, at_once).number_until(asked)
    assert numbers.tolist() == np.searchsorted(np.array(ends), asked, "right").tolist()


def test_pieces_follow_one_another():
    ends = [0.5 * k for k in range(21)]
    pieces = list(of(ends, 5).pieces())
    assert [first for first, _ in pieces] == [0, 8, 16]
    assert [end for _, piece in pieces for end in piece.tolist()] == ends


def test_only_many_ends_of_a_run_are_packed(monkeypatch):
    tracks = [of([], 1), of([], 1)]
    for ends in tracks:
        ends.latest.extend([0.5 * k for k in range(20)])
    for most, left in ((40, 20), (39, 4)):
        monkeypatch.setattr(step_ends, "_MOST", most)
        step_ends.pack_many(tracks)
        assert [len(ends.latest) for ends in tracks] == [left, left]
        assert [len(ends) for ends in tracks] == [20, 20]


def test_steps_of_a_run_take_a_byte_each():
    """The steps of a run of decodes, as the roofline has them: each a little longer."""
    ends = (1_000.0 + np.cumsum(0.02 + 1e-6 * np.arange(8_192))).tolist()
    with mock.patch.object(step_ends, "_PIECE", 8_192):
        found = of(ends, 100)
        assert found[:].tolist() == ends
    assert found.nbytes < 1.01 * len(ends)
