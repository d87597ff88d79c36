"""A search that is stopped says what it knows so far."""

import re
import signal
from functools import partial

import pytest

from mist_sim import Scenario
from mist_sim.bestserve import rank_strategies
from mist_sim.bestserve.space import Space as Strategies
from mist_sim.cli.signals import Saved, Stopped, take_leave
from mist_sim.search.comparison import compare
from mist_sim.search.goodput import GoodputOptions, find_goodput
from mist_sim.search.planning import PlanOptions, plan
from mist_sim.search.slider_search import search_sliders
from mist_sim.search.spaces import SearchOptions, search_space
from mist_sim.search.spaces.constraints import constraints_of
from mist_sim.search.spaces.objectives import objectives_of
from mist_sim.search.spaces.space import Space
from tests.reference.scenarios import of_profile

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


def test_a_journal_stays_the_first_thing_said(tmp_path):
    def work(**how):
        return find_goodput(SCENARIO, SHORT, journal=tmp_path / "runs.jsonl", **how)

    where, so_far = notes_of(work, 9)
    assert where.startswith("finished runs are kept (9): --resume")
    assert so_far.startswith("stopped after 9 runs: ")


def test_a_comparison_names_the_best_first():
    cases = {
        "one": SCENARIO,
        "two": Scenario.from_dict(DATA, {"clients.0.count": 2}),
    }
    _, so_far = notes_of(lambda **how: compare(cases, goodput=SHORT, **how), 19)
    assert re.search(r"runs: (one|two): 8 rates tried, .*; (one|two): 8 rates tried", so_far)


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


def test_a_search_names_the_rates_of_goodputs_under_way():
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


def test_the_command_prints_it_above_the_place_of_the_results(capsys):
    stop = Stopped(signal.SIGINT)
    stop.add_note("finished runs are kept (2): --resume goes on after them")
    stop.add_note("stopped after 2 runs: the best so far: x")
    Saved.latest = None
    assert take_leave(stop) == 130
    assert capsys.readouterr().err.splitlines() == [
        "stopped after 2 runs: the best so far: x",
        "interrupted; finished runs are kept (2): --resume goes on after them",
    ]
