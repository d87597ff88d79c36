"""The table of docs/background/batching.md holds what the strategies give now."""

import pytest

from docs.compare_batching import CADENCES, COLUMNS, cells, runs
from tests.conftest import ROOT


@pytest.mark.page
def test_the_table_of_strategies(shared):
    page = (ROOT / "docs/background/batching.md").read_text("utf-8")
    assert f"| | {' | '.join(COLUMNS)} |" in page
    for name, result in runs(shared("traces/AzureLLMInferenceTrace_code.csv")):
        assert f"| {name} | {' | '.join(cells(result))} |" in page


@pytest.mark.deep
def test_the_table_of_an_engine_that_plans_no_step_ahead(shared):
    page = (ROOT / "docs/background/batching.md").read_text("utf-8")
    for name, result in runs(shared("traces/AzureLLMInferenceTrace_code.csv"), "vllm-0.12"):
        assert f"| {name}, vLLM 0.12 | {' | '.join(cells(result))} |" in page


@pytest.mark.deep
def test_the_table_of_the_cadence_of_prefills(shared):
    page = (ROOT / "docs/background/batching.md").read_text("utf-8")
    trace = shared("traces/AzureLLMInferenceTrace_code.csv")
    for name, result in runs(trace, strategies=CADENCES):
        assert f"| {name} | {' | '.join(cells(result))} |" in page


@pytest.mark.deep
def test_the_cadence_on_a_trace_of_conversations(shared):
    page = (ROOT / "docs/background/batching.md").read_text("utf-8")
    trace = shared("traces/AzureLLMInferenceTrace_conv.csv")
    ends = {name: CADENCES[name] for name in ("every step", "one of 8")}
    every, eighth = (result.summary for _, result in runs(trace, strategies=ends))
    assert f"{every['mean_tpot_ms']:.1f}" == f"{eighth['mean_tpot_ms']:.1f}"
    rise = f"from {every['mean_ttft_ms']:.0f} to {eighth['mean_ttft_ms']:.0f} ms"
    told = " ".join(page.split())
    assert f"({every['mean_tpot_ms']:.1f} ms both), and mean TTFT rises {rise}" in told
