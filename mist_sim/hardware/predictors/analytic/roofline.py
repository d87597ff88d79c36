"""The analytic predictor: an adapted roofline over the operators of a step.

An operator takes max(FLOPs / (MFU x peak), bytes / (MBU x bandwidth)), which is BestServe's
eq. 3 with P = min(I, I*) e_m S_m. Operators of a step add up; tensor parallelism adds an
all-reduce after attention and after the MLP. Products run at the rate of the type they are
computed in, with the MFU of 16 bits. Small steps replay CUDA graphs; what launching the kernels of
the others takes is a floor under the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import CAPTURE_SIZE
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.collectives import all_gather, all_reduce
from mist_sim.hardware.predictors.analytic.attention_time import (
    AttentionTime,
    ExpandedAttentionTime,
    WindowAttentionTime,
    decode_pairs,
)
from mist_sim.hardware.predictors.analytic.cuda_graphs import MOST_CAPTURED, captured, launch_time
from mist_sim.hardware.predictors.analytic.phase_time import Communication, Experts, PhaseTime, Term
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits, sustained_rates
from mist_sim.hardware.specs import Efficiency
from mist_sim.models import operators
from mist_sim.models.operators import Operator
from mist_sim.models.spec import ModelSpec

Array = NDArray[np.float64]

_MOST_AHEAD = 1024
_AHEAD = np.arange(float(_MOST_AHEAD))


@PREDICTORS.register("roofline")
@dataclass
class RooflinePredictor:
    """Step times from a model's operators and a cluster's figures; needs no measurement.

    model, cluster: what is timed; raises ScenarioError when the model cannot be split that way.
    enforce_eager: no CUDA graphs; the host launches every kernel (vLLM's name). No step is faster
        for it.
    max_cudagraph_capture_size: most tokens of a step that is replayed as a graph (vLLM's name).
        None: 512, and in an engine of fewer than 256 sequences 2 max_num_seqs, as in vLLM.
    cudagraph_capture_sizes: the sizes that graphs are captured for instead of vLLM's (its name);
        a step is padded to the next one.
    """

    model: ModelSpec
    cluster: Cluster
    enforce_eager: bool = False
    max_cudagraph_capture_size: int | None = None
    cudagraph_capture_sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        self._check_graphs()
        self.cluster.check_split(self.model)
        gpu = self.cluster.gpu
        full = self.model.num_layers - len(self.model.window_layers)
        self._prefill = self._compile(gpu.prefill, prefill=True)
        self._decode = self._compile(gpu.decode, prefill=False)
        self._prefill_attention = self._compile_attention(gpu.prefill, True, full)
        self._decode_attention = self._compile_attention(gpu.decode, False, full)
        self._windows = self._compile_windows()
        self._graphs = captured(
            MOST_CAPTURED
            if self.max_cudagraph_capture_size is None
            else self.max_cudagraph_capture_size,
            self.cudagraph_capture_sizes,
        )
        self._launch = launch_time(gpu.dispatch, self.model.num_layers, self.enforce_eager)
        self._padded: dict[int, tuple[int, float]] = {}
        self._decodes_alone: dict[int, tuple[float, float]] = {}

    def _check_graphs(self) -> None:
        most = self.max_cudagraph_capture_size
        if most is not None and most < 0:
            raise ValueError(f"max_cudagraph_capture_size must be >= 0, got {most}")
        if most is not None and most > CAPTURE_SIZE:
            raise ValueError(f"max_cudagraph_capture_size must be <= {CAPTURE_SIZE}, got {most}")
        sizes = self.cudagraph_capture_sizes
        if sizes is not None and (not sizes or min(sizes) < 1):
            raise ValueError(f"cudagraph_capture_sizes must be sizes >= 1, got {list(sizes)}")
        given = [
            name
            for name in ("max_cudagraph_capture_size", "cudagraph_capture_sizes")
            if getattr(self, name) is not None
        ]
        if given and self.enforce_eager:
            raise ValueError(f"{given[0]} must be left out with enforce_eager, which has no graphs")
        if len(given) > 1:
            raise ValueError(f"{given[0]} must be left out where {given[1]} lists all sizes")

    @property
    def traits(self) -> PredictorTraits:
        """What its times are; they come from figures with the confidence of the GPU's entry."""
        return PredictorTraits(
            estimate=self.cluster.gpu.confidence,
            kernels_only=True,
            sums_over_links=True,
            times_drafts=True,
        )

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds."""
        queries = batch.num_decodes * (1 + batch.num_drafts)
        seconds, floor = self._fixed(batch, queries)
        for new, context in batch.chunks:
            pairs = new * (context + (new + 1) * 0.5)
            seconds = self._prefill_attention.add(seconds, new, context + new, pairs)
        if queries:
            keys = batch.context_sum + queries
            pairs = decode_pairs(batch, keys) if batch.num_drafts else keys
            seconds = self._decode_attention.add(seconds, queries, keys, pairs)
        if self._windows:
            seconds = self._windows.add(seconds, batch)
        return max(seconds, floor)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,)."""
        ahead = _AHEAD[:num_steps] if num_steps <= _MOST_AHEAD else np.arange(float(num_steps))
        queries = batch.num_decodes * (1 + batch.num_drafts)
        fixed, floor = self._fixed(batch, queries)
        seconds: Array | float = fixed
        for new, context in batch.chunks:
            contexts = ahead * new + context
            pairs = new * (contexts + (new + 1) * 0.5)
            seconds = self._prefill_attention.add_run(seconds, new, contexts + new, pairs)
        if queries:
            keys = growth.contexts(ahead, batch.context_sum + queries)
            pairs = decode_pairs(batch, keys) if batch.num_drafts else keys
            seconds = self._decode_attention.add_run(seconds, queries, keys, pairs)
        if self._windows:
            seconds = self._windows.add_run(seconds, batch, growth, ahead)
        if isinstance(seconds, float):  # an empty batch
            seconds = np.full(num_steps, seconds)
        return np.maximum(seconds, floor, out=seconds) if floor else seconds

    def _fixed(self, batch: StepBatch, queries: int) -> tuple[float, float]:
        """Seconds of a step without attention, and of launching it.

        queries: of its decodes, and of their drafts.
        They depend on token counts only. Prompts reach a higher MFU than decodes, but adding one
        never makes a step shorter.
        """
        alone = self._decodes_alone.get(queries)
        if alone is None:
            alone = self._decodes_alone[queries] = self._without_prompts(queries)
        if not batch.chunks:
            return alone
        num_tokens, floor = self._replayed(batch.num_prefill_tokens + queries)
        together = self._prefill.time(num_tokens, len(batch.chunks) + queries)
        return max(together, alone[0]), floor

    def _without_prompts(self, num_decodes: int) -> tuple[float, float]:
        num_tokens, floor = self._replayed(num_decodes)
        return self._decode.time(num_tokens, num_decodes) if num_decodes else 0.0, floor

    def _replayed(self, num_tokens: int) -> tuple[int, float]:
        """Return the tokens that a step computes, and the seconds that launching it takes.

        An eager step counts the padding of the graph that it would replay: its kernels, which
        nothing fuses, take no less time (how much more, we found no figure for).
        """
        found = self._padded.get(num_tokens)
        if found is None:
            size = self._graphs.padded(num_tokens)
            replayed = size is not None and not self.enforce_eager
            found = (size or num_tokens, 0.0 if replayed else self._launch)
            self._padded[num_tokens] = found
        return found

    def _compile(self, efficiency: Efficiency, prefill: bool) -> PhaseTime:
        """Turn the operators of one phase into linear terms of their token counts."""
        model, t = self.model, self.cluster.tensor_parallel_size
        replicas = self.cluster.num_sharing_replicas
        by_token: list[Term] = []
        parts = (operators.token_operators(model, n, t, prefill, replicas) for n in (0, 1))
        for (layers, none), (_, one) in zip(*parts, strict=True):
            by_token += self._terms(efficiency, layers, none, one)
        none, one = (operators.logits(model, n, t) for n in (0, 1))
        weightless = [max(term.work, term.traffic) for term in by_token if not term.weights]
        return PhaseTime(
            per_token=sum(weightless),
            by_token=tuple(term for term in by_token if term.weights),
            by_sample=tuple(self._terms(efficiency, 1, none, one)),
            experts=self._compile_experts(efficiency),
            communication=self._communication(),
        )

    def _terms(
        self, efficiency: Efficiency, layers: int, none: list[Operator], one: list[Operator]
    ) -> Iterator[Term]:
        """Yield the terms of operators, given for no token and for one."""
        for at_none, at_one in zip(none, one, strict=True):
            flops, bandwidth = sustained_rates(self.cluster.gpu, efficiency, at_one.dtype)
            yield Term(
                float(layers * at_one.flops / flops),
                float(layers * at_none.bytes / bandwidth),
                float(layers * (at_one.bytes - at_none.bytes) / bandwidth),
            )

    def _compile_experts(self, efficiency: Efficiency) -> Experts | None:
        model, cluster = self.model, self.cluster
        moe, ranks = model.moe, cluster.expert_parallel_size
        if moe is None:
            return None
        none, one = (
            operators.routed_experts(
                model,
                moe,
                n,
                1,
                cluster.tensor_parallel_size,
                ranks,
                cluster.expert_load_imbalance,
            )
            for n in (0, 1)
        )
        terms = tuple(self._terms(efficiency, model.num_moe_layers, none, one))
        return Experts(moe, terms, cluster.num_sharing_replicas, ranks)

    def _communication(self) -> Communication | None:
        """All-reduces after attention and MLP; gathering and scattering around shared experts."""
        model, cluster = self.model, self.cluster
        replicas = cluster.num_sharing_replicas
        if cluster.tensor_parallel_size == replicas == 1:
            return None
        link = cluster.gpu.interconnect
        return Communication(
            all_reduce=all_reduce(link, cluster.tensor_parallel_size),
            all_gather=all_gather(link, replicas),
            num_all_reduces=2 * model.num_layers,
            num_gathers=2 * model.num_moe_layers if replicas > 1 else 0,
            bytes_per_token=model.hidden_size * model.dtype_bytes,
            num_replicas=replicas,
        )

    def _compile_windows(self) -> WindowAttentionTime | None:
        model, gpu = self.model, self.cluster.gpu
        if model.sliding_window is None:
            return None
        layers = len(model.window_layers)
        return WindowAttentionTime(
            model.sliding_window,
            self._compile_attention(gpu.prefill, True, layers),
            self._compile_attention(gpu.decode, False, layers),
        )

    def _compile_attention(
        self, efficiency: Efficiency, prefill: bool, layers: int
    ) -> AttentionTime:
        model, t = self.model, self.cluster.tensor_parallel_size
        flops, bandwidth = sustained_rates(self.cluster.gpu, efficiency)

        def attention(queries: float, keys: float, pairs: float) -> Operator:
            return operators.attention(model, queries, keys, pairs, t, prefill)

        slopes = (
            float(layers * attention(1, 0, 0).bytes / bandwidth),
            float(layers * attention(0, 1, 0).bytes / bandwidth),
            float(layers * attention(0, 0, 1).flops / flops),
        )
        expanded = 0.0
        for part in operators.expand_context(model, 1, t) if prefill else ():
            rate = sustained_rates(self.cluster.gpu, efficiency, part.dtype)[0]
            expanded += layers * float(max(part.flops / rate, part.bytes / bandwidth))
        return ExpandedAttentionTime(*slopes, expanded) if expanded else AttentionTime(*slopes)
