"""Metrics by hand, and the files that a run leaves."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim.clients import SequentialClient
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.columns import Categories, Table
from mist_sim.core.recorder import decode_time
from mist_sim.core.request import Request
from mist_sim.core.visit import Visit
from mist_sim.errors import ScenarioError
from mist_sim.metrics import Slo, latency, stats
from mist_sim.routers import LeastOutstandingRouter
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, Prefill, ToolCall
from mist_sim.traces import PoissonArrivals, Profile, TimeLimits, Workload, template
from tests.effort import examples
from tests.reference.engines import llm_engine


class AffinePredictor:
    def step_time(self, batch):
        return 0.01 + 1e-5 * batch.num_prefill_tokens + 1e-4 * batch.num_decodes

    def run(self, batch, growth, num_steps):
        return np.full(num_steps, self.step_time(batch))


def engine(name="llm"):
    return llm_engine(
        name, scheduler=ChunkedScheduler(), predictor=AffinePredictor(), num_gpu_blocks=5000
    )


def simulation(rate=2.0, num_requests=300, **more):
    workload = Workload(Profile(num_requests=num_requests), PoissonArrivals(rate=rate))
    return Simulation(clients=[engine()], workload=workload, **more)


def test_definitions_of_latencies():
    arrival, first, finished = np.array([1.0, 2.0]), np.array([1.5, 4.0]), np.array([3.5, 4.0])
    assert list(latency.ttft(arrival, first)) == [0.5, 2.0]
    assert list(latency.e2e(arrival, finished)) == [2.5, 2.0]
    tpot = latency.tpot(finished - first, np.array([4, 0]))
    assert tpot[0] == 0.5
    assert np.isnan(tpot[1])  # one token has no gap


def test_stages_after_decode_count_in_e2e_and_not_in_tpot():
    workload = Workload.from_lists(
        [10], [5], pipeline=template([Prefill, Decode, ToolCall(duration=9.0), Prefill, Decode])
    )
    tool = SequentialClient("tool", serves=["tool_call"], service_time=lambda s: s.duration)
    request = Simulation(clients=[engine(), tool], workload=workload).run().requests.iloc[0]
    assert request.num_output_tokens == 10
    assert request.tpot == pytest.approx(0.0101)
    assert request.e2el > 9.0


def test_slo_counts_a_single_token_as_tpot_zero():
    kept = Slo(ttft=1.0, tpot=0.5).kept(
        np.array([0.5, 2.0, 0.5]), np.array([np.nan, 0.1, 0.6]), np.ones(3), np.array([0, 9, 9])
    )
    assert list(kept) == [True, False, False]
    assert Slo(e2el=1.0).is_set
    assert not Slo().is_set


@pytest.mark.parametrize("limits", [{"ttft": 1.0}, {"tpot": 1.0}, {"e2el": 1.0}])
def test_latency_that_nobody_measured_never_counts_as_good(limits):
    unknown = np.array([np.nan])
    assert list(Slo(**limits).kept(unknown, unknown, unknown, np.array([9]))) == [False]


def test_answer_of_two_clients_has_gap_between_them():
    """Token 1 at 2 s here; tokens 2 to 5 at 3.5, 3.6, 3.7 and 3.8 s there: four gaps in 1.8 s."""
    request = Request(0, 0.0, (Prefill(num_prompt_tokens=10), Decode(num_tokens=4)))
    prefill = Visit(request, request.stages[:1], 0.0, first_token_at=2.0, last_token_at=2.0)
    decode = Visit(request, request.stages[1:], 2.0, first_token_at=3.5, last_token_at=3.8)
    prefill.num_output_tokens, decode.num_output_tokens = 1, 4
    assert decode_time([prefill, decode]) == (pytest.approx(1.8), 4)
    assert decode_time([prefill, decode, prefill]) == (pytest.approx(1.8), 4)


def test_tokens_of_which_nobody_says_when_they_came_are_not_measured():
    """A decode client of one's own that reports no tokens."""
    request = Request(0, 0.0, (Prefill(num_prompt_tokens=10), Decode(num_tokens=4)))
    prefill = Visit(request, request.stages[:1], 0.0, first_token_at=2.0, last_token_at=2.0)
    prefill.num_output_tokens = 1
    silent = Visit(request, request.stages[1:], 2.0)
    seconds, num_gaps = decode_time([prefill, silent])
    tpot = latency.tpot(np.array([seconds]), np.array([num_gaps]))
    assert np.isnan(tpot[0])
    assert not Slo(tpot=1.0).kept(np.ones(1), tpot, np.ones(1), np.array([num_gaps])).any()
    silent.is_cut = True  # it had no room for a token
    assert decode_time([prefill, silent]) == (0.0, 0)


