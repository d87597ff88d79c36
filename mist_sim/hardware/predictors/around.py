"""Predictors around another one: more time beside it, sampling, and a look for impossible times.

`PipelinePredictor` checks every rank whose times may be impossible (0 s, less, NaN, infinity), so
that all loops, bundles of predictors and BestServe's simulators ask checked ones. Predictors that
cannot give such times say so in their own class (`always_positive`), and cost nothing more; what
adds times to another predictor is as safe as that (`adds_to`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth, grown
from mist_sim.errors import ScenarioError, brief
from mist_sim.hardware.predictors.base import Predictor, PredictorTraits, traits_of
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.explained import Bound, OperatorTime, explained
from mist_sim.hardware.sampling import SamplingTimes
from mist_sim.registry import require_method
from mist_sim.units import is_number

Seconds = Callable[[StepBatch], float]
"""Seconds of a step."""


def line_in(predictor: Predictor, num_decodes: int) -> DecodeLine | None:
    """Return a predictor's line of so many decodes; None if it has none."""
    inside = getattr(predictor, "decode_line", None)
    line: DecodeLine | None = inside(num_decodes) if inside is not None else None
    return line


@dataclass(slots=True)
class Around:
    """A predictor with another one inside, whose traits it has."""

    predictor: Predictor

    @property
    def traits(self) -> PredictorTraits:
        """The traits of the predictor inside."""
        inside = traits_of(self.predictor)
        spot = inside.step_time_on_the_spot
        return inside if spot is None else replace(inside, step_time_on_the_spot=self._after(spot))

    def _after(self, step_time: Seconds) -> Seconds:
        """Return the seconds of a step in which the predictor inside takes those of `step_time`."""
        raise NotImplementedError

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step."""
        return explained(self.predictor, batch, is_on_the_spot=is_on_the_spot)


@dataclass(slots=True)
class Beside(Around):
    """Step times of a predictor, plus those of other work, which no step before changes.

    seconds: of that work in a step. name, bound: its name and the resource that binds it, in a step
    taken apart. changes: tells whether the seconds change from step to step of a run; None: never.
    """

    adds_to: ClassVar[str] = "predictor"

    seconds: Seconds
    name: str
    bound: Bound
    changes: Callable[[StepBatch], bool] | None = None

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step, with those of the work beside it."""
        return self.predictor.step_time(batch) + self.seconds(batch)

    def _after(self, step_time: Seconds) -> Seconds:
        return lambda batch: step_time(batch) + self.seconds(batch)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of every step of a run, with those of the work beside it."""
        seconds = self.predictor.run(batch, growth, num_steps)
        if self.changes is None or not self.changes(batch):
            return np.add(seconds, self.seconds(batch), seconds)
        more = [self.seconds(grown(batch, growth, number)) for number in range(num_steps)]
        return np.add(seconds, more, seconds)

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step, the additional one among them."""
        found = explained(self.predictor, batch, is_on_the_spot=is_on_the_spot)
        seconds = self.seconds(batch)
        return [*found, OperatorTime(self.name, seconds, self.bound)] if seconds else found


