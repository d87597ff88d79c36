"""Replicas in lockstep: experts and the exchange of tokens see the sum of all replicas' tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import llm_client
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import RooflinePredictor
from mist_sim.hardware.predictors.explained import explained
from mist_sim.models import load_model
from mist_sim.simulation import Simulation
from mist_sim.traces import AllAtOnce, Workload
from tests.effort import examples

MODEL = load_model("qwen3-30b-a3b")
SIZES = (2, 3, 4)
BACKENDS = ("allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput")
TIMED = {
    (size, backend): RooflinePredictor(
        MODEL,
        Cluster(
            load_gpu("h100-sxm"),
            data_parallel_size=size,
            enable_expert_parallel=True,
            all2all_backend=backend,
        ),
        max_cudagraph_capture_size=0,  # without padding, sums are those of the tokens
    )
    for size in SIZES
    for backend in BACKENDS
}


def share_experts(batches: list[StepBatch], num_replicas: int) -> StepBatch:
    """Tell the batches of replicas in lockstep of one another; return what an idle one computes.

    num_replicas: all of them; those without a batch are idle, and have no tokens.
    """
    sizes = [batch.num_prefill_tokens + batch.num_decode_queries for batch in batches]
    replicas = (*sizes, *(num_replicas - len(sizes)) * [0])
    for batch in batches:
        batch.replicas = replicas
    return StepBatch(replicas=replicas)


@st.composite
def steps(draw):
    """Draw the batches of replicas in lockstep; some may be idle."""
    size = draw(st.sampled_from(SIZES))
    batches = []
    for _ in range(size):
        chunks = tuple(
            (draw(st.integers(1, 900)), draw(st.integers(0, 3_000)))
            for _ in range(draw(st.integers(0, 2)))
        )
        number = draw(st.integers(0, 200))
        batches.append(StepBatch(chunks, number, number * draw(st.integers(1, 2_000))))
    busy = [batch for batch in batches if batch.chunks or batch.num_decodes]
    return busy, size, TIMED[size, draw(st.sampled_from(BACKENDS))]


def tokens(batch):
    return batch.num_prefill_tokens + batch.num_decode_queries


def by_operator(batch, timed):
    return [(each.name, each.seconds) for each in explained(timed, batch)]


@given(steps())
@examples(60)
def test_experts_and_gathers_go_by_sum_of_tokens(drawn):
    """They are those of one replica that has all tokens, and of any other split of the sum."""
    batches, size, timed = drawn
    if not batches:
        return
    share_experts(batches, size)
    total = sum(tokens(batch) for batch in batches)
    for batch in batches:
        alike = StepBatch(batch.chunks, batch.num_decodes, batch.context_sum)
        alike.replicas = (tokens(batch), total - tokens(batch))
        here, there = by_operator(batch, timed), by_operator(alike, timed)
        assert here == there
        assert {name for name, _ in here} & {"all_gather", "all_to_all"}
        assert timed.step_time(batch) == timed.step_time(alike)


@given(steps(), st.integers(1, 500))
@examples(60)
def test_more_tokens_elsewhere_never_make_a_step_shorter(drawn, more):
    batches, size, timed = drawn
    if not batches:
        return
    share_experts(batches, size)
    batch = batches[0]
    before = timed.step_time(batch)
    batch.replicas = (*batch.replicas[:-1], batch.replicas[-1] + more)
    assert timed.step_time(batch) >= before


@given(st.integers(1, 300), st.sampled_from(sorted(TIMED)), st.integers(1, 40))
@examples(60)
def test_equal_replicas_take_what_nobody_says(number, size_and_backend, num_steps):
    """To the bit, in single steps and in runs."""
    timed, (size, _) = TIMED[size_and_backend], size_and_backend
    unsaid = StepBatch((), number, 700 * number)
    said = [StepBatch((), number, 700 * number) for _ in range(size)]
    share_experts(said, size)
    assert timed.step_time(said[0]) == timed.step_time(unsaid)
    grows = StepGrowth(number)
    runs = [timed.run(batch, grows, num_steps) for batch in (said[0], unsaid)]
    assert runs[0].tolist() == runs[1].tolist()


@given(steps())
@examples(40)
def test_the_operators_of_a_step_are_its_time(drawn):
    batches, size, timed = drawn
    share_experts(batches, size)
    for batch in batches:
        parts = sum(seconds for _, seconds in by_operator(batch, timed))
        assert parts == pytest.approx(timed.step_time(batch))


def test_busy_replica_does_not_pay_for_idle_ones():
    """Before, each was priced as if all others computed as much, too; and in a run no more is."""
    busy, timed = StepBatch((), 200, 80_000), TIMED[4, BACKENDS[0]]
    unsaid = timed.step_time(busy)
    idle = share_experts([busy], 4)
    assert timed.step_time(busy) < 0.9 * unsaid
    assert timed.step_time(idle) == 0
    client = llm_client(
        "a",
        model="qwen3-30b-a3b",
        gpu="h100-sxm",
        data_parallel_size=2,
        enable_expert_parallel=True,
        predictor=RooflinePredictor,
    )
    workload = Workload.from_lists([3_000, 1], [2, 2], arrivals=AllAtOnce())
    steps = Simulation(clients=[client], workload=workload).run().steps
    alike = client.predictor.ranks[0].step_time(StepBatch(((3_000, 0),)))
    first = steps["end"].min() - steps["start"].min()
    assert first < 0.9 * alike
