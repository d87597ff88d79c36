"""LoRA adapters (arXiv 2106.09685): options of an engine that serves them, and their matrices.

Beside a matrix W an adapter of rank r has two small ones: A (r x inputs) and B (outputs x r), and
adds B A x to W x. An engine keeps room for `max_loras` adapters on its GPUs, each as wide as
`max_lora_rank`, whatever the rank of an adapter is.

Source: vLLM, `vllm/lora/layers/column_parallel_linear.py`, `row_parallel_linear.py` and
`fused_moe.py` (`create_lora_weights`), and `vllm/config/lora.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from mist_sim.checks import Positive, check_fields
from mist_sim.errors import ScenarioError
from mist_sim.models.spec import ModelSpec
from mist_sim.units import BytesPerSecond

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `max_lora_rank` may be (`MaxLoRARanks` in `vllm/config/lora.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """LoRA adapters of an engine; names and defaults as vLLM's.

    max_loras: adapters that the requests of one step may use, and that have room on the GPUs; a
        request with another one waits, and others pass it.
    max_lora_rank: rank that their room is made for, which is what kernels compute: 1, 8, 16, 32,
        64, 128, 256, 320 or 512.
    max_cpu_loras: adapters kept in host memory, at least max_loras; the least recently used ones
        are dropped. None: max_loras. Needs storage_bandwidth.
    fully_sharded_loras: splits also those small matrices over the ranks that otherwise lie whole on
        each.
    storage_bandwidth: bytes a second at which an adapter that is not in host memory is read. None:
        all are in host memory, and are copied to a GPU when a request first needs them there.
    """

    max_loras: Positive[int] = 1
    max_lora_rank: int = 16
    max_cpu_loras: int | None = None
    fully_sharded_loras: bool = False
    storage_bandwidth: Positive[BytesPerSecond] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_lora_rank not in RANKS:
            known = ", ".join(map(str, RANKS))
            raise ValueError(f"max_lora_rank must be one of {known}, got {self.max_lora_rank}")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ValueError(
                f"max_cpu_loras must be >= max_loras ({self.max_loras}), got {self.max_cpu_loras}"
            )
        if self.max_cpu_loras is not None and self.storage_bandwidth is None:
            raise ValueError(
                "max_cpu_loras has no effect without storage_bandwidth, the speed at which an "
                f"adapter that is not in host memory is read, got {self.max_cpu_loras}"
            )

    @property
    def num_in_host(self) -> int:
        """Adapters in host memory."""
        return self.max_cpu_loras or self.max_loras


class AdapterMoves(NamedTuple):
    """Seconds until an adapter is there: copied to the GPUs, and before that read from storage."""

    copy: float = 0.0
    read: float = 0.0


AT_ONCE = AdapterMoves()


@dataclass(frozen=True, slots=True)
class Adapted:
    """A matrix of some layers, or several that are one product, with an adapter beside it.

    name: of the product. layers: that have it. inputs, outputs: of the product, on a rank.
    slices: matrices that are one product, each with an A of its own. rank, rank_here: of the
    adapter, and rows of A on a rank. is_row: whether its inputs are split, not its outputs.
    num_experts: experts of a layer that have one each; 0: no experts.
    """

    name: str
    layers: int
    inputs: float
    outputs: float
    slices: int
    rank: int
    rank_here: float
    is_row: bool
    num_experts: int = 0

    @property
    def params(self) -> float:
        """Parameters of one adapter's two matrices on a rank, in one layer (of one expert)."""
        return self.slices * self.rank_here * self.inputs + self.outputs * self.rank


def adapted(model: ModelSpec, lora: LoraConfig, ranks: int) -> Iterator[Adapted]:
    """Yield the products of a rank that have adapters: of attention, MLPs and experts.

    Routers, embedding and output head have none.
    """
    hidden, heads = model.hidden_size, model.num_attention_heads / ranks
    keys = 2 * model.kv_heads_per_rank(ranks) * model.head_dim
    values, up = heads * model.head_dim, 2 if model.gated_mlp else 1
    yield _column(lora, ranks, "qkv", model.num_layers, hidden, values + keys, 3)
    yield _row(lora, ranks, "o", model.num_layers, values, hidden)
    moe = model.moe
    inner = model.intermediate_size / ranks
    if model.num_dense_layers:
        yield _column(lora, ranks, "up", model.num_dense_layers, hidden, up * inner, up)
        yield _row(lora, ranks, "down", model.num_dense_layers, inner, hidden)
    if moe is None:
        return
    layers = model.num_moe_layers
    if shared := moe.shared_intermediate_size / ranks:
        yield _column(lora, ranks, "shared_up", layers, hidden, up * shared, up)
        yield _row(lora, ranks, "shared_down", layers, shared, hidden)
    inner, number = moe.intermediate_size / ranks, moe.num_experts
    yield _column(lora, ranks, "expert_up", layers, hidden, up * inner, up, number)
    yield _row(lora, ranks, "expert_down", layers, inner, hidden, number)


def _column(
    lora: LoraConfig,
    ranks: int,
    name: str,
    layers: int,
    inputs: float,
    outputs: float,
    slices: int,
    experts: int = 0,
) -> Adapted:
    """Return a product whose outputs are split over the ranks: A is whole on each."""
    rank = lora.max_lora_rank
    here = rank / ranks if lora.fully_sharded_loras else rank
    return Adapted(name, layers, inputs, outputs, slices, rank, here, False, experts)


def _row(
    lora: LoraConfig,
    ranks: int,
    name: str,
    layers: int,
    inputs: float,
    outputs: float,
    experts: int = 0,
) -> Adapted:
    """Return a product whose inputs are split over the ranks: B is whole on each."""
    rank = lora.max_lora_rank
    here = outputs / ranks if lora.fully_sharded_loras else outputs
    return Adapted(name, layers, inputs, here, 1, rank, rank, True, experts)


def adapter_bytes(model: ModelSpec, lora: LoraConfig, ranks: int) -> float:
    """Return the bytes of one adapter on a rank, in 16 bits (`lora_dtype` auto)."""
    params = 0.0
    for each in adapted(model, lora, ranks):
        params += each.layers * max(each.num_experts, 1) * each.params
    return params * model.dtype_bytes


def adapter_moves(
    model: ModelSpec, lora: LoraConfig, ranks: int, host_bandwidth: float
) -> AdapterMoves:
    """Return how long it takes until an adapter is there.

    Every rank copies its part over its own host link (bytes/s); from storage each reads all of it.
    """
    copy = adapter_bytes(model, lora, ranks) / host_bandwidth
    if lora.storage_bandwidth is None:
        return AdapterMoves(copy)
    whole = adapter_bytes(model, replace(lora, fully_sharded_loras=False), 1)
    return AdapterMoves(copy, whole / lora.storage_bandwidth)


def check_adapters(model: ModelSpec, lora: LoraConfig, ranks: int) -> None:
    """Raise ScenarioError for a model whose adapters are not simulated."""
    kind = "whose layers differ" if model.layers else "with latent attention" if model.mla else ""
    if kind:
        raise ScenarioError(
            f"lora must be left out with {model.name}: adapters of models {kind} are not simulated"
        )
    if lora.fully_sharded_loras and (ranks == 1 or lora.max_lora_rank % ranks):
        raise ScenarioError(
            "lora.fully_sharded_loras needs a tensor_parallel_size above 1 that divides "
            f"max_lora_rank {lora.max_lora_rank}, got {ranks}"
        )
