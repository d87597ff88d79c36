"""Rates a second: tokens and requests count in the measured time, whoever was sent when."""

from dataclasses import replace

import numpy as np
import pytest

from mist_sim import Scenario, simulate
from mist_sim.clients import Client
from mist_sim.clients.scheduling import ChunkedScheduler, ContinuousScheduler
from mist_sim.metrics import Result, Slo
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.simulation import Simulation
from mist_sim.traces import (
    ClosedLoop,
    ConstantArrivals,
    FixedLength,
    Retries,
    Synthetic,
    TimeLimits,
    Workload,
)
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor

DRAFTS = SpeculativeConfig(method="ngram", num_speculative_tokens=3, acceptance_rate=0.6)


def engine(**options):
    """An engine whose steps take a second."""
    defaults = {"scheduler": ChunkedScheduler(), "num_gpu_blocks": 1000}
    return llm_engine(predictor=ConstantPredictor(1.0), **defaults | options)


def per_second(result: Result, warmup: float) -> tuple[float, float, float, float]:
    """Duration, requests, output tokens and all tokens a second, with another warm-up."""
    summary = replace(result, warmup=warmup).summary
    names = ("request_throughput", "output_throughput", "total_token_throughput")
    return summary["duration"], *(summary[name] for name in names)


def test_an_answer_that_a_warm_up_cuts_counts_from_there_by_hand():
    """Steps of 1 s. The first answer has tokens at 1, 2, ... 10 s, the second at 6, 7, ... 10 s.

    In the 6.5 s from 3.5 s on there are 7 of the first answer, 5 of the second, and the second's
    prompt of 20; both requests end. From 5.5 s on there are 5 of each.
    """
    workload = Workload.from_lists([30, 20], [10, 5], [0.0, 4.5])
    result = Simulation(clients=[engine()], workload=workload).run()
    assert result.token_times(0).tolist() == list(range(1, 11))
    assert result.token_times(1).tolist() == list(range(6, 11))
    assert per_second(result, 0.0) == (10.0, 2 / 10, 15 / 10, 65 / 10)
    assert per_second(result, 3.5) == (6.5, 2 / 6.5, 12 / 6.5, 32 / 6.5)
    assert per_second(result, 5.5) == (4.5, 2 / 4.5, 10 / 4.5, 30 / 4.5)
    assert per_second(result, 6.0) == (4.0, 2 / 4, 10 / 4, 30 / 4)  # what comes just then counts
    assert per_second(result, 10.5) == (0.0, 0.0, 0.0, 0.0)


def test_rates_count_until_the_last_failure():
    """As `benchmark_duration` of vLLM: one is served by 10 s, one gives up at 4.5 + 15.5 s."""
    workload = Workload.from_lists([30, 20], [10, 100], [0.0, 4.5])
    workload = replace(workload, time_limits=TimeLimits(timeout=15.5))
    result = Simulation(clients=[engine()], workload=workload, slo=Slo(ttft=2.0)).run()
    assert result.requests.status.tolist() == ["finished", "timed_out"]
    assert per_second(result, 0.0) == (20.0, 1 / 20, 10 / 20, 40 / 20)
    assert per_second(result, 12.0) == (8.0, 0.0, 0.0, 0.0)
    assert result.summary["request_goodput"] == 1 / 20


def test_a_warm_up_does_not_lower_the_throughput_of_a_steady_run():
    """An answer of 50 tokens every 5 s: 10 tokens a second, whatever the warm-up."""
    lengths = Synthetic(
        num_requests=400, prompt=FixedLength(tokens=10), output=FixedLength(tokens=50)
    )
    workload = Workload(lengths, ConstantArrivals(rate=0.2))
    result = Simulation(clients=[engine()], workload=workload).run()
    drain = 50 / (399 * 5 - 1000)  # from the last arrival on no others come: at most 5 % of these
    for warmup in (100.0, 500.0, 1000.0):
        _, requests, output, _ = per_second(result, warmup)
        assert output == pytest.approx(10.0, rel=drain / 2)
        assert requests == pytest.approx(0.2, rel=drain)


