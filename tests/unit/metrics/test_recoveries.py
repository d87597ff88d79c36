"""When latencies are as before after a failure: made requests, by hand, and whole runs."""

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mist_sim import Scenario, simulate
from mist_sim.metrics.recoveries import (
    FEWEST,
    PHASES,
    Recovery,
    outages,
    recoveries,
    through_failures,
)
from mist_sim.metrics.run_warnings import recovery_lines
from mist_sim.metrics.tables import RunFolder
from mist_sim.report.pictures.catalog import drawn
from mist_sim.report.pictures.picture import Span
from mist_sim.report.presenters import folder_page
from mist_sim.rng import Streams
from tests.reference.scenarios import of_profile
from tests.warned import texts

NUM = 1000


def requests(*slow, failed=()):
    """An arrival a second; TTFT of about 1 s, ten times as long between the given seconds."""
    arrival = np.arange(NUM) * 1.0
    ttft = 1.0 + 0.1 * Streams(0).generator("ttft").random(NUM)
    for begin, end in slow:
        ttft[begin:end] *= 10
    done = np.ones(NUM, bool)
    done[list(failed)] = False
    return {
        "ttft": ttft,
        "tpot": np.full(NUM, np.nan),
        "e2el": ttft + 1.0,
        "queue": np.full(NUM, np.nan),
        "arrival_time": arrival,
        "finished_at": arrival + ttft + 1.0,
        "is_done": done,
    }


def back(absences, columns):
    return [
        (each["begin"], each["end"], each["back_after"].get("ttft"))
        for each in recoveries(absences, columns)
    ]


def test_from_the_group_after_the_last_slow_one_latencies_are_back():
    """Groups of twenty from the failure at 300 s: those from 320 to 400 s are slow."""
    assert back([(300.0, 350.0)], requests((330, 390))) == [(300.0, 300.0, 100.0)]


def test_a_queue_that_grows_late_counts_while_the_client_is_away_and_not_after():
    late = requests((500, 560))
    assert back([(300.0, 600.0)], late) == [(300.0, 300.0, 300.0)]
    assert back([(300.0, 320.0)], late) == [(300.0, 300.0, 0.0)]
    assert back([(300.0, inf)], late) == [(300.0, 300.0, 260.0)]


@given(
    away=st.lists(st.tuples(st.integers(250, 900), st.integers(1, 300)), min_size=1, max_size=4),
    gone=st.booleans(),
    slow=st.lists(st.tuples(st.integers(250, 900), st.integers(20, 200)), max_size=4),
)
def test_no_recovery_before_the_last_client_is_back(away, slow, gone):
    absences = [(float(begin), float(begin + long)) for begin, long in away]
    if gone:
        absences.append((300.0, inf))
    columns = requests(*((begin, begin + long) for begin, long in slow))
    for each in recoveries(absences, columns):
        ends = [end for begin, end in absences if begin <= each["end"] and end < inf]
        back, begin = max(ends, default=each["begin"]), each["begin"]
        after = each["back_after"]["ttft"]
        assert after in (None, 0.0) or begin + after >= back


def test_waves_after_the_last_client_is_back_are_one_disturbance():
    """Answers take 100 s: with a wave every 100 s none has passed undisturbed until the third."""
    columns = requests((330, 390), (450, 490), (550, 590))
    columns["finished_at"] = columns["arrival_time"] + 100.0
    assert back([(300.0, 350.0)], columns) == [(300.0, 300.0, 300.0)]
    columns["finished_at"] = columns["arrival_time"] + 15.0
    assert back([(300.0, 350.0)], columns) == [(300.0, 300.0, 100.0)]


def test_failures_before_latencies_are_back_are_one():
    away = [(300.0, 400.0), (350.0, 420.0), (700.0, 720.0)]
    slow = requests((300, 500), (700, 1000))
    assert back(away, slow) == [(300.0, 350.0, 210.0), (700.0, 700.0, None)]


def test_requests_that_failed_are_slow():
    assert back([(300.0, 340.0)], requests(failed=range(300, 340))) == [(300.0, 300.0, 40.0)]


def test_a_latency_that_no_request_has_is_left_out():
    (found,) = recoveries([(300.0, 350.0)], requests())
    assert found == Recovery(begin=300.0, end=300.0, back_after={"ttft": 0.0, "e2el": 0.0})


def test_too_few_requests_before_the_failure_tell_nothing():
    """Those that finish in time, two seconds and a bit after their arrival."""
    assert back([(FEWEST + 1.0, 350.0)], requests()) == []
    assert len(back([(FEWEST + 3.0, 350.0)], requests())) == 1
    assert recoveries([], requests()) == []


