"""A note while a long run goes on that is proved to be overloaded (`mist run`)."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mist_sim import Scenario, simulate
from mist_sim.cli import session
from mist_sim.cli.app import app
from mist_sim.cli.session import Forewarning, overload
from mist_sim.scenario.presets import preset_names
from mist_sim.search.planning.bounds import proved_load
from tests.conftest import ROOT

SCENARIOS = [
    str(ROOT / f"examples/scenarios/{name}.yaml")
    for name in ("unlike_kinds", "two_models", "closed_loop", "attention_ffn", "kv_reuse")
]
FULL = {"workload.arrivals": {"type": "poisson", "rate": "8 /s"}}


@pytest.fixture
def clock(monkeypatch):
    """The seconds since the run began; a test turns it."""
    now = [0.0]
    monkeypatch.setattr(session, "monotonic", lambda: now[0])
    return now


def reasoning(**changes):
    """Eight H100s decode at most 7.8 times the answers of a second; 8 /s arrive."""
    return Scenario.load("mist-reasoning").changed(FULL | changes)


def test_a_long_run_tells_of_its_overload_once(clock):
    said, seen = [], []
    progress = Forewarning(reasoning(), lambda *at: seen.append(at), said.append)
    progress(1, 0.5)
    clock[0] = session.PATIENCE - 0.1
    progress(2, 1.0)
    assert not said
    for seconds in (0.0, 0.1, 100.0):
        clock[0] = session.PATIENCE + seconds
        progress(3, 1.5)
    assert len(said) == 1
    assert said[0].startswith("workload.arrivals: 8 requests a second arrive, and the engines are")
    assert "mist goodput" in said[0]
    assert len(seen) == 5


def test_no_run_of_it_is_faster_than_what_is_proved():
    few = reasoning(**{"workload.lengths.num_requests": 400})
    load = proved_load(few)
    assert load.arriving == 8
    assert simulate(few).summary["request_throughput"] < load.most < 8


@pytest.mark.parametrize(
    "changes",
    [
        {"workload.arrivals.rate": "0.5 /s"},
        {"workload.arrivals": {"type": "closed_loop", "concurrency": 300}},
        {"lifecycle": {"failures": [{"clients": ["llm-0"], "at": "1 s", "repair": "5 s"}]}},
    ],
)
def test_what_is_not_proved_is_not_said(changes):
    assert overload(reasoning(**changes)) == ""


@pytest.mark.parametrize("name", [*preset_names(), *SCENARIOS])
def test_every_scenario_can_be_asked(name):
    assert isinstance(overload(Scenario.load(name)), str)


@pytest.mark.parametrize("quiet", [False, True])
def test_mist_run_says_it_on_stderr(monkeypatch, quiet):
    monkeypatch.setattr(session, "PATIENCE", 0.0)
    few = ["--set", "workload.lengths.num_requests=400"]
    done = CliRunner().invoke(app, ["run", "mist-reasoning", *few, *["--quiet"] * quiet])
    assert done.exit_code == 0
    assert ("8 requests a second arrive" in done.stderr) is not quiet