def test_goodput_counts_good_requests_that_end_in_the_measured_time():
    workload = Workload.from_lists([10] * 4, [10] * 4, [0.0, 2.0, 4.0, 6.0])
    result = Simulation(clients=[engine()], workload=workload, slo=Slo(ttft=1.0), warmup=5.0).run()
    summary = result.summary
    assert summary["request_goodput"] == summary["request_throughput"] == 4 / summary["duration"]
    assert (summary["completed"], summary["good_request_fraction"]) == (1, 1.0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_gpu_blocks": 14},  # too few for all, so that some are computed again
        {"speculative_config": DRAFTS},
    ],
    ids=["plain", "preempted", "drafts"],
)
def test_tokens_of_windows_add_up(options):
    times = [3.3 * k for k in range(40)]
    workload = Workload.from_lists([20] * 40, [5 + 3 * k % 40 for k in range(40)], times)
    result = Simulation(clients=[engine(**options)], workload=workload).run()
    came_at = np.sort(np.concatenate([result.token_times(k) for k in range(40)]))
    for warmup in (0.0, 7.0, 40.5, 99.0, 120.0):
        duration, _, output, _ = per_second(result, warmup)
        assert output * duration == pytest.approx(np.count_nonzero(came_at >= warmup))


def test_only_the_last_attempt_counts():
    """Three short prompts hold the first answer up, so that it times out and is sent again."""
    alone = ContinuousScheduler()  # decodes wait while a prompt is computed
    workload = Workload.from_lists([10] * 4, [6, 1, 1, 1], [0.0, 1.5, 2.5, 3.5])
    workload = replace(
        workload, time_limits=TimeLimits(timeout=7.5), retries=Retries(jitter=0.0, backoff=1.0)
    )
    result = Simulation(clients=[engine(scheduler=alone)], workload=workload).run()
    assert result.requests.num_attempts.tolist() == [2, 1, 1, 1]
    assert result.requests.wasted_output_tokens[0] == 5  # one in the step in flight
    came_at = np.concatenate([result.token_times(k) for k in range(4)])
    for warmup in (0.0, 3.0, 8.0, 10.5):
        duration, _, output, _ = per_second(result, warmup)
        assert output * duration == pytest.approx(np.count_nonzero(came_at >= warmup))


class Silent(Client):
    """Answers after 10 s, and says nothing of single tokens."""

    def __init__(self):
        super().__init__("silent", ["prefill", "decode"])

    def accept(self, visit):
        self.env.start(self.work(visit))

    def abort(self, visit):
        self.finish(visit)

    def work(self, visit):
        self.begin(visit)
        yield self.env.timeout(10.0)
        visit.num_output_tokens = visit.request.num_output_tokens
        self.finish(visit)


def test_tokens_of_which_nobody_says_when_they_came_count_at_the_end():
    workload = Workload.from_lists([10, 10], [5, 5], [0.0, 4.0])
    result = Simulation(clients=[Silent()], workload=workload).run()
    assert per_second(result, 0.0) == (14.0, 2 / 14, 10 / 14, 30 / 14)
    assert per_second(result, 12.0) == (2.0, 1 / 2, 5 / 2, 15 / 2)


# --- the steady part --------------------------------------------------------------------------


def test_straggler_does_not_lower_rates_of_steady_part():
    """Ten requests a second for 10 s, and a last answer that goes on for 20 s more."""
    quick = ConstantPredictor(0.01)
    lengths = [10] * 100, [*[5] * 99, 2000], [k / 10 for k in range(100)]
    llm = llm_engine(predictor=quick, scheduler=ChunkedScheduler(), num_gpu_blocks=1000)
    workload = Workload.from_lists(*lengths)
    summary = Simulation(clients=[llm], workload=workload, slo=Slo(ttft=1.0)).run().summary
    assert summary["good_request_fraction"] == 1
    assert summary["request_goodput"] == 100 / summary["duration"] < 4  # vLLM's formula
    assert summary["steady_request_goodput"] == pytest.approx(10, rel=0.02)
    assert summary["steady_request_throughput"] == pytest.approx(10, rel=0.02)
    assert (summary["steady_begin"], summary["steady_end"]) == (2.0, 9.9)


