"""Warnings belong to results: every kind, by every verb that has results, in every format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mist_sim import Scenario, Slo, replicate, simulate, study
from mist_sim.cli.app import _VERBS
from mist_sim.core.result_warnings import KINDS, ResultWarning, of_data, of_points, over_runs
from mist_sim.metrics.assumptions import assumption_warnings
from mist_sim.metrics.run_warnings import run_warnings
from mist_sim.metrics.tables.saved_findings import Findings
from mist_sim.models.speculative import ACCEPTANCE_RATE
from mist_sim.search.bracketing import Bracket
from mist_sim.search.comparison import compare
from mist_sim.search.goodput_result import Goodput, SeedGoodput
from mist_sim.search.lone_requests import LoneRequests
from mist_sim.search.verdicts.request_times import Target
from mist_sim.search.verdicts.trials import Trial
from mist_sim.simulation import Simulation

LENGTHS = {
    "type": "synthetic",
    "num_requests": 20,
    "prompt": {"type": "fixed", "tokens": 100},
    "output": {"type": "fixed", "tokens": 10},
}
SCENARIO = {
    "model": "llama-3.1-8b",
    "workload": {"lengths": LENGTHS, "arrivals": {"type": "poisson", "rate": "2 /s"}},
    "clients": [{"name": "llm", "gpu": "h100-sxm"}],
    "slo": {"ttft": "40 ms", "tpot": "1 s"},
}
HYBRID = SCENARIO | {
    "clients": [
        {"name": "p", "role": "p_heavy", "gpu": "h100-sxm"},
        {"name": "d", "role": "d_heavy", "gpu": "h100-sxm"},
    ],
    "network": {"bandwidth": "400 Gb/s", "latency": "1 ms"},
    "hand_over": {"policy": {"type": "flowing", "tpot": "100 ms"}},
}
SPACE = {
    "scenario": "s.yaml",
    "vary": {"clients.0.scheduler.max_num_seqs": [8, 16]},
    "objectives": ["num_gpus"],
}
RUN = {
    "name": "ours",
    "engine": "vLLM",
    "provenance": "made up",
    "scenario": "s.yaml",
    "summary": {"mean_ttft_ms": 20.0},
}
SEARCHED = ("--as-is", "--tolerance", "0.5", "--jobs", "1")

VERBS = {
    "run": ("run", "s.yaml"),
    "run, replications": ("run", "s.yaml", "--replications", "2", "--jobs", "1"),
    "run, vary": ("run", "s.yaml", "--vary", "seed=1,2", "--jobs", "1"),
    "compare": ("compare", "s.yaml", "--case", "a:", "--case", "b:clients.0.count=2", "--jobs=1"),
    "goodput": ("goodput", "s.yaml", *SEARCHED),
    "sweep": ("sweep", "s.yaml", "clients.0.count=1,2", "--jobs", "1"),
    "sweep, goodput": ("sweep", "s.yaml", "clients.0.count=1,2", "--goodput", *SEARCHED),
    "search": ("search", "space.yaml", "--jobs", "1"),
    "sliders": ("sliders", "hybrid.yaml", *SEARCHED, "--chunks", "512"),
    "plan": ("plan", "s.yaml", "--max-gpus", "1", "--designs", "together", "--as-is", "--jobs=1"),
    "bestserve": ("bestserve", "s.yaml", "--instances", "1", "--jobs", "1"),
    "explain": ("explain", "s.yaml", "--decodes", "2", "--context", "10"),
}
"""Commands whose results depend on a scenario's clients."""

OF_FOLDERS = ("report", "plot", "timeline", "validate", "demo")
"""Verbs that have a test of their own, since they write other things."""

WITHOUT = {
    "from-vllm": "prints a scenario, which has its assumptions as a key",
    "list": "prints catalogs",
    "schema": "prints the keys of a scenario",
    "fit": "learns from measured steps; nothing is simulated",
    "calibrate": "fits figures to measurements, and prints their errors",
    "profile": "measures steps",
    "observe": "measures a server",
    "trace": "reads and writes workloads",
    "afd": "takes lengths and coefficients, no clients; its own kinds are below",
    "reshard": "takes sizes, no clients; its own kind is below",
}
"""Verbs to which warnings of clients do not apply, with the reason."""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files that the commands name, and clients that lead to a warning of every kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for name, data in {"s": SCENARIO, "hybrid": HYBRID, "space": SPACE}.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(data))
    every = tuple(ResultWarning(kind, marked(name)) for name, kind in KINDS.items())
    monkeypatch.setattr(Simulation, "_warnings", lambda *_: every)


def marked(kind):
    return f"[{kind}]"


def missing(text):
    told = " ".join(text.split())
    return [kind for kind in KINDS if marked(kind) not in told]


def test_every_verb_is_looked_at():
    words = {command[0] for command in VERBS.values()}
    assert words | set(OF_FOLDERS) | set(WITHOUT) == set(_VERBS)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", VERBS.values(), ids=VERBS)
