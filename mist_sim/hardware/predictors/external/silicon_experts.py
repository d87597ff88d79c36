"""Experts that no table of a package has: the roofline times them in the package's steps."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices.kernels import kernel_of
from mist_sim.hardware.kernel_choice import experts_kind
from mist_sim.hardware.predictors.analytic.roofline import RooflinePredictor
from mist_sim.models.spec import ModelSpec

Row = tuple[str, float, str]
"""An operator of a step: its name in the package, seconds, and where they come from."""

OURS = "roofline"
NO_TABLE = "MoE data missing"
"""What the package says of experts without a table."""

# routed experts, and beside shared ones that take less; the latter are rows of their own otherwise
_THEIRS = ("_moe", "_moe_overlap")
_OF_ROOFLINE = ("expert", "combine")
# what no table has, so that the package estimates it for every model
_SMALL = ("norm", "act", "embedding", "merge", "mul", "relu", "res")


class OwnExperts:
    """The roofline's experts of a model on a cluster."""

    def __init__(self, model: ModelSpec, cluster: Cluster) -> None:
        self._times = RooflinePredictor(model, cluster)

    def put_in(self, rows: Sequence[Row], batch: StepBatch) -> list[Row]:
        """Return the operators of a batch with our experts in place of the package's estimate.

        Raises LookupError where the package estimates more than experts and small operators.
        """
        others = [row for row in rows if not row[0].endswith(_THEIRS)]
        estimated = [name for name, _, origin in others if origin == "empirical"]
        unknown = [name for name in estimated if not any(word in name for word in _SMALL)]
        if unknown:
            raise LookupError(f"no tables of {', '.join(unknown)}")
        operators = self._times.explain(batch)
        seconds = sum([each.seconds for each in operators if each.name.startswith(_OF_ROOFLINE)])
        phase = "context" if batch.chunks else "generation"
        return [*others, (f"{phase}_experts", seconds, OURS)]


def experts_figures(model: ModelSpec, cluster: Cluster) -> str:
    """Return the figures of a model's experts, on which kept times depend; empty without any."""
    if not model.moe:
        return ""
    return str(kernel_of(cluster.gpu.kernels, experts_kind(model, cluster)))
