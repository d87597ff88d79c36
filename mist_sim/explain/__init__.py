"""One step taken apart, operator by operator: from a batch by hand, or from a moment of a run."""

from mist_sim.explain.explained_step import StepExplained, explain_batch, explain_moment
from mist_sim.explain.hand_batch import HandBatch

__all__ = ["HandBatch", "StepExplained", "explain_batch", "explain_moment"]
