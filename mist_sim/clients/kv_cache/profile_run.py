"""The memory that an engine measures at its start beside weights and cache.

vLLM runs the largest batch and the sampler once, and gives what they leave to the KV cache
(`determine_available_memory` in `vllm/v1/worker/gpu_worker.py`). The profile differs by version;
docs/background/memory.md holds these rules against the logs of real engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.tower_times import tower_bytes
from mist_sim.models import layers as layered
from mist_sim.models.adapters import LoraConfig, adapter_bytes
from mist_sim.models.expert_padding import is_padded, moe_backend_of, padding_bytes
from mist_sim.models.moe import MoeSpec
from mist_sim.models.moe_backends import MoeBackend
from mist_sim.models.spec import ModelSpec
from mist_sim.models.vision import ImagesConfig
from mist_sim.units import Bytes

_WHOLE = ("triton", "flashinfer_trtllm")
"""Kernels that compute MXFP4 experts in one call, without buffers of vLLM's."""

_MIB, _GIB = 2.0**20, 2.0**30

_FUSES = frozenset({"hopper", "blackwell", "blackwell-ultra"})
"""Architectures on which several ranks sum and normalise in one kernel of FlashInfer's
(`fuse_allreduce_rms`; compute capability 9.0 and 10.x)."""

# Four hidden states a token beside the inner values of a layer: CodeLlama-7B and granite-3.1-8B,
# whose vocabularies are so small that the forward pass counts, log 0.77 and 0.85 GiB with 8,192
# tokens (llm-d-planner, accuracy/accuracy_report.md); these rules give 0.75 and 0.84.
_HIDDEN_STATES = 4

# vLLM's estimate of graphs (`profile_cudagraph_memory`) in five logs: 0.84, 0.74 and 0.82 GiB of
# 102 graphs, 1.09 of 166 (llm-d-planner: Llama-3.1-8B, granite-3.1-8B, Qwen1.5-MoE-A2.7B,
# gpt-oss-20B), 0.52 of 86 (LMCache/LMCache#3430: Qwen3-8B); on this line 0.74, 1.12 and 0.65.
_FIRST_GRAPH, _GRAPH = 150 * _MIB, 6 * _MIB


@dataclass(frozen=True, slots=True)
class BesideTorch:
    """Bytes of a rank outside of PyTorch's allocator: CUDA context, buffers of collectives.

    one: of an engine without tensor parallelism. several: with it. fused: with it, where the
    GPU's architecture sums and normalises in one kernel, which has a workspace of its own.
    """

    one: Bytes
    several: Bytes
    fused: Bytes

    def of(self, cluster: Cluster) -> Bytes:
        """Return the bytes of a rank of a cluster."""
        if cluster.tensor_parallel_size == 1:
            return self.one
        return self.fused if cluster.gpu.architecture in _FUSES else self.several

    def __str__(self) -> str:
        several = f"several ranks {self.several / _GIB:g}"
        more = f", on H100 or B200 {self.fused / _GIB:g}"
        return f"{self.one / _GIB:g} GiB, {several}{more if self.fused != self.several else ''}"


