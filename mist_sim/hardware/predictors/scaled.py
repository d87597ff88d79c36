"""What if steps took longer? Step times of any predictor, multiplied by a factor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mist_sim import checks
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import brief
from mist_sim.hardware.predictors.around import Around, Positive, Seconds, line_in
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.explained import OperatorTime, explained
from mist_sim.hardware.predictors.ranks import PipelinePredictor


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeScale(checks.Checked):
    """Factors of an engine's step times, the engine's own time included.

    prompts: of steps with prompt tokens, whether or not they carry decodes, too (> 0).
    decodes: of steps of decodes alone (> 0).

    The work between steps keeps its time: transfers between the ranks of a pipeline, swaps, loads
    of KV entries, and vision towers.
    """

    prompts: checks.Positive[float] = 1.0
    decodes: checks.Positive[float] = 1.0

    @classmethod
    def of(cls, said: object) -> StepTimeScale:
        """Return the factors of an option: one number for both, both, or none (1).

        Raises ValueError for anything else, and for a number that is not > 0 and finite.
        """
        if said is None:
            return cls()
        if isinstance(said, StepTimeScale):
            return said
        if isinstance(said, bool) or not isinstance(said, int | float) or not 0 < said < math.inf:
            raise ValueError(f"must be a number > 0 or a StepTimeScale, got {brief(said)}")
        return cls(prompts=said, decodes=said)

    def around(self, predictor: PipelinePredictor) -> PipelinePredictor:
        """Return a predictor whose ranks take so many times as long."""
        if self == StepTimeScale():
            return predictor
        made = {id(rank): Scaled(rank, self) for rank in predictor.ranks}
        return replace(predictor, ranks=tuple(made[id(rank)] for rank in predictor.ranks))


def unscaled(predictor: Predictor) -> tuple[Predictor, StepTimeScale]:
    """Return the predictor whose times are multiplied, and the factors; 1 where none are."""
    inside = predictor.predictor if isinstance(predictor, Positive) else predictor
    if isinstance(inside, Scaled):
        return inside.predictor, inside.scale
    return predictor, StepTimeScale()


@dataclass(slots=True)
class Scaled(Around):
    """Step times of a predictor, multiplied.

    Decodes alone that have a line take the times of the multiplied line, wherever they are asked
    for, so that all loops see the same bits.
    """

    scale: StepTimeScale
    decode_lines: dict[int, DecodeLine | None] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step."""
        line = self._line_of(batch)
        if line is not None:
            return line.step(batch.context_sum + batch.num_decodes - batch.num_read_again)
        return self.predictor.step_time(batch) * self._factor(batch)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of every step of a run."""
        line = self._line_of(batch)
        if line is None:
            seconds = self.predictor.run(batch, growth, num_steps)
            return np.multiply(seconds, self._factor(batch), seconds)
        keys = batch.context_sum + batch.num_decodes - batch.num_read_again
        added = growth.context_sum
        if isinstance(added, int) and added == batch.num_decodes:
            return line.run(keys, batch.num_decodes, num_steps)
        return np.array([line.step(each) for each in growth.contexts(range(num_steps), keys)])

    def decode_line(self, num_decodes: int) -> DecodeLine | None:
        """Return the line of decode steps, multiplied; None if the predictor has none."""
        if num_decodes not in self.decode_lines:
            line, factor = line_in(self.predictor, num_decodes), self.scale.decodes
            scaled = line and DecodeLine(*(seconds * factor for seconds in line))
            self.decode_lines[num_decodes] = scaled
        return self.decode_lines[num_decodes]

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step, each as much longer as the step is."""
        factor = self._factor(batch)
        found = explained(self.predictor, batch, is_on_the_spot=is_on_the_spot)
        return [each._replace(seconds=each.seconds * factor) for each in found]

    def _factor(self, batch: StepBatch) -> float:
        return self.scale.prompts if batch.chunks else self.scale.decodes

    def _line_of(self, batch: StepBatch) -> DecodeLine | None:
        """Return the line of decodes alone; None for other steps, and those that it leaves out."""
        if batch.chunks or batch.num_drafts or batch.adapters or batch.replicas is not None:
            return None
        return self.decode_line(batch.num_decodes) if batch.num_decodes else None

    def _after(self, step_time: Seconds) -> Seconds:
        return lambda batch: step_time(batch) * self._factor(batch)
