"""An engine's own time from a measured run: what was put in is found."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from mist_sim import Scenario, ScenarioError, simulate
from mist_sim.metrics.other_names import as_aiperf, as_ours, as_sglang
from mist_sim.validation import fit_own_time, read_run
from mist_sim.validation.own_time import Fit
from tests.commands import mist
from tests.loopback import Delays, server

SCENARIO = """
model: llama-3.1-8b
engine: {engine}
workload:
  lengths:
    type: synthetic
    num_requests: {number}
    prompt: {prompt}
    output: {{type: fixed, tokens: 8}}
  arrivals: {arrivals}
clients:
  - {{name: llm, gpu: h100-sxm}}
assumptions: [a flag]
"""
RUN = "name: n\nengine: e\nprovenance: p\nscenario: s.yaml\n"
ALONE = "{type: closed_loop, concurrency: 1}"
FIXED = "{type: fixed, tokens: 40}"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(
    engine: str = "vllm-0.33", number: int = 12, prompt: str = FIXED, arrivals: str = ALONE
) -> Scenario:
    text = SCENARIO.format(engine=engine, number=number, prompt=prompt, arrivals=arrivals)
    Path("s.yaml").write_text(text)
    return Scenario.load("s.yaml")


def _measure(scenario: Scenario, own: dict[str, str]) -> pd.DataFrame:
    """Write a run of a server with this own time, and return its requests."""
    truth = scenario.changed({f"clients.0.overhead.{key}": value for key, value in own.items()})
    requests = simulate(truth).requests
    requests[["request_id", "ttft", "tpot", "e2el"]].to_csv("requests.csv", index=False)
    Path("run.yaml").write_text(RUN + "requests: requests.csv\n")
    return requests


@pytest.mark.parametrize(
    ("engine", "step", "sequence"),
    [("vllm-0.33", "exposed_step", "exposed_sequence"), ("vllm-0.12", "step", "sequence")],
)
def test_what_an_engine_needs_is_found(engine, step, sequence):
    """One user: no two requests share a step, so that nothing is left to chance."""
    prompts = "{type: uniform, low: 100, high: 4000}"
    scenario = _write(engine, 16, prompts)
    own = {step: "4 ms", "request": "25 ms", "prompt_token": "8 us"}
    measured = _measure(scenario, own)
    found = fit_own_time(read_run(Path()))
    assert found.seconds[step] == pytest.approx(4e-3, rel=0.02)
    assert found.seconds["request"] == pytest.approx(25e-3, rel=0.02)
    assert found.seconds["prompt_token"] == pytest.approx(8e-6, rel=0.02)
    assert sequence not in found.seconds  # one user does not tell it
    assert f"not fitted: {sequence}" in found.notes[0]
    again = simulate(found.scenario).requests
    assert again["e2el"].to_numpy() == pytest.approx(measured["e2el"].to_numpy(), rel=0.02)
    for before, fitted, held_out in found.errors.values():
        assert max(fitted, held_out) < 0.02 < before


def test_a_metric_that_a_fit_makes_worse_is_told():
    before = SimpleNamespace(
        _before={"ttft": 0.52, "tpot": 0.4}, _before_held_out={"ttft": 0.52, "tpot": 0.4}
    )
    (told,) = Fit._worse(before, {"ttft": 0.52, "tpot": 0.1}, {"ttft": 0.58, "tpot": 0.1})
    assert told.startswith("TTFT is further off")
    assert "52.0% before and 58.0% after for the requests held out" in told
    assert "fitted" not in told
    assert list(Fit._worse(before, {"ttft": 0.5}, {})) == []


@pytest.mark.deep
def test_a_fit_under_load_foretells_other_loads():
    scenario = _write(number=200, arrivals="{type: poisson, rate: 20 /s}")
    scenario = scenario.changed({"workload.lengths.output.tokens": 60})
    Path("s.yaml").write_text(scenario.resolved())
    own = {"exposed_step": "3 ms", "exposed_sequence": "100 us", "request": "20 ms"}
    _measure(Scenario.load("s.yaml"), own)
    found = fit_own_time(read_run(Path()))
    assert found.seconds["exposed_step"] == pytest.approx(3e-3, rel=0.05)
    assert found.seconds["exposed_sequence"] == pytest.approx(1e-4, rel=0.05)
    assert found.errors["tpot"][2] < 0.02
    truth = scenario.changed({f"clients.0.overhead.{key}": value for key, value in own.items()})
    for rate in ("10 /s", "40 /s"):
        at = {"workload.arrivals.rate": rate}
        real, ours = (simulate(each.changed(at)).summary for each in (truth, found.scenario))
        for figure in ("mean_tpot_ms", "median_ttft_ms"):
            assert ours[figure] == pytest.approx(real[figure], rel=0.05)


@pytest.mark.deep
def test_the_delays_of_a_loopback_server_are_found(capsys):
    """Within 5 %, of which a busy machine's HTTP takes some milliseconds."""
    pytest.importorskip("httpx")
    _write(number=4)
    with server(Delays(first=1.0, gap=0.2)) as url:
        mist("observe", url, "s.yaml", "--model", "m", "--out", "o", "-q")
    found = fit_own_time(read_run(Path("o")))
    ttft, tpot = found.lone
    assert ttft == pytest.approx(1.0, rel=0.05)
    assert tpot == pytest.approx(0.2, rel=0.05)
    mist("calibrate", "run", "o", "--out", "fitted.yaml")
    assert "A request that is alone: first token after 1" in capsys.readouterr().out
    again = simulate(Scenario.load("fitted.yaml")).summary
    assert again["mean_tpot_ms"] == pytest.approx(200, rel=0.05)