def test_steady_service_is_rarely_called_disturbed():
    """Of 200 failures without an effect; two groups of twenty in a row are slow in 1e-4."""
    disturbed = 0
    for seed in range(200):
        columns = requests()
        columns["ttft"] = Streams(seed).generator("ttft").exponential(1.0, NUM)
        disturbed += back([(500.0, 800.0)], columns)[0][2] != 0.0
    assert disturbed <= 4


def run(rate, repair, *, count=2, scaling=None):
    lifecycle = {"failures": [{"clients": ["llm-0"], "at": "10 s", **repair}]}
    if repair or scaling:
        lifecycle["start_up"] = {"time": "10 s"}
    if scaling:
        lifecycle["autoscaling"] = [{"clients": "llm", **scaling}]
    data = {
        "model": "llama-3.1-8b",
        "clients": [{"name": "llm", "gpu": "h100-sxm", "count": count}],
        "workload": of_profile(1200, rate),
        "router": "least_outstanding",
        "lifecycle": lifecycle,
    }
    return simulate(Scenario.from_dict(data))


def test_a_run_tells_when_its_latencies_are_back():
    """Two GPUs of which one is away for 20 s; one alone cannot do 20 requests a second in time."""
    found = run("20 /s", {"repair": "10 s"}).summary
    (each,) = found["recoveries"]
    assert (each["begin"], each["end"]) == (10.0, 10.0)
    assert set(each["back_after"]) == {"ttft", "tpot", "e2el", "queue"}
    assert 20.0 <= each["back_after"]["tpot"] <= 30.0
    (line,) = texts(found, "failures")
    assert line.startswith("Latencies are as before the failure at 10 s of the run again: TTFT ")
    (gone,) = run("20 /s", {}).summary["recoveries"]
    assert gone["back_after"]["tpot"] is None
    (line,) = recovery_lines({"recoveries": [gone]})
    assert "TPOT not by the last arrival" in line


SPARE = {"policy": {"type": "queue_length", "target": 1000}, "min": 2, "max": 2}


@pytest.mark.parametrize("repair", [{"repair": "15 s"}, {}])
def test_a_spare_that_has_started_ends_the_outage(repair):
    """The failed client is never up again: the spare has its place from 20 s on."""
    found = run("20 /s", repair, count=3, scaling=SPARE).summary
    assert found["outages"] == [{"begin": 10.0, "end": 20.0}]
    assert found["through_failures"]["after"]["completed"] > 500
    (each,) = found["recoveries"]
    assert 10.0 <= each["back_after"]["ttft"] <= 20.0


@pytest.mark.parametrize(("wanted", "ends"), [((3, 2), 12.0), ((3, 3), 30.0)])
def test_an_outage_ends_when_the_autoscaler_wants_no_more_than_are_up(wanted, ends):
    """No spare; from 12 s on the plan is for the two that are left, or still for three."""
    plan = {"type": "schedule", "at": ["0 s", "12 s"], "clients": list(wanted)}
    scaling = {"policy": plan, "min": 1, "initial": 3, "interval": "1 s"}
    found = run("20 /s", {"repair": "10 s"}, count=3, scaling=scaling).summary
    assert found["outages"] == [{"begin": 10.0, "end": ends}]


def test_a_run_without_failures_says_nothing():
    demo = simulate(Scenario.load("demo", overrides={"workload.lengths.num_requests": 20})).summary
    assert "recoveries" not in demo
    assert texts(demo, "failures") == []


def test_many_failures_are_three_sentences_and_a_number():
    one = {"begin": 1.0, "end": 1.0, "back_after": {"ttft": 0.0}}
    several = one | {"end": 3.0, "back_after": {"ttft": 2.0}}
    told = list(recovery_lines({"recoveries": [one, several, one, one, one]}))
    assert told[:2] == [
        "Latencies stayed as they were through the failure at 1 s of the run.",
        (
            "Latencies are as before the first of the failures from 1 to 3 s of the run again: "
            "TTFT 2 s later (at 3 s)."
        ),
    ]
    assert told[3:] == ["2 failures more: see recoveries in the summary."]
    assert "too few" in next(recovery_lines({"recoveries": []}))


