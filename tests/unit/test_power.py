"""Watts of an accelerator by what it does, and the fits to measured power."""

from pathlib import Path

import numpy as np
import pytest

from mist_sim.calibration.power import fit_draw, left_out_errors, of_runs
from mist_sim.calibration.power_runs import argonne_runs, mlenergy_runs, splitwise_runs
from mist_sim.hardware import load_gpu
from mist_sim.hardware.power import Load, PowerDraw, step_watts
from mist_sim.hardware.work import Demand

MEASURED = Path("../shared/measurements")
H100 = load_gpu("h100-sxm")


def watts(memory: float, compute: float, load: Load | None = None, **options: float) -> float:
    """Return the watts of an H100 at utilisations of memory and arithmetic."""
    demand = Demand(np.array([compute]), np.array([memory]))
    return float(
        step_watts(H100.draw, H100.power, demand, np.ones(1), load or Load(), **options)[0]
    )


def test_watts_by_hand():
    draw = PowerDraw(idle=0.1, active=0.2, memory=0.5, compute=1.0, experts=0.1)
    demand = Demand(np.array([0.3]), np.array([0.8]))
    load = 0.2 + 0.5 * 0.8 / 2 + 0.3 / 2 + 0.1
    found = step_watts(draw, 400.0, demand, np.array([2.0]), Load(has_experts=True))
    assert found[0] == pytest.approx(400 * load / (1 + load**4) ** 0.25)


def test_more_work_never_draws_less_and_never_more_than_the_design_power():
    shares = np.linspace(0, 1, 21).tolist()
    for loads in ([watts(u, 0.0) for u in shares], [watts(0.5, u) for u in shares]):
        assert loads == sorted(loads)
        assert max(loads) <= H100.power
        assert min(loads) >= H100.power * H100.draw.idle
    assert watts(0.9, 0.05) - watts(0.8, 0.05) < watts(0.1, 0.05) - watts(0.0, 0.05), "no bend"


def test_utilisation_beyond_the_peaks_counts_as_full():
    assert watts(3.0, 0.0) == watts(1.0, 0.0)


@pytest.mark.parametrize(
    ("figures", "message"),
    [({"idle": 1.0}, "idle must be < 1"), ({"memory": -0.1}, "memory must be finite and >= 0")],
)
def test_shares_that_cannot_be(figures, message):
    with pytest.raises(ValueError, match=message):
        PowerDraw(**{"idle": 0.1, "active": 0.2, "memory": 0.5, "compute": 1.0} | figures)


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
    ("gpu", "number", "most"), [("a100", 57, 0.08), ("h100", 146, 0.095), ("b200", 193, 0.09)]
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
