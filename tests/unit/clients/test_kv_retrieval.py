"""The KV-retrieval client: time lines by hand.

As in `test_prompts_from_entries.py`: an engine step takes 1/8 s with a prompt and 1/32 s without,
and computes four tokens of prompts. A token's entries are 250 bytes.
"""

from typing import Any

import pytest

from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.clients.retrieval.client import KvRetrievalClient
from mist_sim.clients.retrieval.levels import Contents, StorageLevel, contents_of
from mist_sim.clients.retrieval.measured import MeasuredTimes
from mist_sim.eviction import EVICTIONS
from mist_sim.lifecycle import Failures, Lifecycle
from mist_sim.metrics import Result
from mist_sim.network import Fabric
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, KvRetrieval, Prefill
from mist_sim.traces import Rows, TimeLimits, TraceArrivals, TraceRow, Workload, template
from tests.unit.clients.test_hand_over import row
from tests.unit.clients.test_prompts_from_entries import PROMPT, STEP, in_fours

TOKEN = 250.0
NEAR = StorageLevel(name="near", read_bandwidth=8 * TOKEN, latency=1 / 16, hit_rate=0.5)
FAR = StorageLevel(name="far", read_bandwidth=2 * TOKEN, latency=1 / 4, hit_rate=0.5)
ALL = StorageLevel(name="all", read_bandwidth=8 * TOKEN, latency=1 / 16, hit_rate=1.0)
RETRIEVING = template([KvRetrieval, Prefill, Decode])


def storing(**more: Any) -> StorageLevel:
    return StorageLevel(name=more.pop("name", "dram"), read_bandwidth=8 * TOKEN, **more)


def store(*levels: StorageLevel, name: str = "store", **more: Any) -> KvRetrievalClient:
    return KvRetrievalClient(name, bytes_per_token=TOKEN, levels=levels, **more)


def served(rows: list[TraceRow], *clients: Any, **more: Any) -> Result:
    workload = Workload(
        Rows(rows),
        TraceArrivals(),
        more.pop("pipeline", RETRIEVING),
        time_limits=more.pop("time_limits", None),
    )
    return Simulation(clients=list(clients), workload=workload, **more).run()


def finished(result: Result) -> list[float]:
    return result.requests["finished_at"].tolist()


# --- expected hits ----------------------------------------------------------------------------


def test_a_context_that_is_there_takes_its_latency_and_its_bytes():
    """Eight tokens: 1/16 s and 1 s; then the engine computes the last one, which it needs."""
    result = served([row(0.0, 8, 1)], store(ALL), in_fours())
    assert finished(result) == [1 / 16 + 1 + PROMPT]
    assert result.clients["num_prefill_tokens"].tolist() == [0, 1]
    assert result.summary["retrieval_hit_rates"] == {"all": 1.0}
    assert result.summary["mean_retrieval_ms"] == 1e3 * (1 / 16 + 1)


def test_expected_share_is_found_and_rest_is_computed():
    """Of 16 tokens 8 are near and 4 far on average, and 4 are nowhere.

    1/2 (1/16 + 2) + 1/4 (1/4 + 8) s; the engine computes four tokens in a step.
    """
    result = served([row(0.0, 16, 2)], store(NEAR, FAR), in_fours())
    retrieved = (1 / 16 + 2) / 2 + (1 / 4 + 8) / 4
    assert finished(result) == [retrieved + PROMPT + STEP]
    assert result.clients["num_prefill_tokens"].tolist() == [0, 4]
    assert result.summary["retrieval_hit_rate"] == 0.75
    assert result.summary["retrieval_hit_rates"] == {"near": 0.5, "far": 0.25}
    table = result.retrievals
    assert table["level"].tolist() == ["near", "far", ""]
    assert table["num_tokens"].tolist() == [8.0, 4.0, 4.0]
    assert table["num_bytes"].tolist() == [8 * TOKEN, 4 * TOKEN, 0.0]


def test_shares_that_do_not_add_up_to_the_bit_leave_nothing_over():
    rates = (0.1, 0.7, 1.0)
    levels = [
        StorageLevel(name=f"{rate}", read_bandwidth=1e6 / (1 + rate), hit_rate=rate)
        for rate in rates
    ]
    result = served([row(0.0, n, 1) for n in range(1, 30)], store(*levels), in_fours())
    assert "" not in set(result.retrievals["level"])
    assert result.clients["num_prefill_tokens"].tolist() == [0, 29]


