"""The analytic predictor: an adapted roofline over the operators of a step.

An operator takes the time of its kind of kernel (`mist_sim.hardware.devices`): a minimum
time plus the root of the sum of squares of compute and memory, where BestServe's eq. 3 takes the
longer of the two. Operators of a step add up; tensor parallelism adds an all-reduce after attention
and after the MLP. Small steps replay CUDA graphs; other steps take at least the time of launching
their kernels.

Seconds of attention and states in a model whose layers differ, in the roofline.

Some layers attend to all keys, some to a window, a chunk or the keys that an indexer chose, and
some keep a state. Steps are timed as arrays, a single step as an array of one, so both give the
same bits. For layers with a limit, decodes are taken to have equal contexts, unless the engine
counts the tokens in its windows (`StepBatch.window_sum`).

Keys that several decodes of a step read, and find in the GPU's cache.

Decodes that share a prefix have the same pages of it, and a layer's attention reads these once for
each. The latest pages are still in the chip's cache (L2), so a page comes from memory only if more
than the cache holds was read since its last reader. Attention kernels go through a batch sequence
by sequence (FlashAttention's grids, FlashInfer's plans), and an engine keeps its batch in the order
of arrival, which does not depend on prefixes. So the readers of a page are points at random places
of what is read in all. Of n points on a line of length 1 a gap between neighbours is longer than f
with probability (1 - f)^n, so

    reads from memory = 1 + (n - 1) (1 - f)^n,   f = bytes that the cache holds / bytes read

With very many readers that would fall again; it counts as constant from its largest value on, so
that one more decode never makes a step shorter. The bytes of all keys take at least as long as the
cache's own bandwidth allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import CAPTURE_SIZE
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices import GpuSpec, figures_of
from mist_sim.hardware.predictors.analytic.attention_time import (
    DecodeAttention,
    PromptAttention,
    WindowAttentionTime,
    decode_pairs,
    longest_decode,
    longest_decodes,
    longest_prompt,
)
from mist_sim.hardware.predictors.analytic.compile import (
    Phase,
    decode_attention,
    decode_times,
    phase_time,
    prompt_attention,
    prompt_times,
    window_attention,
)
from mist_sim.hardware.predictors.analytic.cuda_graphs import MOST_CAPTURED, captured, launch_time
from mist_sim.hardware.predictors.analytic.phase_time import Known
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.explained import Bound, OperatorTime
from mist_sim.models import operators
from mist_sim.models.layers import mixers_of
from mist_sim.models.operators import Attends, Number, Operator, StateWork
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Reach:
    """Keys that a query sees.

    most: at most so many, its own included; None: all before it.
    is_chunked: those since the last multiple of `most`, not the last `most`.
    is_counted: `StepBatch.window_sum` tells what decodes see.
    """

    most: int | None = None
    is_chunked: bool = False
    is_counted: bool = False

    def of_prompt(self, new: int, contexts: Array) -> tuple[Array, Array]:
        """Return the keys and the (query, key) pairs of new tokens that follow contexts."""
        all_pairs = new * (contexts + (new + 1) * 0.5)
        most = self.most
        if most is None:
            return contexts + new, all_pairs
        if self.is_chunked:
            pairs = _chunk_sum(contexts + new, most) - _chunk_sum(contexts, most)
            return new + np.mod(contexts, most), pairs
        before = np.maximum(contexts - most, 0.0)
        after = np.maximum(contexts + new - most, 0.0)
        missed = after * (after + 1) * 0.5 - before * (before + 1) * 0.5
        return new + np.minimum(contexts, most - 1), all_pairs - missed

    def of_decodes(self, batch: StepBatch, growth: StepGrowth, ahead: Array) -> Array:
        """Return the keys that decodes see in all, in the steps `ahead` = 0, 1, ..."""
        queries, number, most = batch.num_decode_queries, batch.num_decodes, self.most
        if self.is_counted and batch.window_sum is not None:
            return growth.windows(ahead, batch.window_sum) + queries
        contexts = growth.contexts(ahead, batch.context_sum)
        if most is None:
            return contexts + queries
        if self.is_chunked:  # behind the first chunk, half of one on average
            beyond = number * (most - 1) * 0.5
            return np.where(contexts < number * most, contexts, beyond) + queries
        return np.minimum(contexts, number * (most - 1.0)) + queries


def _chunk_sum(tokens: Array, chunk: int) -> Array:
    """Return the pairs of the first tokens of a context: 1, 2, ..., chunk, 1, 2, ..."""
    rest = np.mod(tokens, chunk)
    whole = (tokens - rest) / chunk
    return np.asarray(whole * (chunk * (chunk + 1) * 0.5) + rest * (rest + 1) * 0.5)


@dataclass(frozen=True, slots=True)
class StateTime:
    """Recurrence of some layers.

    The chunks of a prompt are computed one after the other, while all heads and prompts run side by
    side as far as the GPU has room: the time is the root of the sum of squares of both terms.

    prompt_floor, decode_floor: minimum of a step with prompts, with decodes. serial: per token of
    the longest piece. per_token: per new token. per_prompt: state read and written. per_decode: per
    token that a decode computes.
    """

    of: StateWork
    prompt_floor: float
    decode_floor: float
    serial: float
    per_token: float
    per_prompt: float
    per_decode: float
    figures: tuple[str, str]

    def seconds(self, batch: StepBatch) -> float:
        """Return the seconds of a step; the same in every step of a run."""
        found = 0.0
        if batch.chunks:
            found += self.of_prompts(batch)
        if batch.num_decodes:
            found += self.decode_floor + batch.num_decode_queries * self.per_decode
        return found

    def of_prompts(self, batch: StepBatch) -> float:
        """Return the seconds of the prompts of a step."""
        longest = max([new for new, _ in batch.chunks])
        work = batch.num_prefill_tokens * self.per_token + len(batch.chunks) * self.per_prompt
        waiting = longest * self.serial
        return self.prompt_floor + sqrt(waiting * waiting + work * work)

    def explained(self, batch: StepBatch) -> Iterator[OperatorTime]:
        """Yield the operators of a step with their times, by prompts and decodes."""
        of, layers = self.of, self.of.layers
        if batch.chunks:
            new, total = batch.num_prefill_tokens, self.of_prompts(batch)
            moved = new * of.of_token.bytes + len(batch.chunks) * of.of_prompt.bytes
            work = new * of.of_token.flops * layers, moved * layers
            bound: Bound = "latency" if 2 * new * self.per_token < total else "memory"
            yield _operator("prefill", of, total, bound, work, self.figures[0])
        if batch.num_decodes:
            queries = batch.num_decode_queries
            total = self.decode_floor + queries * self.per_decode
            work = queries * of.of_decode.flops * layers, queries * of.of_decode.bytes * layers
            bound = "latency" if 2 * queries * self.per_decode < total else "memory"
            yield _operator("decode", of, total, bound, work, self.figures[1])


def _operator(
    phase: str,
    of: StateWork,
    seconds: float,
    bound: Bound,
    work: tuple[Number, Number],
    figures: str,
) -> OperatorTime:
    name, (flops, moved) = f"{phase}_{of.kind}_state", work
    return OperatorTime(
        name, seconds, bound, of.layers, float(flops), float(moved), figures, of.of_token.dtype
    )


def state_times(work: StateWork, prefill: Phase, decode: Phase) -> StateTime:
    """Return the times of the recurrence of some layers."""
    names = f"{work.kind}_prefill", f"{work.kind}_decode"
    kernels = prefill.gpu.kernels
    first, flops, bandwidth = prefill.rates(names[0])
    then, rate, width = decode.rates(names[1])
    layers, token, sequence = work.layers, work.of_token, work.of_decode
    return StateTime(
        of=work,
        prompt_floor=layers * first.floor,
        decode_floor=layers * then.floor,
        serial=layers * first.serial / 1e3,
        per_token=layers * float(token.flops / flops + token.bytes / bandwidth),
        per_prompt=layers * float(work.of_prompt.bytes / bandwidth),
        per_decode=layers * float(max(sequence.flops / rate, sequence.bytes / width)),
        figures=(figures_of(kernels, names[0]), figures_of(kernels, names[1])),
    )


Array = NDArray[np.float64]
_NO_GROWTH = StepGrowth()
_ONE = np.zeros(1)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Attention of one kind of layers, or its indexer.

    kernels: of prompts and of decodes.
    """

    of: Attends
    kernels: tuple[str, str]
    reach: Reach
    prompts: PromptAttention
    decodes: DecodeAttention
    beside: DecodeAttention

    def of_prompts(self, batch: StepBatch, ahead: Array) -> Array:
        """Return the seconds of the prompts of steps."""
        seen = self._seen(batch, ahead)
        longest = np.max([keys for keys, _ in seen], axis=0)
        seconds = self.prompts.begin(np.zeros(len(ahead)), longest)
        for (new, _), (keys, pairs) in zip(batch.chunks, seen, strict=True):
            seconds = self.prompts.add(seconds, new, keys, pairs)
        return np.asarray(seconds)

    def _seen(self, batch: StepBatch, ahead: Array) -> list[tuple[Array, Array]]:
        """Return the entries and the pairs of each prompt, in the steps `ahead`."""
        reach, per = self.reach, self.of.per_entry
        found = [reach.of_prompt(new, ahead * new + before) for new, before in batch.chunks]
        return [(keys / per, pairs / per) for keys, pairs in found]

    def of_decodes(self, batch: StepBatch, growth: StepGrowth, ahead: Array) -> Array:
        """Return the seconds of the decodes of steps."""
        keys = self.reach.of_decodes(batch, growth, ahead) / self.of.per_entry
        pairs = decode_pairs(batch, keys) if batch.num_drafts else keys
        times = self.beside if batch.chunks else self.decodes
        return times.add_run(0.0, batch, keys, pairs)

    def explained(self, batch: StepBatch, gpu: GpuSpec) -> Iterator[OperatorTime]:
        """Yield what it takes in a step, by prompts and decodes."""
        if batch.chunks:
            seen = self._seen(batch, _ONE)
            keys, pairs = (sum([float(each[at][0]) for each in seen]) for at in (0, 1))
            work = self.of.work(batch.num_prefill_tokens, keys, pairs, True)
            seconds = float(self.of_prompts(batch, _ONE)[0])
            yield self._explained("prefill", seconds, work, gpu)
        if batch.num_decodes:
            keys = float(self.reach.of_decodes(batch, _NO_GROWTH, _ONE)[0]) / self.of.per_entry
            work = self.of.work(batch.num_decode_queries, keys, keys, False)
            seconds = float(self.of_decodes(batch, _NO_GROWTH, _ONE)[0])
            yield self._explained("decode", seconds, work, gpu)

    def _explained(self, phase: str, seconds: float, work: Operator, gpu: GpuSpec) -> OperatorTime:
        layers = self.of.layers
        compute = float(layers * work.flops) / gpu.flops.get(work.dtype, gpu.flops["bf16"])
        memory = float(layers * work.bytes) / gpu.memory_bandwidth
        bound: Bound = "compute" if compute > memory else "memory"
        kernel = self.kernels[phase == "decode"]
        if max(compute, memory) < seconds / 4:
            bound = "latency"
        return OperatorTime(
            f"{phase}_{self.of.name}",
            seconds,
            bound,
            layers,
            float(layers * work.flops),
            float(layers * work.bytes),
            figures_of(gpu.kernels, kernel),
            work.dtype,
        )


