"""Times of overload: seen where a queue drains in the end, and not where chance alone lets wait."""

import numpy as np
import pytest

from mist_sim import Scenario, simulate
from mist_sim.clients import SequentialClient
from mist_sim.metrics.keeping import doubts_of
from mist_sim.metrics.stability import AT_END, Stays
from mist_sim.metrics.summary import overloads
from mist_sim.report.pages.run_page import run_verdict
from mist_sim.report.run import shortcomings
from mist_sim.rng import Streams
from mist_sim.simulation import Simulation
from mist_sim.stages import Postprocess
from mist_sim.traces import Rows, TraceArrivals, TraceRow, Workload, template
from tests.reference.scenarios import of_profile
from tests.warned import texts

MINUTE = 60.0


def queue(arrival, service):
    """Waits of one server that takes requests in order (Lindley's recursion)."""
    begun = np.empty(len(arrival))
    free = -np.inf
    for k, time in enumerate(arrival):
        begun[k] = max(free, time)
        free = begun[k] + service[k]
    return begun


def poisson(rng, rate, begin, end):
    number = rng.poisson(rate * (end - begin))
    return np.sort(rng.uniform(begin, end, number))


def found(arrival, service):
    begun = queue(arrival, service)
    return overloads(arrival, Stays(arrival, begun), service)


def burst(seed=0, on=1.5, off=0.3):
    """27 minutes, of which more than one arrives for each that is done from 2 to 12."""
    rng = Streams(seed).generator("burst")
    parts = [(off, 0, 2), (on, 2, 12), (off, 12, 27)]
    arrival = np.concatenate([poisson(rng, r, a * MINUTE, b * MINUTE) for r, a, b in parts])
    return arrival, rng.exponential(1.0, len(arrival))


@pytest.mark.parametrize("seed", range(5))
def test_a_burst_is_seen_though_its_queue_drains(seed):
    """300 more arrive in ten minutes than are done, and take 300 / (1 - 0.3) s after them."""
    one = found(*burst(seed))
    assert len(one) == 1
    begin, end, most, wait, left, is_growing = one[0].values()
    assert (left, is_growing) == (0, False)
    assert 0.5 * MINUTE < begin < 4.5 * MINUTE
    assert end == pytest.approx(12 * MINUTE + 300 / 0.7, abs=3 * MINUTE)
    assert most == pytest.approx(300, abs=110), "three standard deviations of sqrt(1500)"
    assert wait == pytest.approx(300, abs=110), "seconds, at one a second"


def test_two_bursts_are_two_overloads():
    arrival, service = burst()
    again = np.concatenate([arrival, arrival + 27 * MINUTE])
    both = found(again, np.concatenate([service, service]))
    assert len(both) == 2
    assert both[1]["begin"] == pytest.approx(both[0]["begin"] + 27 * MINUTE, abs=5)


@pytest.mark.parametrize("seed", range(5))
def test_a_rush_in_a_long_run_is_seen(seed):
    """The steps of the rate into the rush and out of it are no noise of arrivals."""
    rng = Streams(seed).generator("rush")
    parts = [(2, 0, 60), (11, 60, 70), (2, 70, 120)]
    arrival = np.concatenate([poisson(rng, r, a * MINUTE, b * MINUTE) for r, a, b in parts])
    one = found(arrival, rng.exponential(0.1, len(arrival)))
    assert len(one) == 1
    assert one[0]["begin"] == pytest.approx(61 * MINUTE, abs=2 * MINUTE)
    assert one[0]["end"] == pytest.approx((70 + 10 / 8) * MINUTE, abs=MINUTE)
    assert one[0]["most_waiting"] == pytest.approx(600, abs=300)


@pytest.mark.parametrize("load", [0.5, 0.8, 0.95])
def test_chance_is_seldom_an_overload(load):
    """Of 100 runs of an M/M/1 with up to 95 % of what it can do, at most 3 have one."""
    told = 0
    for seed in range(100):
        rng = Streams(seed).generator(f"load {load}")
        arrival = np.cumsum(rng.exponential(1 / load, 2000))
        told += bool(found(arrival, rng.exponential(1.0, 2000)))
    assert told <= 3


def test_a_lasting_overload_begins_early_and_ends_with_the_last_arrival():
    rng = Streams(1).generator("lasting")
    arrival = np.cumsum(rng.exponential(1 / 1.5, 2000))
    one = found(arrival, np.ones(2000))
    assert len(one) == 1
    assert one[0]["begin"] < 0.1 * arrival[-1]
    assert one[0]["end"] == arrival[-1]
    assert one[0]["is_growing"]
    assert one[0]["left"] == pytest.approx(2000 / 3, rel=0.15)
    assert one[0]["left"] >= one[0]["most_waiting"] - 5


def day(rates, seed=0, hours=10 * MINUTE):
    """Arrivals at a rate an interval, and services of a second."""
    rng = Streams(seed).generator("day")
    parts = [poisson(rng, rate, k * hours, (k + 1) * hours) for k, rate in enumerate(rates)]
    arrival = np.concatenate(parts)
    return arrival, rng.exponential(1.0, len(arrival))


