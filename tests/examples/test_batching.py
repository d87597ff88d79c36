"""The table of docs/background/batching.md holds what the strategies give now."""

import pytest

from docs.compare_batching import COLUMNS, cells, runs
from tests.conftest import ROOT


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
