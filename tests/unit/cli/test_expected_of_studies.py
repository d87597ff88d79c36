"""Verbs of several runs print the errors of step times that a single run prints."""

import pytest
from typer.testing import CliRunner

from mist_sim.cli.app import app

FILE = """
model: llama-3.1-8b
clients: [{name: llm, gpu: h100-sxm}]
workload:
  lengths:
    type: synthetic
    num_requests: 200
    prompt: {type: fixed, tokens: 100}
    output: {type: fixed, tokens: 20}
  arrivals: {type: poisson, rate: 4 /s}
slo: {ttft: 1 s, tpot: 50 ms}
"""
RATES = "workload.arrivals.rate='4 /s','8 /s'"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "-", "--vary", RATES],
        ["run", "-", "--replications", "2"],
        ["sweep", "-", "clients.0.count=1,2"],
        ["sweep", "-", "clients.0.count=1,2", "--goodput", "--most-requests", "1000"],
        ["compare", "-", "--vary", "clients.0.count=1,2"],
    ],
)
def test_several_runs_print_expected_errors(words):
    result = CliRunner().invoke(app, [*words, "-q", "--jobs", "1"], input=FILE)
    assert result.exit_code == 0, result.stderr
    table = result.stdout.partition("Expected error, nine in ten")[2]
    assert {"TTFT", "TPOT"} <= set(table.split())
    assert "dense bf16, h100-sxm" in table
