"""Which layouts to prefill and decode in, by Seesaw's appendix A."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from mist_sim.checks import Fraction, Positive, check_fields
from mist_sim.core import result_warnings as kinds
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError
from mist_sim.hardware.devices import Interconnect, bus_rate, default_host
from mist_sim.hardware.resharding import (
    Device,
    Layout,
    check_model,
    decode_layer,
    kv_bytes,
    kv_memory,
    layouts_of,
    most_requests,
    prefill_layer,
    time_per_request,
    weight_bytes,
)
from mist_sim.models.spec import ModelSpec
from mist_sim.report.presenters import RESHARDING
from mist_sim.studies.tabled import Tabled

__all__ = ["Choices", "Lengths", "PairOptions", "PairTimes", "rank_pairs"]


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


_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """The pairs to compare.

    data_parallel_sizes: numbers of copies; None: all that the devices allow. Both layouts of a pair
        have the same (Seesaw 4.1).
    max_num_seqs: requests that each copy runs at once. host_memory: bytes of the KV buffer for each
        device, 80 GiB in the paper. piggyback: share of the weights' time of decode steps that
        chunked prefill hides, in [0, 1]; of layouts that stay: nothing is mixed where stages are
        apart.
    Raises ScenarioError for figures out of range.
    """

    data_parallel_sizes: tuple[Positive[int], ...] | None = None
    max_num_seqs: Positive[int] = 256
    host_memory: Positive[float] = 80 * _GIB
    piggyback: Fraction = 0.0

    def __post_init__(self) -> None:
        check_fields(self, ScenarioError)


@dataclass(frozen=True, slots=True)
class PairModel:
    """Times pairs of layouts of a model on equal devices."""

    model: ModelSpec
    device: Device
    lengths: Lengths
    options: PairOptions

    def batch(self, layout: Layout, num_tokens: float) -> float:
        """Return the requests of so many tokens in a batch of all replicas: b_max, or all seats."""
        most = most_requests(self.model, self.device, layout, num_tokens)
        return min(most, float(self.options.max_num_seqs * layout.data))

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
        decode = self.decode(after, self.options.piggyback if static else 0.0)
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
        cycle = self.options.host_memory * layout.num_devices / entries
        return replace(
            found,
            reload=reload / cycle,
            swap=max(0.0, copied - found.prefill) + max(0.0, copied - found.decode),
            cycle=cycle,
        )


_CLOSED_FORM = (
    "By equation 1 of Seesaw's appendix A: uniform lengths, full batches, no queues; memory holds "
    "weights and KV entries, where simulated engines have activations, too (max_model_len)."
)
_NO_PIGGYBACK = "Layouts that stay gain nothing from chunked prefill here (--piggyback)."


@dataclass(frozen=True, repr=False)
class Choices(Tabled):
    """Pairs of layouts, those with most throughput first, and layouts that do not fit.

    pairs: a pair of equal layouts stays in one. left_out: why layouts are impossible.
    """

    presenter = RESHARDING
    stem = "resharding"

    pairs: tuple[PairTimes, ...]
    left_out: tuple[tuple[Layout, str], ...]
    model: ModelSpec
    device: Device
    num_devices: int
    lengths: Lengths
    options: PairOptions
    title: str = ""

    @property
    def best(self) -> PairTimes:
        """The pair with most throughput; ties go to one that stays in its layout."""
        return self.pairs[0]

    @property
    def best_static(self) -> PairTimes:
        """The layout with the highest throughput among those that do not reshard."""
        return next(pair for pair in self.pairs if pair.is_static)

    @property
    def best_resharding(self) -> PairTimes | None:
        """The pair with most throughput of those that change; None if only one layout fits."""
        return next((pair for pair in self.pairs if not pair.is_static), None)

    @property
    def speedup(self) -> float:
        """Throughput of the best pair that changes over that of the best that stays."""
        changing = self.best_resharding or self.best_static
        return self.best_static.total / changing.total

    @property
    def cells(self) -> Iterator[dict[str, Any]]:
        """A row a pair, the best first; times in seconds a request."""
        return map(self._row, self.pairs)

    def _row(self, pair: PairTimes) -> dict[str, Any]:
        return {
            "prefill": pair.prefill_layout.label,
            "decode": pair.decode_layout.label,
            "is_static": pair.is_static,
            "requests_per_s": 1 / pair.total,
            "over_best_static": self.best_static.total / pair.total,
            "prefill_time": pair.prefill,
            "decode_time": pair.decode,
            "reload_time": pair.reload,
            "swap_time": pair.swap,
            "prefill_batch": pair.prefill_batch,
            "decode_batch": pair.decode_batch,
            "requests_per_cycle": None if pair.is_static else pair.cycle,
        }

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """How the times are found, and what layouts that stay are not given."""
        found = [ResultWarning(kinds.CLOSED_FORM, _CLOSED_FORM)]
        if self.device.link is not None:
            found.append(self._sums_over(self.device.link))
        if not self.options.piggyback:
            found.append(ResultWarning(kinds.CLOSED_FORM, _NO_PIGGYBACK))
        return tuple(found)

    def _sums_over(self, link: Interconnect) -> ResultWarning:
        """Return the host through which devices sum, with its rate."""
        host, ranks = link.host or default_host(link), max(self.num_devices, 2)
        rate = f"all-reduces of {ranks} GPUs reach {bus_rate(link, ranks) / 1e9:.2g} GB/s on it"
        if link.host:
            return ResultWarning(kinds.CLOSED_FORM, f"Host: {host.name}; {rate}.")
        with_ = f" (rates of {host.measured_with})" if host.measured_with else ""
        return ResultWarning(
            kinds.ASSUMED_HOST,
            f"Host of the GPUs assumed, as in simulated steps: {host.name}{with_}; {rate}. Say "
            "yours with --host.",
        )

    @property
    def data(self) -> dict[str, Any]:
        """Everything but the warnings as plain data; times in seconds a request."""
        changing = self.best_resharding
        return {
            "model": self.model.name,
            "device": self.device.name,
            "num_devices": self.num_devices,
            "prompt_tokens": self.lengths.prompt,
            "output_tokens": self.lengths.output,
            "max_num_seqs": self.options.max_num_seqs,
            "host_memory_bytes": self.options.host_memory,
            "piggyback": self.options.piggyback,
            "best": self._row(self.best),
            "best_static": self._row(self.best_static),
            "best_resharding": self._row(changing) if changing else None,
            "speedup": self.speedup,
            "pairs": list(self.cells),
            "left_out": {layout.label: why for layout, why in self.left_out},
        }

    def __repr__(self) -> str:
        return f"<Choices: {len(self.pairs)} pairs, best {self.best.label}>"


def rank_pairs(
    model: ModelSpec,
    device: Device,
    num_devices: int,
    lengths: Lengths,
    options: PairOptions | None = None,
) -> Choices:
    """Return all pairs of layouts (c_p, c_d) that fit, by the throughput that appendix A gives.

    Raises ScenarioError for a model without formulas, when no layout fits, for numbers of copies
    that do not divide the devices, and for a buffer that cannot hold one prompt.
    """
    options = options or PairOptions()
    check_model(model)
    if num_devices < 1:
        raise ScenarioError(f"num_devices must be >= 1, got {num_devices}")
    for size in options.data_parallel_sizes or ():
        if num_devices % size:
            raise ScenarioError(
                f"data_parallel_sizes must divide {num_devices} devices, got {size}"
            )
    entries, buffer = kv_bytes(model) * lengths.prompt, options.host_memory * num_devices
    if buffer < entries:
        raise ScenarioError(
            f"host_memory must hold one prompt: {lengths.prompt:g} tokens have "
            f"{entries / _GIB:.2f} GiB of KV entries, got {buffer / _GIB:.2f} GiB on "
            f"{num_devices} devices"
        )
    layouts = list(layouts_of(model, num_devices, options.data_parallel_sizes))
    reasons = [(each, _why_not(model, device, each, lengths)) for each in layouts]
    fitting = [each for each, why in reasons if why is None]
    left_out = tuple((each, why) for each, why in reasons if why is not None)
    if not fitting:
        raise ScenarioError(
            f"no layout of {model.name} fits on {num_devices} x {device.name}: "
            + ("; ".join(why for _, why in left_out) or "its heads and layers divide in no way")
        )
    times = PairModel(model, device, lengths, options).times
    found = [times(one, two) for one, two in product(fitting, fitting) if one.data == two.data]
    pairs = tuple(sorted(found, key=lambda pair: (pair.total, not pair.is_static)))
    title = f"{model.name} on {num_devices} x {device.name}"
    return Choices(pairs, left_out, model, device, num_devices, lengths, options, title)


def _why_not(model: ModelSpec, device: Device, layout: Layout, lengths: Lengths) -> str | None:
    """Return why a layout cannot hold one whole request, with the sizes; None: it can."""
    num_tokens = lengths.prompt + lengths.output
    if most_requests(model, device, layout, num_tokens) >= layout.data:
        return None
    each = weight_bytes(model) / (layout.tensor * layout.pipeline) / _GIB
    has = f"{layout.label} has {each:.1f} GiB of weights on each device"
    usable = f"{device.memory / _GIB:.1f} GiB"
    left = kv_memory(model, device, layout) / layout.num_devices / _GIB
    if left <= 0:
        return f"{has}, which can use {usable} of its memory"
    need = kv_bytes(model) * num_tokens * layout.data / layout.num_devices / _GIB
    return (
        f"{has}, which leaves {left:.2f} GiB; a request of {num_tokens:g} tokens needs "
        f"{need:.2f} GiB of KV entries on each"
    )
