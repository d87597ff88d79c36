"""Seconds of attention and states in a model whose layers differ, in the roofline.

Some layers attend to all keys, some to a window, a chunk or the keys that an indexer chose, and
some keep a state. Steps are timed as arrays, a single step as an array of one, so both give the
same bits. For layers with a limit, decodes are taken to have equal contexts, unless the engine
counts the tokens in its windows (`StepBatch.window_sum`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices.kernels import figures_of
from mist_sim.hardware.devices.specs import GpuSpec
from mist_sim.hardware.predictors.analytic.attention_time import (
    DecodeAttention,
    PromptAttention,
    decode_pairs,
)
from mist_sim.hardware.predictors.analytic.compile import Phase, decode_times, prompt_times
from mist_sim.hardware.predictors.analytic.reaches import Reach
from mist_sim.hardware.predictors.analytic.state_time import StateTime, state_times
from mist_sim.hardware.predictors.explained import Bound, OperatorTime
from mist_sim.models import operators
from mist_sim.models.layers import mixers_of
from mist_sim.models.operators import Attends, Operator
from mist_sim.models.spec import ModelSpec

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
    """Return the kind of kernels of attention in a phase."""
    return f"{phase}_attention" if kind == "attention" else f"{kind}_{phase}_attention"
