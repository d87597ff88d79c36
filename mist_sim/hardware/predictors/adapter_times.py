"""Step times with LoRA adapters: two small products beside each product of the model.

vLLM shrinks all tokens that have an adapter to its rank (A x), in 32 bits, and expands them again
into the output (B A x), in a kernel each; a step's adapters are in one launch
(`vllm/lora/ops/triton_ops/lora_shrink_op.py`, `lora_expand_op.py`). Steps in which no token has an
adapter take as long as without (`specialize_active_lora`). The kernels are timed as products of 16
bits by the GPU's figures; they were not timed here, so results name them among the assumptions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from mist_sim.core.batch import StepBatch
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.collectives import all_gather, all_reduce
from mist_sim.hardware.predictors.analytic.compile import Phase
from mist_sim.hardware.predictors.analytic.phase_time import Term
from mist_sim.models.adapters import Adapted, LoraConfig, adapted
from mist_sim.models.moe import MoeSpec
from mist_sim.models.operators import Operator
from mist_sim.models.spec import ModelSpec

_SHRUNK_BYTES = 4  # of a value between the two kernels, which is in 32 bits


@dataclass(frozen=True, slots=True)
class _Kernel:
    """One kernel of an adapted product. sums: seconds of what ranks exchange, by bytes."""

    term: Term
    expert_rows: int
    is_of_experts: bool
    bytes_per_token: float
    layers: int
    sums: Callable[[float], float] | None

    def seconds(self, num_adapters: int, num_tokens: int, share: float) -> float:
        """Return the seconds for tokens of adapters; share: of the experts, that are reached."""
        term, rows = self.term, num_tokens * self.expert_rows
        weights = num_adapters * (share if self.is_of_experts else 1.0) * term.weights
        compute, memory = rows * term.work, weights + rows * term.traffic
        found = term.fixed + rows * term.per_token + sqrt(compute * compute + memory * memory)
        if self.sums is not None:
            found += self.layers * self.sums(rows * self.bytes_per_token)
        return found


class AdapterTimes:
    """Seconds that the adapters of a step take on a rank.

    model: the rank's part. Raises nothing: `check_adapters` has looked at the model.
    """

    def __init__(self, model: ModelSpec, cluster: Cluster, lora: LoraConfig) -> None:
        self._moe = model.moe
        gpu = cluster.gpu
        self._by_phase = tuple(
            list(_kernels(Phase(gpu, efficiency), model, cluster, lora))
            for efficiency in (gpu.decode, gpu.prefill)
        )

    def seconds(self, batch: StepBatch) -> float:
        """Return the seconds of a step's adapters; 0.0 where no token has one."""
        work = batch.adapters
        if work is None or not work.num_tokens:
            return 0.0
        share = _share_reached(self._moe, *work) if self._moe else 1.0
        kernels = self._by_phase[bool(batch.chunks)]
        return sum([kernel.seconds(*work, share) for kernel in kernels])


def _share_reached(moe: MoeSpec, num_adapters: int, num_tokens: int) -> float:
    """Return the share of a layer's experts that each adapter's tokens reach, equally many each."""
    tokens_each = max(1, round(num_tokens / num_adapters))
    return moe.distinct_experts(tokens_each) / moe.num_experts


def _kernels(phase: Phase, model: ModelSpec, cluster: Cluster, lora: LoraConfig) -> list[_Kernel]:
    return [
        kernel
        for each in adapted(model, lora, cluster.tensor_parallel_size)
        for kernel in _two_of(phase, model, cluster, lora, each)
    ]


def _two_of(
    phase: Phase, model: ModelSpec, cluster: Cluster, lora: LoraConfig, each: Adapted
) -> list[_Kernel]:
    """Return the kernels of one product: shrink and expand."""
    width, here = model.dtype_bytes, each.slices * each.rank_here
    shrunk = each.slices * each.rank
    shrink = _operator(
        f"{each.name}_shrink",
        2 * here * each.inputs,
        here * each.inputs * width,
        each.inputs * width + here * _SHRUNK_BYTES,
        each.inputs,
    )
    expand = _operator(
        f"{each.name}_expand",
        2 * each.rank * each.outputs,
        each.rank * each.outputs * width,
        shrunk * _SHRUNK_BYTES + 2 * each.outputs * width,  # the output is read and written
        each.rank,
    )
    of_experts = each.num_experts > 0
    rows = model.moe.num_experts_per_token if of_experts and model.moe else 1
    sums = _exchange(cluster, lora, each)
    found = []
    for (none, one), between in ((shrink, sums), (expand, None)):
        (term,) = phase.terms(each.layers, [none], [one])
        if of_experts:
            term = term._replace(weights=term.weights * each.num_experts)
        found.append(_Kernel(term, rows, of_experts, shrunk * _SHRUNK_BYTES, each.layers, between))
    return found


def _operator(
    name: str, flops: float, weights: float, traffic: float, depth: float
) -> tuple[Operator, Operator]:
    """Return a kernel's work for no token and for one, of one adapter."""
    none = Operator(name, 0.0, weights, "bf16", "bf16", depth, 0.0)
    return none, none._replace(flops=flops, bytes=weights + traffic, inputs=depth)


def _exchange(cluster: Cluster, lora: LoraConfig, each: Adapted) -> Callable[[float], float] | None:
    """Return what times the exchange of shrunk tokens between ranks that have parts of A or B."""
    if not lora.fully_sharded_loras:
        return None
    link, ranks = cluster.gpu.interconnect, cluster.tensor_parallel_size
    of = all_reduce if each.is_row else all_gather
    return of(link, ranks, cluster.spans.tensor)
