"""The analytic predictor: an adapted roofline over the operators of a step.

An operator takes the time of its kind of kernel (`mist_sim.hardware.devices.kernels`): a minimum
time plus the root of the sum of squares of compute and memory, where BestServe's eq. 3 takes the
longer of the two. Operators of a step add up; tensor parallelism adds an all-reduce after attention
and after the MLP. Small steps replay CUDA graphs; other steps take at least the time of launching
their kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import CAPTURE_SIZE
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.predictors.analytic.attention_time import (
    WindowAttentionTime,
    decode_pairs,
    longest_decode,
    longest_decodes,
    longest_prompt,
)
from mist_sim.hardware.predictors.analytic.compile import (
    decode_attention,
    phase_time,
    prompt_attention,
    window_attention,
)
from mist_sim.hardware.predictors.analytic.cuda_graphs import MOST_CAPTURED, captured, launch_time
from mist_sim.hardware.predictors.analytic.differing import DifferingTime, differing_times
from mist_sim.hardware.predictors.analytic.shared_reads import shared_reads
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.explained import OperatorTime
from mist_sim.models.spec import ModelSpec

Array = NDArray[np.float64]
Chunks = tuple[tuple[int, int], ...]

_MOST_AHEAD = 1024
_AHEAD = np.arange(float(_MOST_AHEAD))


@PREDICTORS.register("roofline")
@dataclass
class RooflinePredictor:
    """Step times from a model's operators and a cluster's figures; needs no measurement.

    model, cluster: what is timed; raises ScenarioError if the model cannot be split that way.
    enforce_eager: no CUDA graphs; the host launches every kernel (vLLM's name). It never makes a
        step faster.
    max_cudagraph_capture_size: most tokens of a step that is replayed as a graph (vLLM's name).
        None: the smaller of 512 and 2 max_num_seqs, as in vLLM.
    cudagraph_capture_sizes: the sizes that graphs are captured for instead of vLLM's (its name); a
        step is padded to the next one.
    """

    always_positive: ClassVar[bool] = True  # times are sums of positive ones

    model: ModelSpec
    cluster: Cluster
    enforce_eager: bool = False
    max_cudagraph_capture_size: int | None = None
    cudagraph_capture_sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        self._check_graphs()
        self.cluster.check_split(self.model)
        gpu = self.cluster.gpu
        model, cluster = self.model, self.cluster
        full = 0 if model.layers else model.num_layers - len(model.window_layers)
        self._prefill = phase_time(model, cluster, prefill=True)
        self._decode = phase_time(model, cluster, prefill=False)
        self._prompts = prompt_attention(model, cluster, full)
        self._decodes = decode_attention(model, cluster, full)
        self._beside_prompts = self._decodes.beside()
        self._reads_again = shared_reads(model, cluster, full, self._decodes)
        self._windows: DifferingTime | WindowAttentionTime | None
        if model.layers:
            self._windows = differing_times(model, cluster)
        else:
            self._windows = window_attention(model, cluster)
        in_windows = isinstance(self._windows, WindowAttentionTime) and self._windows.decode
        own = self._decodes.per_own_key or (in_windows and in_windows.per_own_key)
        self._needs_longest = bool(own)
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
    def captured_sizes(self) -> tuple[int, ...]:
        """Tokens of the CUDA graphs that an engine captures with these options."""
        return () if self.enforce_eager else self._graphs.sizes

    @property
    def traits(self) -> PredictorTraits:
        """Traits of its times, which come from figures with the confidence of the GPU's entry."""
        return PredictorTraits(
            estimate=self.cluster.gpu.confidence,
            compared_as="" if self.enforce_eager else "roofline",
            kernels_only=True,
            sums_over_links=True,
            needs_longest_context=self._needs_longest,
            times_drafts=True,
            reads_again=self._reads_again,
        )

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds."""
        queries = batch.num_decodes * (1 + batch.num_drafts)
        seconds, floor = self._fixed(batch.chunks, queries, batch.replicas)
        decodes = self._decodes
        if batch.chunks:
            seconds, decodes = self._prompts.of_step(seconds, batch.chunks), self._beside_prompts
        if queries:
            keys = batch.context_sum + queries
            pairs = decode_pairs(batch, keys) if batch.num_drafts else keys
            longest = longest_decode(batch) if decodes.per_own_key else 0.0
            seconds = decodes.add(seconds, batch, keys, pairs, batch.num_read_again, longest)
        if self._windows:
            seconds = self._windows.add(seconds, batch)
        return seconds if seconds > floor else floor  # max() would be a call  # noqa: FURB136

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,)."""
        queries = batch.num_decodes * (1 + batch.num_drafts)
        fixed, floor = self._fixed(batch.chunks, queries, batch.replicas)
        seconds: Array | float = fixed
        decodes = self._decodes
        if batch.chunks:
            ahead = _ahead(num_steps)
            prompts, decodes = self._prompts, self._beside_prompts
            seconds = prompts.begin(seconds, longest_prompt(batch, ahead))
            for new, context in batch.chunks:
                contexts = ahead * new + context
                pairs = new * (contexts + (new + 1) * 0.5)
                seconds = prompts.add(seconds, new, contexts + new, pairs)
        if queries:
            steps, again, longest = range(num_steps), batch.num_read_again, None
            keys = growth.contexts(steps, batch.context_sum + queries)
            pairs = decode_pairs(batch, keys) if batch.num_drafts else keys
            if decodes.per_own_key:
                longest = longest_decodes(batch, growth, steps)
            seconds = decodes.add_run(seconds, batch, keys, pairs, again, longest)
        if self._windows:
            seconds = self._windows.add_run(seconds, batch, growth, _ahead(num_steps))
        if isinstance(seconds, float):  # an empty batch
            seconds = np.full(num_steps, seconds)
        return np.maximum(seconds, floor, out=seconds) if floor else seconds

    def decode_line(self, num_decodes: int) -> DecodeLine | None:
        """Return the line of times of steps with so many decodes.

        None with windows, or if compute or the longest context counts.
        """
        cls, decodes = type(self), self._decodes
        is_own = cls.step_time is RooflinePredictor.step_time and cls.run is RooflinePredictor.run
        if not is_own or self._windows or self._needs_longest:
            return None
        if decodes.per_key < decodes.per_pair:
            return None
        seconds, floor = self._fixed((), num_decodes)
        fixed = num_decodes * decodes.per_query + (seconds + decodes.fixed)
        return DecodeLine(decodes.per_key, fixed, floor)

    def parts(self, batch: StepBatch) -> dict[str, float]:
        """Return the seconds of a step of prompts alone or decodes alone, by kind of kernel.

        Keys: products, experts, small, collectives, attention.
        """
        queries = batch.num_decodes * (1 + batch.num_drafts)
        num_tokens, _ = self._replayed(batch.num_prefill_tokens + queries)
        phase = self._prefill if batch.chunks else self._decode
        parts = phase.parts(num_tokens, len(batch.chunks) + queries)
        return parts | {"attention": self.step_time(batch) - sum(parts.values())}

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step with at least one token (see `explained`)."""
        from mist_sim.hardware.predictors.analytic.operator_times import Attention, outside

        queries, chunks, cluster = batch.num_decode_queries, batch.chunks, self.cluster
        num_tokens, floor = self._replayed(batch.num_prefill_tokens + queries)
        phase = self._prefill if chunks else self._decode
        sizes = num_tokens, len(chunks) + queries, self._shared(batch.replicas)
        found = outside(self.model, cluster, phase, sizes, prefill=bool(chunks))
        more = self._fixed(chunks, queries, batch.replicas)[0] - phase.time(*sizes)
        if more > 0:
            found.append(OperatorTime("decodes_without_prompts", more, "memory"))
        if isinstance(self._windows, DifferingTime):
            found += self._windows.explained(batch)
            return [*found, *_unhidden(found, floor)]
        full = Attention(self.model, cluster, self.model.num_layers - len(self.model.window_layers))
        if chunks:
            found.append(full.of_prompts(self._prompts, chunks))
        if queries:
            decodes = self._beside_prompts if chunks else self._decodes
            found.append(full.of_decodes(decodes, batch, batch.context_sum + queries))
        if (windows := self._windows) is not None:
            few = Attention(self.model, cluster, len(self.model.window_layers), windows.window)
            if chunks:
                found.append(few.of_prompts(windows.prefill, chunks))
            if queries:
                decodes = windows.decode_beside if chunks else windows.decode
                found.append(few.of_decodes(decodes, batch, windows.seen(batch) + queries))
        return [*found, *_unhidden(found, floor)]

    def _fixed(
        self, chunks: Chunks, queries: int, replicas: tuple[int, ...] | None = None
    ) -> tuple[float, float]:
        """Seconds of a step without attention, including its launch.

        chunks: of its prompts. queries: of its decodes, and of their drafts. replicas: as in
            `StepBatch`.

        They depend on token counts only. Prompts reach a higher MFU than decodes, but adding one
        never makes a step shorter.
        """
        if replicas is not None:
            return self._among(chunks, queries, replicas)
        alone = self._decodes_alone.get(queries)
        if alone is None:
            alone = self._decodes_alone[queries] = self._without_prompts(queries)
        if not chunks:
            return alone
        num_new = chunks[0][0] if len(chunks) == 1 else sum([new for new, _ in chunks])
        num_tokens, floor = self._replayed(num_new + queries)
        together = self._prefill.time(num_tokens, len(chunks) + queries)
        return (together if together > alone[0] else alone[0]), floor  # noqa: FURB136

    def _among(
        self, chunks: Chunks, queries: int, replicas: tuple[int, ...]
    ) -> tuple[float, float]:
        """Return the same among replicas whose tokens are known."""
        num_new, shared = sum([new for new, _ in chunks]), self._shared(replicas)
        num_tokens, floor = self._replayed(num_new + queries)
        num_decodes, _ = self._replayed(queries)
        seconds = 0.0
        if queries:
            others = shared - num_tokens if shared else 0
            seconds = self._decode.time(num_decodes, queries, others + num_decodes)
        if chunks:
            seconds = max(seconds, self._prefill.time(num_tokens, len(chunks) + queries, shared))
        return seconds, floor

    def _shared(self, replicas: tuple[int, ...] | None) -> int | None:
        """Return the tokens that replicas compute together, each with its padding."""
        return None if replicas is None else sum([self._replayed(num)[0] for num in replicas])

    def _without_prompts(self, num_decodes: int) -> tuple[float, float]:
        num_tokens, floor = self._replayed(num_decodes)
        return self._decode.time(num_tokens, num_decodes) if num_decodes else 0.0, floor

    def _replayed(self, num_tokens: int) -> tuple[int, float]:
        """Return the tokens that a step computes, and the seconds of launching it.

        An eager step counts the padding of the graph that it would replay, since its kernels, which
        are not fused, take no less time (we found no figure for how much more).
        """
        found = self._padded.get(num_tokens)
        if found is None:
            size = self._graphs.padded(num_tokens)
            replayed = size is not None and not self.enforce_eager
            found = (size or num_tokens, 0.0 if replayed else self._launch)
            self._padded[num_tokens] = found
        return found


def _unhidden(found: list[OperatorTime], floor: float) -> list[OperatorTime]:
    """Return the seconds of launching kernels beyond the kernels' own time."""
    unhidden = floor - sum([each.seconds for each in found])
    return [OperatorTime("kernel_launches", unhidden, "host")] if unhidden > 0 else []


def _ahead(num_steps: int) -> Array:
    """Return 0, 1, ... for so many steps."""
    return _AHEAD[:num_steps] if num_steps <= _MOST_AHEAD else np.arange(float(num_steps))
