"""Shares of power draws are fitted to measured watts, and score what was left out."""

from pathlib import Path

import numpy as np
import pytest

from tools.power.power_fit import fit_draw, left_out_errors, of_runs
from tools.power.power_runs import argonne_runs, mlenergy_runs, splitwise_runs
from tools.power.token_energy import token_energy

MEASURED = Path("../shared/measurements")


@pytest.fixture(scope="module")
def runs():
    if not MEASURED.is_dir():
        pytest.skip("measured power is not here (../shared/measurements)")
    return [
        *mlenergy_runs(MEASURED / "ml-energy-vllm-0.11" / "mlenergy_calibration.csv"),
        *splitwise_runs(MEASURED / "splitwise_perf_model.csv"),
        *argonne_runs(MEASURED / "argonne-inference-bench" / "Fig_16_a_b__power_results.csv"),
    ]


@pytest.mark.parametrize(
    ("gpu", "number", "most"), [("a100", 57, 0.075), ("h100", 146, 0.095), ("b200", 193, 0.075)]
)
def test_watts_of_settings_that_were_left_out(runs, gpu, number, most):
    """Model, storage, parallelism and engine are left out together, never single rows."""
    mine = [run for run in runs if run.cluster.gpu.name.startswith(gpu)]
    assert len(mine) == number
    samples = of_runs(mine, "setting")
    draw = mine[0].cluster.gpu.draw
    assert np.abs(left_out_errors(samples, draw.idle)).mean() < most
    fitted = fit_draw(samples, draw.idle)
    for name in ("active", "memory", "compute"):
        assert getattr(fitted, name) == pytest.approx(getattr(draw, name), abs=0.02)


@pytest.mark.parametrize("gpu", ["a100", "h100", "b200"])
def test_watts_of_models_that_were_left_out(runs, gpu):
    """Also with at most eight sequences, where a GPU waits for memory and for the host."""
    mine = [run for run in runs if run.cluster.gpu.name.startswith(gpu)]
    errors = np.abs(left_out_errors(of_runs(mine, "model"), mine[0].cluster.gpu.draw.idle))
    assert errors.mean() < 0.1
    assert errors[[run.batch <= 8 for run in mine]].mean() < 0.105


def test_joules_of_a_token_are_watts_times_seconds(runs):
    for run in [run for run in runs if run.source == "ML.ENERGY"][::40]:
        found = token_energy(run)
        assert 1 + found.joules == pytest.approx((1 + found.step) * (1 + found.watts))