def test_what_is_never_there_is_computed_in_no_more_time_than_without():
    never = StorageLevel(name="none", read_bandwidth=1.0, latency=9.0, hit_rate=0.0)
    result = served([row(0.0, 8, 1)], store(never), in_fours())
    assert finished(result) == [2 * PROMPT]
    assert result.summary["retrieval_hit_rate"] == 0.0
    assert result.clients["num_prefill_tokens"].tolist() == [0, 8]


def test_measured_times_stand_in_for_the_model(tmp_path):
    """1,000 bytes take 1/8 s and 5,000 take 1/2 s: eight tokens, 2,000 bytes, lie between."""
    path = tmp_path / "reads.csv"
    path.write_text("num_bytes,device,seconds\n1000,nvme,0.125\n5000,nvme,0.5\n")
    measured = StorageLevel(name="nvme", measured=str(path), hit_rate=1.0)
    result = served([row(0.0, 8, 1)], store(measured), in_fours(), pipeline=template([KvRetrieval]))
    assert finished(result) == [0.125 + 0.375 / 4]
    assert [measured.read_time(size) for size in (0, 500, 1000, 5000, 9000)] == [
        *(0.125, 0.125, 0.125, 0.5, 0.875)
    ]


# --- drawn hits -------------------------------------------------------------------------------


def test_a_draw_takes_the_time_of_one_level_and_their_mean_is_the_expected_one():
    """16 tokens: near 2 1/16 s, far 8 1/4 s, nowhere 0 s, with 1/2, 1/4 and 1/4."""
    number = 4000
    rows = [row(20.0 * k, 16, 1) for k in range(number)]
    drawn = store(NEAR, FAR, hits="drawn")
    result = served(rows, drawn, pipeline=template([KvRetrieval]))
    times = (result.requests["finished_at"] - result.requests["arrival_time"]).round(9)
    shares = times.value_counts(normalize=True)
    assert sorted(shares.index) == [0.0, 2.0625, 8.25]
    # standard errors of the shares are below 0.8 %
    assert shares[2.0625] == pytest.approx(0.5, abs=0.032)
    assert shares[8.25] == pytest.approx(0.25, abs=0.028)
    assert result.summary["retrieval_hit_rates"]["near"] == pytest.approx(shares[2.0625])


def test_draws_are_the_clients_own_and_repeat():
    rows = [row(20.0 * k, 16, 1) for k in range(50)]

    def times(*others: Any) -> list[float]:
        more = {"pipeline": template([KvRetrieval]), "seed": 3}
        return finished(served(rows, store(NEAR, FAR, hits="drawn"), *others, **more))

    assert times() == times()
    assert len({*times()}) > 2


# --- stored -----------------------------------------------------------------------------------


def asking(at: float, content_id: int, num_tokens: int = 8, output: int = 1) -> TraceRow:
    return row(at, num_tokens, output, ((content_id, num_tokens + output),))


def stored(*levels: StorageLevel, **more: Any) -> KvRetrievalClient:
    return store(*levels, hits="stored", block_size=4, **more)


def without_cache(**more: Any) -> Any:
    return in_fours(enable_prefix_caching=False, **more)


def test_the_first_computes_what_the_second_retrieves():
    rows = [asking(0.0, 1, 12), asking(10.0, 1, 12)]
    result = served(rows, stored(storing(latency=1 / 16)), without_cache())
    assert finished(result) == [3 * PROMPT, 10 + 1 / 16 + 1.5 + PROMPT]
    assert result.clients["num_prefill_tokens"].tolist() == [0, 12 + 1]
    assert result.summary["retrieval_hit_rate"] == 0.5


def test_nothing_is_found_before_it_is_computed():
    """The second one asks while the first one is computed, and the third one behind it."""
    rows = [asking(at, 1, 12) for at in (0.0, 3 * PROMPT - 1 / 64, 3 * PROMPT + 1 / 64)]
    result = served(rows, stored(storing()), without_cache())
    found = result.retrievals[result.retrievals["level"] == "dram"]
    assert found["request_id"].tolist() == [2]


def test_answers_are_kept_as_far_as_they_have_entries():
    """A prompt of 8 and an answer of 5: the last token has no entries, so 12 of 13 tokens do."""
    rows = [asking(0.0, 1, 8, 5), row(10.0, 16, 1, ((1, 16),))]
    result = served(rows, stored(storing()), without_cache())
    found = result.retrievals[result.retrievals["level"] == "dram"]
    assert found["num_tokens"].tolist() == [12.0]


