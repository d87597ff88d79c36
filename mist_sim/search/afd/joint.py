"""The best bundle under limits: attention workers, slots and batches in flight together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from mist_sim.errors import ScenarioError
from mist_sim.hardware.afd import AfdCoefficients
from mist_sim.search.afd.provisioning import BundleSpec, Prediction, predict
from mist_sim.search.afd.slot_load import SlotLoad

SPREAD = 4.0
"""Standard deviations above its mean for which a worker's memory must have room: a normal load
is higher at one step of 30,000."""


@dataclass(frozen=True, slots=True)
class BundleChoice:
    """A bundle that keeps the limits.

    batches: in flight. kv_tokens: that an attention worker needs room for, over all batches.
    """

    prediction: Prediction
    batches: int
    kv_tokens: float


def best_bundles(
    coefficients: AfdCoefficients,
    load: SlotLoad,
    *,
    slots: Iterable[int],
    batches: Iterable[int] = (2, 3, 4),
    attention_workers: Iterable[int] = range(1, 65),
    max_tpot: float | None = None,
    max_kv_tokens: float | None = None,
    ffn_weight: float = 1.0,
) -> list[BundleChoice]:
    """Return the bundles with one FFN worker that keep the limits, by falling throughput.

    slots, batches, attention_workers: the values to choose from. max_tpot: longest mean time
    between two tokens, in the unit of the coefficients. max_kv_tokens: that an attention worker has
    memory for. ffn_weight: as in `BundleSpec`.
    Raises ScenarioError with the nearest figure where no bundle keeps the limits.
    """
    workers, flights = list(attention_workers), list(batches)
    found: list[BundleChoice] = []
    least_tokens = least_tpot = math.inf
    for each in slots:
        for num_batches in flights:
            tokens = _kv_tokens(load, each * num_batches)
            least_tokens = min(least_tokens, tokens)
            if max_kv_tokens is not None and tokens > max_kv_tokens:
                continue
            spec = BundleSpec(coefficients, load, each, num_batches, ffn_weight)
            predicted = [predict(spec, number) for number in workers]
            least_tpot = min([least_tpot, *(p.tpot for p in predicted)])
            found += [
                BundleChoice(p, num_batches, tokens)
                for p in predicted
                if max_tpot is None or p.tpot <= max_tpot
            ]
    if found:
        return sorted(found, key=lambda choice: -choice.prediction.throughput)
    if max_kv_tokens is not None and least_tokens > max_kv_tokens:
        raise ScenarioError(
            f"max_kv_tokens must be >= {least_tokens:.0f} for the fewest slots and batches, "
            f"got {max_kv_tokens:g}"
        )
    if max_tpot is not None and math.isfinite(least_tpot):
        raise ScenarioError(
            f"max_tpot must be >= {least_tpot:.4g}, the shortest of all bundles, got {max_tpot:g}"
        )
    raise ScenarioError("slots, batches and attention_workers must have a value each, got none")


def _kv_tokens(load: SlotLoad, num_slots: int) -> float:
    """Return a number of tokens that a worker with so many slots rarely exceeds."""
    return num_slots * load.mean + SPREAD * math.sqrt(num_slots) * load.std