@dataclass(frozen=True, slots=True)
class DifferingTime:
    """Attention and states of all layers of such a model."""

    cluster: Cluster
    kinds: tuple[_Kind, ...]
    states: tuple[StateTime, ...]

    def add(self, seconds: float, batch: StepBatch) -> float:
        """Return `seconds` with the attention and the states of a step on top."""
        return float(self.add_run(seconds, batch, _NO_GROWTH, _ONE)[0])

    def add_run(
        self, seconds: Array | float, batch: StepBatch, growth: StepGrowth, ahead: Array
    ) -> Array:
        """Do the same for the steps `ahead` = 0, 1, ..."""
        found = seconds + np.zeros(len(ahead))
        for kind in self.kinds:
            if batch.chunks:
                found = found + kind.of_prompts(batch, ahead)
            if batch.num_decodes:
                found = found + kind.of_decodes(batch, growth, ahead)
        for state in self.states:
            found = found + state.seconds(batch)
        return found

    def explained(self, batch: StepBatch) -> Iterator[OperatorTime]:
        """Yield the operators of a step with their times, by prompts and decodes."""
        for kind in self.kinds:
            yield from kind.explained(batch, self.cluster.gpu)
        for state in self.states:
            yield from state.explained(batch)


def differing_times(model: ModelSpec, cluster: Cluster) -> DifferingTime:
    """Return the times of attention and states in a model whose layers differ."""
    t, gpu = cluster.tensor_parallel_size, cluster.gpu
    prefill, decode = Phase(gpu, gpu.prefill), Phase(gpu, gpu.decode)
    counted = max((each.window or 0 for each in mixers_of(model.layers)), default=0)
    kinds = []
    for each in operators.attends(model, t):
        dtype = each.work(1, 1, 1, True).dtype
        dtype = dtype if dtype in gpu.flops else "bf16"

        def prompts(q: float, k: float, p: float, of: Attends = each) -> Operator:
            return of.work(q, k, p, True)

        def decodes(q: float, k: float, p: float, of: Attends = each) -> Operator:
            return of.work(q, k, p, False)

        end = "_fp8" if each.kernel == "attention" and model.kv_entry_bytes == 1 else ""
        names = _kernel(each.kernel, "prefill") + end, _kernel(each.kernel, "decode") + end
        of_decodes = decode_times(decode, names[1], each.layers, decodes, dtype=dtype)
        of_prompts = prompt_times(
            prefill,
            names[0],
            each.layers,
            prompts,
            heads=each.heads,
            expanded=each.expanded,
            dtype=dtype,
        )
        if each.shares_kernel:
            of_prompts, of_decodes = replace(of_prompts, fixed=0.0), replace(of_decodes, fixed=0.0)
        reach = Reach(each.reach, each.is_chunked, each.reach == counted and not each.is_chunked)
        kinds.append(_Kind(each, names, reach, of_prompts, of_decodes, of_decodes.beside()))
    found = tuple(state_times(each, prefill, decode) for each in operators.states(model, t))
    return DifferingTime(cluster, tuple(kinds), found)


