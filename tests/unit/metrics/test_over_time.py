"""What clients did over time, by hand and against the totals of the run."""

from dataclasses import replace

import pytest

import mist_sim as mist
from mist_sim import SequentialClient, Simulation, Workload, simulate
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.lifecycle import Failures, Lifecycle
from tests.reference.engines import llm_engine
from tests.reference.predictors import ConstantPredictor
from tests.reference.scenarios import PRESSED, scenario
from tests.refusals import refused
from tests.unit.hardware.test_energy import BUSY, CASES, GPU


def run(*lengths, **options):
    predictor, scheduler = ConstantPredictor(1.0), ChunkedScheduler(max_num_seqs=1)
    client = llm_engine("llm", predictor=predictor, scheduler=scheduler, num_gpu_blocks=100)
    workload = Workload.from_lists(*zip(*lengths, strict=True))
    return Simulation(clients=[client], workload=workload, **options).run()


def test_two_requests_by_hand():
    """Steps of 1 s: a prompt of 10 and two tokens more until 3 s; the next from 5 s to 6 s."""
    table = run((10, 3, 0.0), (20, 1, 5.0)).over_time(2.0)
    assert table["end"].tolist() == [2, 4, 6]
    assert table["prefill_tokens"].tolist() == [5, 0, 10]
    assert table["output_tokens"].tolist() == [1, 0.5, 0.5]
    assert table["visits"].tolist() == [0, 0.5, 0.5]
    assert table["utilisation"].tolist() == [1, 0.5, 0.5]
    assert table["num_in_service"].tolist() == [1, 0.5, 0.5]


def test_who_waits():
    """The second one waits from 1 s until the first is done at 3 s."""
    table = run((10, 3, 0.0), (20, 1, 1.0)).over_time(2.0)
    assert table["num_waiting"].tolist() == [0.5, 0.5]


def test_nobody_is_there_is_zero_and_not_a_little_less():
    """Differences of sums of times are rounded: some of them were below 0."""
    rows = [(10 + k, 1, 7.3 * k + k / 3) for k in range(40)]
    table = run(*rows).over_time(0.7)
    assert table["num_in_service"].min() == 0.0
    assert table["num_waiting"].min() == 0.0


def test_the_last_interval_is_shorter():
    table = run((10, 5, 0.0)).over_time(2.0)
    assert table["end"].tolist() == [2, 4, 5]
    assert table["output_tokens"].tolist() == [1, 1, 1]
    assert len(run((10, 5, 0.0)).over_time()) == 100


def test_workers_have_no_utilisation():
    worker = SequentialClient("search", serves=["rag"], base_time=1.0, num_workers=2)
    workload = Workload.from_lists([1, 1], [1, 1], pipeline=mist.template([mist.Rag()]))
    table = Simulation(clients=[worker], workload=workload).run().over_time(0.5)
    assert table["busy"].tolist() == [2, 2]
    assert table["utilisation"].isna().all()
    assert "power" not in table


def test_watts_of_steps_and_of_waiting():
    client = mist.llm_client("llm", model="llama-3.1-8b", gpu=GPU)
    late = Workload.from_lists([100, 100], [5, 5], arrivals=mist.ConstantArrivals(rate=1.0))
    result = Simulation(clients=[client], workload=late).run()
    table = result.over_time(0.01)
    assert table["power"].max() == pytest.approx(BUSY)
    assert table["power"].min() == pytest.approx(100)
    idle = table["utilisation"] == 0
    assert idle.any()
    assert table["power"][idle].tolist() == pytest.approx([100] * idle.sum())


@pytest.mark.parametrize("case", CASES)
def test_watts_add_up_to_joules(case):
    changes = {f"clients__0__{key}": value for key, value in CASES[case].items()}
    result = simulate(scenario(**PRESSED | changes))
    for interval in (None, 0.37):
        table = result.over_time(interval)
        joules = (table["power"] * (table["end"] - table["start"])).sum()
        assert joules == pytest.approx(result.clients["energy"].sum(), rel=1e-9)


def test_a_client_that_is_away_draws_nothing():
    cluster = mist.llm_client("llm", model="llama-3.1-8b", gpu=GPU)
    life = Lifecycle(failures=(Failures(clients=("llm",), at=(2.0,), repair=3.0),))
    workload = Workload.from_lists([100, 100], [5, 5], [0.0, 6.0])
    result = Simulation(clients=[cluster], workload=workload, lifecycle=life).run()
    table = result.over_time(1.0)
    assert table["power"][2:5].tolist() == pytest.approx([0, 0, 0], abs=1e-9)
    assert table["power"][5] == pytest.approx(100)


def test_a_client_that_came_back_is_one_engine():
    """It works all the time but for the second in which it is away."""
    life = Lifecycle(failures=(Failures(clients=("llm",), at=(1.5,), repair=1.0),))
    result = run((10, 9, 0.0), (10, 1, 10.0), lifecycle=life)
    assert result.over_time(1.0)["utilisation"].max() == 1
    assert 0.5 < result.summary["utilisation"] <= 1


test_intervals_that_cannot_be = refused(
    lambda interval: run((10, 5, 0.0)).over_time(interval),
    (0.0, "interval must be finite and > 0 s, got 0"),
    (float("nan"), "interval must be finite and > 0 s, got nan"),
    (1e-9, "interval must be >= 5e-05 s in a run of 5 s, got 1e-09"),
    error=ValueError,
)


def test_limits_do_not_show_in_run_of_nothing():
    result = run((10_000, 5, 0.0))
    assert not len(replace(result).over_time())
