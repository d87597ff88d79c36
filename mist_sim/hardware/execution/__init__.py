"""Executes simulated work for real: layers of a model on this machine's device, or any callable."""

from mist_sim.hardware.execution.predictor import ExecutionPredictor
from mist_sim.hardware.execution.timing import Timing, seconds_of, timed_call

__all__ = ["ExecutionPredictor", "Timing", "seconds_of", "timed_call"]
