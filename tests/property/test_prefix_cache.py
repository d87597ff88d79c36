"""The prefix cache alone, held against one that lists every block; and laws of a cache."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.clients.kv_cache import PrefixHistory
from mist_sim.clients.prefixes.shared_prefixes import SharedPrefixes
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Request
from mist_sim.core.visit import Visit
from mist_sim.errors import ScenarioError
from mist_sim.stages import completion
from tests.effort import examples
from tests.property.strategies import cases, contents, lengths
from tests.reference.cached_blocks import CachedBlocks
from tests.reference.comparison import Case, EngineOptions
from tests.reference.memory import Memory
from tests.reference.predictors import AWKWARD
from tests.reference.stepwise import Job, Live, Outcome


def sequence_of(prompt: int, content: tuple[tuple[int, int], ...]) -> SequenceState:
    request = Request(0, 0.0, completion(prompt, 9), prompt, 9, content=content)
    return SequenceState(Visit(request, request.stages, 0.0), prompt, 9)


class Pair:
    """One request in both caches, and how far it is."""

    def __init__(self, manager: CachedBlocks, prompt: int, content) -> None:
        self.sequence = sequence_of(prompt, content)
        self.live = Live(Job(0.0, prompt, 1, content=content), Outcome())
        self.num_computed = 0
        self.seen: list[object] | None = None  # blocks that it had as it began to decode
        manager.add(self.sequence)


@examples(300)
@given(data=st.data())
def test_counts_are_those_of_a_cache_that_lists_its_blocks(data):
    """Admissions, pieces of prompts, decodes, ends and preemptions in any order.

    Of the blocks that decodes had as they began is known how many have each.
    """
    size = data.draw(st.integers(1, 8))
    num_blocks = data.draw(st.integers(4, 40))
    first = data.draw(st.booleans())
    manager = CachedBlocks(num_blocks, size, uncached_first=first)
    memory = Memory(num_blocks, size, caching=True, uncached_first=first)
    content, waiting, running = data.draw(contents(size)), [], []
    shared = SharedPrefixes(lambda *_: 0, size)
    actions = ["add", "admit", "compute", "compute", "decode", "end", "end"]
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(actions))
        if action == "add":
            tokens = data.draw(lengths(size, size * num_blocks)), data.draw(st.integers(1, 30))
            waiting.append(Pair(manager, tokens[0], content(*tokens)))
        elif action == "admit" and waiting:
            pair = waiting[0]
            held = memory.num_held(pair.live)
            num_blocks_in_all = -(-pair.live.num_known // size)
            need = manager.blocks_to_admit(pair.sequence)
            assert need == num_blocks_in_all - held
            cached = memory.cached_tokens(pair.live)
            assert manager.num_cached_tokens(pair.sequence) == cached
            if need <= manager.num_free:
                running.append(waiting.pop(0))
                manager.admit(pair.sequence)
                memory.admit(pair.live, num_blocks_in_all)
                pair.num_computed = cached
        elif action == "compute" and running:
            pair = data.draw(st.sampled_from(running))
            advance(pair, data.draw(st.integers(0, 40)), manager, memory)
        elif action == "decode" and (some := [pair for pair in running if pair.seen is None]):
            pair = data.draw(st.sampled_from(some))
            chain = manager.chains.get(pair.sequence)
            pair.seen = pair.live.blocks[: chain.num_held] if chain else []
            shared.join(id(pair), chain, 0, 0)
        elif action == "end" and running:
            pair = running.pop(data.draw(st.integers(0, len(running) - 1)))
            shared.leave(id(pair), 0, 0)
            pair.seen = None
            preempted = data.draw(st.booleans())
            leave = manager.preempt if preempted else manager.free
            leave(pair.sequence, len(pair.live.blocks), pair.num_computed)
            memory.leave(pair.live, pair.num_computed, preempted)
            if preempted:
                waiting.append(pair)
        check(manager, memory, [pair.live.blocks for pair in running])
        readers = Counter(id(block) for pair in running for block in pair.seen or ())
        tokens = Counter(number for number in readers.values() if number > 1)
        assert shared.tokens == {number: size * tokens[number] for number in tokens}


def advance(pair: Pair, num_tokens: int, manager: CachedBlocks, memory: Memory) -> None:
    """Compute tokens of a prompt; behind its end, generate as many as there is memory for."""
    left = pair.live.num_known - pair.num_computed
    if left:
        pair.num_computed += min(left, num_tokens)
        manager.compute(pair.sequence, pair.num_computed)
        memory.enter(pair.live, pair.num_computed)
        return
    needed = -(-(pair.live.num_known + num_tokens) // memory.block_size) - len(pair.live.blocks)
    if needed <= manager.num_free:
        pair.live.num_emitted += num_tokens
        pair.sequence.num_tokens += num_tokens
        pair.num_computed += num_tokens
        manager.grow(needed)
        pair.live.blocks += [memory.new_block() for _ in range(needed)]


def check(manager: CachedBlocks, memory: Memory, held: list[list[object]]) -> None:
    """The free blocks are the same, in the same order, with the same under them.

    So are the copies of each block, and which of them are held.
    """
    memory.check(held)
    queue = []
    left: dict[object, int] = {}
    for piece in manager.free_queue:
        for _ in range(piece.num_blocks):
            if piece.entry is None:
                queue.append(None)
                continue
            last = left.setdefault(piece.entry, piece.entry.end) - 1
            left[piece.entry] = last
            queue.append((piece.entry.key, last))
    assert manager.num_free == len(queue) == len(memory.free)
    for mine, block in zip(queue, memory.free, strict=True):
        if isinstance(block.name, tuple) and isinstance(block.name[0], int):
            assert mine == block.name
        else:  # a request's own: another form of name, or none where it can do no harm
            assert mine is None or block.name is not None
    for (key, position), copies in memory.cached.items():
        if isinstance(key, int):
            entries = [e for e in manager.cache.copies(key) if e.first <= position < e.end]
            held_here = [position < entry.first + entry.num_held for entry in entries]
            assert held_here == [copy.holders > 0 for copy in copies]


def one_at_a_time(options: EngineOptions, jobs: list[Job]) -> float:
    """Return the hit rate when every job arrives after all others have left."""
    late = [
        Job(1e6 * k, job.num_prompt_tokens, 1, content=job.content) for k, job in enumerate(jobs)
    ]
    return Case(options, tuple(late)).simulate(AWKWARD).summary["prefix_cache_hit_rate"]


@examples(60)
@given(case=cases(policy="chunked"), more=st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_more_memory_never_means_fewer_hits_one_at_a_time(case, more):
    """Least recently used first: a larger cache holds all that a smaller one does."""
    size = case.options.block_size
    smallest = max(-(-job.num_prompt_tokens // size) for job in case.jobs) + 1
    sizes = sorted({smallest, *(smallest + extra for extra in more)})
    rates = [
        one_at_a_time(
            EngineOptions("chunked", num_blocks, size, 16, 64, caching=True), list(case.jobs)
        )
        for num_blocks in sizes
    ]
    assert all(small <= large for small, large in pairwise(rates)), rates


@pytest.mark.parametrize(("num_recomputed", "expected"), [(0, 16), (1, 12)])
def test_of_what_is_known_a_drafting_layer_has_the_last_block_computed_again(
    num_recomputed, expected
):
    history = PrefixHistory(4, num_recomputed)
    history.add(sequence_of(16, ((1, 16),)))
    assert history.num_known_tokens(sequence_of(20, ((1, 20),))) == expected
    assert history.num_known_tokens(sequence_of(20, ((2, 20),))) == 0


def test_ids_that_stand_at_different_places_are_refused():
    manager = CachedBlocks(20, 4)
    first = sequence_of(16, ((1, 8), (2, 8)))
    manager.add(first)
    manager.admit(first)
    manager.compute(first, 16)
    second = sequence_of(16, ((2, 8),))
    manager.add(second)
    with pytest.raises(ScenarioError, match="content id 2 begins with block 2 of one request"):
        manager.num_cached_tokens(second)
    with pytest.raises(ScenarioError, match="must have >= 1 token, got 0"):
        manager.add(sequence_of(16, ((1, 0),)))
