"""Runs what is simulated elsewhere: layers of a model on the device there is, any callable."""

from mist_sim.hardware.execution.predictor import ExecutionPredictor
from mist_sim.hardware.execution.timing import Timing, seconds_of, timed_call

__all__ = ["ExecutionPredictor", "Timing", "seconds_of", "timed_call"]
