"""One step taken apart, operator by operator: from a batch by hand, or from a moment of a run."""

from mist_sim.explain.hand_batch import HandBatch
from mist_sim.explain.step import StepExplained, explain_batch, explain_moment

__all__ = ["HandBatch", "StepExplained", "explain_batch", "explain_moment"]