SAMPLER_BYTES = {"pytorch": 38.6, "triton": 15.3, "flashinfer": 15.3}
"""By sampler, from logs of vLLM 0.11 to 0.16, 0.17 to 0.20 and 0.21 to 0.26.

The sort of PyTorch's takes the logits several times (docs/background/memory.md).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRun:
    """Memory that a version needs beside weights and cache; by default the newest one.

    sampler_bytes: bytes a logit while tokens are sampled, on every rank for the whole vocabulary:
        a matter of the sampler (`SAMPLER_BYTES`).
    keeps_buffers: whether the experts' buffers stay allocated while tokens are sampled
        (`WorkspaceManager` in `vllm/v1/worker/workspace.py`).
    beside_torch: see there.
    counts_graphs: whether CUDA graphs lie within `gpu_memory_utilization`.
    """

    sampler_bytes: float = 15.3
    keeps_buffers: bool = True
    beside_torch: BesideTorch = BesideTorch(0.25 * _GIB, 0.25 * _GIB, 2.1 * _GIB)
    counts_graphs: bool = True

    def graphs(self, num_graphs: int) -> Bytes:
        """Return the bytes that so many CUDA graphs take from the cache's room."""
        counted = num_graphs if self.counts_graphs else 0
        return _FIRST_GRAPH + _GRAPH * counted if counted else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Memory of a rank that one engine takes beside its cache.

    profile: what its version's profile finds. num_graphs: CUDA graphs that it captures.
    moe_backend: kernel of MXFP4 experts; None: what vLLM takes on the GPU.
    lora: adapters that have room on the GPUs; None: none.
    images: how the model's vision tower lies on the GPUs; None: split over the tensor ranks.
    language_model_only: no tower is loaded.
    """

    profile: ProfileRun = ProfileRun()
    num_graphs: int = 0
    moe_backend: MoeBackend | None = None
    lora: LoraConfig | None = None
    images: ImagesConfig | None = None
    language_model_only: bool = False

    def weights(self, model: ModelSpec, cluster: Cluster) -> Bytes:
        """Return the bytes of weights on a rank, as its kernels pad them, and what is beside them.

        That is its adapters, and its part of the towers of images and sound.
        """
        sizes = cluster.tensor_parallel_size, cluster.expert_parallel_size
        backend, architecture = self._backend(cluster), cluster.gpu.architecture
        padding = padding_bytes(model, backend, architecture, *sizes)
        adapters, lora = 0.0, self.lora
        if lora is not None:
            adapters = lora.max_loras * adapter_bytes(model, lora, cluster.tensor_parallel_size)
        return (
            model.weight_bytes_per_rank(*sizes) + padding + adapters + self._towers(model, sizes[0])
        )

    def _towers(self, model: ModelSpec, ranks: int) -> Bytes:
        """Return the bytes of towers on a rank; an engine loads them for prompts of text, too."""
        if self.language_model_only:
            return 0.0
        others = 2.0 * model.tower_parameters / ranks  # 16 bits
        if model.vision is None:
            return others
        is_whole = self.images is not None and self.images.is_spread
        return others + tower_bytes(model.vision, 1 if is_whole else ranks)

    def activations(
        self, model: ModelSpec, cluster: Cluster, max_num_batched_tokens: int, max_num_seqs: int
    ) -> Bytes:
        """Return the peak of a rank's temporary memory in bytes.

        The larger of the forward pass of the largest batch and, where the head is, the sampler of
        all sequences; in versions that keep them, the experts' buffers on top.
        """
        tokens, tp = max_num_batched_tokens, cluster.tensor_parallel_size
        slices = 1 if cluster.enable_expert_parallel else tp
        inner = [0.0, *_inner_values(model, tp)]
        held = 0.0
        if model.moe and not (is_padded(model) and self._backend(cluster) in _WHOLE):
            sizes = _expert_sizes(model, model.moe, slices)
            if self.profile.keeps_buffers:
                held = tokens * _separate_buffers(*sizes) * model.dtype_bytes
            else:
                inner.append(_shared_buffers(*sizes))
        forward = tokens * (_HIDDEN_STATES * model.hidden_size + max(inner)) * model.dtype_bytes
        logits = max_num_seqs * model.vocab_size if model.has_head else 0
        return held + max(forward, logits * self.profile.sampler_bytes)

    def context(self, said: Bytes | None, cluster: Cluster) -> Bytes:
        """Return the bytes of a rank outside of PyTorch's allocator, by default the version's."""
        return self.profile.beside_torch.of(cluster) if said is None else said

    def _backend(self, cluster: Cluster) -> MoeBackend:
        return self.moe_backend or moe_backend_of(cluster.gpu.architecture)


NEWEST = Needs()
"""What an engine of the newest version takes without CUDA graphs."""


def num_graphs(sizes: tuple[int, ...], max_decode_tokens: int) -> int:
    """Return how many graphs an engine captures of these sizes.

    Of each size one for batches with prompts, and where decodes alone can fill it, one of theirs
    (`FULL_AND_PIECEWISE`). max_decode_tokens: tokens of a step without prompts.
    """
    return len(sizes) + sum(size <= max_decode_tokens for size in sizes)


def _inner_values(model: ModelSpec, ranks: int) -> Iterator[float]:
    """Yield the values between norm and output of a layer's MLP or mixer, for one token."""
    if model.num_dense_layers:
        yield ((2 if model.gated_mlp else 1) + 1) * model.intermediate_size / ranks
    yield from (layered.inner_width(mixer, ranks) for mixer in layered.mixers_of(model.layers))


def _expert_sizes(model: ModelSpec, moe: MoeSpec, slices: int) -> tuple[int, float, float, float]:
    """Return a token's experts, and the values of one: hidden, and before and in its activation."""
    inner = moe.intermediate_size / slices
    wide = (2 if model.gated_mlp else 1) * inner
    return moe.num_experts_per_token, moe.hidden_size or model.hidden_size, wide, inner


def _shared_buffers(experts: int, hidden: float, wide: float, inner: float) -> float:
    """Return the values of a token's experts where the first product and the last share a buffer.

    `cache13` in vLLM's `fused_experts_impl`; the activation has its own.
    """
    return experts * (max(wide, hidden) + inner)


def _separate_buffers(experts: int, hidden: float, wide: float, inner: float) -> float:
    """Return the values of the two buffers that a token's experts share.

    `TritonExperts.workspace_shapes` in `vllm/model_executor/layers/fused_moe/fused_moe.py`.
    """
    return experts * (max(inner, hidden) + max(wide, hidden))
