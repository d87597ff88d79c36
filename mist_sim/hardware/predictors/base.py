"""The seam between an engine and the source of its step times."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mist_sim.core.batch import ReadsAgain, StepBatch, StepGrowth
from mist_sim.hardware.devices import Efficiency, GpuSpec
from mist_sim.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HERE = "mist_sim.hardware.predictors"
PREDICTORS = Registry(
    "predictors",
    later={
        "program": f"{_HERE}.external:ProgramPredictor",
        "seesaw": "mist_sim.hardware.resharding:SeesawPredictor",
        "regression": f"{_HERE}.measured.regression:RegressionPredictor",
        "table": f"{_HERE}.measured.table:TablePredictor",
    },
    plugins={"execution": "torch", "genz": "genz", "silicon": "silicon"},
)


@runtime_checkable
class Predictor(Protocol):
    """Times engine steps.

    `run` times many steps at once and must equal `step_time` of each step to the bit: the engine
    uses whichever is cheaper, and results must not depend on the choice.

    A predictor may have an attribute `traits`, a `PredictorTraits` that describes its times;
    without it the default traits hold (see `traits_of`).
    """

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds (> 0)."""

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the durations in seconds, shape (num_steps,), of consecutive steps.

        The caller owns the array and may overwrite it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorTraits:
    """Traits of a predictor's times that engines and scenarios need to know.

    A wrapper passes on the wrapped predictor's traits with `replace`, and changes only those that
    it invalidates.

    estimate: where the figures come from, such as "measured" (see the docs on confidence).
    compared_as: the group of measured runs that gives the expected errors, "roofline" or "measured
        kernels"; empty: no comparison exists (see docs/background/error_bars.md).
    kernels_only: whether the engine's own time comes on top (see `EngineOverhead`).
    beyond_kernels: the default of that time, fitted around these kernels: (seconds a step, seconds
        for each sequence); None: the default fitted around the roofline.
    beyond_prompts: seconds that a step with prompts takes beyond these times: the default of
        `EngineOverhead.prefill_step`.
    sums_over_links: whether all-reduces are timed by the links of the GPU's entry.
    needs_longest_context: whether `StepBatch.longest_context` is read; otherwise it is None.
    times_drafts: whether `StepBatch.num_drafts` is read; without it speculation cannot be timed.
    steps_inside: called with (batch, growth), returns how many steps, from this one on, lie inside
        the measured range. None: there is no such range, and no step counts as extrapolated.
    assumed: assumptions about the times, which results list.
    needs_scale: why the times hold for these GPUs only with a `step_time_scale`, which says how
        they change; empty: they hold as they are.
    reads_again: called with a mapping (number of decodes that share a prefix: its tokens), the
        number of all decodes and that of their keys; returns the keys that come from the GPU's
        cache. Engines tell it as `StepBatch.num_read_again`. None: the predictor does not read it.
    tower_attention: called with the heads of a rank, the values of a head, a number of images and
        the patches of each, returns the seconds of a vision tower's attention in one layer; raises
        ScenarioError where there are none. None: the roofline times it.
    step_time_on_the_spot: called with a batch, returns the seconds of a step that async scheduling
        could not plan ahead. None: the same as `step_time`. Raises ValueError for times that are
        not finite and >= 0, and for `beyond_kernels` without `kernels_only`.
    """

    estimate: str = "custom"
    compared_as: str = ""
    kernels_only: bool = False
    beyond_kernels: tuple[float, float] | None = None
    beyond_prompts: float = 0.0
    sums_over_links: bool = False
    needs_longest_context: bool = False
    times_drafts: bool = False
    assumed: tuple[str, ...] = ()
    needs_scale: str = ""
    steps_inside: Callable[[StepBatch, StepGrowth], int] | None = None
    reads_again: ReadsAgain | None = None
    tower_attention: Callable[[int, int, int, int], float] | None = None
    step_time_on_the_spot: Callable[[StepBatch], float] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.beyond_prompts < math.inf:
            raise ValueError(
                f"beyond_prompts must be a finite time >= 0 s, got {self.beyond_prompts}"
            )
        seconds = self.beyond_kernels
        if seconds is None:
            return
        if not self.kernels_only:
            raise ValueError(f"beyond_kernels must be None without kernels_only, got {seconds}")
        if not all(0 <= each < math.inf for each in seconds):
            raise ValueError(f"beyond_kernels must be finite times >= 0 s, got {seconds}")


_DEFAULT = PredictorTraits()


def traits_of(predictor: Predictor) -> PredictorTraits:
    """Return the traits of a predictor; the default ones if it has no attribute `traits`.

    Raises TypeError if `traits` is not a `PredictorTraits`.
    """
    traits = getattr(predictor, "traits", _DEFAULT)
    if not isinstance(traits, PredictorTraits):
        raise TypeError(
            f"traits of {type(predictor).__name__} must be a PredictorTraits, got {traits!r}"
        )
    return traits


def sustained_rates(
    gpu: GpuSpec, efficiency: Efficiency, dtype: str = "bf16"
) -> tuple[float, float]:
    """Return the rates that kernels of a type sustain on a GPU: (FLOP/s, bytes/s of memory).

    The former follows the clock of the cores, which a power cap lowers.

    A type without a rate on this GPU runs at the 16-bit one: kernels widen before they multiply
    (Marlin for FP8 weights on Ampere, in vLLM).
    """
    flops = gpu.flops.get(dtype, gpu.flops["bf16"])
    return efficiency.mfu * gpu.clock * flops, efficiency.mbu * gpu.memory_bandwidth
