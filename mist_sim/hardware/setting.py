"""What a client's step times are like, as far as the errors of others like them are known."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.hardware.cluster import Cluster
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Setting:
    """What times steps of what model on what GPUs, in the words of `expected_errors.csv`.

    source: what times the steps, as `PredictorTraits.compared_as` has it; empty: nobody compared
        it. architecture: whose kernels the GPU has ("hopper"); empty: not known.
    model: "dense", "experts", or "latent" for latent attention. weights: how its matrices are
        stored ("bf16", "fp8"). parallel: "one" GPU, "NVLink" between tensor-parallel ones, "spread"
        experts, and for what was never compared "PCIe" or another link, or "pipeline".
    """

    source: str
    architecture: str
    model: str
    weights: str
    parallel: str


def setting_of(source: str, model: ModelSpec, cluster: Cluster) -> Setting:
    """Return the setting of a model on a cluster. source: as in `Setting`."""
    stored = model.quantization
    return Setting(
        source=source,
        architecture=cluster.gpu.architecture,
        model=_kind(model),
        weights=stored.name if stored else "bf16",
        parallel=_parallel(cluster),
    )


def _kind(model: ModelSpec) -> str:
    if model.mla:
        return "latent"
    return "experts" if model.moe else "dense"


def _parallel(cluster: Cluster) -> str:
    if cluster.pipeline_parallel_size > 1:
        return "pipeline"
    if cluster.tensor_parallel_size * cluster.num_sharing_replicas == 1:
        return "one"
    if cluster.gpu.interconnect.kind != "nvlink":
        return "PCIe" if cluster.gpu.interconnect.kind == "pcie" else cluster.gpu.interconnect.kind
    return "spread" if cluster.expert_parallel_size > 1 else "NVLink"
