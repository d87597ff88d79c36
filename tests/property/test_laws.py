"""Laws that hold for every run and every predictor, whatever the policies decide."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mist_sim.clients.kv_cache import BlockPool
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.durations import UniformDuration
from mist_sim.errors import InvariantError
from mist_sim.hardware import Cluster, load_gpu
from mist_sim.hardware.predictors import BestServePredictor, Predictor, RooflinePredictor, traits_of
from mist_sim.metrics import Result
from mist_sim.metrics.clients import pooled_gaps
from mist_sim.models import ModelSpec, MoeSpec, load_model
from mist_sim.routers import ROUTERS
from mist_sim.simulation import Simulation
from mist_sim.traces import ClosedLoop, Retries, TimeLimits
from tests.effort import examples
from tests.property.strategies import arrival_times, cases, contents, lengths, time_limits
from tests.reference.comparison import workload
from tests.reference.engines import assert_nobody_is_inside
from tests.reference.predictors import AWKWARD
from tests.reference.stepwise import Job

REQUIRED = {"length_aware": {"ttft": 0.05}}
"""What routers need that have no defaults."""

# --- laws of a run ----------------------------------------------------------------------------


@st.composite
def simulations(draw: st.DrawFn, limited: bool = True) -> Simulation:
    """One to four engines of different sizes behind any router, with jobs for all of them.

    Many begin alike; with `limited` some of their senders do not wait for ever.
    """
    engines = draw(st.lists(cases(max_jobs=6, longest=60), min_size=1, max_size=4))
    clients = [case.options.client(AWKWARD, f"engine{k}") for k, case in enumerate(engines)]
    times = draw(st.integers(1, 30).flatmap(arrival_times))
    length, content = lengths(8, 60), draw(contents(8))
    some = [st.just({}), st.just({}), time_limits()] if limited else [st.just({})]
    jobs = []
    for time in times:
        tokens = draw(length), draw(length)
        limits = draw(draw(st.sampled_from(some)))
        jobs.append(Job(time, *tokens, draw(st.integers(0, 2)), content(*tokens), **limits))
    name = draw(st.sampled_from(list(ROUTERS)))
    router = ROUTERS[name](**REQUIRED.get(name, {}))
    return Simulation(clients=clients, workload=workload(jobs), router=router)


@given(simulation=simulations())
def test_every_request_is_accounted_for_and_all_memory_comes_back(simulation):
    result = simulation.run()
    counts = Counter(result.requests["status"])
    num_failed = counts["rejected"] + counts["timed_out"]
    assert counts["finished"] + num_failed == simulation.workload.num_requests
    assert result.requests["request_id"].tolist() == list(range(simulation.workload.num_requests))
    assert result.summary["completed"] == counts["finished"]
    assert result.summary["failed"] == num_failed
    assert result.clients["num_visits"].sum() == simulation.workload.num_requests
    assert_nothing_is_left(simulation)


def assert_nothing_is_left(simulation: Simulation) -> None:
    """All memory is back, and nobody is in an engine.

    A run stops as its last answer ends, and waits neither for loads of those who gave up nor for a
    step that was planned ahead for who has ended.
    """
    for client in simulation.clients:
        assert_nobody_is_inside(*(lane.core for lane in client.lanes))
        view = client.view
        assert view.num_waiting == view.num_running == view.num_outstanding == 0


@given(simulation=simulations())
def test_causes_come_before_effects(simulation):
    result = simulation.run()
    drafts = any(client.speculative_config for client in simulation.clients)
    visits = result.recorder.visits.columns()
    requests = result.requests.set_index("request_id")
    for request_id, queued_at, started_at in zip(
        visits["request_id"], visits["queued_at"], visits["started_at"], strict=True
    ):
        row = requests.loc[request_id]
        assert row["arrival_time"] == queued_at
        if row["status"] == "finished":
            assert queued_at <= started_at < row["first_token_at"] <= row["finished_at"]
            times = result.token_times(request_id)
            assert len(times) == row["num_output_tokens"]
            assert times[0] == row["first_token_at"]
            assert times[-1] == row["finished_at"]
            gaps = np.diff(times)
            assert (gaps > 0).all() or (drafts and (gaps >= 0).all())
        else:
            assert row["reason"]
    for ends in result.recorder.step_ends:
        assert (np.diff(ends[:]) > 0).all()
    for _, runs in result.steps.groupby("track"):
        assert (runs["start"] < runs["end"]).all()
        assert (runs["end"].to_numpy()[:-1] <= runs["start"].to_numpy()[1:]).all()


@given(simulation=simulations())
def test_memory_and_slots_are_never_exceeded(simulation):
    result = simulation.run()
    lanes = [(client, lane) for client in simulation.clients for lane in client.lanes]
    for track, (client, lane) in enumerate(lanes):
        runs = result.steps[result.steps["track"] == track]
        held = runs["num_used_blocks"]
        assert held.between(0, client.memory.num_blocks).all()
        if client.async_scheduling and client.speculative_config:
            # planned before the ends of all its answers were known: their memory is back already
            empty = runs[held == 0]
            assert (empty["num_chunks"] == 0).all()
            assert (empty["num_steps"] == 1).all()
            if len(simulation.clients) == len(client.lanes) == 1:
                assert not empty["end"].isin(all_token_times(result)).any()
        else:
            assert (held > 0).all()
        members = runs["num_decodes"] + runs["num_chunks"]
        assert members.between(1, lane.core.max_num_seqs).all()
        tokens = runs["context_sum"] + (runs["num_steps"] - 1) * runs["num_decodes"]
        groups, sharing = client.memory.groups, client.memory.caches_prefixes
        drops = groups and not groups.num_full_groups  # windows drop tokens
        if not (drops or sharing):
            assert (tokens <= client.memory.num_tokens).all()
        budget = client.scheduler.max_num_batched_tokens
        if budget is not None:
            alone = runs["num_chunks"] == 1  # continuous: recomputed prompts may be longer
            assert ((runs["num_prefill_tokens"] <= budget) | alone).all()


@given(simulation=simulations())
def test_no_request_hangs_while_an_engine_sleeps(simulation):
    """While a request is at a client, a step of that client is under way.

    But for the time that its blocks take from lower tiers.
    """
    result = simulation.run()
    assert result.requests["finished_at"].notna().all()
    visits = frame(result.recorder.visits)
    for client_id, client in enumerate(simulation.clients):
        if client.memory.tiers:
            continue
        steps = result.steps[result.steps["client"] == client.name]
        busy = merged(zip(steps["start"], steps["end"], strict=True))
        mine = visits[visits["client_id"] == client_id]
        for start, end in zip(mine["queued_at"], mine["finished_at"], strict=True):
            assert start == end or any(first <= start <= end <= last for first, last in busy)


def all_token_times(result: Result) -> list[float]:
    return [t for k in result.requests["request_id"] for t in result.token_times(k).tolist()]


def frame(table: Any) -> pd.DataFrame:
    return pd.DataFrame(dict(table.columns()))


def merged(periods: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return periods with those put together that touch."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(periods):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


@given(simulation=simulations())
def test_nobody_overtakes_in_the_queue_of_an_engine_in_order_of_arrival(simulation):
    """So no request starves. Where a step takes whole prompts, first tokens come in order, too.

    A prompt in pieces may have its token after a shorter one that began later, and one whose
    blocks are loaded may be overtaken.
    """
    result = simulation.run()
    visits = frame(result.recorder.visits).sort_values("request_id")
    for client_id, client in enumerate(simulation.clients):
        if len(client.lanes) > 1 or client.scheduler.order != "fcfs" or client.memory.tiers:
            continue
        mine = visits[visits["client_id"] == client_id]
        assert mine["started_at"].dropna().is_monotonic_increasing
        if not isinstance(client.scheduler, ChunkedScheduler):
            assert mine["first_token_at"].dropna().is_monotonic_increasing


@given(simulation=simulations())
def test_pooled_gaps_are_the_gaps_of_all_requests(simulation):
    """Pooled ITL never passes over tokens; here it is held against a pass over tokens.

    Tokens that come together, which a step with drafts gave, have one gap before them.
    """
    result = simulation.run()
    gaps, counts, _ = zip(*pooled_gaps(result.recorder), strict=True)
    gaps, counts = np.concatenate(gaps), np.concatenate(counts)
    chunks = [np.unique(result.token_times(k)) for k in result.requests["request_id"]]
    assert counts.sum() == sum(len(times) - 1 for times in chunks if len(times))
    drafts = any(client.speculative_config for client in simulation.clients)
    if (result.requests["status"] == "finished").all() and not drafts:
        assert counts.sum() == (result.requests["num_output_tokens"] - 1).sum()
    expected = [np.diff(times) for times in chunks]
    pooled = np.sort(np.repeat(gaps, counts))
    np.testing.assert_allclose(pooled, np.sort(np.concatenate(expected)), rtol=1e-9, atol=0)


@given(simulation=simulations())
def test_the_summary_counts_every_token(simulation):
    result = simulation.run()
    done = result.requests[result.requests["status"] == "finished"]
    assert result.summary["total_output_tokens"] == done["num_output_tokens"].sum()
    assert result.summary["total_input_tokens"] == done["num_prompt_tokens"].sum()
    begin = done["arrival_time"].min()
    times = [time for k in done["request_id"] for time in np.unique(result.token_times(k)).tolist()]
    per_second = Counter(int(time - begin) for time in times)
    assert result.summary["max_output_tokens_per_s"] == max(per_second.values(), default=0)
    there = Counter(
        second
        for sent, end in zip(done["arrival_time"], done["finished_at"], strict=True)
        for second in range(int(sent - begin), int(end - begin) + 1)
    )
    assert result.summary["max_concurrent_requests"] == max(there.values(), default=0)


@given(data=st.data())
@examples(50)
def test_rates_count_the_tokens_of_their_window(data):
    """So the windows of a run add up, wherever the warm-up ends, also just when a token comes."""
    result = data.draw(simulations() | impatience()).run()
    done = result.requests[result.requests["status"] == "finished"]
    came_at = np.array([t for k in done["request_id"] for t in result.token_times(k).tolist()])
    ended_at = done["finished_at"].to_numpy()
    some = st.sampled_from(came_at.tolist()) if len(came_at) else st.nothing()
    warmup = data.draw(some | st.floats(0, 2 * float(ended_at.max(initial=1.0))))
    summary = replace(result, warmup=warmup).summary
    duration = summary["duration"]
    for counted_at, metric in [(came_at, "output"), (ended_at, "request")]:
        num_counted = np.count_nonzero(counted_at >= warmup) if duration else 0
        assert summary[f"{metric}_throughput"] * duration == pytest.approx(num_counted)


# --- laws of those who give up ------------------------------------------------------------------


@st.composite
def impatience(draw: st.DrawFn) -> Simulation:
    """Engines and jobs, senders with all kinds of limits, and retries; open or closed loop."""
    simulation = draw(simulations(limited=False))
    seconds = st.floats(1e-3, 0.3)
    low = draw(seconds)
    limits = TimeLimits(
        timeout=draw(st.none() | seconds),
        ttft_timeout=draw(st.none() | seconds),
        patience=draw(st.none() | st.just(UniformDuration(low=low, high=low + 0.2))),
    )
    retries = Retries(
        max_attempts=draw(st.integers(1, 5)),
        backoff=draw(seconds),
        factor=draw(st.floats(1.0, 3.0)),
        jitter=draw(st.floats(0.0, 1.0)),
        on=draw(st.sampled_from([("timed_out",), ("rejected",), ("timed_out", "rejected")])),
    )
    arrivals = draw(st.just(simulation.workload.arrivals) | st.just(ClosedLoop(concurrency=3)))
    simulation.workload = replace(
        simulation.workload, arrivals=arrivals, time_limits=limits, retries=retries
    )
    return simulation


@given(simulation=impatience())
def test_every_request_ends_once_and_nobody_gives_up_before_the_time(simulation):
    result = simulation.run()
    assert result.requests["request_id"].tolist() == list(range(simulation.workload.num_requests))
    limits, retries = simulation.workload.time_limits, simulation.workload.retries
    timeout, ttft_timeout = limits.timeout or inf, limits.ttft_timeout or inf
    drawn = [request.limits for request in simulation.workload.requests(simulation.streams)]
    for row, own in zip(result.requests.to_dict("records"), drawn, strict=True):
        sent_at, ended_at = row["sent_at"], row["finished_at"]
        gone_at = row["arrival_time"] + own.patience
        assert row["arrival_time"] <= sent_at <= ended_at <= gone_at
        assert 1 <= row["num_attempts"] <= retries.max_attempts
        if row["status"] == "finished":
            assert ended_at <= sent_at + timeout
            assert row["first_token_at"] <= sent_at + ttft_timeout
        elif row["status"] == "timed_out":
            assert ended_at in (sent_at + timeout, sent_at + ttft_timeout)
            assert row["num_attempts"] == retries.max_attempts or "timed_out" not in retries.on
        elif row["status"] == "cancelled":
            assert ended_at == gone_at
        assert (row["reason"] == "") == (row["status"] == "finished")
        assert row["num_attempts"] > 1 or row["status"] != "finished" or not wasted(row)


def wasted(row: dict[str, Any]) -> int:
    return row["wasted_input_tokens"] + row["wasted_output_tokens"]


@given(simulation=impatience())
def test_who_gives_up_leaves_nothing_behind(simulation):
    result = simulation.run()
    assert result.clients["num_visits"].sum() == result.requests["num_attempts"].sum()
    summary = result.summary
    failures = ("num_rejected", "num_timed_out", "num_cancelled")
    assert summary["failed"] == sum(summary[name] for name in failures)
    assert summary["completed"] + summary["failed"] == simulation.workload.num_requests
    assert_nothing_is_left(simulation)
    assert simulation.run().requests.to_csv() == result.requests.to_csv()


@given(blocks=st.lists(st.integers(0, 40), max_size=30), size=st.integers(1, 100))
def test_pool_never_lends_what_it_does_not_have(blocks, size):
    pool = BlockPool(size, 16)
    held = []
    for number in blocks:
        if number <= pool.num_free:
            pool.allocate(number)
            held.append(number)
        else:
            with pytest.raises(InvariantError):
                pool.allocate(number)
        assert pool.num_used == sum(held) == size - pool.num_free
    for number in held:
        pool.release(number)
    assert pool.num_free == size
    with pytest.raises(InvariantError):
        pool.release(1)


@given(num_tokens=st.integers(0, 10**6), block_size=st.integers(1, 512))
def test_blocks_hold_their_tokens_and_no_block_is_empty(num_tokens, block_size):
    num_blocks = BlockPool(1, block_size).blocks_for(num_tokens)
    assert num_blocks * block_size >= num_tokens > (num_blocks - 1) * block_size or not num_tokens


# --- laws of the roofline ---------------------------------------------------------------------


MAKERS: dict[str, Callable[[], Predictor]] = {
    "roofline h100": lambda: RooflinePredictor(*parts("llama-3.1-8b", "h100-sxm", 1)),
    "roofline h100 tp4": lambda: RooflinePredictor(*parts("llama-3.1-70b", "h100-sxm", 4)),
    "roofline a100 tp2": lambda: RooflinePredictor(*parts("qwen2.5-14b", "a100-80gb-pcie", 2)),
    "roofline l40s": lambda: RooflinePredictor(*parts("llama-3.1-8b", "l40s", 1)),
    "roofline ascend": lambda: RooflinePredictor(*parts("codellama-34b", "ascend-910b3", 4)),
    "roofline moe": lambda: RooflinePredictor(*parts("mixtral-8x7b", "h100-sxm", 2)),
    "roofline mla": lambda: RooflinePredictor(*parts("deepseek-v3", "h200", 8)),
    "roofline mla alone": lambda: RooflinePredictor(*parts("deepseek-v3", "h200", 1)),
    "roofline moe in four bits": lambda: RooflinePredictor(
        load_model("qwen3-30b-a3b").with_dtypes(weights="int4", kv_cache="fp8"),
        Cluster(load_gpu("l40s")),
    ),
    "roofline fp8 on a100": lambda: RooflinePredictor(
        load_model("qwen3-235b-a22b").with_dtypes(weights="fp8", kv_cache="fp8"),
        Cluster(load_gpu("a100-80gb-sxm"), 4),
    ),
    "bestserve ascend": lambda: BestServePredictor(*parts("codellama-34b", "ascend-910b3", 4)),
    "bestserve as printed": lambda: BestServePredictor(
        *parts("codellama-34b", "ascend-910b3", 4), composition="algorithm_1"
    ),
    "bestserve h100": lambda: BestServePredictor(*parts("llama-3.1-8b", "h100-sxm", 1)),
}


def parts(model: str, gpu: str, ranks: int) -> tuple[ModelSpec, Cluster]:
    return load_model(model), Cluster(load_gpu(gpu), ranks)


@cache
def predictor(name: str) -> Predictor:
    return MAKERS[name]()


chunks = st.tuples(st.integers(1, 8_192), st.integers(0, 120_000))
decodes = st.integers(1, 512).flatmap(
    lambda number: st.tuples(st.just(number), st.integers(number, number * 8_192))
)
batches = st.builds(
    lambda prompts, running: StepBatch(tuple(prompts), *running),
    st.lists(chunks, max_size=3),
    decodes | st.just((0, 0)),
).filter(lambda batch: batch.chunks or batch.num_decodes)


@pytest.mark.parametrize("name", MAKERS)
@given(batch=batches, num_steps=st.integers(1, 40))
def test_a_run_has_the_bits_of_its_steps(name, batch, num_steps):
    growth = StepGrowth(batch.num_decodes)
    times = predictor(name).run(batch, growth, num_steps)
    assert times.shape == (num_steps,)
    assert times.dtype == np.float64
    steps = [predictor(name).step_time(grown(batch, growth, k)) for k in range(num_steps)]
    assert times.tolist() == steps
    assert all(type(step) is float for step in steps)
    assert np.isfinite(times).all()
    assert (times > 0).all()


def bigger(batch: StepBatch) -> st.SearchStrategy[StepBatch]:
    """Batches of the same kind with more of something: decodes, context, prompt tokens."""
    more = st.sampled_from([0, 0, 1, 7, 512, 4_096])

    def grow(steps: list[int]) -> StepBatch:
        of_decodes, of_context, of_new, of_prior, of_chunks = steps
        prompts = tuple((new + of_new, prior + of_prior) for new, prior in batch.chunks)
        if batch.chunks and of_chunks:
            prompts += ((of_chunks, 0),)
        number = batch.num_decodes + (of_decodes if batch.num_decodes else 0)
        context = batch.context_sum + (of_decodes + of_context if batch.num_decodes else 0)
        return StepBatch(prompts, number, context)

    return st.lists(more, min_size=5, max_size=5).map(grow)


@pytest.mark.parametrize("name", MAKERS)
@given(pair=batches.flatmap(lambda batch: st.tuples(st.just(batch), bigger(batch))))
def test_more_work_of_the_same_kinds_never_takes_less_time(name, pair):
    small, big = pair
    assert predictor(name).step_time(big) >= predictor(name).step_time(small) * (1 - 1e-12)


@pytest.mark.parametrize("name", MAKERS)
@examples(50)
@given(batch=batches, prompt=chunks)
def test_another_member_never_makes_a_step_shorter(name, batch, prompt):
    step_time = predictor(name).step_time
    assume(batch.chunks)
    time = step_time(batch) * (1 - 1e-12)
    assert step_time(replace(batch, chunks=(*batch.chunks, prompt))) >= time
    assert step_time(StepBatch(batch.chunks)) * (1 - 1e-12) <= step_time(batch)


@pytest.mark.parametrize("name", MAKERS)
def test_a_prompt_of_one_token_never_makes_a_step_of_decodes_shorter(name):
    step_time = predictor(name).step_time
    assert step_time(StepBatch(((1, 0),), 512, 51_200)) >= step_time(StepBatch((), 512, 51_200))


@given(num_experts=st.integers(1, 512), data=st.data(), num_tokens=st.integers(1, 100_000))
def test_tokens_touch_at_least_their_own_experts_and_at_most_all(num_experts, data, num_tokens):
    chosen = data.draw(st.integers(1, num_experts))
    moe = MoeSpec(num_experts=num_experts, num_experts_per_token=chosen, intermediate_size=1)
    touched = moe.distinct_experts(num_tokens)
    assert chosen * (1 - 1e-9) <= touched <= min(num_experts, num_tokens * chosen) * (1 + 1e-9)
    assert touched <= moe.distinct_experts(num_tokens + 1)
    assert moe.distinct_experts(0) == 0


@pytest.mark.parametrize("name", MAKERS)
@given(batch=batches, num_drafts=st.integers(1, 8), data=st.data())
def test_run_of_drafts_has_bits_of_its_steps(name, batch, num_drafts, data):
    assume(batch.num_decodes)
    assume(traits_of(predictor(name)).times_drafts)
    drafting = replace(batch, num_drafts=num_drafts)
    most = batch.num_decodes * (1 + num_drafts)
    tokens = data.draw(st.lists(st.integers(batch.num_decodes, most), max_size=40))
    growth = StepGrowth(np.cumsum([0, *tokens]))
    times = predictor(name).run(drafting, growth, len(tokens) + 1).tolist()
    steps = [grown(drafting, growth, k) for k in range(len(tokens) + 1)]
    assert times == [predictor(name).step_time(step) for step in steps]
    assert predictor(name).step_time(drafting) >= predictor(name).step_time(batch) * (1 - 1e-12)


@given(batch=batches, number=st.integers(0, 200), steps=st.integers(0, 5))
def test_growth_adds_up(batch, number, steps):
    growth = StepGrowth(number)
    later = batch
    for _ in range(steps):
        later = grown(later, growth, 1)
    assert later == grown(batch, growth, steps)
