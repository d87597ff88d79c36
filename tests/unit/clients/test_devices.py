"""Clients that run on one card or processor contend for its slots: time lines by hand.

MIST Fig. 1 (b) and footnote 3 cut one processor and three GPUs into clusters in three ways: in
the first two the processor has the retrieval and the text processing of all three requests, in
the third the retrieval has a GPU of its own.
"""

from typing import Any

import pytest

import mist_sim as mist
from mist_sim.clients.retrieval.client import KvRetrievalClient
from mist_sim.clients.retrieval.levels import StorageLevel
from mist_sim.clients.workers.base import Device
from mist_sim.lifecycle import Failures, Lifecycle
from mist_sim.stages import KvRetrieval, Postprocess, Rag
from mist_sim.traces import Rows, TimeLimits, TraceArrivals, TraceRow, Workload, template

RAG, POST = 2.0, 1.0  # seconds


def worker(name: str, stage: str, seconds: float, num_workers: int, device: Device | None) -> Any:
    return mist.SequentialClient(
        name, serves=[stage], base_time=seconds, num_workers=num_workers, device=device
    )


def news_search(*clients: Any, at: tuple[float, ...] = (0.0,) * 3, **more: Any) -> mist.Result:
    """Serve requests, three at once by default: retrieval, then post-processing."""
    limits = more.pop("time_limits", None)
    stages = more.pop("stages", [Rag(), Postprocess()])
    workload = Workload(
        Rows([TraceRow(1, 1, time) for time in at]),
        TraceArrivals(),
        template(stages),
        time_limits=limits,
    )
    return mist.Simulation(clients=list(clients), workload=workload, **more).run()


@pytest.mark.parametrize(
    ("devices", "ends"),
    [
        # apart: three retrievals at once, then one text after the other
        ((None, None), [3.0, 4.0, 5.0]),
        # one core for all: three retrievals asked for it before the first text did
        ((Device(name="cpu"), Device(name="cpu")), [7.0, 8.0, 9.0]),
        # two cores: the third retrieval is beside the first two texts, which have one worker
        ((Device(name="cpu", slots=2), Device(name="cpu", slots=2)), [3.0, 4.0, 5.0]),
        # another card for the retrieval: the texts have the core for themselves
        ((Device(name="gpu2"), Device(name="cpu")), [3.0, 5.0, 7.0]),
    ],
)
def test_one_processor_of_two_clients(devices, ends):
    first, second = devices
    result = news_search(
        worker("rag", "rag", RAG, 3, first), worker("post", "postprocess", POST, 1, second)
    )
    assert result.requests["finished_at"].tolist() == ends


def test_who_waits_for_a_core_has_not_begun():
    cpu = Device(name="cpu")
    result = news_search(
        worker("rag", "rag", RAG, 3, cpu), worker("post", "postprocess", POST, 1, cpu)
    )
    begun = result.stages.set_index(["request_id", "stage"])["started_at"]
    assert begun[:, "rag"].tolist() == [0.0, 2.0, 4.0]
    assert begun[:, "postprocess"].tolist() == [6.0, 7.0, 8.0]


def retrieval(name: str, device: Device | None) -> KvRetrievalClient:
    """One second for the batch, and one for each retrieval of a token in it."""
    level = StorageLevel(name="all", read_bandwidth=1.0, latency=1.0, hit_rate=1.0)
    return KvRetrievalClient(name, bytes_per_token=1.0, levels=(level,), device=device)


def test_batches_take_a_slot_from_beginning_to_end():
    """A batch of three has the card for 4 s. The scoring of answers then takes it in turn."""
    card = Device(name="gpu2")
    result = news_search(
        retrieval("kv", card),
        worker("post", "postprocess", POST, 1, card),
        stages=[KvRetrieval(num_tokens=1), Postprocess()],
    )
    assert result.requests["finished_at"].tolist() == [5.0, 6.0, 7.0]


def test_two_batched_clients_take_turns():
    """Requests go to the two in turn: two to the first, whose batch takes 3 s, then 2 s."""
    card = Device(name="gpu2")
    stages = [KvRetrieval(num_tokens=1)]
    result = news_search(retrieval("a", card), retrieval("b", card), stages=stages)
    assert result.requests["finished_at"].tolist() == [3.0, 5.0, 3.0]
    apart = news_search(retrieval("a", None), retrieval("b", None), stages=stages)
    assert apart.requests["finished_at"].tolist() == [3.0, 2.0, 3.0]


