"""What is said of runs whose clients keep up, do not, or were not watched for long enough."""

import numpy as np
import pytest

from mist_sim import Scenario, simulate
from mist_sim.clients import SequentialClient
from mist_sim.clients.scheduling import ChunkedScheduler, StaticScheduler
from mist_sim.metrics.run_warnings import rounded_up
from mist_sim.metrics.stability import Stays, stability
from mist_sim.simulation import Simulation
from mist_sim.stages import Decode, Postprocess, Prefill
from mist_sim.traces import ClosedLoop, PoissonArrivals, Profile, TimeLimits, Workload, template
from tests.reference.engines import llm_engine
from tests.reference.predictors import AffinePredictor
from tests.reference.scenarios import of_profile

SLOW = AffinePredictor(0.01, 1e-5, 0.0, 1e-4, *[0.0] * 4)


def engine(scheduler=None, **options):
    """It has blocks for some 60 requests of the default profile, and does about 15 a second."""
    return llm_engine(
        scheduler=scheduler or ChunkedScheduler(), predictor=SLOW, num_gpu_blocks=5000, **options
    )


def verdict(workload, *clients):
    summary = Simulation(clients=clients or [engine()], workload=workload).run().summary
    assert summary["unstable"] == (summary.get("stability") == "unstable")
    return summary.get("stability")


def arriving(rate, num_requests, **more):
    return Workload(Profile(num_requests=num_requests), PoissonArrivals(rate=rate), **more)


def test_overload_is_unstable_and_half_load_is_stable():
    assert verdict(arriving(1000.0, 3000)) == "unstable"
    assert verdict(arriving(25.0, 3000)) == "unstable"
    assert verdict(arriving(4.0, 3000)) == "stable"


BUSY = {
    "model": "llama-3.1-8b",
    "workload": of_profile(1000, "30 /s", name="sharegpt-300"),
    "clients": [{"name": "llm", "gpu": "l40s", "count": 48}],
    "slo": {"ttft": "1 s", "tpot": "100 ms"},
}


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_answers_that_take_half_run_are_no_backlog(seed):
    """Requests come for 33 s and take 16 s; nobody waits, and the batches are still filling."""
    summary = simulate(Scenario.from_dict(BUSY, {"seed": seed})).summary
    assert summary["good_request_fraction"] == 1.0
    assert summary["p99_ttft_ms"] < 300
    assert summary["stability"] == "too short to tell"


def test_the_same_is_stable_when_it_goes_on():
    longer = {"workload.lengths.num_requests": 6000}
    assert simulate(Scenario.from_dict(BUSY, longer)).summary["stability"] == "stable"


def test_the_warning_names_requests_that_tell():
    summary = simulate(Scenario.from_dict(BUSY)).summary
    (told,) = [each["text"] for each in summary["warnings"] if each["kind"] == "too short"]
    assert summary["stability_needs"] >= 2000
    assert "the load may be more than they carry; run " in told
    longer = {"workload.lengths.num_requests": summary["stability_needs"]}
    found = simulate(Scenario.from_dict(BUSY, longer)).summary
    assert found["stability"] == "stable"
    assert "stability_needs" not in found


def test_the_warning_of_a_trace_asks_for_no_requests_that_it_has_not(tmp_path):
    rows = [f"2024-05-10 00:00:{number / 8:09.6f},200,100" for number in range(100)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    data = BUSY | {"workload": {"trace": {"type": "azure", "path": str(path)}}}
    summary = simulate(Scenario.from_dict(data)).summary
    (told,) = [each["text"] for each in summary["warnings"] if each["kind"] == "too short"]
    assert f"a longer trace of {rounded_up(summary['stability_needs']):,} requests tells" in told
    assert "mist trace synth" in told


def test_batches_that_grow_without_queue_are_not_stable():
    """A tenth more than it can do, and seats for all: nobody waits, and TPOT doubles."""
    data = {
        "model": "llama-3.1-8b",
        "seed": 1,
        "workload": of_profile(1000, "5.5 /s", name="sharegpt-300"),
        "clients": [{"name": "llm", "gpu": "a100-sxm-80gb"}],
    }
    summary = simulate(Scenario.from_dict(data)).summary
    assert summary["stability"] == "too short to tell"
    filled, last = summary["stability_growth"]
    assert last > 1.1 * filled
    (told,) = [each["text"] for each in summary["warnings"] if each["kind"] == "too short"]
    assert f"from {filled} when batches had filled to {last} at the last arrival" in told


def test_of_batch_that_only_fills_nothing_is_known():
    """Answers of 4,000 tokens, all admitted at once: nobody waits, and nobody gets done."""
    times = [0.05 * k for k in range(240)]
    workload = Workload.from_lists([10] * 240, [4000] * 240, times)
    assert verdict(workload) == "too short to tell"


def test_arrivals_closer_than_a_nanosecond_come_at_once():
    assert verdict(Workload.from_lists([10, 10], [5, 5], [0.0, 5e-324])) is None


def test_who_waits_for_the_batch_in_progress_is_no_backlog():
    """A static batch of one takes 12 s; the 200 that come meanwhile are the next batch."""
    times = [0.0, *(0.05 * k for k in range(1, 201))]
    workload = Workload.from_lists([10] * 201, [1200] + [100] * 200, times)
    static = engine(StaticScheduler(max_num_seqs=256))
    assert verdict(workload, static) == "too short to tell"


def test_refused_requests_are_no_backlog():
    prompts = [10**6 if k % 10 == 0 else 10 for k in range(600)]
    workload = Workload.from_lists(prompts, [5] * 600, [0.5 * k for k in range(600)])
    assert verdict(workload) == "stable"


def test_a_queue_at_a_later_stage_is_backlog():
    pipeline = template([Prefill, Decode, Postprocess()])
    workload = arriving(4.0, 1000, pipeline=pipeline)
    for seconds, expected in ((0.1, "stable"), (0.4, "unstable")):
        worker = SequentialClient("worker", serves=["postprocess"], base_time=seconds)
        assert verdict(workload, engine(), worker) == expected


def test_users_who_give_up_in_queue_leave_it():
    """Of 25 a second 15 can be served: the others leave after 5 s, and the queue does not grow."""
    workload = arriving(25.0, 3000, time_limits=TimeLimits(ttft_timeout=5.0))
    assert verdict(workload) != "unstable"


@pytest.mark.parametrize(
    "workload",
    [
        Workload(Profile(num_requests=300), ClosedLoop(concurrency=50)),
        Workload.from_lists([10] * 100, [50] * 100),
    ],
    ids=["closed loop", "all at once"],
)
def test_where_arrivals_wait_for_nobody_or_all_come_at_once_nobody_asks(workload):
    summary = Simulation(clients=[engine()], workload=workload).run().summary
    assert summary["unstable"] is False
    assert "stability" not in summary


def test_nothing_is_known_where_nothing_finished():
    none = np.empty(0)
    arrival = np.arange(100.0)
    assert stability(Stays(arrival, arrival), Stays(none, none), none) == "too short to tell"


def test_requests_that_take_no_time_are_stable():
    arrival = np.arange(1000.0)
    none = Stays(arrival, arrival)
    assert stability(none, none, np.zeros(1000)) == "stable"