@pytest.mark.parametrize(
    ("eviction", "asked", "found"),
    [
        # the third context displaces the second, whose last use is the longest ago
        ("lru", (1, 2, 1, 3, 1, 2), [2, 4]),
        # the third context displaces the first, which came first; that one displaces the second
        ("fifo", (1, 2, 1, 3, 1, 2), [2]),
        # the third context displaces the first, although that was asked for twice
        ("lru", (1, 1, 2, 3, 1), [1]),
        # the third context displaces the second, which was asked for once
        ("lfu", (1, 1, 2, 3, 1), [1, 4]),
    ],
)
def test_a_level_without_room_gives_one_up(eviction, asked, found):
    """There is room for two contexts."""
    rows = [asking(10.0 * k, content) for k, content in enumerate(asked)]
    client = stored(storing(capacity_tokens=16), eviction=EVICTIONS[eviction]())
    hits = served(rows, client, without_cache()).retrievals
    assert hits["request_id"][hits["level"] == "dram"].tolist() == found


def test_what_lower_level_has_comes_to_one_above():
    """Each level is read at its own speed; then the near one has it."""
    near = StorageLevel(name="near", read_bandwidth=8 * TOKEN, capacity=8 * TOKEN)
    far = StorageLevel(name="far", read_bandwidth=4 * TOKEN, latency=1.0)
    rows = [asking(10.0 * k, content) for k, content in enumerate((1, 2, 1, 1))]
    client = stored(near, far)
    result = served(rows, client, without_cache())
    hits = result.retrievals[result.retrievals["level"] != ""]
    assert list(zip(hits["request_id"], hits["level"], strict=True)) == [(2, "far"), (3, "near")]
    assert (hits["end"] - hits["start"]).tolist() == [1 + 2, 1]
    assert client.contents is not None
    assert [each.num_blocks for each in client.contents.stores] == [2, 4]
    assert [each.num_given_up for each in client.contents.stores] == [4, 0]


def test_parts_of_a_context_come_from_two_levels_side_by_side():
    """A longer context displaces the end of it: four tokens are near, and four of eight far."""
    near = StorageLevel(name="near", read_bandwidth=8 * TOKEN, capacity_tokens=4)
    far = StorageLevel(name="far", read_bandwidth=8 * TOKEN, latency=1.0)
    result = served([asking(0.0, 1), asking(10.0, 1)], stored(near, far), without_cache())
    hits = result.retrievals[result.retrievals["request_id"] == 1]
    assert hits["level"].tolist() == ["near", "far"]
    assert hits["num_tokens"].tolist() == [4.0, 4.0]
    assert set(hits["end"] - hits["start"]) == {1.5}


def test_shared_levels_hold_what_any_client_computed_and_own_ones_do_not():
    def hits(**more: Any) -> float:
        clients = [stored(storing(**more), name=f"store-{n}") for n in range(2)]
        rows = [asking(10.0 * k, 1) for k in range(4)]
        return served(rows, *clients, without_cache()).summary["retrieval_hit_rate"]

    assert hits() == 0.5  # in turn: each client's first one misses
    assert hits(shared=True) == 0.75


def test_a_failed_client_loses_its_own_levels_and_finds_shared_ones_again():
    def hits(**more: Any) -> float:
        down = Lifecycle(failures=(Failures(clients=("store",), at=(5.0,), repair=1.0),))
        rows = [asking(10.0 * k, 1) for k in range(2)]
        client = stored(storing(**more))
        return served(rows, client, without_cache(), lifecycle=down).summary["retrieval_hit_rate"]

    assert hits() == 0.0
    assert hits(shared=True) == 0.5


def test_retrieval_that_fails_on_way_is_done_again():
    """The client fails 1/2 s after the read began, and is back 1/4 s later."""
    down = Lifecycle(failures=(Failures(clients=("store",), at=(0.5,), repair=0.25),))
    result = served([row(0.0, 8, 1)], store(ALL), in_fours(), lifecycle=down)
    assert finished(result) == [0.75 + 1 / 16 + 1 + PROMPT]