def test_what_rose_in_the_table_is_not_called_undisturbed():
    one = {"begin": 1.0, "end": 1.0, "back_after": {"ttft": 0.0, "tpot": 0.0}}
    phases = {
        "before": {"p99_ttft_ms": 3013.0, "p99_tpot_ms": 50.0, "arrivals_per_s": None},
        "during": {"p99_ttft_ms": 3941.0, "p99_tpot_ms": 51.0, "arrivals_per_s": None},
    }
    (line,) = recovery_lines({"recoveries": [one], "through_failures": phases})
    assert "TTFT as usual but for the slowest (p99 3,013 ms before, 3,941 ms during" in line
    assert "TPOT undisturbed" in line


@pytest.mark.parametrize(("after", "is_told"), [(1.0, False), (1.05, False), (2.0, True)])
def test_a_load_that_changes_is_told(after, is_told):
    phases = {
        "before": {"completed": 900, "failed": 0, "arrivals_per_s": 1.0},
        "during": {"completed": 300, "failed": 5, "arrivals_per_s": 1.02},
        "after": {"completed": 900, "failed": 0, "arrivals_per_s": after},
    }
    one = {"begin": 1.0, "end": 1.0, "back_after": {"ttft": 5.0}}
    told = list(recovery_lines({"recoveries": [one], "through_failures": phases}))
    assert any("not steady: 1 requests/s before" in line for line in told) == is_told


def test_a_phase_of_no_time_has_no_rate():
    """A client that never returns leaves no time after the failure."""
    phases = {
        "before": {"completed": 900, "failed": 0, "arrivals_per_s": 1.0},
        "during": {"completed": 900, "failed": 5, "arrivals_per_s": 2.0},
        "after": {"completed": 0, "failed": 0, "arrivals_per_s": float("nan")},
    }
    one = {"begin": 1.0, "end": 1.0, "back_after": {"ttft": 5.0}}
    _, line = recovery_lines({"recoveries": [one], "through_failures": phases})
    assert "not steady: 1 requests/s before the failure, 2 /s during. So" in line


# ------------------------------------------------------- before, during and after


def test_phases_are_told_by_lives():
    """Away from 300 to 350 s and from 340 s to 400 s: one outage; requests last two seconds."""
    columns = requests((330, 390), failed=(310, 311))
    away = [(300.0, 350.0), (340.0, 400.0)]
    assert outages(away) == [(300.0, 400.0)]
    found = through_failures(away, columns)
    ends, done = columns["finished_at"], columns["is_done"]
    is_before = ends <= 300
    is_after = columns["arrival_time"] >= 400
    for phase, mine in (
        ("before", is_before),
        ("during", ~is_before & ~is_after),
        ("after", is_after),
    ):
        of = found[phase]
        assert of["completed"] == (mine & done).sum()
        assert of["failed"] == (mine & ~done).sum()
        assert of["p99_ttft_ms"] == 1e3 * np.percentile(columns["ttft"][mine & done], 99)
        assert np.isnan(of["p99_tpot_ms"])
    assert sum(of["completed"] + of["failed"] for of in found.values()) == NUM
    assert found["during"]["failed"] == 2
    assert found["during"]["p99_ttft_ms"] > 5 * found["before"]["p99_ttft_ms"]


def test_a_request_that_a_failure_ends_is_during():
    columns = requests()
    columns["finished_at"][[5, 6]] = 300.0
    columns["is_done"][5] = False
    found = through_failures([(300.0, 310.0)], columns)
    assert [found[phase]["failed"] for phase in PHASES] == [0, 1, 0]
    assert found["before"]["completed"] == (columns["finished_at"] <= 300.0).sum() - 1


def test_who_is_gone_for_good_leaves_no_after():
    found = through_failures([(300.0, inf)], requests())
    assert found["after"]["completed"] == 0
    assert np.isnan(found["after"]["p99_e2el_ms"])


def test_outages_are_told_on_screen_and_shaded_everywhere(tmp_path, capsys):
    result = run("20 /s", {"repair": "10 s"})
    assert result.summary["outages"] == [{"begin": 10.0, "end": 30.0}]
    result.show()
    assert "Latency through failures, p99, ms" in capsys.readouterr().out
    result.save(tmp_path / "run")
    for run_data in (result, RunFolder(tmp_path / "run")):
        for name, picture in drawn(run_data):
            for panel in picture.panels:
                spans = [(m.begin, m.end) for m in panel.marks if isinstance(m, Span)]
                assert spans == ([(10.0, 30.0)] if picture.is_over_time else []), name
    html = folder_page(tmp_path / "run", "a run").html()
    assert "Latency through failures, p99, ms" in html
    assert "Latencies are as before the failure at 10 s of the run again" in html
