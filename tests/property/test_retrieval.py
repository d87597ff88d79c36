"""Laws of KV retrieval over random runs."""

from collections import defaultdict
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import ChunkedScheduler
from mist_sim.clients.retrieval.client import KINDS, KvRetrievalClient
from mist_sim.clients.retrieval.levels import StorageLevel
from mist_sim.eviction import EVICTIONS
from mist_sim.lifecycle import Failures, Lifecycle
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, KvRetrieval, Prefill
from mist_sim.traces import Rows, TimeLimits, TraceArrivals, TraceRow, Workload, template
from tests.effort import examples
from tests.reference.apart import engine
from tests.reference.levels import batches, expected_seconds

FOURS = ChunkedScheduler(max_num_seqs=4, max_num_batched_tokens=4)

TOKEN = 250.0
PAUSES = (0.0, 1 / 8, 1 / 2, 3.0)
GAPS = st.lists(st.sampled_from(PAUSES), min_size=1, max_size=14)
SHARE = st.floats(0, 1)


@examples(100)
@given(
    gaps=GAPS,
    lengths=st.lists(st.integers(1, 40), min_size=14, max_size=14),
    levels=st.lists(st.tuples(SHARE, SHARE, st.floats(100, 10_000)), min_size=1, max_size=3),
    most=st.none() | st.integers(1, 4),
)
def test_batches_end_when_a_plain_loop_says(gaps, lengths, levels, most):
    """With expected hits, whatever arrives when: the recursion of the sum of a batch's bytes."""
    arrivals = list(accumulate(gaps))
    ordered = sorted(levels, key=lambda level: (level[1], -level[2]))
    made = tuple(
        StorageLevel(name=str(k), hit_rate=rate, latency=latency, read_bandwidth=speed)
        for k, (rate, latency, speed) in enumerate(ordered)
    )
    rows = [TraceRow(n, 1, at) for n, at in zip(lengths, arrivals, strict=False)]
    client = KvRetrievalClient("kv", bytes_per_token=TOKEN, levels=made, max_batch_size=most)
    workload = Workload(Rows(rows), TraceArrivals(), template([KvRetrieval]))
    result = Simulation(clients=[client], workload=workload).run()
    plain = batches(
        arrivals, lengths, most, lambda sizes: expected_seconds(sum(sizes) * TOKEN, ordered, 0.0)
    )
    ends = dict(zip(result.requests["request_id"], result.requests["finished_at"], strict=True))
    assert [ends[k] for k in range(len(rows))] == pytest.approx(plain)


@st.composite
def requests(draw):
    """Rows that begin with one of three contexts, of which each has a part or all."""
    number = draw(st.integers(8, 16))
    gaps = draw(st.lists(st.sampled_from(PAUSES), min_size=number, max_size=number))
    rows = []
    for at in accumulate(gaps):
        prompt, output = draw(st.integers(4, 30)), draw(st.integers(1, 6))
        content = ((draw(st.integers(0, 2)), prompt + output),)
        rows.append(TraceRow(prompt, output, at, None, content))
    return rows


@pytest.mark.parametrize("hits", KINDS)
@examples(120)
@given(
    rows=requests(),
    eviction=st.sampled_from(sorted(EVICTIONS)),
    capacity=st.none() | st.integers(4, 60),
    sharing=st.booleans(),
    fails=st.booleans(),
    gives_up=st.booleans(),
)
def test_all_tokens_come_from_somewhere_and_twice_same(
    hits, rows, eviction, capacity, sharing, fails, gives_up
):
    """What is asked for is found in levels, or computed; and levels hold what they were written.

    No context is found before a request that had it left, and two runs are equal.
    """
    stored = hits == "stored"
    level = StorageLevel(
        name="level",
        read_bandwidth=40 * TOKEN,
        latency=1 / 16,
        hit_rate=None if stored else 0.5,
        capacity_tokens=capacity if stored else None,
        shared=sharing and stored,
    )
    more = {"eviction": EVICTIONS[eviction](), "block_size": 4} if stored else {}
    downs = (Failures(clients=("kv-0",), at=(1.0,), repair=0.5),) if fails else ()

    def run():
        stores = [
            KvRetrievalClient(f"kv-{n}", bytes_per_token=TOKEN, levels=(level,), hits=hits, **more)
            for n in range(2)
        ]
        workload = Workload(
            Rows(rows),
            TraceArrivals(),
            template([KvRetrieval, Prefill, Decode]),
            time_limits=TimeLimits(timeout=4.0) if gives_up else None,
        )
        lives = Lifecycle(failures=downs) if fails else None
        clients = [*stores, engine(None, FOURS, name="llm", enable_prefix_caching=False)]
        return Simulation(clients=clients, workload=workload, lifecycle=lives, seed=5).run(), stores

    (result, stores), (again, _) = run(), run()
    assert result.requests.equals(again.requests)
    table = result.retrievals
    assert table.equals(again.retrievals)
    asked, found = defaultdict(float), defaultdict(float)
    for request, name, num_tokens in zip(
        *(table[c] for c in ("request_id", "level", "num_tokens")), strict=True
    ):
        asked[request] += num_tokens
        found[request] += num_tokens if name else 0.0
    served = result.requests[result.requests["status"] == "finished"]
    for request in served["request_id"]:
        assert asked[request] == pytest.approx(rows[request].num_prompt_tokens)
    if not gives_up and not fails:  # what waits to be fetched is lost with the client
        rest = [
            rows[k].num_prompt_tokens - min(round(found[k]), rows[k].num_prompt_tokens - 1)
            for k in range(len(rows))
        ]
        assert result.clients["num_prefill_tokens"].tolist()[-1] == sum(rest)
    for store in stores:
        assert store.is_empty
        for kept in store.contents.stores if store.contents is not None else ():
            assert kept.num_blocks == kept.num_written - kept.num_given_up <= kept.tier.num_blocks
    if stored:
        _nothing_before_it_was_computed(rows, result)


def _nothing_before_it_was_computed(rows, result):
    left = {
        request: end
        for request, end, status in zip(
            *(result.requests[c] for c in ("request_id", "finished_at", "status")), strict=True
        )
        if status == "finished"
    }
    hits = result.retrievals[result.retrievals["level"] != ""]
    for request, start, num_tokens in zip(
        *(hits[c] for c in ("request_id", "start", "num_tokens")), strict=True
    ):
        [(key, _)] = rows[request].content
        longest = max(
            rows[k].num_prompt_tokens + rows[k].num_output_tokens - 1
            for k, end in left.items()
            if end <= start and rows[k].content[0][0] == key
        )
        assert num_tokens <= longest