def _kernel(kind: str, phase: str) -> str:
    return f"{phase}_attention" if kind == "attention" else f"{kind}_{phase}_attention"


@dataclass(frozen=True, slots=True)
class SharedReads:
    """The keys of shared prefixes that come from the cache.

    held: keys of a layer that the cache holds. least: seconds of a key in all layers that neither
        the cache's bandwidth nor arithmetic falls below. per_key: of a key from memory.
    """

    held: float
    least: float
    per_key: float

    def __call__(self, shared: Mapping[int, int], num_decodes: int, num_keys: int) -> int:
        """Return the keys, of `num_keys` that a step's decodes read, that come from the cache.

        shared: tokens that several decodes have, by the number of these.
        """
        if not num_keys:
            return 0
        beyond = 1 - self.held / num_keys  # what it does not hold, as a share
        saved, most = 0.0, 1 - 1 / log(beyond) if beyond > 0 else 1.0
        for readers, tokens in shared.items():
            again = readers if readers < most else most  # noqa: FURB136
            saved += tokens * (readers - 1 - (again - 1) * beyond**again)
        allowed = (1 - self.least / self.per_key) * num_keys
        return int(saved if saved < allowed else allowed) if allowed > 0 else 0  # noqa: FURB136


def shared_reads(
    model: ModelSpec, cluster: Cluster, layers: int, decodes: DecodeAttention
) -> SharedReads | None:
    """Return which keys of decodes come from the cache; None for a GPU whose cache is not known.

    decodes: the attention of so many layers, which see all keys.
    """
    gpu, parts = cluster.gpu, cluster.decode_context_parallel_size
    if gpu.l2_cache is None or gpu.l2_bandwidth is None or not layers:
        return None
    t = cluster.tensor_parallel_size // parts
    num_bytes = operators.attention(model, 0, 1 / parts, 0, t, prefill=False).bytes
    least = max(layers * num_bytes / gpu.l2_bandwidth, decodes.per_pair)
    return SharedReads(float(gpu.l2_cache / num_bytes), float(least), decodes.per_key)


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
        self._replayed = Known(self._replay)
        self._decodes_alone = Known(self._without_prompts)

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
        num_tokens, _ = self._replayed[batch.num_prefill_tokens + queries]
        phase = self._prefill if batch.chunks else self._decode
        parts = phase.parts(num_tokens, len(batch.chunks) + queries)
        return parts | {"attention": self.step_time(batch) - sum(parts.values())}

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step with at least one token (see `explained`)."""
        from mist_sim.hardware.predictors.analytic.operator_times import Attention, outside

        queries, chunks, cluster = batch.num_decode_queries, batch.chunks, self.cluster
        num_tokens, floor = self._replayed[batch.num_prefill_tokens + queries]
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
        alone = self._decodes_alone[queries]
        if not chunks:
            return alone
        num_new = chunks[0][0] if len(chunks) == 1 else sum([new for new, _ in chunks])
        num_tokens, floor = self._replayed[num_new + queries]
        together = self._prefill.time(num_tokens, len(chunks) + queries)
        return (together if together > alone[0] else alone[0]), floor  # noqa: FURB136

    def _among(
        self, chunks: Chunks, queries: int, replicas: tuple[int, ...]
    ) -> tuple[float, float]:
        """Return the same among replicas whose tokens are known."""
        num_new, shared = sum([new for new, _ in chunks]), self._shared(replicas)
        num_tokens, floor = self._replayed[num_new + queries]
        num_decodes, _ = self._replayed[queries]
        seconds = 0.0
        if queries:
            others = shared - num_tokens if shared else 0
            seconds = self._decode.time(num_decodes, queries, others + num_decodes)
        if chunks:
            seconds = max(seconds, self._prefill.time(num_tokens, len(chunks) + queries, shared))
        return seconds, floor

    def _shared(self, replicas: tuple[int, ...] | None) -> int | None:
        """Return the tokens that replicas compute together, each with its padding."""
        return None if replicas is None else sum([self._replayed[num][0] for num in replicas])

    def _without_prompts(self, num_decodes: int) -> tuple[float, float]:
        num_tokens, floor = self._replayed[num_decodes]
        return self._decode.time(num_tokens, num_decodes) if num_decodes else 0.0, floor

    def _replay(self, num_tokens: int) -> tuple[int, float]:
        """Return the tokens that a step computes, and the seconds of launching it.

        An eager step counts the padding of the graph that it would replay, since its kernels, which
        are not fused, take no less time (we found no figure for how much more).
        """
        size = self._graphs.padded(num_tokens)
        replayed = size is not None and not self.enforce_eager
        return size or num_tokens, 0.0 if replayed else self._launch


def _unhidden(found: list[OperatorTime], floor: float) -> list[OperatorTime]:
    """Return the seconds of launching kernels beyond the kernels' own time."""
    unhidden = floor - sum([each.seconds for each in found])
    return [OperatorTime("kernel_launches", unhidden, "host")] if unhidden > 0 else []


def _ahead(num_steps: int) -> Array:
    return _AHEAD[:num_steps] if num_steps <= _MOST_AHEAD else np.arange(float(num_steps))
