"""The table of docs/background/batching.md holds what the strategies give now."""

import pytest

from tests.conftest import ROOT
from tools.pages.compare_batching import COLUMNS, cells, runs


@pytest.mark.page
def test_the_table_of_strategies(shared):
    page = (ROOT / "docs/background/batching.md").read_text("utf-8")
    assert f"| | {' | '.join(COLUMNS)} |" in page
    for name, result in runs(shared("traces/AzureLLMInferenceTrace_code.csv")):
        assert f"| {name} | {' | '.join(cells(result))} |" in page
