"""A bundle with slots that are always full, simulated step by step: the theory's subject.

A finished request is replaced at once by the next one of an endless queue. Times have the unit of
the coefficients. Source: arXiv 2601.21351v3, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mist_sim.clients.afd import Bundle, BundleConfig, Placement, Resident
from mist_sim.errors import ScenarioError
from mist_sim.search.afd.gaussian_cycle import expected_maximum

Start = Literal["stationary", "fresh"]
Coming = tuple[int, int, int]
"""A request that comes to a slot: tokens in the cache, steps to go, steps in all."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRun:
    """Figures of a bundle until a number of requests were served.

    duration: of the run. num_tokens: those generated in it. num_passes: of all batches.
    throughput: tokens per unit of time and worker, over all tokens.
    throughput_80: the paper's metric: tokens of the first 80 % of the requests that ended, whole,
        over the time until then. Tokens of requests that are under way are not in it.
    halves: `throughput` in the first half of the passes and in the second.
    tpot: time in a slot for each token, mean over the requests that ended.
    attention_idle, ffn_idle: shares of the time in which a worker waits.
    barrier: tokens of the worker that holds the most, over those of the mean worker, mean over the
        passes, tokens (>= 0).
    effective_std: the standard deviation of a slot's tokens at which independent slots would have
        that barrier (nu_eff): what a placement leaves of nu. None with one attention worker.
    """

    duration: float
    num_tokens: int
    num_passes: int
    throughput: float
    throughput_80: float
    halves: tuple[float, float]
    tpot: float
    attention_idle: float
    ffn_idle: float
    barrier: float
    effective_std: float | None


def simulate_bundle(
    config: BundleConfig,
    prefill: ArrayLike,
    decode: ArrayLike,
    rng: np.random.Generator,
    *,
    placement: Placement | None = None,
    start: Start = "stationary",
) -> BundleRun:
    """Serve requests with full slots until there are no more to take a slot.

    prefill, decode: prompt tokens and decode steps (>= 1) of the requests, in their order, shape
        (n,) each.
    placement: of a request among the slots that are freed at one time; None: in their order.
    start: "fresh": the slots begin with the first requests; "stationary": with requests as they are
        met at a random step, drawn from all of these, part of their steps behind them.
    Raises ScenarioError where there are too few requests.
    """
    p, d = np.asarray(prefill, dtype=np.int64), np.asarray(decode, dtype=np.int64)
    least = config.num_slots * (1 if start == "stationary" else 2)
    if len(d) < least:
        raise ScenarioError(
            f"there must be {least} requests or more, for {config.num_slots} slots, got {len(d)}"
        )
    bundle = Bundle(config)
    queue = iter(zip(p.tolist(), d.tolist(), d.tolist(), strict=True))
    first = _stationary(p, d, rng, config.num_slots) if start == "stationary" else queue
    for slots in bundle.batches:
        for worker in np.repeat(range(config.attention_workers), config.slots).tolist():
            slots.join(_resident(next(first), worker, 0.0))
    return _serve(bundle, queue, placement)


def _resident(coming: Coming, worker: int, now: float) -> Resident:
    """Return a request that sits down now; its guest is when, and how many tokens it has in all."""
    num_tokens, num_steps, in_all = coming
    return Resident(worker, num_tokens, num_steps, (now, in_all))


def _stationary(
    p: NDArray[np.int64], d: NDArray[np.int64], rng: np.random.Generator, n: int
) -> Iterator[Coming]:
    """Yield n requests that are met at a random step."""
    steps = np.cumsum(d)
    met = rng.integers(steps[-1], size=n)
    which = np.searchsorted(steps, met, side="right")
    left = steps[which] - met
    tokens = p[which] + d[which] - left
    return iter(zip(tokens.tolist(), left.tolist(), d[which].tolist(), strict=True))


def _serve(bundle: Bundle, queue: Iterator[Coming], placement: Placement | None) -> BundleRun:
    """Run passes until the queue is empty."""
    config = bundle.config
    ends: list[float] = []  # of steps
    served: list[tuple[float, int, float]] = []  # end, tokens, time in the slot for each of them
    is_over, attention, num_passes = False, 0.0, 0
    while not is_over and (batch := bundle.next_batch()) is not None:
        step, step_ends = bundle.run_pass(batch)
        attention += step.attention_end - step.start
        num_passes += 1
        for done, end, leaving in step_ends:
            ends.append(end)
            slots = bundle.batches[done]
            for resident in leaving:
                begun, in_all = resident.guest
                served.append((end, in_all, (end - begun) / resident.num_steps))
            coming = list(islice(queue, len(leaving)))
            is_over = is_over or len(coming) < len(leaving)
            workers = [resident.worker for resident in leaving[: len(coming)]]
            if placement is not None and coming:
                free = config.slots - slots.filled
                workers = placement.place([tokens for tokens, *_ in coming], slots.held, free)
            for request, worker in zip(coming, workers, strict=True):
                slots.join(_resident(request, worker, end))
    slowest = attention / num_passes * bundle.clock.layers
    return _figures(bundle, np.array(ends), np.array(served), slowest)


def _figures(bundle: Bundle, ends: Floats, served: Floats, slowest: float) -> BundleRun:
    """Return the figures of a run. slowest: mean time of attention in a step, all layers."""
    config = bundle.config
    of_each = bundle.attention_work / bundle.num_steps / config.attention_workers
    barrier = max(slowest - of_each, 0.0) / config.coefficients.alpha_a
    workers = config.attention_workers + config.ffn_workers
    per_pass = config.slots_per_batch
    duration = float(ends.max())
    half = len(ends) // 2
    middle = float(ends[:half].max())
    first = served[np.argsort(served[:, 0], kind="stable")][: math.ceil(0.8 * len(served))]
    return BundleRun(
        duration=duration,
        num_tokens=len(ends) * per_pass,
        num_passes=len(ends),
        throughput=len(ends) * per_pass / duration / workers,
        throughput_80=float(first[:, 1].sum() / first[-1, 0]) / workers,
        halves=(
            half * per_pass / middle / workers,
            (len(ends) - half) * per_pass / (duration - middle) / workers,
        ),
        tpot=float(np.mean(served[:, 2])),
        attention_idle=1 - bundle.attention_work / duration / config.attention_workers,
        ffn_idle=1 - bundle.ffn_work / duration / config.ffn_workers,
        barrier=barrier,
        effective_std=(
            barrier / math.sqrt(config.slots) / expected_maximum(config.attention_workers)
            if config.attention_workers > 1
            else None
        ),
    )
