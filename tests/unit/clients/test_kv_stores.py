"""All KV entries that move take one way: a store that counts sees every one of them."""

from collections import Counter
from typing import Any

import pytest

from mist_sim.clients.kv_cache import CacheTier
from mist_sim.clients.kv_cache.moves import KvMove
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.clients.stores import KvStore, Stores, Transit
from mist_sim.core.hand_over import HandOver
from mist_sim.errors import InvariantError
from mist_sim.metrics import Result
from mist_sim.simulation import Simulation
from mist_sim.traces import Rows, TraceArrivals, TraceRow, Workload
from tests.reference.apart import engine, link
from tests.reference.comparison import workload
from tests.reference.stepwise import Job
from tests.unit.clients import test_afd_client, test_prompts_from_entries, test_swapping
from tests.unit.clients.test_hand_over import THREE, row
from tests.unit.lifecycle.test_hand_overs_through_failures import FLOWING, LONG, of_two_roles


class Counting(KvStore):
    """Does what another store does, and counts the moves."""

    def __init__(self, store: KvStore, counts: Counter[str]) -> None:
        self.name = store.name
        self._store = store
        self._counts = counts

    def has(self, move):
        return self._store.has(move)

    def ready(self, move):
        return self._store.ready(move)

    def fetch(self, move: KvMove) -> Transit:
        self._counts[move.kind] += 1
        return self._store.fetch(move)

    def keep(self, move: KvMove) -> Transit:
        self._counts[move.kind] += 1
        return self._store.keep(move)


@pytest.fixture
def counts(monkeypatch) -> Counter[str]:
    """What the stores of all lanes and bundles see from now on."""
    seen: Counter[str] = Counter()
    store_of = Stores.of
    monkeypatch.setattr(Stores, "of", lambda self, move: Counting(store_of(self, move), seen))
    return seen


def run(clients: list[Any], rows: list[TraceRow], **more: Any) -> Result:
    traffic = Workload(Rows(rows), TraceArrivals())
    return Simulation(clients=clients, workload=traffic, network=link(), **more).run()


def swaps() -> Result:
    return test_swapping.served(test_swapping.engine(), test_swapping.FIRST, test_swapping.SECOND)


def overlapped_swaps() -> Result:
    jobs = test_swapping.SHORT, test_swapping.FIRST, test_swapping.SECOND
    return test_swapping.served(test_swapping.overlapping(), *jobs)


def loads() -> Result:
    """A prompt of four blocks comes back when others have taken its place on the GPU."""
    client = engine(
        None,
        ChunkedScheduler(),
        name="llm",
        num_gpu_blocks=6,
        cache_tiers=[CacheTier("cpu", 100, 0.0, 1 / 64)],
    )
    same = ((1, 16),)
    jobs = [Job(0.0, 17, 1, content=same), Job(1.0, 24, 1), Job(2.0, 17, 1, content=same)]
    return Simulation(clients=[client], workload=workload(jobs)).run()


def hand_overs() -> Result:
    return run([engine("prefill"), engine("decode")], THREE)


def pushes() -> Result:
    return run([engine("prefill"), engine("decode")], THREE, hand_over=HandOver(transfer="push"))


def migrations() -> Result:
    """An answer goes from a P-heavy to a D-heavy client, and back above the watermark."""
    return run(of_two_roles("p", "d"), LONG, hand_over=FLOWING)


def to_a_bundle() -> Result:
    bundle = test_afd_client.bundle(**test_afd_client.SIX)
    return test_afd_client.simulated(bundle, [(0.0, 100, 4), (0.0, 100, 4)])


def fetches() -> Result:
    return test_prompts_from_entries.served([row(0.0, 12, 4)], test_prompts_from_entries.in_fours())


@pytest.mark.parametrize(
    ("case", "kinds"),
    [
        (swaps, {"swap_out", "swap_in"}),
        (overlapped_swaps, {"swap_out", "swap_in"}),
        (loads, {"load"}),
        (hand_overs, {"hand_over"}),
        (pushes, {"hand_over"}),
        (migrations, {"hand_over"}),
        (to_a_bundle, {"hand_over"}),
        (fetches, {"fetch"}),
    ],
)
def test_every_move_goes_through_a_store(case, kinds, counts):
    """The records, which are written at the end of moves, have as many as stores have begun."""
    moved = Counter(case().transfers["kind"].tolist())
    assert moved == counts
    assert set(moved) == kinds
    assert moved.total() >= 1


def test_a_migration_is_a_move_of_its_own(counts):
    migrations()
    assert counts["hand_over"] == 2


def test_a_store_that_only_sends_takes_nothing():
    class Sender(KvStore):
        name = "sender"

        def fetch(self, move):
            raise NotImplementedError

    with pytest.raises(InvariantError, match="sender takes no KV entries"):
        Sender().keep(KvMove("swap_out", None, "gpu", "sender", 1, 1))
