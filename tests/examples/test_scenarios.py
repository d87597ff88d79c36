"""Every scenario file in examples/ and every preset runs, with fewer requests."""

import json

import pytest

from mist_sim.scenario.presets import preset_names
from tests.commands import exit_code
from tests.conftest import ROOT
from tests.examples.test_examples import AZURE

SCENARIOS = sorted((ROOT / "examples/scenarios").glob("*.yaml"))


def run(scenario, *arguments):
    assert exit_code("run", str(scenario), *arguments, "--out", "results", "--quiet") == 0


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "scenario",
    [*(path for path in SCENARIOS if "trace:" not in path.read_text()), *preset_names()],
    ids=lambda scenario: getattr(scenario, "name", scenario),
)
def test_scenario_without_a_file(scenario, working_directory, capsys):
    run(scenario, "--set", "workload.lengths.num_requests=100")
    summary = json.loads((working_directory / "results/summary.json").read_text())
    assert summary["completed"] == 100
    assert "requests finished" in capsys.readouterr().out


def test_azure_scenario_finds_its_trace_in_working_directory(working_directory, capsys):
    (working_directory / "AzureLLMInferenceTrace_conv.csv").write_text(AZURE)
    run(ROOT / "examples/scenarios/azure_conv.yaml")
    summary = json.loads((working_directory / "results/summary.json").read_text())
    assert summary["completed"] == 3
    assert "open loop" in capsys.readouterr().out
