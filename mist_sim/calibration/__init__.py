"""From measurements to step times: regressions of steps, and efficiencies of GPUs."""

from mist_sim.calibration.files import fit_file
from mist_sim.calibration.fitting import Regression, Setting, fit_regression
from mist_sim.calibration.measured_steps import MeasuredSteps, read_splitwise, read_steps

__all__ = [
    "MeasuredSteps",
    "Regression",
    "Setting",
    "fit_file",
    "fit_regression",
    "read_splitwise",
    "read_steps",
]
