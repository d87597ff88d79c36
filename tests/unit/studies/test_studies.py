"""Studies: points, rates and seeds become rows; a failing one is a row, and the others go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from mist_sim import (
    PoissonArrivals,
    Scenario,
    ScenarioError,
    SequentialClient,
    Simulation,
    Stage,
    Workload,
    replicate,
    simulate,
    study,
)
from mist_sim.metrics.replications import estimate
from mist_sim.report.elements import labels_of
from mist_sim.scenario import build
from mist_sim.search import (
    GoodputOptions,
    PlanOptions,
    SearchOptions,
    compare,
    find_goodput,
    goodput_sweep,
    plan,
    search_sliders,
    sweep,
)
from mist_sim.studies import built
from mist_sim.studies.driver import Driver
from mist_sim.studies.points import points_of
from mist_sim.studies.subjects import seeds_from
from mist_sim.studies.task import InTurn, Task
from mist_sim.traces import Rows, TraceRow, template
from tests.conftest import ROOT
from tests.reference.scenarios import of_profile
from tests.refusals import refused
from tests.warned import about

SMALL = {
    "model": "llama-3.1-8b",
    "workload": of_profile(12, "30 /s"),
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
}
SCENARIO = Scenario.from_dict(SMALL)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(json.dumps(SMALL))
    return tmp_path


# ------------------------------------------------------------------------------ scenarios


def test_each_row_is_the_run_of_its_point_rate_and_seed():
    vary = {"clients.0.count": [1, 2], "workload.arrivals.rate": ["20 /s", "30 /s"]}
    found = study(SCENARIO, vary=vary, seeds=2, jobs=1)
    assert len(found.rows) == 2 * 2 * 2
    for _, row in found.rows.iterrows():
        changes = {key: row[key] for key in vary} | {"seed": int(row["seed"])}
        summary = simulate(SCENARIO.changed(changes)).summary
        assert row["p99_ttft_ms"] == summary["p99_ttft_ms"]
        assert row["error"] == ""
    assert list(found.rows["seed"][:2]) == list(seeds_from(0, 2))
    values = list(found.rows["p99_ttft_ms"][:2])
    first = found.estimate("p99_ttft_ms").iloc[0]
    mean, half = estimate(values)
    assert (first["mean"], first["low"], first["high"]) == (mean, mean - half, mean + half)
    assert found.table["p99_ttft_ms"][0] == mean
    with pytest.raises(ScenarioError, match="got 'p99_ttft'; did you mean 'p99_ttft_ms'"):
        found.estimate("p99_ttft")
    with pytest.raises(ScenarioError, match="only where the scenario has cost, such as cost: {}"):
        found.estimate("cost_usd")


def test_rates_send_the_same_requests_closer_together():
    found = study(SCENARIO, rates=[10.0, 40.0], seeds=[7], jobs=1).rows
    assert list(found["rate"]) == [10.0, 40.0]
    assert found["total_input_tokens"].nunique() == 1
    changed = SCENARIO.changed({"workload.arrivals.rate": "40 /s", "seed": 7})
    assert found["mean_ttft_ms"][1] == simulate(changed).summary["mean_ttft_ms"]


def test_any_number_of_processes_writes_the_same(tmp_path):
    for jobs in (1, 2):
        done: list[int] = []
        vary = {"clients.0.count": [1, 2, 3]}
        study(SCENARIO, vary=vary, jobs=jobs, progress=done.append).save(tmp_path / f"{jobs}")
        assert done == [1, 2, 3]
    sums = [(tmp_path / name / "SHA256SUMS").read_text() for name in "12"]
    assert sums[0] == sums[1]
    assert len(pd.read_parquet(tmp_path / "1/study.parquet")) == 3


def test_a_point_that_fails_is_a_row_and_the_others_go_on(tmp_path):
    """One that its file cannot say, and one that cannot be built: the model does not fit."""
    models = ["llama-3.1-8b", "no-such", "llama-3.1-405b"]
    found = study(SCENARIO, vary={"model": models}, jobs=1)
    errors = list(found.rows["error"])
    assert errors[0] == ""
    assert "no-such" in errors[1]
    assert "llama-3.1-405b" in errors[2]
    assert found.rows["p99_ttft_ms"].isna().tolist() == [False, True, True]
    assert found.summary["num_failed"] == 2
    assert found.warnings[0].of == ("model=no-such",)
    assert str(found.warnings[0]).startswith("failed: ")
    found.save(tmp_path / "out")
    assert json.loads((tmp_path / "out/study.json").read_text())["num_failed"] == 2
    assert not any(each.error for p in found.points for each in p.failures), "nor what it held"


def test_an_unknown_argument_is_refused():
    with pytest.raises(TypeError, match="job"):
        study(SCENARIO, job=2)


def test_where_all_fail_the_first_error_is_raised():
    with pytest.raises(ScenarioError, match="all 2 points failed; model=x: .*'x'"):
        study(SCENARIO, vary={"model": ["x", "y"]})
    with pytest.raises(ScenarioError, match="^model: must|405b"):
        study(SCENARIO.changed({"model": "llama-3.1-405b"}), jobs=1)


def test_defaults_follow_from_what_is_set_at_point():
    """What a resolved scenario would have written down for another GPU is not taken over."""
    found = SCENARIO.changed({"clients.0.gpu": "h200"})
    whole = Scenario.from_dict({**SMALL, "clients": [{"name": "llm", "gpu": "h200"}]})
    assert found == whole
    assert Scenario.from_dict(SMALL) == SCENARIO, "it stays as it is"


def test_labels_are_short_and_differ():
    keys = ["clients.0.count", "clients.1.count", "slo.ttft", "router.type", "clients.0.gpu"]
    assert list(labels_of(keys).values()) == [
        "clients.0.count",
        "clients.1.count",
        "ttft",
        "router.type",
        "gpu",
    ]
    assert [point.name for point in points_of({"a.b": [1, 2], "c": ["x"]})] == [
        "b=1 c=x",
        "b=2 c=x",
    ]
    gpus = [
        {"based_on": "b200", "memory_bandwidth": f"{rate} TB/s", "name": "1"} for rate in (9, 10)
    ]
    assert [point.name for point in points_of({"clients.0.gpu": gpus})] == [
        f'gpu={{based_on: b200, memory_bandwidth: {rate} TB/s, name: "1"}}' for rate in (9, 10)
    ]


@pytest.mark.parametrize(
    ("varied", "headline"),
    [
        ("clients.0.gpu", "2 x llm (llama-3.1-8b); router round_robin; seed 0"),
        ("clients.0.gpu.memory", "2 x llm (llama-3.1-8b); router round_robin; seed 0"),
        ("model", "2 x llm (on 2 x h100-sxm); router round_robin; seed 0"),
        ("clients.0.count", "llm (llama-3.1-8b on 2 x h100-sxm); router round_robin; seed 0"),
        (
            "clients.0.tensor_parallel_size",
            "2 x llm (llama-3.1-8b on h100-sxm); router round_robin; seed 0",
        ),
        ("router.seed", "2 x llm (llama-3.1-8b on 2 x h100-sxm); seed 0"),
        ("seed", "2 x llm (llama-3.1-8b on 2 x h100-sxm); router round_robin"),
        (
            "workload.arrivals.rate",
            "2 x llm (llama-3.1-8b on 2 x h100-sxm); router round_robin; seed 0",
        ),
    ],
)
def test_headlines_leave_out_what_varies(varied, headline):
    sizes = {"clients.0.count": 2, "clients.0.tensor_parallel_size": 2}
    scenario = SCENARIO.changed(sizes)
    engines = scenario.headline.splitlines()[-1]
    assert scenario.headline_without([varied]).splitlines() == [headline, engines]
    assert scenario.headline_without([varied, "engine"]).splitlines() == [headline]


test_what_gives_no_points_is_refused = refused(
    points_of,
    ({"seed": []}, "vary seed: must be a list of values, got []"),
    ({"seed": "12"}, "vary seed: must be a list of values, got '12'"),
    ({"seed": [1, 2, 1]}, "vary seed: values must differ, got '1' twice"),
    ({"a": [{"b": 1, "c": [2]}, {"c": [2], "b": 1}]}, "got '{b: 1, c: [2]}' twice"),
    ({"a": [*range(101)], "b": [*range(100)]}, "must give <= 10000 points, got 10100"),
)


class ReachedError(Exception):
    """An executor was asked."""


class Refuses:
    def stream(self, tasks):
        raise ReachedError


LIMITED = Scenario.from_dict(SMALL | {"slo": {"ttft": "1 s"}})
SEATS = {"clients.0.scheduler.max_num_seqs": [8, 16]}


@pytest.mark.parametrize(
    "function",
    [
        lambda how: study(SCENARIO, vary=SEATS, **how),
        lambda how: replicate(SCENARIO.changed({"replications": 2}), **how),
        lambda how: compare({"a": LIMITED, "b": LIMITED}, **how),
        lambda how: find_goodput(LIMITED, **how),
        lambda how: sweep(SCENARIO, SEATS, **how),
        lambda how: goodput_sweep(LIMITED, SEATS, SearchOptions(), **how),
        lambda how: plan(LIMITED, PlanOptions(gpus=("h100-sxm",), max_gpus=2), **how),
    ],
    ids=["study", "replicate", "compare", "find_goodput", "sweep", "goodput_sweep", "plan"],
)
def test_every_function_of_many_runs_asks_its_executor(function):
    with pytest.raises(ReachedError):
        function({"executor": Refuses()})


def test_few_tasks_are_taken_ahead():
    """A study of any length is not held in memory."""
    taken = []

    def numbers():
        for number in range(20):
            taken.append(number)
            yield Task((number,), abs, (number,))

    seen = []
    for row in Driver("test", 1, executor=InTurn()).stream(numbers()):
        seen.append(row.result)
        assert len(taken) <= len(seen) + 1
    taken.clear()
    for number, _ in enumerate(Driver("test", 2).stream(numbers()), 1):
        assert len(taken) <= number + 4
    assert seen == list(range(20))


# ------------------------------------------------------------------------------ Python


@dataclass(frozen=True, kw_only=True)
class Look(Stage):
    """Look at a picture. pixels: how many."""

    kind = "look"
    pixels: int = 1000


def own_stages(speed: float = 1.0) -> Simulation:
    rows = Rows([TraceRow(10, 2)] * 40)
    client = SequentialClient(
        "eyes", serves=["look"], service_time=lambda stage, rng: rng.exponential(0.1) / speed
    )
    workload = Workload(rows, PoissonArrivals(rate=5.0), template([Look()]))
    return Simulation(clients=[client], workload=workload)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_function_needs_neither_seeds_nor_intervals(jobs):
    def waits(result):
        return {"longest_s": float(result.requests["finished_at"].max())}

    found = study(own_stages, vary={"speed": [1.0, 2.0]}, seeds=4, figures=waits, jobs=jobs)
    rows = found.rows
    assert len(rows) == 8
    assert rows["longest_s"].nunique() == 8, "each seed has draws of its own"
    table = found.estimate("mean_e2el_ms")
    assert list(table["speed"]) == [1.0, 2.0]
    assert (table["low"] < table["mean"]).all()
    assert table["mean"][1] < table["mean"][0]
    assert rows.equals(study(own_stages, vary={"speed": [1.0, 2.0]}, seeds=4, figures=waits).rows)


def test_a_function_that_cannot_be_sent_runs_here_with_a_note():
    held = threading.Lock()

    def made(seed: int) -> Simulation:
        with held:
            return own_stages()

    found = study(made, seeds=2, jobs=2)
    assert len(found.rows) == 2
    assert "cannot be sent to other processes" in found.notes[0]


test_what_cannot_be_studied_is_told = refused(
    lambda subject, options: study(subject, **({"jobs": 1} | options)),
    (own_stages(), {}, "subject must be a Scenario, or a function that returns a new Sim"),
    (own_stages, {"vary": {"sped": [1]}}, "vary sped: must be an argument of own_stages"),
    (lambda: 5, {}, "must return a Simulation, got 5"),
    (SCENARIO, {"seeds": 0}, "seeds must be >= 1"),
    (SCENARIO, {"seeds": [1, 1]}, "seeds must be one or more that differ"),
    (SCENARIO, {"jobs": 0}, "jobs must be >= 1, got 0"),
)


def test_rates_of_function_are_refused_before_any_point():
    with pytest.raises(ScenarioError) as told:
        study(own_stages, rates=[1.0, 2.0], jobs=1)
    assert str(told.value) == (
        "rates must be left out where a function makes the simulation; give it an argument for the "
        "rate, and vary that: study(own_stages, vary={'rate': [...]})"
    )


@pytest.mark.parametrize(
    "ask",
    [
        find_goodput,
        replicate,
        search_sliders,
        lambda made: compare({"a": made, "b": SCENARIO}),
        lambda made: sweep(made, {"speed": [1, 2]}),
        lambda made: goodput_sweep(made, {"speed": [1, 2]}, SearchOptions()),
        lambda made: plan(made, PlanOptions(gpus=("h100-sxm",))),
    ],
)
def test_what_takes_scenarios_only_says_what_takes_function(ask):
    with pytest.raises(ScenarioError) as told:
        ask(own_stages)
    assert str(told.value) == (
        "scenario must be a Scenario, got the function own_stages; a function that returns a new "
        "Simulation each time runs in study(function, vary=..., seeds=10)"
    )


# ------------------------------------------------------------------------------ the command


def test_vary_prints_one_table_and_writes_the_rows(mist, tmp_path):
    words = ["run", "a.yaml", "--jobs=1", "--out=out", "--replications=2"]
    words += ["--vary=workload.arrivals.rate=20 /s, 30 /s", "--vary=clients.0.count=[1, 2]"]
    code, out, err = mist(*words)
    assert code == 0
    assert "4 points, 8 runs" in out
    assert "rate=20 /s count=2" in out
    assert " ± " in out
    assert max(map(len, out.splitlines())) <= 80
    assert "Written to out" in err
    rows = pd.read_csv("out/study.csv")
    assert list(rows["clients.0.count"]) == [1, 1, 2, 2] * 2
    data = json.loads(Path("out/study.json").read_text())
    assert data["points"][1]["values"] == {"workload.arrivals.rate": "20 /s", "clients.0.count": 2}


def test_sentence_below_says_which_points_keep_their_limits(mist):
    limits = ["--set=slo.ttft=1 s", "--set=workload.lengths.num_requests=60"]
    words = ["run", "a.yaml", "--jobs=1", "-q", "--vary=clients.0.gpu=h200,l40s", *limits]
    code, out, _ = mist(*words, "--set=slo.tpot=20 ms")
    assert code == 0
    assert (
        "1 of 2 keep their limits (90 % of requests): gpu=h200. "
        "Too short to tell whether queues grow: gpu=h200. mist compare --goodput tells"
    ) in " ".join(out.split())
    _, out, _ = mist(*words, "--set=slo.tpot=1 ms")
    assert "None keeps its limits (90 % of requests); no request is good." in " ".join(out.split())
    _, out, _ = mist(*words[:-2])
    assert "Verdict" not in out, "without limits"


def test_points_that_failed_do_not_keep_their_limits(mist):
    limits = ["--set=slo.ttft=9 s", "--set=slo.tpot=1 s"]
    words = ["run", "a.yaml", "--jobs=1", "-q", "--json", *limits]
    code, out, _ = mist(*words, "--vary=clients.0.count=0,1,-1")
    assert code == 0
    assert json.loads(out)["verdict"] == (
        "2 of 3 points failed. Of the rest: all keep their limits (90 % of requests). "
        "Too short to tell whether queues grow: count=1."
    )
    _, out, _ = mist(*words, "--vary=clients.0.count=0,1,2")
    assert json.loads(out)["verdict"].startswith(
        "1 of 3 points failed. Of the rest: all keep their limits (90 % of requests). "
        "Too short to tell whether queues grow: count=1, count=2. mist compare --goodput tells"
    )


def test_an_overloaded_point_does_not_keep_its_limits(mist):
    """300 requests in 15 s and in 5, of which one H100 serves 30 a second."""
    lengths = "{type: synthetic, num_requests: 300, prompt: {type: fixed, tokens: 1500}, "
    lengths += "output: {type: fixed, tokens: 30}}"
    words = ["run", "a.yaml", "--jobs=1", "-q", "--json", f"--set=workload.lengths={lengths}"]
    words += ["--set=slo.ttft=8 s", "--set=slo.tpot=200 ms"]
    _, out, _ = mist(*words, "--vary=workload.arrivals.rate=20 /s,60 /s")
    told = json.loads(out)["verdict"]
    kept = "1 of 2 keep their limits (90 % of requests): rate=20 /s. "
    assert told.startswith(f"{kept}Overloaded, so that a longer run would miss")
    assert "would miss: rate=60 /s." in told


def test_limits_by_class_are_judged_as_a_comparison_judges_them(mist):
    classes = "--set=slo={classes: {a: {priority: 0, tpot: 20 ms}}}"
    words = ["a.yaml", "--jobs=1", "-q", "--json", classes, "--vary=clients.0.gpu=h100-sxm,l4"]
    found, compared = (json.loads(mist(verb, *words)[1]) for verb in ("run", "compare"))
    judged = [each["judged"] for each in found["points"]]
    assert [each["keeps"] for each in judged] == [True, False]
    for mine, its in zip(judged, compared["judged"].values(), strict=True):
        assert mine == {name: value for name, value in its.items() if name != "num_gpus"}
    assert found["verdict"].startswith("1 of 2 keep their limits: gpu=h100-sxm.")


def test_points_keep_limits_of_their_own():
    """One of the two tokens' limits is kept; each limit alone, too, by its percentile."""
    scenario = Scenario.from_dict(SMALL, {"slo.ttft": "1 s"})
    found = study(scenario, vary={"slo.tpot": ["1 ms", "1 s"], "slo.each": [False, True]}, jobs=1)
    assert [each.kept.keeps for each in found.points] == [False, False, True, True]
    other_share = study(scenario, vary={"slo.attainment": [0.8, 0.9], "slo.each": [True]}, jobs=1)
    assert [each.kept is None for each in other_share.points] == [False, False]