@pytest.mark.parametrize("limit", [0.0, -1.0, float("inf"), float("nan")])
def test_slo_refuses_nonsense(limit):
    with pytest.raises(ValueError, match="slo.tpot must be finite and > 0 s"):
        Slo(tpot=limit)


def test_max_inside_lets_leavers_make_room():
    assert stats.max_inside(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == 1
    assert stats.max_inside(np.array([0.0, 0.5, 2.0]), np.array([1.0, 2.0, 3.0])) == 2
    assert stats.max_inside(np.empty(0), np.empty(0)) == 0


def test_table_keeps_rows_across_blocks():
    table = Table(number="i8", value="f8")
    for i in range(20_000):
        table.rows.append((i, i / 2))
    columns = table.columns()
    table.rows.append((20_000, 0.0))
    assert list(columns["number"][[0, 8191, 8192, -1]]) == [0, 8191, 8192, 19_999]
    assert len(table.columns()["value"]) == 20_001


def test_categories_count_in_order_of_first_sight():
    categories = Categories()
    assert [categories.code(v) for v in ("a", "b", "a")] == [0, 1, 0]
    assert categories.values == ["a", "b"]


def test_goodput_counts_requests_that_keep_every_limit():
    result = simulation(slo=Slo(ttft=0.05, tpot=0.02)).run()
    requests = result.requests
    good = ((requests.ttft <= 0.05) & (requests.tpot.fillna(0) <= 0.02)).sum()
    assert 0 < good < len(requests)
    assert result.summary["request_goodput"] == pytest.approx(good / result.summary["duration"])
    assert result.summary["good_request_fraction"] == good / len(requests)


def test_summary_agrees_with_the_tables():
    result = simulation().run()
    summary, requests = result.summary, result.requests
    assert summary["mean_ttft_ms"] == pytest.approx(1e3 * requests.ttft.mean())
    assert summary["p99_tpot_ms"] == pytest.approx(1e3 * requests.tpot.quantile(0.99))
    assert summary["total_output_tokens"] == requests.num_output_tokens.sum()
    times = np.concatenate([result.token_times(i) for i in requests.request_id])
    peak = np.bincount(np.floor(times - requests.arrival_time.min()).astype(int)).max()
    assert summary["max_output_tokens_per_s"] == peak
    assert summary["std_itl_ms"] > 0
    itl = np.concatenate([np.diff(result.token_times(i)) for i in requests.request_id])
    assert summary["mean_itl_ms"] == pytest.approx(1e3 * itl.mean())
    assert summary["p95_itl_ms"] == pytest.approx(1e3 * np.quantile(itl, 0.95))
    assert summary["max_itl_ms"] == pytest.approx(1e3 * itl.max())
    clients = result.clients
    assert clients.num_decode_tokens.sum() == (requests.num_output_tokens - 1).sum()
    assert clients.num_prefill_tokens.sum() == requests.num_prompt_tokens.sum()


def test_warmup_leaves_early_arrivals_out():
    whole, late = simulation().run(), simulation(warmup=60.0).run()
    kept = whole.requests[whole.requests.arrival_time >= 60.0]
    assert late.summary["completed"] == len(kept) < whole.summary["completed"]
    assert late.summary["mean_e2el_ms"] == pytest.approx(1e3 * kept.e2el.mean())
    assert late.summary["duration"] == pytest.approx(whole.summary["duration"] - 60.0)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 9)), max_size=60), st.integers(0, 60))
def test_weighted_statistics_are_those_of_the_repeated_values(pairs, cut):
    values = np.array([value for value, _ in pairs])
    counts = np.array([count for _, count in pairs], dtype=np.int64)
    found = stats.describe_weighted(
        lambda: [
            stats.Weighted(values[:cut], counts[:cut]),
            stats.Weighted(values[cut:], counts[cut:]),
        ]
    )
    expected = stats.describe(np.repeat(values, counts))
    rounding = 1e-12 * max(1.0, values.max(initial=0.0))  # of a spread that should be 0
    assert found == pytest.approx(expected, rel=1e-9, abs=rounding, nan_ok=True)