def test_who_gives_up_leaves_at_once_and_the_batch_goes_on():
    rows = [row(0.0, 8, 1), row(0.0, 8, 1), row(0.5, 8, 1)]
    limits = TimeLimits(timeout=2.25)
    client = store(ALL)
    result = served(rows, client, pipeline=template([KvRetrieval]), time_limits=limits)
    assert result.requests["status"].tolist() == ["finished", "finished", "timed_out"]
    assert finished(result) == [1 / 16 + 2, 1 / 16 + 2, 2.75]
    assert client.is_empty


# --- placements -------------------------------------------------------------------------------


def test_clients_share_what_a_level_gives_to_all():
    """Two reads of 8 tokens at 4 tokens/s each, of which the level gives 6 to all together."""
    rack = StorageLevel(
        name="rack",
        read_bandwidth=4 * TOKEN,
        total_bandwidth=6 * TOKEN,
        shared=True,
        latency=1 / 2,
        hit_rate=1.0,
    )
    clients = [store(rack, name=f"store-{n}") for n in range(2)]
    rows = [row(0.0, 8, 1), row(1.0, 8, 1)]
    result = served(rows, *clients, pipeline=template([KvRetrieval]))
    # the first has read 4 tokens at 1 s and goes on at 3 tokens/s; then the second has 4 left
    first = 1 + 4 / 3
    assert finished(result) == pytest.approx([first + 1 / 2, first + 4 / 4 + 1 / 2])
    alone = [StorageLevel(name="rack", read_bandwidth=4 * TOKEN, latency=1 / 2, hit_rate=1.0)]
    clients = [store(*alone, name=f"store-{n}") for n in range(2)]
    result = served(rows, *clients, pipeline=template([KvRetrieval]))
    assert finished(result) == [2.5, 3.5]  # Table V as the paper reads it


def test_a_level_may_say_what_it_gives_to_all_alone():
    """Each could have all 8 tokens/s; at the same time each has half of it."""
    rack = StorageLevel(name="rack", total_bandwidth=8 * TOKEN, shared=True, hit_rate=1.0)
    clients = [store(rack, name=f"store-{n}") for n in range(2)]
    rows = [row(0.0, 8, 1), row(0.0, 8, 1), row(5.0, 8, 1)]
    result = served(rows, *clients, pipeline=template([KvRetrieval]))
    assert finished(result) == pytest.approx([2.0, 2.0, 6.0])
    assert rack.read_time(8 * TOKEN) == 1.0


def test_bytes_from_another_rack_share_its_links():
    """Two stores bring 10 GB each from one node of the other rack, whose way out they share."""
    racks = Fabric(topology="racks-h100", nodes=16)
    level = StorageLevel(name="other rack", at="node8/host", latency=20e-3, hit_rate=1.0)

    def times(*to: str) -> list[float]:
        clients = [
            KvRetrievalClient(f"to {place}", bytes_per_token=1e6, levels=(level,), to=place)
            for place in to
        ]
        rows = [row(0.0, 10_000, 1)] * len(to)
        return finished(served(rows, *clients, pipeline=template([KvRetrieval]), network=racks))

    [alone] = times("node0/host")
    both = times("node0/host", "node1/host")
    route = racks.routes.between("node8/host", "node0/host")
    slowest = min(racks._capacities[link] for link in route.path)
    assert alone == pytest.approx(20e-3 + 10e9 / slowest + route.latency)
    shared = 20e-3 + 20e9 / slowest + route.latency
    assert both == pytest.approx([shared, shared])


def test_what_is_read_is_written_to_the_levels_in_front_alone():
    """The far level lost the beginning of a context, and reading its end does not bring it back."""
    levels = [storing(name="near"), storing(name="far", capacity_tokens=8)]
    contents = contents_of(levels, 1, TOKEN, EVICTIONS["fifo"](), None)
    context, other = ((8, 8),), ((16, 4),)
    near, far = contents.stores
    for num_blocks in (4, 8):
        far.compute(Chain(context, 1).spans, num_blocks)
    far.compute(Chain(other, 1).spans, 4)
    near.compute(Chain(context, 1).spans, 4)
    assert contents.find(context, 8) == [4, 4]
    contents.read(context, [4, 4])
    assert contents.find(context, 8) == [8, 0]
    assert Contents([far], 1).find(other, 4) == [4]
    assert Contents([far], 1).find(context, 8) == [0]


def test_a_single_measured_read_is_scaled():
    """One size and its time: twice the bytes take twice as long, fewer as long as it."""
    times = MeasuredTimes((100.0,), (2.0,))
    assert [times.seconds(num_bytes) for num_bytes in (50, 100, 200)] == [2.0, 2.0, 4.0]
