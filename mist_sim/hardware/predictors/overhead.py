"""The engine's own time around the kernels of a step: scheduling, sampling, bookkeeping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy import add, maximum
from numpy.typing import NDArray

from mist_sim.checks import Checked, NotNegative
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.devices import OVERHEADS
from mist_sim.hardware.predictors.around import WithSampling, line_in
from mist_sim.hardware.predictors.base import Predictor, PredictorTraits, traits_of
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.explained import OperatorTime, explained
from mist_sim.hardware.predictors.scaled import unscaled
from mist_sim.hardware.sampling import SamplingTimes
from mist_sim.units import Seconds

# Seconds a step, and seconds more for each of its sequences, around kernels as the roofline has
# them. Source: mist calibrate closed_loop on every second of 60 points of Qwen3-32B, vLLM 0.12 on
# H100 (docs/background/calibration.md); an assumption for other GPUs, whose hosts do the same work.
_BEYOND_KERNELS = (1.3e-3, 47.8e-6)
FITTED_ON = "h100-sxm"

EXPOSED = ("exposed_step", "exposed_sequence")
"""Options that say what async scheduling does not hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOverhead(Checked):
    """An engine's own time, in addition to its kernels.

    An option that is None takes the value of the GPU's entry (`GpuSpec.overhead`, as
    `mist calibrate` finds it), or 0 if the entry has none; `step` and `sequence` have defaults of
    their own.

    step: seconds of host time per step; in a pipeline once per pass, on the first rank, whose host
        schedules it. By default 1.3 ms around a predictor that times kernels only (`kernels_only`),
        such as the roofline: what vLLM 0.12 needs beyond the kernels on H100 (Qwen3-32B, closed
        loop; see docs/background/roofline.md), assumed for other GPUs; 1.6 ms around the kernels of
        `silicon`, fitted on the same runs; none around others. With async scheduling the host works
        at the same time as the GPU, and the longer of the two counts: host time below the kernels'
        time shows only in steps that were not planned ahead.
    prefill_step: seconds more in a step with prompts, during which the GPU waits for the host: it
        launches kernels that no CUDA graph replays. Never hidden by async scheduling. By default 3
        ms around profiles of layers (`table`), which is assumed; none around others.
    sequence: seconds of host time more for each sequence of a step: to schedule it, and to sample,
        detokenize and send its token. By default, whatever `step` is, 47.8 us around kernels and 45
        us around those of `silicon`, from the same fits; none around others.
    exposed_step: seconds of a step that the GPU waits for the host although it is planned ahead.
        They are part of the host's time: a step takes the longer of that and of the kernels with
        this wait. By default none, but before 0.14 what a release does not hide (0.7 ms); it has
        no effect without async scheduling.
    exposed_sequence: the same wait for each sequence of a step, seconds, in addition.
    request: seconds from a request's arrival until the engine can schedule it, on top of the
        scenario's `front_end`; setting it turns off the default of `front_end`.
    prompt_token: seconds more for each token of its prompt, to tokenize it and send it to the
        engine.
    """

    step: NotNegative[Seconds] | None = None
    prefill_step: NotNegative[Seconds] | None = None
    sequence: NotNegative[Seconds] | None = None
    exposed_step: NotNegative[Seconds] | None = None
    exposed_sequence: NotNegative[Seconds] | None = None
    request: NotNegative[Seconds] | None = None
    prompt_token: NotNegative[Seconds] | None = None

    def or_else(self, measured: Mapping[str, float]) -> EngineOverhead:
        """Return a copy in which None is replaced by values of a GPU's entry."""
        unsaid: dict[str, Any] = {
            name: measured.get(name) for name in OVERHEADS if getattr(self, name) is None
        }
        return replace(self, **unsaid)

    def around(self, predictor: Predictor, *, overlapped: bool = False) -> Predictor:
        """Return a predictor that adds the overhead of a step to another's step times.

        predictor: of the first rank.
        overlapped: whether the host prepares the next step while the GPU computes, so that only the
            longer of the two counts (except for steps of `step_time_on_the_spot`, see
            `PredictorTraits`).
        """
        step, sequence = self.of_a_step(predictor)
        prefill_step = self.prefill_step
        if prefill_step is None:
            prefill_step = traits_of(predictor).beyond_prompts
        exposed = (self.exposed_step or 0.0, self.exposed_sequence or 0.0)
        if not overlapped:
            exposed = (0.0, 0.0)
        if not (step or prefill_step or sequence or any(exposed)):
            return predictor
        own = (step, prefill_step, sequence, overlapped, exposed)
        if isinstance(predictor, WithSampling):
            return _WithOverhead(predictor.predictor, *own, predictor.times)
        return _WithOverhead(predictor, *own)

    def of_a_step(self, predictor: Predictor) -> tuple[float, float]:
        """Return the seconds of a step and of each sequence in it, by default or as set."""
        step, sequence = 0.0, 0.0
        traits = traits_of(predictor)
        if traits.kernels_only:
            step, sequence = traits.beyond_kernels or _BEYOND_KERNELS
        return (
            step if self.step is None else self.step,
            sequence if self.sequence is None else self.sequence,
        )