@pytest.mark.parametrize("seed", range(3))
def test_a_load_that_ends_above_capacity_is_overloaded_at_the_end(seed, capsys):
    """The mean load is below capacity, and a queue of 0.5 x 600 grows until the last arrival."""
    result = run_of(*day([0.2, 0.3, 0.3, 0.8, 1.5], seed))
    summary = result.summary
    assert (summary["unstable"], summary["stability"]) == (False, AT_END)
    assert "stability_needs" not in summary
    assert summary["overloads"][-1]["is_growing"]
    (line,) = texts(summary, "overloaded at the end")
    assert "and more and more waited until the last arrival" in line
    assert "drained" not in line
    assert texts(summary, "overloaded") == texts(summary, "too short") == []
    assert doubts_of((), [summary]).is_overloaded
    (why,) = shortcomings([summary], {}, {})
    assert why.startswith("overloaded at the end")
    assert run_verdict(summary).word == "Overloaded at the end."
    result.show()
    first = capsys.readouterr().out
    assert "Overloaded at the end: more and more" in " ".join(
        first.partition("Workload")[0].split()
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "rates", [[0.2, 0.4, 0.6, 0.8], [0.2, 0.3, 1.4, 0.9], [0.2, 1.6, 0.2, 0.2]]
)
def test_a_day_that_ends_in_its_peak_is_not_if_clients_keep_up(rates, seed):
    """Nor one whose queue is gone, or shrinks, when it ends."""
    summary = run_of(*day(rates, seed)).summary
    assert summary["stability"] != AT_END
    assert not doubts_of((), [summary]).is_overloaded


def test_what_is_left_of_a_queue_that_shrinks_is_told():
    arrival, service = burst()
    shrinks = arrival < 15 * MINUTE
    summary = run_of(arrival[shrinks], service[shrinks]).summary
    (line,) = texts(summary, "overloaded")
    left = summary["overloads"][-1]["left"]
    assert 20 < left < 280
    assert f"of whose queue {left} were left at the last arrival" in line


def test_a_closed_loop_is_never_overloaded_at_end():
    data = {
        "model": "llama-3.1-8b",
        "workload": of_profile(300, {"type": "closed_loop", "concurrency": 100}),
        "clients": [{"name": "llm", "gpu": "h100-sxm", "scheduler": {"max_num_seqs": 8}}],
    }
    summary = simulate(Scenario.from_dict(data)).summary
    assert "stability" not in summary
    assert "overloads" not in summary
    assert not doubts_of((), [summary]).is_overloaded


def test_without_waits_or_with_few_requests_nothing_is_said():
    arrival = np.arange(1000.0)
    assert overloads(arrival, Stays(arrival, arrival), np.full(1000, 0.5)) == []
    few = np.zeros(30)
    assert overloads(few, Stays(few, few + 100.0), np.ones(30)) == []
    assert overloads(arrival, Stays(arrival, arrival + 5.0), np.empty(0)) == []


def test_a_short_backlog_of_a_long_run_is_not_worth_a_sentence():
    arrival, service = burst()
    begun = queue(arrival, service)
    long = np.concatenate([arrival, np.linspace(2000.0, 2e5, 100)])
    queues = Stays(long, np.concatenate([begun, long[len(arrival) :]]))
    assert overloads(long, queues, np.ones(len(long))) == []


def run_of(arrival, service):
    """A run of one worker whose requests come at given times."""
    times = iter(service.tolist())
    rows = Rows([TraceRow(1, 1, arrival_time=time) for time in arrival.tolist()])
    cpu = SequentialClient("cpu", serves=["postprocess"], service_time=lambda *_: next(times))
    stages = template([Postprocess()])
    return Simulation(clients=[cpu], workload=Workload(rows, TraceArrivals(), stages)).run()


def test_the_summary_and_both_reports_say_it(capsys):
    arrival, service = burst()
    result = run_of(arrival, service)
    expected = found(arrival, service)[0]
    summary = result.summary
    assert not summary["unstable"]
    assert summary["overloads"] == [pytest.approx(expected)]
    assert summary["overloaded_s"] == pytest.approx(expected["end"] - expected["begin"])
    (line,) = texts(summary, "overloaded")
    assert line.startswith("Overloaded for 1")
    assert " of 26.9 minutes (from 2." in line
    assert "though the queue drained in the end" in line
    result.show()
    assert "though the queue drained" in " ".join(capsys.readouterr().out.split())
    assert "Overloaded for" in result._repr_html_()


def test_a_run_that_keeps_up_says_nothing():
    rng = Streams(0).generator("calm")
    arrival = np.cumsum(rng.exponential(2.0, 1000))
    summary = run_of(arrival, rng.exponential(1.0, 1000)).summary
    assert "overloads" not in summary
    assert texts(summary, "overloaded") == []


def test_an_engine_with_a_burst(capsys):
    """Requests of one H100 at five times what it can do, on and off."""
    data = {
        "model": "llama-3.1-8b",
        "workload": of_profile(
            1500,
            {"type": "bursty", "rate_on": "60 /s"} | {"on": "20 s", "off": "100 s"},
            name="azure-code-2023",
        ),
        "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    }
    summary = simulate(Scenario.from_dict(data)).summary
    assert summary["overloaded_s"] > 10
    assert all(each["longest_wait"] > 1 for each in summary["overloads"])
