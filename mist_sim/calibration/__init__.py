"""From measurements to step times: regressions of steps, and efficiencies of GPUs."""

from mist_sim.calibration.afd_latency import AfdFit, fit_afd_coefficients
from mist_sim.calibration.closed_loop_fit import LoopProtocol, calibrate_closed_loop
from mist_sim.calibration.fitted_figures import Calibration, write_spec
from mist_sim.calibration.regression import (
    MeasuredSteps,
    Regression,
    Setting,
    fit_file,
    fit_regression,
    read_splitwise,
    read_steps,
)
from mist_sim.calibration.splitwise_fit import calibrate_splitwise

__all__ = [
    "AfdFit",
    "Calibration",
    "LoopProtocol",
    "MeasuredSteps",
    "Regression",
    "Setting",
    "calibrate_closed_loop",
    "calibrate_splitwise",
    "fit_afd_coefficients",
    "fit_file",
    "fit_regression",
    "read_splitwise",
    "read_steps",
    "write_spec",
]