def _summary(scenario: Scenario) -> dict:
    own = {"clients.0.overhead.exposed_step": "5 ms", "clients.0.overhead.request": "30 ms"}
    return simulate(scenario.changed(own)).summary


def test_a_summary_is_enough_and_may_have_the_names_of_others(capsys):
    summary = _summary(_write(number=4))
    plain = {key: value for key, value in summary.items() if isinstance(value, int | float)}
    Path("result.json").write_text(json.dumps(as_aiperf(plain)))
    Path("run.yaml").write_text(RUN + "summary: result.json\n")
    found = fit_own_time(read_run(Path()))
    assert found.seconds["exposed_step"] == pytest.approx(5e-3, rel=0.02)
    assert found.seconds["request"] == pytest.approx(30e-3, rel=0.02)
    assert found.errors["ttft"][2] is None  # there is nothing to hold out
    mist("calibrate", "run", ".", "--out", "f.yaml")
    printed = " ".join(capsys.readouterr().out.split())
    assert "--set clients.0.overhead.request='30" in printed
    assert "a flag" in [str(each) for each in found.warnings]
    assert "A flag" in printed.partition("Warnings")[2]


def test_what_cannot_be_fitted_is_told(capsys):
    scenario = _write(number=2)
    Path("run.yaml").write_text(RUN + "summary: {mean_ttft_ms: 5}\n")
    mist("calibrate", "run", ".", "--out", "f.yaml", code=2)
    assert "missing: mean_tpot_ms" in capsys.readouterr().err
    assert not Path("f.yaml").exists()
    mist("calibrate", "run", "nowhere", code=2)
    assert "has no run.yaml" in capsys.readouterr().err
    mist("calibrate", "run", ".", "--gpu", "h100-sxm", code=2)
    assert "--gpu has no effect with run measurements" in capsys.readouterr().err
    measured = _measure(scenario, {"exposed_step": "0 s", "request": "0 s"})
    measured.assign(ttft=1e-4, tpot=1e-4)[["request_id", "ttft", "tpot", "e2el"]].to_csv(
        "requests.csv", index=False
    )
    mist("calibrate", "run", ".")
    assert "the scenario's steps are too slow" in capsys.readouterr().err
    without = replace(read_run(Path()), scenario=None)
    with pytest.raises(ScenarioError, match="has no scenario to fit"):
        fit_own_time(without)


def test_names_of_others_lead_back_to_ours():
    summary = _summary(_write(number=4))
    ours = {"mean_ttft_ms", "p99_tpot_ms", "std_e2el_ms", "request_throughput", "completed"}
    for names in (as_sglang, as_aiperf):
        again = as_ours(names(summary))
        assert ours <= again.keys()
        assert all(again[key] == pytest.approx(summary[key]) for key in ours)
    assert as_sglang(summary)["mean_e2e_latency_ms"] == summary["mean_e2el_ms"]
    assert as_aiperf(summary)["inter_token_latency"]["p90"] == summary["p90_tpot_ms"]
    assert as_ours({"time_to_first_token": {"unit": "sec", "avg": 0.5}}) == {"mean_ttft_ms": 500}
    assert as_ours({"time_to_first_token": {"unit": "moons", "avg": 0.5}, "x": None}) == {}


def test_run_prints_the_names_of_others(capsys):
    _write(number=2)
    mist("run", "s.yaml", "--json", "--names", "sglang", "-q")
    of_sglang = json.loads(capsys.readouterr().out)
    assert "mean_e2e_latency_ms" in of_sglang
    mist("run", "s.yaml", "--json", "-q")
    assert of_sglang["warnings"] == json.loads(capsys.readouterr().out)["warnings"] != []
    for words, told in (
        (["--json", "--names", "sglan"], "did you mean 'sglang'"),
        (["--names", "aiperf"], "--names has an effect with --json"),
    ):
        mist("run", "s.yaml", *words, code=2)
        assert told in capsys.readouterr().err
