"""The best number of attention workers for an FFN worker: bundles predicted in closed form.

A bundle has x attention workers and y FFN workers; its ratio is r = x / y. Every attention worker
has B slots in a batch, and a few batches are in flight, so that one is in attention while another
one is in the FFN. Times have the unit of the coefficients.
Source: arXiv 2601.21351v3, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mist_sim.bounds import BUNDLE
from mist_sim.errors import ScenarioError
from mist_sim.hardware.afd import AfdCoefficients
from mist_sim.search.afd.gaussian_cycle import expected_cycle
from mist_sim.search.afd.mean_field import (
    Candidate,
    best_candidate,
    candidates,
    mean_field_cycle,
    per_instance,
)
from mist_sim.search.afd.slot_load import SlotLoad, SlotLoadEstimate

MOST_WORKERS = BUNDLE["attention_workers"]
"""Attention workers of an FFN worker, beyond which no ratio is searched."""


@dataclass(frozen=True, slots=True)
class BundleSpec:
    """Input of the choice of a ratio: coefficients, the load of a slot, and slots.

    slots: of one attention worker in one batch (B). batches: in flight (m, >= 2, since attention
        and FFN work at the same time). ffn_weight: as how many attention workers an FFN worker
        counts, such as the GPUs of the one over those of the other (> 0).
    Raises ValueError for numbers below these and beyond the bounds (`mist_sim.bounds.BUNDLE`).
    """

    coefficients: AfdCoefficients
    load: SlotLoad
    slots: int
    batches: int = 2
    ffn_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.ffn_weight < math.inf:
            raise ValueError(f"ffn_weight must be finite and > 0, got {self.ffn_weight}")
        for name, least in (("slots", 1), ("batches", 2)):
            if not least <= (value := getattr(self, name)) <= BUNDLE[name]:
                raise ValueError(f"{name} must be from {least} to {BUNDLE[name]}, got {value:.6g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Figures of a bundle of x attention and y FFN workers.

    cycle_mean_field, cycle_gaussian: between two batches that end (8, 9), as with many in flight.
    cycle: the same with the batches that are in flight.
    tpot: time between two tokens of a request. ffn_weight: as in `BundleSpec`.
    attention_idle, ffn_idle: shares of the time in which a worker waits. attention, ffn,
    communication: time of a batch in each part, attention with the mean load of its slots.
    """

    attention_workers: int
    ffn_workers: int
    slots: int
    cycle_mean_field: float
    cycle_gaussian: float
    cycle: float
    tpot: float
    attention_idle: float
    ffn_idle: float
    attention: float
    ffn: float
    communication: float
    ffn_weight: float = 1.0

    @property
    def binds(self) -> str:
        """The part that takes longest, which the mean-field cycle is."""
        parts = {name: getattr(self, name) for name in ("attention", "communication", "ffn")}
        return max(parts, key=lambda name: parts[name])

    @property
    def ratio(self) -> float:
        """Attention workers for each FFN worker."""
        return self.attention_workers / self.ffn_workers

    @property
    def throughput_gaussian(self) -> float:
        """Tokens a unit of time for each worker, with many batches in flight (11)."""
        return per_instance(self.slots, self.ratio, self.cycle_gaussian, self.ffn_weight)

    @property
    def throughput(self) -> float:
        """Tokens a unit of time for each worker, with the batches that are in flight."""
        return per_instance(self.slots, self.ratio, self.cycle, self.ffn_weight)


def predict(spec: BundleSpec, attention_workers: int, ffn_workers: int = 1) -> Prediction:
    """Predict a bundle of so many workers (>= 1 of each)."""
    for name, value in (("attention_workers", attention_workers), ("ffn_workers", ffn_workers)):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
    c, slots, ratio = spec.coefficients, spec.slots, attention_workers / ffn_workers
    attention = c.attention_time(slots * spec.load.mean)
    spread = c.alpha_a * slots**0.5 * spec.load.std
    ffn, communication = c.ffn_time(slots * ratio), c.communication_time(slots * ratio)
    others = max(ffn, communication)
    cycle = expected_cycle(
        attention,
        spread,
        others,
        attention_workers,
        rest=ffn + communication,
        batches=spec.batches,
    )
    return Prediction(
        attention_workers=attention_workers,
        ffn_workers=ffn_workers,
        slots=slots,
        cycle_mean_field=mean_field_cycle(c, spec.load.mean, slots, ratio),
        cycle_gaussian=expected_cycle(attention, spread, others, attention_workers),
        cycle=cycle,
        tpot=spec.batches * cycle,
        attention_idle=1 - attention / cycle,
        ffn_idle=1 - ffn / cycle,
        attention=attention,
        ffn=ffn,
        communication=communication,
        ffn_weight=spec.ffn_weight,
    )


@dataclass(frozen=True, slots=True)
class Provisioning:
    """The best ratios, by rule.

    candidates: those of the mean-field rule; mean_field: the best of them.
    mean_field_integer: the best bundle with one FFN worker by that rule; gaussian: by (12);
    in_flight: with the batches in flight.
    """

    candidates: tuple[Candidate, ...]
    mean_field: Candidate
    mean_field_integer: Prediction
    gaussian: Prediction
    in_flight: Prediction


def provision(spec: BundleSpec) -> Provisioning:
    """Return the best ratios. Raises ScenarioError where they are out of bounds."""
    found = candidates(spec.coefficients, spec.load.mean, spec.slots, spec.ffn_weight)
    mean_field = best_candidate(found)
    ratio = mean_field.ratio or 0.0
    if not 0 < ratio <= MOST_WORKERS:
        raise ScenarioError(
            f"the best ratio must be <= {MOST_WORKERS} attention workers for an FFN worker, and "
            f"above 0, got {ratio:.6g}; check the units of the coefficients, and slots"
        )
    return Provisioning(
        found,
        mean_field,
        _best(spec, lambda p: per_instance(p.slots, p.ratio, p.cycle_mean_field, spec.ffn_weight)),
        _best(spec, lambda p: p.throughput_gaussian),
        _best(spec, lambda p: p.throughput),
    )


def provision_interval(spec: BundleSpec, estimate: SlotLoadEstimate) -> tuple[float, float]:
    """Return the best mean-field ratios at the ends of theta's interval; it grows with theta."""

    def ratio(theta: float) -> float:
        found = candidates(spec.coefficients, theta, spec.slots, spec.ffn_weight)
        return best_candidate(found).ratio or 0.0

    return ratio(estimate.theta.low), ratio(estimate.theta.high)


def _best(spec: BundleSpec, throughput: Callable[[Prediction], float]) -> Prediction:
    """Return the bundle with one FFN worker whose throughput is largest.

    A cycle is no shorter than its FFN phase. The search ends where not even that alone would do
    better, since from its own best ratio on (`candidates`, "ffn") it only gets worse.
    """
    c, slots, weight = spec.coefficients, spec.slots, spec.ffn_weight
    peak = (weight * c.beta_f / (c.alpha_f * slots)) ** 0.5
    best = predict(spec, 1)
    for workers in range(2, MOST_WORKERS + 1):
        bound = per_instance(slots, workers, c.ffn_time(slots * workers), weight)
        if workers > peak and bound < throughput(best):
            break
        if throughput(found := predict(spec, workers)) > throughput(best):
            best = found
    return best
