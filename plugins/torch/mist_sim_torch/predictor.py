"""Step times by running the model's layers on the device there is (MIST §III-F)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.hardware.predictors.measured.profiling import ProfileRange
from mist_sim.hardware.predictors.measured.sampled import SampledSteps, StepSource
from mist_sim.hardware.predictors.measured.timing import Timing
from mist_sim.hardware.predictors.measured.timing_store import TimingStore
from mist_sim.models.spec import ModelSpec


@PREDICTORS.register("execution")
@dataclass
class ExecutionPredictor(SampledSteps):
    """Step times measured on this machine with PyTorch, and cached.

    model, cluster: the model; one rank of the group is timed on this machine's device, even if the
        cluster names another GPU; collectives are those of the named GPU. Dense models in 16 bits.
    device: "cpu", "cuda" or "cuda:1"; "auto" takes CUDA if available.
    num_timed_layers: layers that run; their time is scaled to all layers.
    max_num_batched_tokens, max_num_seqs, max_context: the largest prompt, number of decodes and
        context that are measured (see `ProfileRange`); beyond, the last slope continues.
    repeats: number of runs; their median counts. seed: of the random weights.
    """

    model: ModelSpec
    cluster: Cluster
    device: str = "auto"
    num_timed_layers: int = 2
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 64
    max_context: int = 4096
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        limits = ProfileRange(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_context=self.max_context,
        )
        super().__init__(self._source(), limits.points, TimingStore.default())

    @property
    def traits(self) -> PredictorTraits:
        """Traits of its times."""
        return replace(super().traits, estimate="measured", kernels_only=True, sums_over_links=True)

    def _source(self) -> StepSource:
        from mist_sim_torch.source import TorchSource

        return TorchSource(
            model=self.model,
            cluster=self.cluster,
            device=self.device,
            num_timed_layers=self.num_timed_layers,
            timing=Timing(repeats=self.repeats),
            seed=self.seed,
        )
