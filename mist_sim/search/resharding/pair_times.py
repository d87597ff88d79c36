"""Seconds of a request whose prompt runs in one layout and whose answer in another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mist_sim.errors import ScenarioError
from mist_sim.hardware.resharding import (
    Device,
    Layout,
    decode_layer,
    most_requests,
    prefill_layer,
    time_per_request,
)
from mist_sim.hardware.resharding.throughput import kv_bytes, weight_bytes
from mist_sim.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of a request. prompt, output: >= 1, the first token of an answer included."""

    prompt: float
    output: float

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            if not 1 <= getattr(self, name) < math.inf:
                raise ScenarioError(f"{name} tokens must be >= 1, got {getattr(self, name):g}")

    @property
    def decode_context(self) -> float:
        """Tokens of a request halfway through its answer: s of table 2 while it decodes."""
        return self.prompt + self.output / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTimes:
    """Times of one request in a steady stream, for a pair of layouts.

    prefill_layout, decode_layout: c_p and c_d. prefill_batch, decode_batch: requests at a time.
    prefill, decode: seconds a request by eq. 1 (decode: of all tokens but the first).
    reload: seconds a request of the two transitions of a cycle. swap: seconds a request that moving
        KV entries out and in takes longer than the computation beside it. Both are 0 where the
        layouts are equal, which need neither.
    cycle: requests of a cycle, as many as the buffer holds; infinite where the layouts are equal.
    """

    prefill_layout: Layout
    decode_layout: Layout
    prefill_batch: float
    decode_batch: float
    prefill: float
    decode: float
    reload: float = 0.0
    swap: float = 0.0
    cycle: float = math.inf

    @property
    def total(self) -> float:
        """Seconds a request: the inverse of throughput."""
        return self.prefill + self.decode + self.reload + self.swap

    @property
    def is_static(self) -> bool:
        """Whether both layouts are equal."""
        return self.prefill_layout == self.decode_layout

    @property
    def label(self) -> str:
        """As the paper labels bars: "PP4 -> TP4", or the layout that stays."""
        if self.is_static:
            return self.decode_layout.label
        return f"{self.prefill_layout.label} -> {self.decode_layout.label}"


@dataclass(frozen=True, slots=True)
class PairModel:
    """Times pairs of layouts of a model on equal devices.

    max_num_seqs: requests that an engine runs at once, of each copy (vLLM's name).
    host_memory: bytes of the KV buffer for each device.
    piggyback: share of the weights' time of decode steps that chunked prefill hides, in [0, 1];
        of layouts that stay: nothing is mixed where stages are apart.
    """

    model: ModelSpec
    device: Device
    lengths: Lengths
    max_num_seqs: int
    host_memory: float
    piggyback: float = 0.0

    def batch(self, layout: Layout, num_tokens: float) -> float:
        """Return the requests of so many tokens in a batch of all replicas: b_max, or all seats."""
        most = most_requests(self.model, self.device, layout, num_tokens)
        return min(most, float(self.max_num_seqs * layout.data))

    def prefill(self, layout: Layout) -> float:
        """Return the seconds of a prompt by eq. 1."""
        prompt = self.lengths.prompt
        batch = self.batch(layout, prompt)
        times = prefill_layer(self.model, self.device, batch, prompt, layout.tensor)
        return time_per_request(times, self.model.num_layers, batch, layout)

    def decode(self, layout: Layout, hidden: float = 0.0) -> float:
        """Return the seconds of all tokens but the first, by eq. 1.

        hidden: share of the weights' time that other work hides.
        """
        context = self.lengths.decode_context
        batch = self.batch(layout, context)
        times = decode_layer(self.model, self.device, batch, context, layout.tensor)
        times = times._replace(weights=(1 - hidden) * times.weights)
        step = time_per_request(times, self.model.num_layers, batch, layout)
        return (self.lengths.output - 1) * step

    def times(self, before: Layout, after: Layout) -> PairTimes:
        """Return the times of a request with its prompt and its answer in these layouts."""
        static = before == after
        prefill = self.prefill(before)
        decode = self.decode(after, self.piggyback if static else 0.0)
        found = PairTimes(
            prefill_layout=before,
            decode_layout=after,
            prefill_batch=self.batch(before, self.lengths.prompt),
            decode_batch=self.batch(after, self.lengths.decode_context),
            prefill=prefill,
            decode=decode,
        )
        return found if static else self._moving(found)

    def _moving(self, found: PairTimes) -> PairTimes:
        """Add the times of weights and entries on the links to the host, all working at once."""
        device, layout = self.device, found.decode_layout
        shard = weight_bytes(self.model) / (layout.tensor * layout.pipeline)
        reload = 2 * shard / device.host_bandwidth
        entries = kv_bytes(self.model) * self.lengths.prompt
        copied = entries / (layout.num_devices * device.host_bandwidth)
        cycle = self.host_memory * layout.num_devices / entries
        return PairTimes(
            prefill_layout=found.prefill_layout,
            decode_layout=layout,
            prefill_batch=found.prefill_batch,
            decode_batch=found.decode_batch,
            prefill=found.prefill,
            decode=found.decode,
            reload=reload / cycle,
            swap=max(0.0, copied - found.prefill) + max(0.0, copied - found.decode),
            cycle=cycle,
        )
