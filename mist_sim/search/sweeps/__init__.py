"""Sweeps: one figure of a scenario over one key or two."""

from mist_sim.search.sweeps.result import Sweep
from mist_sim.search.sweeps.sweep import goodput_sweep, sweep

__all__ = ["Sweep", "goodput_sweep", "sweep"]
