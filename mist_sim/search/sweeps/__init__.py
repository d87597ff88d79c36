"""Sweeps: one figure of a scenario over one key or two."""

from mist_sim.search.sweeps.sweep import goodput_sweep, sweep
from mist_sim.search.sweeps.sweep_result import Sweep

__all__ = ["Sweep", "goodput_sweep", "sweep"]
