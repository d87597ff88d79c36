"""Records of a run and the figures computed from them."""

from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.replications import Estimate, Replications
from mist_sim.metrics.result import Result

__all__ = ["ColumnRecorder", "Estimate", "Replications", "Result", "Slo"]