def test_a_run_is_saved_and_saved_again_to_the_same_bytes(tmp_path):
    first = simulation().run().save(tmp_path / "a")
    second = simulation().run().save(tmp_path / "b")
    names = sorted(path.name for path in first.iterdir())
    assert names == [
        "SHA256SUMS",
        "clients.parquet",
        "requests.parquet",
        "stages.parquet",
        "steps.parquet",
        "summary.json",
    ]
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert json.loads((first / "summary.json").read_text())["completed"] == 300
    assert len(pd.read_parquet(first / "requests.parquet")) == 300


def test_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(ScenarioError, match="is not empty"):
        simulation(num_requests=5).run().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("request_id", [-1, 5])
def test_token_times_of_a_request_that_there_was_not_are_refused(request_id):
    result = simulation(num_requests=5).run()
    with pytest.raises(ValueError, match=rf"request_id must be in \[0, 5\), got {request_id}"):
        result.token_times(request_id)


def test_idle_engines_count_in_utilisation():
    def utilisation(num_engines):
        workload = Workload.from_lists([10] * 50, [20] * 50, [float(k) for k in range(50)])
        clients = [engine(f"llm-{k}") for k in range(num_engines)]
        first = LeastOutstandingRouter()
        return (
            Simulation(clients=clients, workload=workload, router=first)
            .run()
            .summary["utilisation"]
        )

    assert utilisation(4) == pytest.approx(utilisation(1) / 4)


def test_a_run_of_ages_needs_no_memory_for_its_seconds():
    workload = Workload.from_lists([10] * 3, [5] * 3, [0.0, 1e9, 1e11])
    summary = Simulation(clients=[engine()], workload=workload).run().summary
    assert summary["max_output_tokens_per_s"] == 5


def test_a_run_that_answers_nobody_has_no_peak():
    """All give up during their first steps, which gave tokens."""
    client = llm_engine(
        "llm", scheduler=ChunkedScheduler(), predictor=AffinePredictor(), num_gpu_blocks=100
    )
    workload = Workload.from_lists([10, 10], [500, 500], [0.0, 10.0])
    limited = replace(workload, time_limits=TimeLimits(timeout=0.5))
    summary = Simulation(clients=[client], workload=limited).run().summary
    assert summary["num_timed_out"] == 2
    assert summary["max_output_tokens_per_s"] == 0


class HalfASecond(AffinePredictor):
    def step_time(self, batch):
        return 0.5


def test_peaks_are_counted_as_vllm_counts_them():
    """`calculate_metrics` of vllm/benchmarks/serve.py: seconds from the first sending on, 10.5 s.

    Tokens at 11, 11.5, ..., 13 s; 11 and 11.5 s; 12.5 s. The second request is over when the third
    comes, but all three are there in the second from 11.5 s on. What was rejected does not count.
    """
    client = llm_engine(
        "llm", scheduler=ChunkedScheduler(), predictor=HalfASecond(), num_gpu_blocks=100
    )
    jobs = ([10**6, 10, 10, 10**6, 10], [1, 5, 2, 1, 1], [3.0, 10.5, 10.5, 11.0, 11.6])
    result = Simulation(clients=[client], workload=Workload.from_lists(*jobs)).run()
    assert result.requests.finished_at.tolist() == [3.0, 13.0, 11.5, 11.0, 12.5]
    assert result.summary["max_concurrent_requests"] == 3
    assert result.summary["max_output_tokens_per_s"] == 3


def test_answers_cut_at_the_longest_context_are_counted():
    client = llm_engine(
        "llm",
        scheduler=ChunkedScheduler(),
        predictor=AffinePredictor(),
        num_gpu_blocks=100,
        max_model_len=20,
    )
    workload = Workload.from_lists([10, 10], [5, 50])
    result = Simulation(clients=[client], workload=workload).run()
    assert result.summary["num_truncated"] == 1
    assert result.requests.truncated.tolist() == [False, True]


@examples(200)
@given(
    values=st.lists(
        st.one_of(st.floats(0, 1e6), st.integers(0, 3).map(float), st.just(math.nan)),
        min_size=1,
        max_size=300,
    )
)
def test_percentiles_are_those_of_numpy_to_the_bit(values):
    sample = np.array(values)
    expected = np.percentile(sample, stats.PERCENTILES)
    found = stats.describe(sample)
    names = [f"p{percentile}" for percentile in stats.PERCENTILES]
    assert np.array([found[name] for name in names]).tobytes() == expected.tobytes()
