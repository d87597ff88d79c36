"""Runs what is simulated elsewhere: layers of a model on the device there is, any callable."""

from mist_sim.hardware.execution.timing import Timing, seconds_of, timed_call

__all__ = ["Timing", "seconds_of", "timed_call"]
