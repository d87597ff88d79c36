"""Blocks that are cached twice, and blocks of answers that are still being written."""

import pytest

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Request
from mist_sim.core.visit import Visit
from mist_sim.stages import completion
from tests.reference.cached_blocks import CachedBlocks

SIZE = 4


def arrive(manager, num_tokens, content_id=0):
    """Queue a prompt of one content id, or of none."""
    content = () if content_id is None else ((content_id, num_tokens),)
    request = Request(0, 0.0, completion(num_tokens, 9), num_tokens, 9, content=content)
    sequence = SequenceState(Visit(request, request.stages, 0.0), num_tokens, 9)
    manager.add(sequence)
    return sequence


def compute(manager, num_tokens, content_id=0):
    """Admit a prompt and compute all of it."""
    sequence = arrive(manager, num_tokens, content_id)
    manager.admit(sequence)
    manager.compute(sequence, num_tokens)
    return sequence


def copies(manager, content_id=0):
    return [(entry.first, entry.end) for entry in manager.cache.copies(content_id)]


def test_a_whole_prompt_that_comes_again_makes_a_second_copy_of_its_last_block():
    manager = CachedBlocks(10, SIZE)
    compute(manager, 4 * SIZE)
    again = arrive(manager, 4 * SIZE)
    assert manager.num_cached_tokens(again) == 3 * SIZE
    assert manager.blocks_to_admit(again) == 1
    manager.admit(again)
    assert manager.num_used == 5
    manager.compute(again, 4 * SIZE)
    assert copies(manager) == [(0, 4), (3, 4)]


@pytest.mark.parametrize(("uncached_first", "num_cached"), [(False, 1), (True, 2)])
def test_blocks_that_nobody_can_find_are_used_first_where_the_version_does(
    uncached_first, num_cached
):
    """Of a request that leaves, the partly filled block goes before what others left earlier."""
    manager = CachedBlocks(3, SIZE, uncached_first=uncached_first)
    first = compute(manager, 2 * SIZE)
    manager.free(first, 2, 2 * SIZE)
    second = compute(manager, 1, content_id=1)
    manager.free(second, 1, 1)
    compute(manager, 1, content_id=2)
    assert manager.num_cached_tokens(arrive(manager, 3 * SIZE)) == num_cached * SIZE


def test_full_blocks_of_a_request_without_content_wait_their_turn():
    """They have a hash in vLLM, although nobody asks for it."""
    manager = CachedBlocks(5, SIZE, uncached_first=True)
    first = compute(manager, 2 * SIZE)
    manager.free(first, 2, 2 * SIZE)
    manager.grow(3)
    manager.free(arrive(manager, 3 * SIZE, content_id=None), 3, 2 * SIZE + 1)
    assert [(piece.entry is None, piece.num_blocks) for piece in manager.free_queue] == [
        (True, 1),
        (False, 2),
        (True, 2),
    ]


def test_second_copy_is_found_when_first_is_evicted():
    manager = CachedBlocks(5, SIZE)
    first = compute(manager, 4 * SIZE)
    second = compute(manager, 4 * SIZE)
    manager.free(first, 4, 4 * SIZE)  # of its blocks, the last alone is nobody's
    other = compute(manager, SIZE, content_id=1)
    assert copies(manager) == [(0, 3), (3, 4)]
    manager.free(second, 4, 4 * SIZE)
    longer = arrive(manager, 4 * SIZE + 1)
    assert manager.num_cached_tokens(longer) == 4 * SIZE
    manager.free(other, 1, SIZE)
    manager.admit(longer)
    assert manager.num_used == 5


def test_a_request_that_goes_on_in_the_middle_of_a_copy_splits_it():
    """It holds two blocks of the first copy and the last two of the second; others hold theirs."""
    manager = CachedBlocks(20, SIZE)
    first, second = arrive(manager, 4 * SIZE), arrive(manager, 4 * SIZE)
    for sequence in (first, second):
        manager.admit(sequence)
    manager.compute(first, 2 * SIZE)
    manager.compute(second, 4 * SIZE)
    manager.free(first, 4, 2 * SIZE)
    assert copies(manager) == [(0, 2), (0, 4)]
    third = arrive(manager, 4 * SIZE + 1)
    assert manager.blocks_to_admit(third) == 3  # two of the first copy, and a new one
    manager.admit(third)
    assert copies(manager) == [(0, 2), (0, 2), (2, 4)]
    manager.free(second, 4, 4 * SIZE)
    assert manager.num_used == 5
    manager.free(third, 5, 4 * SIZE)
    queued = [(piece.entry and piece.entry.first, piece.num_blocks) for piece in manager.free_queue]
    assert queued[-4:] == [(0, 2), (None, 1), (2, 2), (0, 2)]
