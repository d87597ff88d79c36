"""Settings of step times: kinds for which errors are known from measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import GpuSpec, gpu_names, load_gpu
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Setting:
    """Origin of step times, model, GPUs and engine, in the terms of `evidence.csv`.

    source: origin of the step times, from `PredictorTraits.compared_as`; empty: never compared.
    architecture: the GPU's kernel architecture ("hopper"); empty: unknown.
    kind: of the model: "dense", "experts", "latent" for latent attention, or "differing" layers.
    weights: how its matrices are stored ("bf16", "fp8"). parallel: "one" GPU, "NVLink" between
        tensor-parallel ones, "spread" experts, "PCIe" or another link, or "pipeline".
    model: its name, without that of the format. gpu: of the catalog. release: of vLLM ("0.19").
    """

    source: str
    architecture: str
    kind: str
    weights: str
    parallel: str
    model: str = ""
    gpu: str = ""
    release: str = ""

    @property
    def kernel(self) -> tuple[str, str, str]:
        """The kernels of a step: kind of model, format of weights, architecture."""
        return self.kind, self.weights, self.architecture


class Borrowed(NamedTuple):
    """A setting without an error bar, because the measurements are of other GPUs or kernels.

    why: explanation for the line of the error bar.
    """

    why: str


def comparable(
    source: str, model: ModelSpec, cluster: Cluster, release: str = ""
) -> Setting | Borrowed:
    """Return the setting of a model on a cluster, if it is comparable with measurements.

    It is not if the figures of the GPU are a user's, or experts are on more ranks than in any
    measured run, or exchanged in another way. source, release: as in `Setting`.
    """
    if model.approximated:
        return Borrowed(f"not known: {model.name} is taken as a model that it is not")
    gpu = cluster.gpu
    if why := figures_of_its_own(gpu):
        return Borrowed(why)
    if wide := _of_wide_experts(cluster):
        return wide
    return setting_of(source, model, cluster, release)


def setting_of(source: str, model: ModelSpec, cluster: Cluster, release: str = "") -> Setting:
    """Return the setting of a model on a cluster. source, release: as in `Setting`."""
    stored = model.quantization
    weights = stored.name if stored else "bf16"
    return Setting(
        source=source,
        architecture=cluster.gpu.architecture,
        kind=_kind(model),
        weights=weights,
        parallel=_parallel(cluster),
        model=model.name.removesuffix(f"-{weights}"),
        gpu=cluster.gpu.based_on,
        release=release,
    )


def figures_of_its_own(gpu: GpuSpec) -> str:
    """Return why measurements say nothing about a GPU's figures; empty: they are the catalog's."""
    if gpu.based_on not in gpu_names():
        return f"not known: {gpu.name} is a GPU of your own, whose kernels were not timed"
    listed, own = load_gpu(gpu.based_on), gpu.interconnect
    if own.kind == listed.interconnect.kind:  # of another, the way of its all-reduce may be none
        link = replace(listed.interconnect, host=own.host, all_reduce=own.all_reduce)
        same = replace(
            listed, name=gpu.name, sources=gpu.sources, confidence=gpu.confidence, interconnect=link
        )
        if gpu == same:
            return ""
    return f"not known: {gpu.name} has figures of your own; the measurements are for {gpu.based_on}"


ACROSS_NODES = Borrowed("not known: GPUs on several nodes; only ranks on one node were measured")
"""The setting of an engine whose ranks sum over several nodes."""

ACROSS_TRAYS = Borrowed("not known: GPUs on several trays; only ranks on one were measured")
"""The setting of an engine whose ranks sum over several hosts of one NVLink domain."""

FEW_RANKS = 8
"""Most GPUs of a measured run."""

_BY_ALL_TO_ALL = Borrowed("not known: experts exchanged by an all-to-all; none was measured")


def _of_wide_experts(cluster: Cluster) -> Borrowed | None:
    """Return why nothing is known of ranks that share experts in ways that were not measured."""
    ranks = cluster.expert_parallel_size
    if cluster.num_sharing_replicas == 1:
        return None
    if not cluster.gathers_tokens:
        return _BY_ALL_TO_ALL
    if ranks > FEW_RANKS:
        return Borrowed(f"not known: experts over {ranks} ranks; at most {FEW_RANKS} were measured")
    return None


ADAPTED = Borrowed("not known: LoRA adapters, whose kernels were not timed here")
"""The setting of an engine that serves adapters."""

WITH_IMAGES = Borrowed("not known: images; only text prompts were measured")
"""The setting of an engine that encodes images."""

IN_PARTS = Borrowed("not known: context parallelism; only ranks with whole contexts were measured")
"""The setting of an engine whose ranks share out contexts."""

CAPPED = Borrowed("not known: a power cap; only GPUs at their design power were measured")
"""The setting of an engine whose GPUs are capped."""


SCALED = Borrowed("not known: step times with a factor (step_time_scale)")
"""The setting of an engine whose step times are multiplied."""


def _kind(model: ModelSpec) -> str:
    if model.layers:
        return "differing"
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