def test_points_are_judged_by_the_percentiles_that_runs_are_judged_by():
    said = {"slo.ttft": "1 s", "slo.percentiles": [60]}
    limit = simulate(Scenario.from_dict(SMALL, said)).summary["slo"]["p60_ttft_ms"]["value"]
    vary = {"slo.ttft": [f"{share * limit} ms" for share in (0.99, 1.01)]}
    found = study(Scenario.from_dict(SMALL, said), vary=vary, jobs=1)
    assert [each.kept.keeps for each in found.points] == [False, True]
    vary = {"slo.ttft": [f"{limit / over} ms" for over in (1.25, 1.5)]}
    found = study(Scenario.from_dict(SMALL, said), vary=vary, jobs=1)
    assert re.search("None.* comes nearest, 25 % over a limit", found.verdict)


@pytest.mark.parametrize("on_requests", [{}, {"slo.ttft": "1 s", "slo.each": True}])
def test_points_keep_limits_on_all_gaps(on_requests):
    scenario = Scenario.from_dict(SMALL, on_requests)
    found = study(scenario, vary={"slo.itl": ["1 ms", "1 s"]}, jobs=1)
    assert [each.kept.keeps for each in found.points] == [False, True]
    assert found.verdict.startswith(
        "1 of 2 keep their limits: itl=1 s. p99 ITL misses first: itl=1 ms."
    )
    swept = sweep(scenario, {"slo.itl": ["1 ms", "1 s"]}, jobs=1)
    assert swept.sentence.endswith("p99 ITL misses first: itl=1 ms.")


