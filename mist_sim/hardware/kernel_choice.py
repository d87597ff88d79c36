"""Whose kernels time a model on a cluster: figures of the back ends that an engine takes.

Figures of kernels by back end, for those that are not an architecture's usual ones.

The tables in `hardware/backends/` have, for each architecture, whose kernels its own figures are
(`usual`), and the figures of other back ends by kind of kernels. `tools/pages/make_backends.py`
writes them from tables of measured kernels: no figure is that of another back end times a constant.
Where a back end has none, the usual ones hold, with the rows that it is known to fill up.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import inf

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import GpuSpec, Kernel, gpu_names, load_gpu
from mist_sim.models.moe_backends import Deployment, rows_computed
from mist_sim.models.spec import ModelSpec
from mist_sim.spec_files import Table, read_table, tables_in

USUAL, SOURCES = "usual", "sources"
_WITH_TILES, _OTHER_TILES = ("experts_bf16", "experts_fp8"), 17

BEYOND_EXPERTS = 1.36
"""How many times as long Triton's experts take with tiles that were not tuned (`has_tuned_tiles`).

Source: experts in FP8 on an H100 took 1.36 times as long as with other tiles in vLLM pull request
24700, and so did experts in 16 bits on H100s with more tokens than a GPU has experts (seven median
inter-token latencies of vLLM 0.11.1, ML.ENERGY; 19 on B200s ask for 1.6).
"""


def usual_backend(architecture: str, kind: str) -> str:
    """Return whose kernels the architecture's figures of a kind are; empty: not known."""
    usual = _tables().get(architecture, {}).get(USUAL, {})
    return str(usual.get(kind, "")) if isinstance(usual, dict) else ""


def has_figures(architecture: str, kind: str, backend: str) -> bool:
    """Whether there are figures of a back end for a kind of kernels."""
    return usual_backend(architecture, kind) == backend or kind in _figures(architecture, backend)


def with_backend(gpu: GpuSpec, kinds: Iterable[str], backend: str) -> GpuSpec:
    """Return a GPU with the figures of a back end for kinds of kernels.

    The usual ones, those that were not timed, and figures that a GPU's file changed stay as they
    are; but for the rows that a back end without figures is known to fill up.
    """
    listed = [kind for kind in kinds if _is_listed(gpu, kind)]
    figures = _figures(gpu.architecture, backend)
    found = {kind: figures[kind] for kind in listed if kind in figures}
    if filled := rows_computed(backend):
        for kind in listed:
            kernel = gpu.kernels.get(kind)
            if kernel and not has_figures(gpu.architecture, kind, backend):
                found[kind] = replace(kernel, padding=0.0, padding_from=0.0, filled=filled - 1.0)
    return replace(gpu, kernels={**gpu.kernels, **found}) if found else gpu


def _is_listed(gpu: GpuSpec, kind: str) -> bool:
    if gpu.based_on not in gpu_names():
        return False
    return gpu.kernels.get(kind) == load_gpu(gpu.based_on).kernels.get(kind)


@cache
def _figures(architecture: str, backend: str) -> Mapping[str, Kernel]:
    table = _tables().get(architecture, {}).get(backend, {})
    where = f"backends/{architecture}.toml"
    if not isinstance(table, dict):
        return {}
    return {kind: read_table(Kernel, each, where, f"{kind}.") for kind, each in table.items()}


@cache
def _tables() -> Mapping[str, Table]:
    return tables_in("mist_sim.hardware", "backends")


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The back ends of a model's experts and attention, by vLLM's names; None: not known.

    has_tuned_tiles: whether the tiles of Triton's experts suit them, however many tokens they get.
    """

    experts: str | None = None
    attention: str | None = None
    has_tuned_tiles: bool = True

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
        kind = "" if self.has_tuned_tiles else experts_kind(model, cluster)
        if kind in gpu.kernels and gpu.kernels[kind].beyond_experts == 1:
            kernel = replace(gpu.kernels[kind], beyond_experts=BEYOND_EXPERTS)
            gpu = replace(gpu, kernels={**gpu.kernels, kind: kernel})
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


def has_tuned_tiles(
    backend: str | None, model: ModelSpec, cluster: Cluster, release: float
) -> bool:
    """Return whether the tiles of an engine's experts suit any number of tokens.

    Up to 0.16 Triton's kernel takes small tiles for as many tokens as a GPU has experts, and tiles
    of 64 x 64 x 32 for more, where none were tuned for a shape (`get_default_config` in
    vllm/model_executor/layers/fused_moe/fused_moe.py; pull request 34846 has others).

    release: minor number of vLLM's.
    """
    moe, kind = model.moe, experts_kind(model, cluster)
    if moe is None or backend != "triton" or kind not in _WITH_TILES or release >= _OTHER_TILES:
        return True
    held = -(-moe.num_experts // cluster.expert_parallel_size)
    shape = f"{held}x{deployment_of(model, cluster).inner}"
    return release >= _tuned_tiles().get((cluster.gpu.based_on, kind, shape), inf)


@cache
def _tuned_tiles() -> Mapping[tuple[str, str, str], int]:
    """Return the release from which on tiles are tuned, by GPU, kind of kernels and shape."""
    text = files("mist_sim.hardware").joinpath("triton_tiles.csv").read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        (row["gpu"], f"experts_{row['format']}", shape): int(row["since"])
        for row in rows
        for shape in row["shapes"].split()
    }


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
