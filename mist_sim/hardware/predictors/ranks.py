"""What times the passes of a pipeline: a predictor for each rank, and the hand-over between two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.collectives import send
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.models.partition import rank_part
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class PipelinePredictor:
    """Times what every rank does in a pass.

    ranks: one predictor each, in the order of the layers; equal ranks may share one.
    hand_over: seconds until the next rank has what a batch of so many tokens left on a rank.
    """

    ranks: tuple[Predictor, ...]
    hand_over: Callable[[int], float]

    @property
    def estimate(self) -> str:
        """Where the figures come from: what the first rank's predictor says."""
        return str(getattr(self.ranks[0], "estimate", "custom"))

    @property
    def needs_longest_context(self) -> bool:
        """Whether a rank's predictor reads `StepBatch.longest_context`."""
        return any(getattr(rank, "needs_longest_context", False) for rank in self.ranks)

    @property
    def steps_inside(self) -> Callable[[StepBatch, StepGrowth], int] | None:
        """What tells how many steps lie where all ranks have measurements."""
        ranks = [inside for rank in self.ranks if (inside := getattr(rank, "steps_inside", None))]
        if not ranks:
            return None
        return lambda batch, growth: min(inside(batch, growth) for inside in ranks)


def pipeline_predictor(
    make: Callable[[ModelSpec], Predictor], model: ModelSpec, cluster: Cluster
) -> PipelinePredictor:
    """Return a predictor whose ranks are made from their parts of the model.

    Between two ranks go hidden state and residual of every token (vLLM's `IntermediateTensors`
    of its decoder models). Each GPU of the next rank takes all of them in over its own link: from
    one GPU, or a slice from each GPU of the rank before and the others from its neighbours
    (vLLM's `send_tensor_dict` with `all_gather_group`).
    """
    made: dict[ModelSpec, Predictor] = {}
    size = cluster.pipeline_parallel_size
    parts = [rank_part(model, rank, size) for rank in range(size)]
    for part in parts:
        if part not in made:
            made[part] = make(part)
    seconds = send(cluster.gpu.interconnect)
    bytes_per_token = 2 * model.hidden_size * model.dtype_bytes

    def hand_over(num_tokens: int) -> float:
        return seconds(num_tokens * bytes_per_token)

    return PipelinePredictor(tuple(made[part] for part in parts), hand_over)