def test_compare_and_run_know_limits_on_all_gaps(mist):
    words = ["a.yaml", "--jobs=1", "-q", "--set=slo.itl=1 ms"]
    _, out, _ = mist("compare", *words, "--vary=clients.0.count=1,2")
    told = " ".join(out.split())
    assert "None keeps its limits at this rate; " in told
    assert "% over a limit. p99 ITL misses first: count=1, count=2." in told
    _, out, _ = mist("run", "a.yaml", words[-1], "--set=slo.ttft=9 s")
    assert "of the requests keep TTFT <= 9 s Latency" in " ".join(out.split())


def test_failing_point_is_said_and_strict_tells_script(mist):
    words = ["run", "a.yaml", "--jobs=1", "-q", "--vary=model=llama-3.1-8b,nothing"]
    code, out, err = mist(*words)
    assert (code, err) == (0, "")
    assert "2 points, 2 runs, 1 failed" in out
    assert "llm (on h100-sxm); router" in out
    assert "model=nothing: failed: " in out
    code, _, err = mist(*words, "--strict")
    assert code == 3
    assert "missed:\n  model=nothing: failed" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "a.yaml", "--vary=router"], "--vary router: must be KEY=A,B,..."),
        (["run", "a.yaml", "--vary=router="], "--vary router=: must be KEY=A,B"),
        (["run", "a.yaml", "--vary=seed=1,,2"], "--vary seed: must have a value between commas"),
        (["run", "a.yaml", "--vary=seed=[1,2"], "--vary seed: a quote or bracket is not closed"),
        (["run", "a.yaml", "--vary=seed=1", "--vary=seed=2"], "--vary seed: must be given once"),
        (["run", "a.yaml", "--vary=seed=1,1"], "vary seed: values must differ, got '1' twice"),
        (["run", "a.yaml", "--vary=seed=1,2", "--set=seed=3"], "--set seed has no effect"),
        (["run", "a.yaml", "--vary=sed=1,2"], "all 2 points failed; sed=1: override sed: unknown"),
        (["run", "a.yaml", "--resume"], "--resume has no effect without --out"),
        (["run", "a.yaml", "--resume", "--out=o"], "--resume has no effect on one run"),
        (["run", "a.yaml", "--vary=seed=1,2", "--tables=none", "--out=o"], "--tables has no eff"),
        (["compare", "a.yaml", "a.yaml"], "SCENARIO must be given once each, got a.yaml 2 times"),
        (["compare", "a.yaml", "--case=b"], "--case b: must be NAME:KEY=VALUE,..."),
        (["compare", "a.yaml", "--case=b:", "--case=b:"], "--case b: must be given once"),
        (["compare", "a.yaml", "--case=b:seed"], "--case b seed: must be KEY=VALUE"),
        (["compare", "a.yaml", "--case=b:seed=1", "--vary=seed=1,2"], "--case b sets seed, which"),
        (["compare", "a.yaml", "--vary=clients.0.count=0"], "count=0: "),
        (["compare", "a.yaml", "--vary=clients.0.count=0,-1"], "all 2 scenarios failed; count=0: "),
    ],
)
def test_bad_input_is_one_message(mist, tmp_path, words, message):
    code, out, err = mist(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") <= 2
    assert not Path("o").exists()


def test_one_file_is_compared_with_itself_under_several_settings(mist):
    words = ["compare", "a.yaml", "--jobs=1", "--json", "-q"]
    words += ["--case=few:", "--case=many: clients.0.count=2, router={type: random}"]
    code, out, err = mist(*words)
    assert (code, err) == (0, "")
    assert list(json.loads(out)["scenarios"]) == ["few", "many"]
    code, out, _ = mist("compare", "a.yaml", "--vary=clients.0.count=1,2", "--json", "-q")
    found = json.loads(out)["scenarios"]
    assert {name: figures["num_gpus"] for name, figures in found.items()} == {
        "count=1": 1.0,
        "count=2": 2.0,
    }


def test_command_that_error_names_compares_file_with_itself(mist):
    _, _, err = mist("compare", "a.yaml", "a.yaml")
    found = re.search(r"mist (compare a.yaml --case a: --case b:KEY=VALUE)", " ".join(err.split()))
    words = found[1].replace("KEY=VALUE", "clients.0.count=2").split()
    code, out, _ = mist(*words, "--json", "--jobs=1")
    assert code == 0
    gpus = {name: found["num_gpus"] for name, found in json.loads(out)["scenarios"].items()}
    assert gpus == {"a": 1, "b": 2}


def test_a_case_that_fails_leaves_the_others(mist):
    code, out, _ = mist("compare", "a.yaml", "--vary=model=llama-3.1-8b,llama-3.1-405b", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["failed"] == ["model=llama-3.1-405b"]
    assert about(found, "model=llama-3.1-405b")[0].startswith("failed: ")
    assert found["scenarios"]["model=llama-3.1-8b"]["p50_ttft_ms"] > 0


def test_a_point_that_is_bad_input_is_a_row_with_its_error(mist):
    key = "clients.0.scheduler.max_num_batched_tokens"
    words = ["compare", "a.yaml", "--json", "-q", "--jobs=1"]
    code, out, err = mist(*words, f"--vary={key}=0,512,1024")
    assert (code, err) == (0, "")
    found = json.loads(out)
    names = [f"max_num_batched_tokens={chunk}" for chunk in (0, 512, 1024)]
    assert list(found["scenarios"]) == names, "in the order of the points"
    assert found["failed"] == names[:1]
    assert "max_num_batched_tokens: must be >= " in about(found, names[0])[0]
    assert found["scenarios"][names[2]]["p50_ttft_ms"] > 0
    code, out, _ = mist(*words, "--case=no:nothing=1", "--case=one:", "--case=two:seed=0")
    assert (code, json.loads(out)["failed"]) == (0, ["no"])


def test_a_plane_of_the_one_case_that_works(mist):
    words = ["compare", "a.yaml", "--json", "-q", "--jobs=1", "--slo-plane", "--num-rates=2"]
    code, out, err = mist(*words, "--points=2", "--case=one:", "--case=none:clients.0.count=0")
    assert (code, err) == (0, "")
    plane = json.loads(out)["slo_plane"]
    assert {name for row in plane["winners"] for name in row} <= {"one", "nobody"}
    assert plane["is_clear"] == [[name == "one" for name in row] for row in plane["winners"]]


def test_points_that_all_fail_are_one_error_with_the_first_one_s_name(mist):
    key = "clients.0.scheduler.max_num_batched_tokens"
    code, out, err = mist("compare", "a.yaml", f"--vary={key}=0,-1")
    assert (code, out) == (2, "")
    assert err.startswith("error: all 2 scenarios failed; max_num_batched_tokens=0: override ")
    code, _, err = mist("compare", "a.yaml", f"--vary={key}=0")
    assert code == 2
    assert err.startswith("error: max_num_batched_tokens=0: override "), "not two"
    code, _, err = mist("compare", "a.yaml", "--vary=model=llama-3.1-405b,deepseek-v3")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: all 2 scenarios failed; model=llama-3.1-405b: ")


def test_a_scenario_is_built_once_for_all_that_is_asked_before_it_runs(monkeypatch):
    """Whether it can be, its requests, rates, GPUs and expected errors; runs have their own."""
    builds = []
    monkeypatch.setattr(built, "build", lambda scenario: builds.append(scenario) or build(scenario))
    limits = {"slo.ttft": "200 ms"}
    cases = {
        name: SCENARIO.changed({"router": name} | limits) for name in ("random", "round_robin")
    }
    found = compare(cases, goodput=GoodputOptions(rates=(5, 50), tolerance=0.5, as_is=True), jobs=1)
    assert all(case.goodput.num_gpus == 1 for case in found.cases)
    assert len(builds) == 2


# ------------------------------------------------------------------------------ killed

COUNTED = """
import os, signal, sys
from pathlib import Path
from mist_sim.cli import main
from mist_sim.studies import journal, task

answer, add, left = task.answer, journal.Journal.add, int(sys.argv.pop(1))

def counted(*given):
    Path("runs", f"{len(list(Path('runs').iterdir()))}-{os.getpid()}").touch()
    return answer(*given)

def add_and_die(self, *given):
    global left
    add(self, *given)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

task.answer = counted
journal.Journal.add = add_and_die
main(sys.argv[1:])
"""
STUDIES = {
    "run": ["run", "a.yaml", "--vary=clients.0.count=1,2,3", "--replications=2"],
    "replications": ["run", "a.yaml", "--replications=5"],
    "goodput": [
        "goodput",
        "a.yaml",
        "--set=slo.ttft=200 ms",
        "--rates=1:400",
        "--most-requests=1000",
    ],
    "compare": [
        *("compare", "a.yaml", "--vary=clients.0.count=1,2", "--set=slo.ttft=200 ms"),
        *(
            "--goodput",
            "--as-is",
            "--slo-plane",
            "--rates=1:400",
            "--num-rates=2",
            "--tolerance=0.5",
        ),
    ],
    "designs": ["compare", "a.yaml", "--designs", "--set=clients.0.count=3"],
    "sliders": [
        *("sliders", "taichi-hybrid", "--chunks=512", "--tolerance=0.5", "--as-is"),
        "--set=workload.lengths.num_requests=20",
    ],
}


LONG = ("compare", "designs", "goodput", "replications", "sliders")


def counting(left: int, *words: str) -> tuple[int, int]:
    """Run a command that is killed after so many rows; return its exit code and runs."""
    Path("runs").mkdir(exist_ok=True)
    before = len(list(Path("runs").iterdir()))
    command = [sys.executable, "-c", COUNTED, str(left), *words, "--jobs=1", "-q"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    ran = subprocess.run(command, env=environment, capture_output=True, check=False)
    return ran.returncode, len(list(Path("runs").iterdir())) - before


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize(
    "verb",
    [pytest.param(verb, marks=[pytest.mark.deep] if verb in LONG else []) for verb in STUDIES],
)
def test_a_killed_study_goes_on_and_repeats_nothing(mist, verb):
    words = STUDIES[verb]
    code, num_runs = counting(0, *words, "--out=whole")
    assert code == 0
    assert num_runs >= 5
    code, before = counting(3, *words, "--out=cut")
    assert (code, before) == (-signal.SIGKILL, 3)
    assert not Path("cut").exists()
    room = Path(".cut.mist-partial/study.jsonl")
    with room.open("ab") as journal:
        journal.write(b'{"key": ["torn')
    code, _, err = mist(*words, "--out=cut")
    assert code == 2
    assert "a study that was stopped has left its results so far" in err
    code, _, err = mist(*words, "--set=seed=5", "--out=cut", "--resume")
    assert code == 2
    assert "is that of another study, where 'subjects" in err
    code, after = counting(0, *words, "--out=cut", "--resume")
    assert (code, before + after) == (0, num_runs)
    sums = [Path(name, "SHA256SUMS").read_text() for name in ("whole", "cut")]
    assert sums[0] == sums[1]
    assert not room.parent.exists()


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_interrupted_study_says_that_its_runs_are_kept():
    words = ["run", "a.yaml", "--vary=seed=1,2,3,4,5,6", "--jobs=2", "--out=cut"]
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from mist_sim.cli import main; main(sys.argv[1:])"
    words.append("--set=workload.lengths.num_requests=4000")
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        journal = Path(".cut.mist-partial/study.jsonl")
        until = time.monotonic() + 120.0
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 1):
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; finished runs are kept (" in err


def test_force_begins_anew(mist):
    counting(1, *STUDIES["run"], "--out=cut")
    code, _, _ = mist(*STUDIES["run"], "--out=cut", "--force", "--jobs=1")
    assert code == 0
    assert Path("cut/study.csv").exists()
    assert not Path(".cut.mist-partial").exists()
