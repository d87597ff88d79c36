"""The tables of docs/background/calibration.md hold what the simulation gives now."""

import pytest

from tests.conftest import ROOT


@pytest.mark.page
def test_closed_loops_on_h100s(shared):
    shared("measurements/vllm-0.12-h100-qwen3-32b-closed-loop.csv")
    pytest.importorskip("aiconfigurator_core")
    from benchmarks import closed_loop

    points = closed_loop.measured_points(closed_loop.POINTS)
    found = closed_loop.simulated(points, closed_loop.predictors())
    page = (ROOT / "docs/background/calibration.md").read_text("utf-8")
    assert closed_loop.score_table(found) in page
