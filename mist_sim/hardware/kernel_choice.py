"""Whose kernels time a model on a cluster: figures of the back ends that an engine takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices.backends import has_figures, usual_backend, with_backend
from mist_sim.models.moe_backends import Deployment
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The back ends of a model's experts and attention, by vLLM's names; None: not known."""

    experts: str | None = None
    attention: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """Those that are known."""
        both = {"experts": self.experts, "attention": self.attention}
        return {part: name for part, name in both.items() if name}

    def timed(self, model: ModelSpec, cluster: Cluster) -> Cluster:
        """Return a cluster with the figures of these back ends, as far as there are some."""
        gpu = cluster.gpu
        for kinds, backend in self._parts(model, cluster):
            gpu = with_backend(gpu, kinds, backend)
        return cluster if gpu is cluster.gpu else replace(cluster, gpu=gpu)

    def untimed(self, model: ModelSpec, cluster: Cluster) -> str:
        """Return which back end has no figures, and whose are taken; empty if all have some."""
        architecture = cluster.gpu.architecture
        for kinds, backend in self._parts(model, cluster):
            if not all(has_figures(architecture, kind, backend) for kind in kinds):
                taken = usual_backend(architecture, kinds[0])
                instead = f"; the measurements are for {taken}" if taken else ""
                return f"kernels of {backend}{instead}"
        return ""

    def _parts(self, model: ModelSpec, cluster: Cluster) -> Iterator[tuple[tuple[str, ...], str]]:
        if self.experts:
            yield (experts_kind(model, cluster),), self.experts
        if self.attention:
            yield attention_kinds(model), self.attention


def experts_kind(model: ModelSpec, cluster: Cluster) -> str:
    """Return the kind of kernels of a model's experts; weights are widened if they must be."""
    stored = model.quantization_of("routed_experts")
    if stored is None:
        return "experts_bf16"
    widened = stored.compute not in cluster.gpu.flops
    return f"experts_{'int4' if widened else stored.kernel}"


def attention_kinds(model: ModelSpec) -> tuple[str, str]:
    """Return the kinds of kernels of a model's attention: of prompts and of decodes."""
    latent = "latent_" if model.mla else ""
    narrow = "_fp8" if model.kv_entry_bytes == 1 and not model.mla else ""
    return f"{latent}prefill_attention{narrow}", f"{latent}decode_attention{narrow}"


def deployment_of(model: ModelSpec, cluster: Cluster) -> Deployment:
    """Return what the choice of a back end of a model's experts depends on."""
    if model.moe is None:
        return Deployment(cluster.gpu.architecture)
    slices = 1 if cluster.enable_expert_parallel else cluster.tensor_parallel_size
    return Deployment(
        cluster.gpu.architecture,
        ranks=cluster.tensor_parallel_size,
        spread=cluster.expert_parallel_size > 1,
        replicas=cluster.num_sharing_replicas,
        inner=model.moe.intermediate_size // slices,
        has_gelu=model.moe.has_gelu,
    )