@dataclass(slots=True)
class WithSampling(Around):
    """A predictor with sampling behind its steps; `EngineOverhead.around` takes it apart."""

    adds_to: ClassVar[str] = "predictor"

    times: SamplingTimes

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step, with those of drawing its tokens."""
        rows = len(batch.chunks) + batch.num_decodes * (1 + batch.num_drafts)  # no call
        return self.predictor.step_time(batch) + self.times[rows]

    def _after(self, step_time: Seconds) -> Seconds:
        return lambda batch: step_time(batch) + self._seconds(batch)

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of every step of a run, with those of drawing its tokens."""
        seconds = self.predictor.run(batch, growth, num_steps)
        rows = len(batch.chunks) + batch.num_decodes * (1 + batch.num_drafts)  # no call
        return np.add(seconds, self.times[rows], seconds)

    def decode_line(self, num_decodes: int) -> DecodeLine | None:
        """Return the line of decode steps, with those seconds; None if the predictor has none."""
        line = line_in(self.predictor, num_decodes)
        return line and line.with_more(self.times[num_decodes])

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step, sampling among them."""
        found = explained(self.predictor, batch, is_on_the_spot=is_on_the_spot)
        return [*found, OperatorTime("sampling", self._seconds(batch), "memory")]

    def _seconds(self, batch: StepBatch) -> float:
        return self.times[len(batch.chunks) + batch.num_decode_queries]


def checked(predictor: Predictor) -> Predictor:
    """Return a predictor that raises ScenarioError where this one gives an impossible time."""
    if is_positive(predictor) and not isinstance(predictor, type):
        return predictor
    for form in ("step_time(batch)", "run(batch, growth, num_steps)"):
        require_method("predictor", predictor, form)
    return Positive(predictor)


def is_positive(predictor: object) -> bool:
    """Whether a predictor cannot give an impossible time; a subclass has to declare it again."""
    own = vars(type(predictor))
    if own.get("always_positive"):
        return True
    inside = own.get("adds_to")
    return inside is not None and is_positive(getattr(predictor, inside))


@dataclass
class Positive(Around):
    """A predictor whose times are looked at, each once, before anything is computed with them.

    predictor: of any kind. Its other attributes are those of this one, too.
    """

    always_positive: ClassVar[bool] = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "predictor":
            raise AttributeError(name)
        return getattr(self.predictor, name)

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step."""
        seconds = self.predictor.step_time(batch)
        if not is_number(seconds):
            raise ScenarioError(
                f"predictor {type_of(self.predictor)}: step_time must return seconds, a number, "
                f"got {brief(seconds)}"
            )
        if not 0 < seconds < math.inf:
            self._refuse(seconds, batch)
        return seconds

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of consecutive steps."""
        seconds = self.predictor.run(batch, growth, num_steps)
        if getattr(seconds, "shape", None) != (num_steps,):
            raise ScenarioError(
                f"predictor {type_of(self.predictor)}: run must return a NumPy array of seconds, "
                f"one for each of the {num_steps} steps, got {brief(seconds)}"
            )
        if num_steps and not (seconds.min() > 0 and seconds.max() < math.inf):  # NaN is neither
            wrong = ~((seconds > 0) & (seconds < math.inf))
            step = int(wrong.argmax())
            self._refuse(float(seconds[step]), batch, step)
        return seconds

    def decode_line(self, num_decodes: int) -> DecodeLine | None:
        """Return the line of decode steps, which rises from a time > 0; None if there is none."""
        line = line_in(self.predictor, num_decodes)
        if line is None:
            return None
        first = line.step(num_decodes)
        if not (0 <= line.per_key < math.inf and 0 < first < math.inf):
            self._refuse(first, StepBatch((), num_decodes, num_decodes))
        return line

    def _after(self, step_time: Seconds) -> Seconds:
        def looked_at(batch: StepBatch) -> float:
            seconds = step_time(batch)
            if not 0 < seconds < math.inf:
                self._refuse(seconds, batch)
            return seconds

        return looked_at

    def _refuse(self, seconds: float, batch: StepBatch, step: int = 0) -> None:
        if not seconds and not batch.chunks and not batch.num_decodes:
            return  # a replica that has nothing to compute
        raise impossible(self.predictor, seconds, batch, step)


def type_of(predictor: object) -> str:
    """Return the name of a predictor's class, for messages; of a checked one, of what is inside."""
    inside = predictor.predictor if isinstance(predictor, Positive) else predictor
    return type(inside).__name__


def impossible(predictor: object, seconds: float, batch: StepBatch, step: int = 0) -> ScenarioError:
    """Return the error for a step that would take no time, less, or no number of seconds.

    step: how many steps after the batch.
    """
    what = [f"{batch.num_prefill_tokens:,} prompt tokens"] if batch.chunks else []
    if batch.num_decodes:
        of_decodes = f"{batch.num_decodes:,} decodes with {batch.context_sum:,} tokens of context"
        what.append(of_decodes)
    later = f", {step:,} steps later," if step else ""
    path = getattr(predictor, "path", "")
    where = f" ({path})" if path else ""
    return ScenarioError(
        f"predictor {type_of(predictor)}{where}: a step of {' and '.join(what) or 'nothing'}"
        f"{later} would take {seconds:g} s; every step takes more than 0 s and a finite time: "
        "correct the predictor or what it was measured on"
    )
