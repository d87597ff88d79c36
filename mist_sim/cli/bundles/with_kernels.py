"""The best bundle of `mist afd` if coefficients are those of the GPUs' kernels."""

from __future__ import annotations

from mist_sim.cli.bundles.input import Limits, chosen
from mist_sim.errors import ScenarioError
from mist_sim.hardware.afd import AfdCoefficients
from mist_sim.search import SlotLoad, provision


def best_with_kernels(
    coefficients: AfdCoefficients,
    load: SlotLoad,
    slots: list[int],
    batches: list[int],
    limits: Limits,
    ffn_weight: float,
) -> str:
    """Return a sentence with the best bundle. coefficients: in seconds. Others: as in `chosen`."""
    try:
        spec, choices = chosen(coefficients, load, slots, batches, limits, ffn_weight)
    except ScenarioError:
        return "With its kernels, no bundle keeps the limits."
    best = choices[0].prediction if choices else provision(spec).in_flight
    return (
        f"With its kernels, the best bundle is {best.attention_workers}:{best.ffn_workers} with "
        f"{best.slots} slots: {best.throughput:,.0f} tokens/s per "
        f"{'worker' if ffn_weight == 1 else 'GPU'}, TPOT {1e3 * best.tpot:.4g} ms."
    )