def test_who_gives_up_waiting_for_a_core_leaves_it_to_others():
    """Three give up at 3 s, one of them at work and two waiting; the fourth finds a free core."""
    cpu = Device(name="cpu")
    result = news_search(
        worker("rag", "rag", RAG, 3, cpu),
        worker("post", "postprocess", POST, 1, cpu),
        at=(0.0, 0.0, 0.0, 4.0),
        time_limits=TimeLimits(timeout=3.0),
    )
    assert result.requests["status"].tolist() == ["timed_out"] * 3 + ["finished"]
    assert result.requests["finished_at"].tolist() == [3.0] * 3 + [7.0]


@pytest.mark.parametrize("client", ["kv", "post"])
def test_a_client_that_fails_gives_its_slot_back(client):
    """The retrieval fails at 1 s and comes back at 1.5 s; its batch begins anew at once."""
    card = Device(name="gpu2")
    down = Lifecycle(failures=(Failures(clients=(client,), at=(1.0,), repair=0.5),))
    clients = retrieval("kv", card), worker("post", "postprocess", POST, 1, card)
    stages = [KvRetrieval(num_tokens=1), Postprocess()]
    result = news_search(*clients, stages=stages, lifecycle=down)
    late = 1.5 if client == "kv" else 0.0
    assert result.requests["finished_at"].tolist() == [late + end for end in (5.0, 6.0, 7.0)]


def test_clients_say_the_same_of_a_device():
    one, two = Device(name="cpu", slots=1), Device(name="cpu", slots=2)
    with pytest.raises(mist.ScenarioError, match="device cpu must have the slots that it has at a"):
        news_search(worker("a", "rag", RAG, 3, one), worker("b", "postprocess", POST, 1, two))


@pytest.mark.parametrize("said", [{"name": ""}, {"name": "cpu", "slots": 0}])
def test_devices_have_a_name_and_a_slot(said):
    with pytest.raises(ValueError, match="must"):
        Device(**said)


class Search:
    """A quarter of a second a query, and a quarter for the batch."""

    def check(self, index: object) -> None:
        """Fits."""

    def seconds(self, index: object, batch_size: int, num_results: int) -> float:
        return batch_size / 4 + num_results / 16


def passages(name: str, device: Device | None, most: int = 32) -> mist.RagClient:
    """A batch of n takes (n + 1) / 4 s, and the prompts have the passages in them."""
    index = mist.FlatIndex(num_vectors=100, dimensions=8)
    return mist.RagClient(
        name, passage_tokens=0, index=index, search=Search(), max_batch_size=most, device=device
    )


@pytest.mark.parametrize(
    ("device", "ends"),
    [
        # batches of two and one, and texts beside them
        (None, [1.75, 2.75, 3.75]),
        # the first text has the core before the second batch, and the second text after it
        (Device(name="cpu"), [1.75, 3.25, 4.25]),
        (Device(name="cpu", slots=2), [1.75, 2.75, 3.75]),
    ],
)
def test_searches_of_passages_share_a_processor(device, ends):
    rag, post = passages("rag", device, most=2), worker("post", "postprocess", POST, 1, device)
    assert news_search(rag, post).requests["finished_at"].tolist() == ends


@pytest.mark.parametrize("client", ["rag", "post"])
def test_a_search_that_fails_gives_its_slot_back(client):
    """It fails at 0.5 s and comes back at 1 s; its batch of 1 s begins anew."""
    cpu = Device(name="cpu")
    down = Lifecycle(failures=(Failures(clients=(client,), at=(0.5,), repair=0.5),))
    clients = passages("rag", cpu), worker("post", "postprocess", POST, 1, cpu)
    result = news_search(*clients, lifecycle=down)
    late = 1.0 if client == "rag" else 0.0
    assert result.requests["finished_at"].tolist() == [late + end for end in (2.0, 3.0, 4.0)]


def test_searches_that_are_given_up_leave_the_core():
    """The text of the first has it from 0.5 to 1.5 s, when the second, which waits, is given up."""
    cpu = Device(name="cpu")
    result = news_search(
        passages("rag", cpu, most=1),
        worker("post", "postprocess", POST, 1, cpu),
        at=(0.0, 0.0, 2.0),
        time_limits=TimeLimits(timeout=1.5),
    )
    assert result.requests["status"].tolist() == ["finished", "timed_out", "finished"]
    assert result.requests["finished_at"].tolist() == [1.5, 1.5, 3.5]


def test_text_work_has_the_slots_of_its_processor():
    """Two clients of a core each on one processor of one slot take turns."""
    times = []
    for device in (None, Device(name="cpu")):
        clients = [mist.TextClient(name, device=device) for name in ("a", "b")]
        stages = [mist.Preprocess(num_tokens=100_000, task="tokenize")]
        result = news_search(*clients, at=(0.0, 0.0), stages=stages)
        times.append(result.requests["finished_at"].tolist())
    (alone, beside), (first, second) = times
    assert alone == beside == first
    assert second == pytest.approx(2 * first)