@pytest.mark.parametrize("options", [{}, {"speculative_config": DRAFTS}], ids=["plain", "drafts"])
def test_tokens_of_the_steady_part_by_hand(options):
    times = [3.3 * k for k in range(40)]
    workload = Workload.from_lists([20] * 40, [5 + 3 * k % 40 for k in range(40)], times)
    result = Simulation(clients=[engine(**options)], workload=workload).run()
    came_at = np.concatenate([result.token_times(k) for k in range(40)])
    summary = result.summary
    begin, end = summary["steady_begin"], summary["steady_end"]
    assert 0 < begin < end == times[-1]
    came = np.count_nonzero((came_at >= begin) & (came_at < end))
    assert summary["steady_output_throughput"] == pytest.approx(came / (end - begin))


@pytest.mark.parametrize("number", [480, 487, 523])
def test_steady_rates_of_waves_keep_littles_law(number):
    """16 users whose answers end together: requests x time = users, tokens = 20 a request."""
    quick = ConstantPredictor(0.01)
    llm = llm_engine(
        predictor=quick,
        scheduler=ChunkedScheduler(max_num_batched_tokens=400, max_num_seqs=16),
        num_gpu_blocks=1000,
    )
    workload = Workload.from_lists(
        [100] * number, [20] * number, arrivals=ClosedLoop(concurrency=16)
    )
    summary = Simulation(clients=[llm], workload=workload).run().summary
    assert summary["has_steady_part"]
    rate = summary["steady_request_throughput"]
    assert rate * summary["mean_e2el_ms"] / 1e3 == pytest.approx(16, rel=0.02)
    assert summary["steady_output_throughput"] == pytest.approx(20 * rate, rel=0.02)


DAY = {"type": "schedule", "at": ["0 s", "60 s"], "rates": ["5 /s", "15 /s"]}


@pytest.mark.parametrize(
    ("arrivals", "varies"),
    [
        (DAY, True),
        ({"type": "bursty", "rate_on": "40 /s", "on": "2 s", "off": "6 s"}, True),
        ({"type": "poisson", "rate": "10 /s"}, False),
        ({"type": "constant", "rate": "10 /s"}, False),
        ({"type": "closed_loop", "concurrency": 4}, False),
    ],
)
def test_a_load_that_varies_has_no_steady_part_but_a_middle_one(arrivals, varies, capsys):
    overrides = {"workload.arrivals": arrivals, "workload.lengths.num_requests": 900}
    result = simulate(Scenario.load("demo", overrides=overrides))
    summary = result.summary
    assert summary["has_steady_part"]
    assert summary["steady_request_throughput"] > 0
    assert ("steady_arrivals_per_s" in summary) == varies
    result.show()
    shown = capsys.readouterr().out
    assert ("in the middle part" in shown) == varies == ("no steady load: " in shown)
    assert ("in the steady part" in shown) != varies
    if arrivals is DAY:
        low, high = summary["steady_arrivals_per_s"]
        assert 2 < low < 6
        assert 13 < high < 20


def test_a_part_of_even_arrivals_is_whole_gaps():
    workload = Workload.from_lists([20] * 40, [5] * 40, [3.3 * k for k in range(40)])
    summary = Simulation(clients=[engine()], workload=workload).run().summary
    assert summary["steady_request_throughput"] == pytest.approx(1 / 3.3)


@pytest.mark.parametrize("times", [[0.0] * 8, [0.5 * k for k in range(8)]], ids=["at once", "few"])
def test_run_without_steady_part_has_rates_of_all(times):
    workload = Workload.from_lists([10] * 8, [10] * 8, times)
    summary = Simulation(clients=[engine()], workload=workload, slo=Slo(ttft=9.0)).run().summary
    assert not summary["has_steady_part"]
    assert summary["steady_end"] == summary["duration"]
    names = ["request_throughput", "output_throughput", "total_token_throughput"]
    for name in [*names, "request_goodput"]:
        assert summary[f"steady_{name}"] == summary[name] > 0


def test_requests_in_flight_are_never_more_than_users():
    """vLLM counts, for each second, those that touch it."""
    quick = ConstantPredictor(0.01)
    llm = llm_engine(predictor=quick, scheduler=ChunkedScheduler(), num_gpu_blocks=1000)
    users = ClosedLoop(concurrency=16)
    workload = Workload.from_lists([10] * 200, [20] * 200, arrivals=users)
    summary = Simulation(clients=[llm], workload=workload).run().summary
    assert summary["peak_requests_in_flight"] == 16
    assert summary["max_concurrent_requests"] > 2 * 16