def test_every_format_has_every_kind(command, mist):
    code, out, err = mist(*command, "-q")
    assert code == 0, err
    assert missing(out) == []
    code, out, err = mist(*command, "-q", "--json", "--out", "found")
    assert code == 0, err
    assert {each["kind"] for each in json.loads(out)["warnings"]} == set(KINDS)
    (file,) = [each for each in Path("found").glob("*.json") if each.name != "timeline.json"]
    assert {each["kind"] for each in json.loads(file.read_text())["warnings"]} == set(KINDS)
    if file.stem in ("bestserve", "sliders", "step") or "--replications" in command:
        return  # mist report makes no pages of these
    code, _, err = mist("report", "found", "--out", "page.html")
    assert code == 0, err
    assert missing(Path("page.html").read_text()) == []


@pytest.mark.usefixtures("files")
def test_what_shows_a_runs_folder_has_every_kind(mist):
    assert mist("run", "s.yaml", "-q", "--out", "found")[0] == 0
    assert mist("plot", "found", "--out", "plots.html")[0] == 0
    assert missing(Path("plots.html").read_text()) == []
    assert mist("run", "s.yaml", "-q", "--out", "other")[0] == 0
    assert mist("plot", "found", "--beside", "other", "--out", "both.html")[0] == 0
    assert missing(Path("both.html").read_text()) == []
    code, _, err = mist("timeline", "found", "--out", "timeline.json")
    assert code == 0
    assert missing(err) == []


@pytest.mark.usefixtures("files")
def test_a_validation_has_every_kind(mist):
    Path("measured").mkdir()
    Path("measured/s.yaml").write_text(yaml.safe_dump(SCENARIO))
    Path("measured/run.yaml").write_text(yaml.safe_dump(RUN))
    code, out, err = mist("validate", "measured")
    assert code == 0, err
    assert missing(out) == []


@pytest.mark.usefixtures("files")
def test_the_demo_has_every_kind(mist):
    code, out, _ = mist("demo", "-q", "--out", "demo")
    assert code == 0
    assert missing(out) == []


OPTIONS = {
    "engine time": "overhead.step",
    "prompt step": "overhead.prefill_step",
    "sampling": "sampling",
    "penalties": "sampling.repetition_penalty",
    "front end": "front_end",
    "start-up": "lifecycle.start_up",
    "tier loads": "kv_cache.tiers.loads_in_step",
    "no prefixes": "prefixes",
    "adapters": "lora",
    "images": "images",
    "re-sharding": "resharding.host_memory",
    "architecture": "architecture: 2 to 3",
    "kernels": "kernels: 2 to 3",
    "not measured": "measured kernels: ssm",
    "one node": "one node: 16 x l40s",
    "nearest model": "model: llama",
    "state cache": "kv_cache.mamba_cache_mode",
    "acceptance": f"{ACCEPTANCE_RATE}: 0.4 of ngram",
    "assumed": "an_option_of_a_client_of_ones_own",
}
"""What clients assume, by the kind of warning that it leads to."""


@pytest.mark.parametrize(("kind", "option"), OPTIONS.items())
def test_every_assumption_is_a_warning(kind, option):
    (told,) = assumption_warnings({}, {"llm": [option]}, {}, {})
    assert told.kind is KINDS[kind]


def changed(**changes):
    return Scenario.from_dict(SCENARIO, {key.replace("__", "."): v for key, v in changes.items()})


def kinds_of(found):
    return {each.kind.name for each in found.warnings}


PCIE = {"clients__0__gpu": "l40s", "clients__0__tensor_parallel_size": 2}
FAILING = {"failures": [{"clients": ["llm"], "at": "2 s", "repair": "1 s"}]}
OVERLOAD = {
    "workload__arrivals__rate": "50 /s",
    "workload__lengths__num_requests": 200,
    "clients__0__scheduler__max_num_seqs": 1,
}
RUNS = {
    "assumed host": PCIE,
    "spec-only": {"clients__0__gpu": "mi300x"},
    "longest context": {"clients__0__gpu": "l4"},
    "command line": {"assumptions": ["a flag"]},
    "nothing finished": {"warmup": "1 h"},
    "unstable": OVERLOAD,
    "too short": {},
    "truncated": {"clients__0__max_model_len": 105},
    "failed requests": {"clients__0__max_model_len": 50},
    "failures": {"lifecycle": FAILING},
}
"""Scenarios whose runs lead to a kind of warning."""


@pytest.mark.parametrize(("kind", "changes"), RUNS.items())
def test_runs_raise_them(kind, changes):
    assert kind in kinds_of(simulate(changed(**changes)))


