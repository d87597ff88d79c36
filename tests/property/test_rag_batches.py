"""Laws of batches: equal to a plain loop to the bit, whole, in order, never too large."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mist_sim.clients.rag import BatchedClient, RagClient
from mist_sim.core.visit import Visit
from mist_sim.hardware.vector_search import FlatIndex
from mist_sim.lifecycle import Failures, Lifecycle
from mist_sim.simulation import Simulation
from mist_sim.stages import Prefill, Rag
from mist_sim.traces import TimeLimits, UniformLength, Workload
from tests.effort import examples
from tests.reference.apart import engine
from tests.reference.batches import served

BASE, EACH = 0.3, 0.07


class Batches(BatchedClient):
    """Batches whose seconds grow with their size."""

    def __init__(self, max_batch_size: int, max_wait: float) -> None:
        super().__init__("docs", ["rag"])
        self.max_batch_size, self.max_wait = max_batch_size, max_wait

    def batch_seconds(self, batch: Sequence[Visit]) -> float:
        return BASE + EACH * len(batch)


ARRIVALS = st.lists(
    st.one_of(
        st.floats(0, 3, allow_subnormal=False),
        st.integers(0, 12).map(lambda k: k * 0.25),  # several at one instant, or as a batch ends
    ),
    min_size=1,
    max_size=40,
).map(sorted)
SIZES, WAITS = st.integers(1, 7), st.sampled_from([0.0, 0.1, 0.25, 1.5])


def asking(arrivals: list[float]) -> Workload:
    ones = [1] * len(arrivals)
    return Workload.from_lists(ones, ones, arrivals, pipeline=lambda _: (Rag(),))


def rows(client: BatchedClient, arrivals: list[float]):
    return Simulation(clients=[client], workload=asking(arrivals)).run().stages


@examples(60)
@given(ARRIVALS, SIZES, WAITS)
def test_batches_equal_a_plain_loop_to_the_bit(arrivals, size, wait):
    found = rows(Batches(size, wait), arrivals).sort_values("request_id")
    expected = served(arrivals, lambda batch: BASE + EACH * len(batch), size, wait)
    assert list(zip(found.started_at, found.finished_at, strict=True)) == expected


@examples(40)
@given(ARRIVALS, SIZES, WAITS)
def test_batches_are_whole_in_order_and_never_too_large(arrivals, size, wait):
    found = rows(Batches(size, wait), arrivals).sort_values("request_id")
    assert len(found) == len(arrivals)
    assert max(Counter(found.started_at).values()) <= size
    assert found.started_at.is_monotonic_increasing
    assert (found.started_at >= found.queued_at).all()


@examples(25)
@given(ARRIVALS, SIZES, WAITS, st.floats(0.2, 3), st.floats(0.05, 2))
def test_what_is_given_up_or_lost_is_accounted_for(arrivals, size, wait, limit, failure):
    """Every request ends once, also when the client fails in the middle of a batch."""
    number = len(arrivals)
    workload = replace(asking(arrivals), time_limits=TimeLimits(timeout=limit))
    fails = Failures(clients=("docs",), at=(failure,), repair=0.4)
    result = Simulation(
        clients=[Batches(size, wait)], workload=workload, lifecycle=Lifecycle(failures=(fails,))
    ).run()
    assert len(result.requests) == number
    finished = result.requests[result.requests["status"] == "finished"]
    assert (finished["e2el"] <= limit + 1e-9).all()


class Free:
    """Searches in no time."""

    def check(self, index: object) -> None:
        """Fits."""

    def seconds(self, index: object, batch_size: int, num_results: int) -> float:
        return 0.01


def retrieves(arrivals: list[float]):
    client = RagClient(
        "docs",
        passage_tokens=UniformLength(low=1, high=30),
        num_documents=3,
        index=FlatIndex(num_vectors=10, dimensions=4),
        search=Free(),
        max_batch_size=4,
    )
    number = len(arrivals)
    workload = Workload.from_lists(
        [5] * number,
        [1] * number,
        arrivals,
        pipeline=lambda _: (Rag(), Prefill(num_prompt_tokens=5)),
    )
    llm = engine(None, name="llm", num_gpu_blocks=1000)
    return Simulation(clients=[client, llm], workload=workload, seed=3).run()


@examples(25)
@given(ARRIVALS)
def test_what_is_found_is_in_the_prompt_and_the_same_again(arrivals):
    first, again = retrieves(arrivals), retrieves(arrivals)
    tokens = first.requests["num_prompt_tokens"]
    assert ((tokens >= 5 + 3) & (tokens <= 5 + 3 * 30)).all()
    assert first.summary["total_input_tokens"] == tokens.sum()
    assert tokens.tolist() == again.requests["num_prompt_tokens"].tolist()
    assert first.stages.equals(again.stages)
