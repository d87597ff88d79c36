"""Measured runs of real engines beside simulated ones, with their errors."""

from mist_sim.validation.comparing import Row
from mist_sim.validation.own_time import OwnTime, fit_own_time
from mist_sim.validation.runs import MeasuredRun, read_run

__all__ = ["MeasuredRun", "OwnTime", "Row", "fit_own_time", "read_run"]
