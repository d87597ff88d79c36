"""Step times with something more on top, which does not depend on the steps before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.hardware.predictors.base import Predictor, PredictorTraits, traits_of
from mist_sim.hardware.predictors.explained import Bound, OperatorTime, explained


class Times(Protocol):
    """A part of the time of a step."""

    def seconds(self, batch: StepBatch) -> float:
        """Return its seconds in a step."""

    def changes(self, batch: StepBatch) -> bool:
        """Tell whether the seconds change from step to step of a run."""


@dataclass(slots=True)
class Beside:
    """Step times of a predictor, plus those of other work.

    name, bound: its name and the resource that binds it, in a step taken apart.
    """

    adds_to: ClassVar[str] = "predictor"

    predictor: Predictor
    times: Times
    name: str
    bound: Bound

    @property
    def traits(self) -> PredictorTraits:
        """The traits of the predictor inside."""
        inside = traits_of(self.predictor)
        if inside.step_time_on_the_spot is None:
            return inside
        return replace(inside, step_time_on_the_spot=self.step_time_on_the_spot)

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step, with those of the work beside it."""
        return self.predictor.step_time(batch) + self.times.seconds(batch)

    def step_time_on_the_spot(self, batch: StepBatch) -> float:
        """Return the seconds of a step that was planned when it began."""
        on_the_spot = traits_of(self.predictor).step_time_on_the_spot or self.predictor.step_time
        return on_the_spot(batch) + self.times.seconds(batch)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of every step of a run, with those of the work beside it."""
        seconds, times = self.predictor.run(batch, growth, num_steps), self.times
        if not times.changes(batch):
            return np.add(seconds, times.seconds(batch), seconds)
        more = [times.seconds(grown(batch, growth, number)) for number in range(num_steps)]
        return np.add(seconds, more, seconds)

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step, the additional one among them."""
        found = explained(self.predictor, batch, is_on_the_spot=is_on_the_spot)
        seconds = self.times.seconds(batch)
        return [*found, OperatorTime(self.name, seconds, self.bound)] if seconds else found
