"""The equal accelerators that serve one model together, and the cost of their collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mist_sim.checks import Positive, Range, check_fields
from mist_sim.errors import ScenarioError
from mist_sim.hardware.collectives import ONE_NODE, Spans, all_reduce
from mist_sim.hardware.devices import GpuSpec
from mist_sim.models.mixers import LatentMixer
from mist_sim.models.spec import ModelSpec

GPU_MEMORY_UTILIZATION = 0.92
"""Share of a GPU's memory that an engine may use, where none is said.

It is `CacheConfig.gpu_memory_utilization` of vLLM from 0.20 on (vllm/config/cache.py).
"""

All2AllBackend = Literal[
    "allgather_reducescatter",
    "deepep_high_throughput",
    "deepep_low_latency",
    "deepep_v2",
    "flashinfer_nvlink_one_sided",
    "flashinfer_nvlink_two_sided",
    "mori_high_throughput",
    "mori_low_latency",
    "nixl_ep",
    "pplx",
]
"""Exchanges between replicas that share experts, by vLLM's names (vllm/config/parallel.py)."""

GATHERS: All2AllBackend = "allgather_reducescatter"
"""vLLM's default: every rank gets all tokens."""

PARALLEL_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The accelerators that serve one model together.

    tensor_parallel_size: GPUs that each hold a slice of a layer (>= 1).
    pipeline_parallel_size: such groups, each with some of the layers (>= 1).
    data_parallel_size: replicas of that; they share experts with `enable_expert_parallel`.
    enable_expert_parallel: every rank holds whole experts, all ranks of all replicas together
        one set of them, instead of slices of every expert (vLLM's name and meaning).
    expert_load_imbalance: tokens of the busiest of those ranks divided by the mean (>= 1, at most
        the number of ranks).
    all2all_backend: how the replicas exchange tokens for experts (vLLM's name).
    decode_context_parallel_size: tensor-parallel ranks that share out the tokens of a context,
        instead of each holding all of them (>= 1; vLLM's name).
    prefill_context_parallel_size: tensor-parallel groups of an engine that share out its tokens:
        pieces of every prompt, and whole decodes (>= 1; vLLM's name). Each has all weights but
        experts, and the whole cache.
    spans: groups of ranks that lie on several nodes.
    """

    gpu: GpuSpec
    tensor_parallel_size: Positive[int] = 1
    data_parallel_size: Positive[int] = 1
    enable_expert_parallel: bool = False
    expert_load_imbalance: Annotated[float, Range("[1, inf)")] = 1.0
    pipeline_parallel_size: Positive[int] = 1
    decode_context_parallel_size: Positive[int] = 1
    prefill_context_parallel_size: Positive[int] = 1
    spans: Spans = ONE_NODE
    all2all_backend: All2AllBackend = GATHERS

    def __post_init__(self) -> None:
        check_fields(self)
        if self.expert_load_imbalance != 1 and not self.enable_expert_parallel:
            raise ValueError(
                "expert_load_imbalance must be 1 without enable_expert_parallel, which gives "
                f"every rank a slice of every expert, got {self.expert_load_imbalance}"
            )
        if self.expert_load_imbalance > self.expert_parallel_size:
            raise ValueError(
                f"expert_load_imbalance must be <= {self.expert_parallel_size}, the ranks: even "
                f"all tokens on one are no more than that over the mean, "
                f"got {self.expert_load_imbalance}"
            )
        if self.all2all_backend != GATHERS and not self.enable_expert_parallel:
            raise ValueError(
                f"all2all_backend must be {GATHERS} without enable_expert_parallel, with which "
                f"replicas exchange tokens, got {self.all2all_backend}"
            )

    @property
    def num_gpus(self) -> int:
        """Accelerators in the cluster."""
        return self.gpus_a_stage * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def gpus_a_stage(self) -> int:
        """Accelerators of one engine that compute the same layers."""
        return self.tensor_parallel_size * self.prefill_context_parallel_size

    @property
    def expert_parallel_size(self) -> int:
        """Ranks that the experts are spread over; 1 where each is sliced over the ranks."""
        if not self.enable_expert_parallel:
            return 1
        return self.gpus_a_stage * self.data_parallel_size

    @property
    def num_sharing_replicas(self) -> int:
        """Tensor-parallel groups that share one set of experts."""
        if not self.enable_expert_parallel:
            return 1
        return self.data_parallel_size * self.prefill_context_parallel_size

    @property
    def gathers_tokens(self) -> bool:
        """Whether every rank gets the tokens of all replicas, and sums their experts' outputs."""
        return self.num_sharing_replicas > 1 and self.all2all_backend == GATHERS

    def check_split(self, model: ModelSpec) -> None:
        """Raise ScenarioError when a model cannot be split over these ranks."""
        if self.enable_expert_parallel and not model.moe:
            raise ScenarioError(
                f"enable_expert_parallel must be false for {model.name}, which has no experts"
            )
        if model.moe and model.moe.num_experts < self.expert_parallel_size:
            raise ScenarioError(
                f"enable_expert_parallel needs an expert for each of {self.expert_parallel_size} "
                f"ranks, and {model.name} has {model.moe.num_experts}"
            )
        model.check_tensor_parallel(self.tensor_parallel_size, self.expert_parallel_size)
        if self.decode_context_parallel_size > 1:
            self._check_contexts(model)
        if self.prefill_context_parallel_size > 1:
            self._check_prompts(model)

    def _check_contexts(self, model: ModelSpec) -> None:
        """Raise ScenarioError when contexts cannot be shared out.

        vLLM's rules (`verify_with_parallel_config` in `vllm/config/model.py`): only ranks that hold
        the same KV head share its tokens; a latent, which belongs to all heads, all ranks may.
        """
        size, ranks, kv_heads = (
            self.decode_context_parallel_size,
            self.tensor_parallel_size,
            1 if model.mla else model.num_key_value_heads,
        )
        name, most = "decode_context_parallel_size", max(1, ranks // kv_heads)
        if model.layers or model.sliding_window:
            raise ScenarioError(
                f"{name} must be 1 with {model.name}: contexts of models with windows, or whose "
                f"layers differ, are not shared out, got {size}"
            )
        if size > most or ranks % size:
            raise ScenarioError(
                f"{name} must divide tensor_parallel_size {ranks} and be <= {most}, the ranks "
                f"that hold the same of the {kv_heads} KV heads of {model.name}, got {size}"
            )
        if not model.mla and model.num_attention_heads // kv_heads % size:
            raise ScenarioError(
                f"{name} must divide the {model.num_attention_heads // kv_heads} attention heads "
                f"of each KV head of {model.name}, got {size}"
            )

    def _check_prompts(self, model: ModelSpec) -> None:
        """Raise ScenarioError when the tokens of an engine cannot be shared out.

        vLLM's rules (`PCPManager.validate_config` in `vllm/v1/worker/gpu/pcp_manager.py`): latent
        attention alone, dense or with an indexer. Slices of experts over all groups are not
        simulated.
        """
        name, size = "prefill_context_parallel_size", self.prefill_context_parallel_size
        mixers = [layer.mixer for layer in model.layers]
        if not (model.mla or (mixers and all(isinstance(each, LatentMixer) for each in mixers))):
            raise ScenarioError(
                f"{name} must be 1 with {model.name}: prompts of models without latent attention "
                f"in every layer are not shared out, got {size}"
            )
        if model.moe and not self.enable_expert_parallel:
            raise ScenarioError(
                f"{name} {size} needs enable_expert_parallel with {model.name}: slices of experts "
                "over all GPUs that share out prompts are not simulated"
            )

    def all_reduce_time(self, num_bytes: float) -> float:
        """Seconds to sum a tensor of `num_bytes` over the tensor-parallel ranks."""
        link = self.gpu.interconnect
        return all_reduce(link, self.tensor_parallel_size, self.spans.tensor)(num_bytes)
