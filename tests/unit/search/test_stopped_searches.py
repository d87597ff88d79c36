"""A search that is stopped says what it knows so far."""

import json
import re
import signal
from functools import partial

import pytest
from typer.testing import CliRunner

from mist_sim import Scenario
from mist_sim.bestserve import rank_strategies
from mist_sim.bestserve.strategy import Space as Strategies
from mist_sim.cli.app import app
from mist_sim.cli.progress import Progress
from mist_sim.cli.signals import Saved, Stopped, take_leave
from mist_sim.errors import ScenarioError
from mist_sim.search import goodput
from mist_sim.search.comparison import Comparison, compare
from mist_sim.search.goodput import GoodputOptions, find_goodput
from mist_sim.search.planning import PlanOptions, plan
from mist_sim.search.slider_search import search_sliders
from mist_sim.search.spaces import SearchOptions, search_space
from mist_sim.search.spaces.objectives import constraints_of, objectives_of
from mist_sim.search.spaces.space import Space
from mist_sim.search.sweeps import sweep
from mist_sim.studies import driver
from mist_sim.studies.findings import Study
from mist_sim.studies.study import replicate, study
from mist_sim.validation.runs import MeasuredRun
from tests.reference.scenarios import of_profile
from tests.warned import texts

DATA = {
    "model": "llama-3.1-8b",
    "workload": of_profile(60, "20 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "500 ms", "tpot": "30 ms"},
}
HYBRID = DATA | {
    "clients": [
        {"name": name, "role": f"{name}_heavy", "gpu": "h100-sxm", "async_scheduling": False}
        for name in ("p", "d")
    ],
    "network": {"bandwidth": "300 GB/s"},
    "hand_over": {"first_token": "decode", "policy": {"type": "flowing", "tpot": "30 ms"}},
    "router": {"type": "length_aware", "ttft": "500 ms"},
}
SCENARIO = Scenario.from_dict(DATA)
SHORT = GoodputOptions(most_requests=1000, rates=(1.0, 200.0))


def stop_at(number):
    def progress(done):
        if done == number:
            raise KeyboardInterrupt

    return progress


def notes_of(work, number, **how):
    with pytest.raises(KeyboardInterrupt) as stop:
        work(progress=stop_at(number), jobs=1, **how)
    return getattr(stop.value, "__notes__", [])


def test_a_goodput_names_the_rates():
    """The rates run in rounds: the ladder of eight first."""

    def work(**how):
        return find_goodput(SCENARIO, SHORT, **how)

    assert notes_of(work, 3)[1:] == ["stopped after 3 runs: too early to tell anything"]
    where, so_far = notes_of(work, 9)
    assert where == "no results were written; --out DIR keeps finished runs"
    found = re.fullmatch(
        r"stopped after 9 runs: 8 rates tried, attained up to (\S+) /s, missed at (\S+) /s",
        so_far,
    )
    low, high = map(float, found.groups())
    assert low < high
    result = find_goodput(SCENARIO, SHORT, jobs=1)
    assert low <= result.rate <= high


VARY = {"clients.0.count": [1, 2, 3, 4]}


def study_with(**how):
    return study(SCENARIO, vary=VARY, **how)


def sweep_with(**how):
    return sweep(SCENARIO, VARY, metric="p99_tpot_ms", **how)


def replicate_with(**how):
    return replicate(Scenario.from_dict(DATA, {"replications": 4}), **how)


def compare_with(**how):
    cases = {str(n): Scenario.from_dict(DATA, {"seed": n}) for n in range(4)}
    return compare(cases, same_workload=False, **how)


def rows_of(found):
    """The numbers of each run, by what was run."""
    if isinstance(found, Comparison):
        return {case.name: case.summaries for case in found.cases}
    if isinstance(found, Study):
        return {each.point.name: each.summaries for each in found.points}
    return dict(zip(found.seeds, found.summaries, strict=True))


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("work", [study_with, sweep_with, replicate_with, compare_with])
def test_what_is_known_goes_with_the_stop(work, jobs):
    with pytest.raises(KeyboardInterrupt) as stop:
        work(progress=stop_at(3), jobs=jobs)
    whole = rows_of(work(jobs=1) if work is not sweep_with else study_with(jobs=1))
    found = rows_of(stop.value.found)
    assert 2 <= len(found) <= 3  # the one that ends now is counted, and may not be entered yet
    assert found == {name: whole[name] for name in found}
    assert list(found) == [name for name in whole if name in found]
    told = r"stopped after 3 runs: [12] (run|replication)s? missing"
    assert re.fullmatch(told, stop.value.__notes__[1])


def test_a_stopped_study_says_what_is_missing(monkeypatch):
    def stops(progress, num_done, sim_seconds=None):
        if num_done == 3:
            raise Stopped(signal.SIGINT)

    monkeypatch.setattr(Progress, "__call__", stops)
    words = "run demo --vary workload.lengths.num_requests=20,21,22,23 --jobs 1"
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 130
    assert "2 points, 2 runs, 2 missing" in result.stdout
    rows = re.findall(r"^ +num_requests=(\d+) ", result.stdout, re.MULTILINE)
    assert rows == ["20", "21"]
    assert "stopped after 3 runs: 2 runs missing" in result.stderr
    data = CliRunner().invoke(app, [*words.split(), "--json"])
    assert data.exit_code == 130
    found = json.loads(data.stdout)
    assert found["num_missing"] == 2
    assert found["verdict"].startswith("2 of 4 points have not run. Of the rest: all keep")


def test_validation_says_how_many_runs_it_left(monkeypatch):
    def stops():
        raise Stopped(signal.SIGTERM)
        yield

    runs = [
        MeasuredRun(name=str(n), engine="vLLM", provenance="MIT", rows=stops if n == 2 else list)
        for n in range(5)
    ]
    monkeypatch.setattr(
        "mist_sim.validation.runs.read_run", lambda folder, **_: runs[int(folder.name)]
    )
    result = CliRunner().invoke(app, ["validate", *map(str, range(5))])
    assert result.exit_code == 143
    assert "vLLM; MIT" in result.stdout
    assert "stopped after 2 runs: 3 runs missing\nterminated; nothing is" in result.stderr


def test_a_journal_stays_the_first_thing_said(tmp_path):
    def work(**how):
        return find_goodput(SCENARIO, SHORT, journal=tmp_path / "runs.jsonl", **how)

    where, so_far = notes_of(work, 9)
    assert re.match(r"finished runs are kept \(9\) in \S*runs.jsonl: --resume", where)
    assert so_far.startswith("stopped after 9 runs: ")


def test_a_comparison_names_the_best_first():
    cases = {
        "one": SCENARIO,
        "two": Scenario.from_dict(DATA, {"clients.0.count": 2}),
    }
    _, so_far = notes_of(lambda **how: compare(cases, goodput=SHORT, **how), 19)
    assert re.search(r"runs: (one|two): 8 rates tried, .*; (one|two): 8 rates tried", so_far)


@pytest.mark.deep
def test_a_stopped_comparison_has_bounds_of_goodputs():
    cases = {"one": SCENARIO, "two": Scenario.from_dict(DATA, {"clients.0.count": 2})}
    with pytest.raises(KeyboardInterrupt) as stop:
        compare(cases, goodput=SHORT, progress=stop_at(19), jobs=1)
    found = stop.value.found
    whole = compare(cases, goodput=SHORT, jobs=1)
    for case, other in zip(found.cases, whole.cases, strict=True):
        low, high = case.goodput.bounds
        assert 0 < low <= other.goodput.rate <= high
        assert case.goodput.status == "stopped"
    assert found.verdict.startswith("Stopped before the goodputs were known: one (")
    assert found.summary["is_stopped"]
    assert not found.best["goodput"]


def test_a_search_names_the_front():
    space = Space(
        scenario=SCENARIO,
        vary={"clients.0.count": [1, 2, 3]},
        objectives=objectives_of("p50_ttft"),
        constraints=constraints_of({"attainment": 0.5}),
    )
    options = SearchOptions(side_by_side=1, most_requests=1000)
    _, so_far = notes_of(lambda **how: search_space(space, options, **how), 3)
    known = "stopped after 3 runs: 2 of 3 configurations known; the best so far: "
    assert re.fullmatch(known + r"count=2, p50 TTFT \S+", so_far)


def test_a_search_names_rates_of_goodputs_under_way():
    space = Space(
        scenario=SCENARIO,
        vary={"clients.0.count": [1, 2, 3]},
        objectives=objectives_of("goodput_per_gpu"),
        constraints=constraints_of({}),
    )
    options = SearchOptions(side_by_side=1, most_requests=1000)
    _, so_far = notes_of(lambda **how: search_space(space, options, **how), 3)
    known = "stopped after 3 runs: 0 of 3 configurations known; under way: "
    assert re.match(known + r"count=\d: \w+ rates? tried", so_far)


def test_sliders_name_the_best_position():
    hybrid = Scenario.from_dict(HYBRID)
    options = GoodputOptions(most_requests=1000, rates=(1.0, 50.0), tolerance=0.5)
    work = partial(search_sliders, hybrid, options, chunks=[256])
    _, so_far = notes_of(work, 9)  # with such a tolerance the ladder is all of a search
    best = r"1 position known; the best so far: aggregation \(2 x 256\) \S+ /s"
    assert re.search(best, so_far)


def test_a_ranking_names_the_best_strategy():
    space = Strategies(names=("1m", "2m", "1p1d"))
    _, so_far = notes_of(lambda **how: rank_strategies(SCENARIO, space, **how), 3)
    assert re.search(r"2 of 3 searches .* the largest goodput per GPU so far is \S+ /s, of", so_far)


def test_a_plan_names_the_cheapest():
    options = PlanOptions(rate=5.0, gpus=("h100-sxm",), max_gpus=4)
    _, so_far = notes_of(lambda **how: plan(SCENARIO, options, **how), 5)
    assert re.search(
        r"stopped after 5 runs: \d of [\d,]+ candidates tried.*; "
        r"(the cheapest so far that keeps the limits is .* for \S+ \$/h|none keeps the limits)",
        so_far,
    )


def test_the_command_prints_it_above_place_of_results(capsys):
    stop = Stopped(signal.SIGINT)
    stop.add_note("finished runs are kept (2): --resume goes on after them")
    stop.add_note("stopped after 2 runs: the best so far: x")
    Saved.latest = None
    assert take_leave(stop) == 130
    assert capsys.readouterr().err.splitlines() == [
        "stopped after 2 runs: the best so far: x",
        "interrupted; finished runs are kept (2): --resume goes on after them",
    ]


@pytest.mark.parametrize("num", [1, 3, 8, 9])
def test_a_goodput_ends_with_its_seconds(monkeypatch, num):
    """The clock here counts the runs that finished."""
    clock = [0.0]
    for module in (driver, goodput):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    found = find_goodput(
        SCENARIO, SHORT, seconds=num - 0.5, jobs=1, progress=lambda done: clock.__setitem__(0, done)
    )
    assert (found.status, found.num_runs) == ("stopped", num)
    assert found.bounds[0] < found.bounds[1]
    (line,) = texts(found.summary, "out of time")
    assert f"{num} rate" in line
    assert "undecided" in line


def test_what_seconds_leave_out_is_named(monkeypatch):
    clock = [0.0]
    for module in (driver, goodput):
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    whole = find_goodput(SCENARIO, SHORT, jobs=1)

    def progress(done):
        clock[0] = done > len(whole.searches[0].trials)

    found = find_goodput(SCENARIO, SHORT, why=True, seconds=0.5, jobs=1, progress=progress)
    assert found.rate == whole.rate
    assert found.binding is None
    assert "not run: " in texts(found.summary, "out of time")[0]
    assert "what binds" in texts(found.summary, "out of time")[0]


def test_seconds_for_no_run():
    with pytest.raises(ScenarioError, match="none finished"):
        find_goodput(SCENARIO, SHORT, seconds=1e-9, jobs=1)
    with pytest.raises(ScenarioError, match="seconds must be finite and > 0"):
        find_goodput(SCENARIO, SHORT, seconds=-1.0)
