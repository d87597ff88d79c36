"""The seam between an engine and what times its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.specs import Efficiency, GpuSpec
from mist_sim.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PREDICTORS = Registry("predictors")


@runtime_checkable
class Predictor(Protocol):
    """Times engine steps.

    `run` answers for many steps at once and must equal `step_time` of each grown batch to the
    bit: the engine uses whichever is cheaper, and results must not depend on the choice.

    A predictor may have more, which engines look for:
    estimate: where its figures come from, such as "measured" (see the docs on confidence).
    sums_over_links: whether it times all-reduces by the links of the GPU's entry.
    kernels_only: whether an engine's own time comes on top (see `EngineOverhead`).
    beyond_kernels: that time where nobody says it, (seconds a step, seconds for each sequence), as
        fitted around its kernels; without it, or with None, as fitted around the roofline's.
    needs_longest_context: whether it reads `StepBatch.longest_context`.
    steps_inside(batch, growth): how many steps, from this one on, lie where it has measurements.
    step_time_on_the_spot(batch): for async scheduling, the seconds of a step that was not planned
        ahead, where that makes a difference.
    times_drafts: whether it looks at `StepBatch.num_drafts`; others cannot time speculation.
    """

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds (> 0)."""

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the durations in seconds, shape (num_steps,), of consecutive steps.

        The caller owns the array and may overwrite it.
        """


def sustained_rates(
    gpu: GpuSpec, efficiency: Efficiency, dtype: str = "bf16"
) -> tuple[float, float]:
    """Return what a GPU sustains in kernels of a type: (FLOP/s, bytes/s of memory).

    A type that the GPU has no rate for runs at the 16-bit one: kernels widen before they
    multiply (Marlin for FP8 weights on Ampere, in vLLM).
    """
    flops = gpu.flops.get(dtype, gpu.flops["bf16"])
    return efficiency.mfu * flops, efficiency.mbu * gpu.memory_bandwidth
