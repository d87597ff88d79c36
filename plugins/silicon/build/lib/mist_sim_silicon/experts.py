"""Experts that no table of a package has: the roofline times them in the package's steps."""

from __future__ import annotations

from collections.abc import Sequence

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.analytic.roofline import RooflinePredictor
from mist_sim.models.spec import ModelSpec

Row = tuple[str, float, str]
"""An operator of a step: its name in the package, seconds, and where they come from."""

NO_TABLE = "MoE data missing"
"""What the package says of experts without a table."""

# routed experts, and beside shared ones that take less; the latter are rows of their own otherwise
_THEIRS = ("_moe", "_moe_overlap")
_OF_ROOFLINE = ("expert", "combine")
# words in the names of what no table has, so that the package estimates it for every model
_SMALL = {"norm", "layernorm", "onorm", "act", "embedding", "merge", "mul", "relu2", "res"}


class OwnExperts:
    """The roofline's experts of a model on a cluster."""

    def __init__(self, model: ModelSpec, cluster: Cluster) -> None:
        self._times = RooflinePredictor(model, cluster)
        self._found: dict[tuple[int, int], float] = {}

    def seconds(self, batches: Sequence[StepBatch]) -> list[float]:
        """Return the seconds of the experts in each batch: a chunk alone, or decodes alone."""
        return [self._of(batch.num_prefill_tokens, batch.num_decodes) for batch in batches]

    def _of(self, new: int, decodes: int) -> float:
        """Return the seconds for so many tokens; contexts make no difference to experts."""
        if (new, decodes) not in self._found:
            batch = StepBatch(((new, 0),)) if new else StepBatch((), decodes, decodes)
            operators = self._times.explain(batch)
            self._found[new, decodes] = sum(
                [each.seconds for each in operators if each.name.startswith(_OF_ROOFLINE)]
            )
        return self._found[new, decodes]


def split_rows(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the operators of a batch that are no experts, and the experts.

    Raises LookupError where the package estimates more than experts and small operators. A row may
    be a sum, such as attention with and without a window; if only one of these was measured, the
    row ("mixed") passes, since it does not say how much of it is estimated.
    """
    experts = [row for row in rows if row[0].endswith(_THEIRS)]
    others = [row for row in rows if not row[0].endswith(_THEIRS)]
    estimated = [name for name, _, origin in others if origin == "empirical"]
    unknown = [name for name in estimated if _SMALL.isdisjoint(name.split("_"))]
    if unknown:
        raise LookupError(f"no tables of {', '.join(unknown)}")
    return others, experts