def searched(*verdicts, stability="stable", **more):
    """Return the goodput of rates 1, 2, ... that are attained, missed or not known."""
    trials = [
        Trial(float(rate), 0, attained, 0.95 if attained else 0.5, True, stability)
        for rate, attained in enumerate(verdicts, start=1)
    ]
    bracket = Bracket.of({each.rate: each.attained for each in trials if each.tells})
    target = Target(slo=Slo(ttft=1.0))
    search = SeedGoodput(0, bracket, tuple(trials))
    return Goodput((search,), target, 0.02, 100, 2, "", "case", **more)


GOODPUTS = {
    "all attained": searched(True, True),
    "all missed": searched(False),
    "undecided": searched(True, None, False),
    "not monotone": searched(True, False, True, False),
    "unstable at goodput": searched(True, False, stability="unstable"),
    "too short at goodput": searched(True, False, stability="too short to tell"),
    "lone requests": searched(False, lone_requests=LoneRequests(2.0, {"ttft": 2.0})),
}


@pytest.mark.parametrize(("kind", "found"), GOODPUTS.items())
def test_searches_raise_them(kind, found):
    assert kind in kinds_of(found)


def test_studies_and_comparisons_raise_them():
    wrong = study(changed(), vary={"model": ["llama-3.1-8b", "no-such"]}, jobs=1)
    assert "failed runs" in kinds_of(wrong)
    once = replicate(changed(replications=2, workload__arrivals={"type": "all_at_once"}), jobs=1)
    assert "alike" in kinds_of(once)
    full = {"workload__arrivals__rate": "50 /s", "slo__ttft": "1 ms"}
    full |= {"clients__0__kv_cache__num_gpu_blocks_override": 20}
    full |= {"clients__0__max_model_len": 200}
    both = compare(dict.fromkeys("ab", changed(**full)), jobs=1, assumed={"hybrids": "a router"})
    assert {"no room", "design"} <= kinds_of(both)
    assert "uneven" in kinds_of(replace(both, assumed={"afd": "made up"}, uneven=("afd",)))
    assert "not in parallel" in kinds_of(replace(wrong, notes=("a class of one's own",)))


TOLD_ELSEWHERE = {
    "left out": "test_left_out.py",
    "no price": "test_cost.py",
    "state blocks": "test_server_start.py",
    "older engines": "test_server_start.py",
    "across nodes": "test_across_nodes.py",
    "overloaded": "test_overloads.py",
    "extrapolated": "below, by the summary",
    "no energy": "below, by the summary",
    "plan": "test_plan_confidence.py",
    "bestserve": "above, by the verb",
    "full failed": "test_bestserve.py",
    "closed form": "test_reshard_verb.py",
    "bundle shares": "test_cli_afd.py",
    "heavy tail": "test_cli_afd.py",
    "older": "below, by a file",
}


def test_every_kind_is_raised():
    here = {*OPTIONS, *RUNS, *GOODPUTS, "failed runs", "alike", "no room", "design", "uneven"}
    assert here | {"not in parallel"} | set(TOLD_ELSEWHERE) == set(KINDS)


def test_what_only_a_summary_knows_is_told():
    result = simulate(changed())
    data = {**result.data, "extrapolated_step_fraction": 0.25, "power_unknown": ["llm"]}
    told = run_warnings(data, result.recorder, asks_for_spending=True)
    assert {"extrapolated", "no energy"} <= {each.kind.name for each in told}


def test_no_finding_makes_a_summary_of_its_own():
    """`Result` gives the same one a type; with it `summary` has the warnings."""
    own = [cls.__name__ for cls in Findings.__subclasses__() if "summary" in vars(cls)]
    assert own == ["Result"]
    assert all("data" in vars(cls) for cls in Findings.__subclasses__())


def test_a_warning_comes_back_from_json():
    told = ResultWarning(KINDS["assumed host"], "A host.", "It takes 3 ms.", ("a", "b"))
    assert of_data({"warnings": json.loads(json.dumps([told.data]))}) == (told,)


def test_files_of_an_older_version_say_what_is_missing():
    (told,) = of_data({})
    assert told.kind is KINDS["older"]
    assert [str(each) for each in of_data({"warnings": ["slow"]})] == ["slow"]
    (told,) = of_data({"warnings": {"a": ["slow"]}})
    assert told.of == ("a",)


def test_points_share_a_warning_and_failed_ones_come_first():
    slow, lost = ResultWarning(KINDS["unstable"], "slow"), ResultWarning(KINDS["failed runs"], "no")
    found = of_points({"a": [slow], "b": [slow, lost]})
    assert [(each.text, each.of) for each in found] == [("no", ("b",)), ("slow", ())]


def test_runs_with_other_seeds_say_in_how_many():
    slow = ResultWarning(KINDS["unstable"], "Slow.")
    (told,) = over_runs([[slow], [], [slow]])
    assert told.text == "In 2 of 3 runs; in the first of them: Slow."
    assert over_runs([[slow], [slow]]) == (slow,)