@dataclass(slots=True)
class _WithOverhead:
    adds_to: ClassVar[str] = "predictor"

    predictor: Predictor
    step: float
    prefill_step: float
    sequence: float
    overlapped: bool
    exposed: tuple[float, float]
    sampling: SamplingTimes | None = None  # of one rank, which draws the tokens behind the kernels
    decode_lines: dict[int, DecodeLine | None] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def traits(self) -> PredictorTraits:
        """The traits of the predictor inside, with the engine's own time included."""
        return replace(
            traits_of(self.predictor),
            kernels_only=False,
            beyond_kernels=None,
            beyond_prompts=0.0,
            step_time_on_the_spot=self.step_time_on_the_spot,
        )

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step, with sampling and the host's time that is exposed."""
        num_sequences = batch.num_decodes + len(batch.chunks)
        seconds = self.predictor.step_time(batch)
        if self.sampling is not None:
            seconds += self.sampling[num_sequences + batch.num_decodes * batch.num_drafts]
        if batch.chunks:
            seconds += self.prefill_step
        host = self.step + self.sequence * num_sequences
        if not self.overlapped:
            return seconds + host
        step, sequence = self.exposed
        seconds += step + sequence * num_sequences
        return seconds if seconds > host else host  # max() would be a call  # noqa: FURB136

    def step_time_on_the_spot(self, batch: StepBatch) -> float:
        """Return the seconds of a step that was planned when it began, so that nothing overlaps."""
        num_sequences = batch.num_decodes + len(batch.chunks)
        seconds = self.predictor.step_time(batch)
        if self.sampling is not None:
            seconds += self.sampling[num_sequences + batch.num_decodes * batch.num_drafts]
        if batch.chunks:
            seconds += self.prefill_step
        step, sequence = self.exposed
        host = self.step + self.sequence * num_sequences
        return seconds + max(host, step + sequence * num_sequences)

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step, and the engine's own time that they do not hide."""
        found = explained(self._kernels(), batch, is_on_the_spot=is_on_the_spot)
        num_sequences = len(batch.chunks) + batch.num_decodes
        kernels = sum([each.seconds for each in found]) + self.prefill_step * bool(batch.chunks)
        host = self.step + self.sequence * num_sequences
        is_hidden = self.overlapped and not is_on_the_spot
        step, sequence = self.exposed
        exposed = step + sequence * num_sequences if self.overlapped else 0.0
        hidden = kernels if is_hidden else 0.0
        own = {
            "prompt_launches": self.prefill_step if batch.chunks else 0.0,
            "engine": max(host - hidden - exposed, 0.0),
            "engine_exposed": exposed,
        }
        return found + [OperatorTime(name, time, "host") for name, time in own.items() if time]

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of a run of steps, each as `step_time` gives it."""
        num_sequences = batch.num_decodes + len(batch.chunks)
        seconds = self.predictor.run(batch, growth, num_steps)
        if self.sampling is not None:
            rows = num_sequences + batch.num_decodes * batch.num_drafts
            add(seconds, self.sampling[rows], seconds)
        if batch.chunks:
            seconds += self.prefill_step
        host = self.step + self.sequence * num_sequences
        if not self.overlapped:
            return add(seconds, host, seconds)
        step, sequence = self.exposed
        exposed = step + sequence * num_sequences
        if exposed:
            add(seconds, exposed, seconds)
        return maximum(seconds, host, out=seconds)

    def decode_line(self, num_decodes: int) -> DecodeLine | None:
        """Return the line of decode steps, with those seconds; None if the predictor has none."""
        if num_decodes not in self.decode_lines:
            self.decode_lines[num_decodes] = self._decode_line(num_decodes)
        return self.decode_lines[num_decodes]

    def _decode_line(self, num_decodes: int) -> DecodeLine | None:
        line = line_in(self._kernels(), num_decodes)
        if line is None:
            return None
        host = self.step + self.sequence * num_decodes
        if not self.overlapped:
            return line.then(host)
        return None if any(self.exposed) else line.beside(host)

    def _kernels(self) -> Predictor:
        if self.sampling is None:
            return self.predictor
        return WithSampling(self.predictor, self.sampling)


def own_time_in(predictor: Predictor) -> EngineOverhead:
    """Return the engine's own time of a step that predictors of `EngineOverhead.around` add.

    With every default, but without the times before a request can be scheduled, and as it is before
    a `step_time_scale`.
    """
    predictor, _ = unscaled(predictor)
    if not isinstance(predictor, _WithOverhead):
        return EngineOverhead()
    exposed = dict(zip(EXPOSED, predictor.exposed, strict=True))
    return EngineOverhead(
        step=predictor.step,
        prefill_step=predictor.prefill_step,
        sequence=predictor.sequence,
        **exposed,
    )
