"""Orders of eviction: LRU as a plug-in is the built-in; others lose what a plain list does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mist_sim as mist
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


@pytest.mark.parametrize(("first", "found"), [(True, 192), (False, 0)])
def test_memory_never_used_goes_first_unless_an_order_ranks_it(first, found):
    """An order that keeps unused memory the longest takes contents from an empty cache."""

    class KeepsUnused(mist.Eviction):
        nothing_lost_first = first

        def rank(self, blocks):
            return blocks.key is None

    cache = mist.KvCacheConfig(eviction=KeepsUnused())
    client = mist.llm_client("llm", model="llama-3.1-8b", gpu="l40s", kv_cache=cache)
    items = [mist.TraceRow(200, 10, content=((text, 200),)) for text in (1, 2, 1)]
    loop = mist.Workload(mist.Rows(items), mist.ClosedLoop(concurrency=1))
    result = mist.Simulation(clients=[client], workload=loop).run()
    assert result.requests.num_cached_tokens.tolist() == [0, 0, found]
