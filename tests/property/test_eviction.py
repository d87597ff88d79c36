"""Orders of eviction: LRU as a plug-in is the built-in; others lose what a plain list does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.clients.prefixes import prefix_cache
from mist_sim.clients.prefixes.prefix_cache import Chain, PrefixCache
from mist_sim.eviction import EVICTIONS, Eviction
from tests.effort import examples
from tests.property.strategies import alike, copies, loaded
from tests.reference.comparison import assert_exact
from tests.reference.eviction import RANKS, PlainCache
from tests.reference.predictors import AWKWARD, DYADIC


@pytest.mark.exact
@pytest.mark.parametrize("cases", [alike, copies, loaded])
@examples(100)
@given(data=st.data(), predictor=st.sampled_from([AWKWARD, DYADIC]))
def test_lru_as_a_plug_in_is_built_in(cases, data, predictor):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_cache, "LruEviction", Eviction)  # so that it is not recognised
        assert_exact(data.draw(cases()), predictor)


def served(cache: PrefixCache, spans: list[tuple[str, int]]) -> int:
    chain = Chain(spans, 1)
    number = sum(length for _, length in spans)
    found = cache.find(chain, number).num_found
    cache.hold(chain, found)
    cache.evict(number + 1 - found)
    cache.enter(chain, number)
    cache.queue.append(None, 1)  # the block behind them
    cache.release(chain)
    return found


PROMPTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=60
)


@pytest.mark.parametrize("name", ["lru", "lfu"])
@examples(300)
@given(num_blocks=st.integers(11, 30), prompts=PROMPTS)
def test_a_cache_finds_what_list_of_blocks_does(name, num_blocks, prompts):
    cache = PrefixCache(num_blocks, eviction=EVICTIONS[name]())
    plain = PlainCache(num_blocks, RANKS[name])
    for first, second, length in prompts:
        spans = [(f"{first}", 6), (f"{first}, {second}", length)][: 1 + (second > 0)]
        wanted = [(key, k) for key, number in spans for k in range(number)]
        assert served(cache, spans) == plain.serve(wanted, 1)
