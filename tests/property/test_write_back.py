"""A tier that writes back, in segments, has what a list of single blocks has."""

from hypothesis import given
from hypothesis import strategies as st

from mist_sim.clients.kv_cache import CacheTier
from mist_sim.clients.kv_cache.tiers import WriteBackStore

Block = tuple[str, int]


class Listed:
    """The same tier block by block, the least recently used one first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: list[Block] = []
        self.given_up: list[Block] = []

    def take(self, key: str, start: int, end: int) -> None:
        for position in reversed(range(start, end)):
            if (key, position) in self.blocks:
                self.blocks.remove((key, position))
            self.blocks.append((key, position))
            if len(self.blocks) > self.capacity:
                self.given_up.append(self.blocks.pop(0))

    def use(self, names: list[Block]) -> None:
        for name in reversed(names):
            if name in self.blocks:
                self.blocks.remove(name)
                self.blocks.append(name)


SPANS = (("a", 7), ("b", 12), ("c", 30))
NAMES = [("a", k) for k in range(7)] + [("b", k) for k in range(7, 12)]
NAMES += [("c", k) for k in range(12, 30)]


def span_parts() -> st.SearchStrategy[tuple[str, int, int]]:
    place = st.sampled_from([("a", 0, 7), ("b", 7, 12), ("c", 12, 30)])
    return place.flatmap(
        lambda span: st.tuples(st.integers(span[1], span[2]), st.integers(span[1], span[2])).map(
            lambda ends: (span[0], min(ends), max(ends))
        )
    )


@given(
    capacity=st.integers(1, 35),
    events=st.lists(span_parts() | st.integers(0, 30), max_size=60),
    start=st.integers(0, 29),
    end=st.integers(1, 30),
)
def test_segments_are_as_single_blocks(capacity, events, start, end):
    given_up: list[Block] = []

    def below(key, first, last):
        given_up.extend((key, position) for position in reversed(range(first, last)))

    store = WriteBackStore(CacheTier("t", capacity, 0.0, 0.0, True), below)
    listed = Listed(capacity)
    for event in events:
        if isinstance(event, int):
            store.use(SPANS, event)
            listed.use(NAMES[:event])
        else:
            store.take(*event)
            listed.take(*event)
    assert given_up == listed.given_up
    reached = start
    while reached < end and NAMES[reached] in listed.blocks:
        reached += 1
    assert store.reach(SPANS, start, end) == max(start, reached)
    store.take("all", 0, capacity)
    listed.take("all", 0, capacity)
    assert given_up == listed.given_up
