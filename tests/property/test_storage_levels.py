"""Levels of storage hold what a list of single blocks holds, whatever gives up what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.clients.kv_cache import CacheTier
from mist_sim.clients.kv_cache.tiers import WriteThroughStore
from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.clients.retrieval.levels import (
    Contents,
    EvictingStore,
    StorageLevel,
    expected_time,
    shares,
)
from mist_sim.eviction import EVICTIONS
from tests.effort import examples
from tests.reference.levels import PlainLevels, expected_seconds

SIZE = 2  # tokens of a block
LENGTHS = (5, 4, 7)  # tokens of the spans of a document, one behind the other


@st.composite
def documents(draw):
    """Content: a path through a small tree of spans, the last of which may be cut."""
    path = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3))
    spans = [(hash(tuple(path[: n + 1])), LENGTHS[n]) for n in range(len(path))]
    last = draw(st.integers(1, spans[-1][1]))
    return (*spans[:-1], (spans[-1][0], last))


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["read", "write"]), documents(), st.integers(0, 20)),
    min_size=1,
    max_size=40,
)


def blocks_of(content, num_tokens):
    """Name the full blocks among the first tokens of content, each by the span of its last one."""
    ids = [key for key, length in content for _ in range(length)]
    number = min(num_tokens, len(ids)) // SIZE
    return [(ids[SIZE * k + SIZE - 1], k) for k in range(number)]


@pytest.mark.parametrize("eviction", EVICTIONS)
@examples(200)
@given(capacities=st.lists(st.integers(1, 14), min_size=1, max_size=3), operations=OPERATIONS)
def test_levels_are_as_single_blocks(eviction, capacities, operations):
    """And at every instant a level holds what was written and not given up, and no more than fits.

    Nothing is found that was not written before.
    """
    stores = [
        EvictingStore(CacheTier(f"level {n}", capacity, 0.0, 0.0, eviction=EVICTIONS[eviction]()))
        for n, capacity in enumerate(capacities)
    ]
    contents, plain = Contents(stores, SIZE), PlainLevels(capacities, eviction)
    ever_written = set()
    for what, content, num_tokens in operations:
        blocks = blocks_of(content, num_tokens)
        found, expected = contents.find(content, num_tokens), plain.find(blocks)
        assert found == [SIZE * count for count in expected]
        assert ever_written.issuperset(blocks[: sum(expected)])
        if what == "read":
            contents.read(content, found)
            plain.read(blocks, expected)
        else:
            contents.write(content, num_tokens)
            plain.write(blocks)
            ever_written.update(blocks)
        for store, level in zip(stores, plain.levels, strict=True):
            assert store.num_blocks == len(level.blocks) <= store.tier.num_blocks
            assert store.num_written == level.num_written
            assert store.num_given_up == level.num_given_up
            assert store.num_blocks == store.num_written - store.num_given_up


@examples(200)
@given(capacity=st.integers(1, 14), operations=OPERATIONS)
def test_lru_is_what_tiers_of_engines_do(capacity, operations):
    """The same as the prefix index behind `kv_cache.tiers`, which gives up the same blocks."""
    tier = CacheTier("one", capacity, 0.0, 0.0)
    ours, theirs = EvictingStore(tier), WriteThroughStore(tier, None)
    for _, content, num_tokens in operations:
        chain = Chain(content, SIZE)
        number = min(num_tokens // SIZE, chain.num_shared)
        reached = [store.reach(chain.spans, 0, number) for store in (ours, theirs)]
        assert reached[0] == reached[1]
        for store in (ours, theirs):
            store.compute(chain.spans, number)


@examples(200)
@given(
    levels=st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(1e6, 1e12)), min_size=1, max_size=5
    ),
    num_bytes=st.floats(0, 1e12),
    recomputation=st.floats(0, 1e4),
)
def test_the_expected_time_is_the_sum_over_levels(levels, num_bytes, recomputation):
    made = [
        StorageLevel(name=str(n), hit_rate=rate, latency=latency, read_bandwidth=speed)
        for n, (rate, latency, speed) in enumerate(levels)
    ]
    expected = expected_seconds(num_bytes, levels, recomputation)
    assert expected_time(num_bytes, made, recomputation) == pytest.approx(expected, rel=1e-9)
    assert 0 <= sum(shares(made)) <= 1 + 1e-12
