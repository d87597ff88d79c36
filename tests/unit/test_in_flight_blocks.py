"""Plans that preempt all sequences, one after the other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mist_sim.clients.scheduling.in_flight_blocks import MOST_STARTS, InFlightBlocks
from mist_sim.errors import ScenarioError


@pytest.fixture
def blocks() -> InFlightBlocks:
    return InFlightBlocks(SimpleNamespace(is_ahead=True), defers=True, spares=False)


class Sequence:
    num_tokens = 5


def start_over(blocks: InFlightBlocks, number: int, *sequences: Sequence, num_left: int = 0):
    for _ in range(number):
        blocks.start_over(sequences, num_left)


def test_too_many_in_a_row_are_refused(blocks):
    one = Sequence()
    start_over(blocks, MOST_STARTS - 1, one)
    with pytest.raises(ScenarioError, match="1,000 plans in a row preempted all .*num_seqs"):
        start_over(blocks, 1, one)


def test_a_token_begins_the_count_anew(blocks):
    one, other = Sequence(), Sequence()
    start_over(blocks, MOST_STARTS - 1, one, other)
    other.num_tokens += 1
    start_over(blocks, MOST_STARTS - 1, one, other)
    with pytest.raises(ScenarioError):
        start_over(blocks, 1, one, other)


def test_a_sequence_that_leaves_begins_the_count_anew(blocks):
    one = Sequence()
    start_over(blocks, MOST_STARTS - 1, one)
    start_over(blocks, MOST_STARTS - 1, one, num_left=1)
    with pytest.raises(ScenarioError):
        start_over(blocks, 1, one, num_left=1)


def test_others_that_are_preempted_meanwhile_do_not(blocks):
    """Two pairs that take turns get no token either."""
    one, two = Sequence(), Sequence()
    start_over(blocks, MOST_STARTS - 2, one)
    start_over(blocks, 1, two)
    with pytest.raises(ScenarioError):
        start_over(blocks, 1, one)
