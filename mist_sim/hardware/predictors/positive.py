"""Step times that are no times are refused: 0 s, less, NaN and infinity.

`PipelinePredictor` checks every rank whose times may be impossible, so that all loops,
bundles of predictors and BestServe's simulators ask checked ones. Predictors that cannot give such
times say so in their own class (`always_positive`), and cost nothing more; what adds times to
another predictor is as safe as that (`adds_to`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numpy import float64
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError
from mist_sim.hardware.predictors.base import Predictor, PredictorTraits, traits_of
from mist_sim.hardware.predictors.decode_line import DecodeLine
from mist_sim.hardware.predictors.explained import OperatorTime, explained


def checked(predictor: Predictor) -> Predictor:
    """Return a predictor that raises ScenarioError where this one gives an impossible time."""
    return predictor if is_positive(predictor) else Positive(predictor)


def is_positive(predictor: object) -> bool:
    """Whether a predictor cannot give an impossible time; a subclass has to declare it again."""
    own = vars(type(predictor))
    if own.get("always_positive"):
        return True
    inside = own.get("adds_to")
    return inside is not None and is_positive(getattr(predictor, inside))


class Positive:
    """A predictor whose times are looked at, each once, before anything is computed with them.

    predictor: of any kind. Its other attributes are those of this one, too.
    """

    always_positive = True

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "predictor":
            raise AttributeError(name)
        return getattr(self.predictor, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Positive) and self.predictor == other.predictor

    __hash__ = None  # type: ignore[assignment]

    @property
    def traits(self) -> PredictorTraits:
        """Those of the predictor."""
        traits = traits_of(self.predictor)
        spot = traits.step_time_on_the_spot
        return traits if spot is None else replace(traits, step_time_on_the_spot=self._of(spot))

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step."""
        seconds = self.predictor.step_time(batch)
        if not 0 < seconds < math.inf:
            self._refuse(seconds, batch)
        return seconds

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[float64]:
        """Return the seconds of consecutive steps."""
        seconds = self.predictor.run(batch, growth, num_steps)
        if num_steps and not (seconds.min() > 0 and seconds.max() < math.inf):  # NaN is neither
            wrong = ~((seconds > 0) & (seconds < math.inf))
            step = int(wrong.argmax())
            self._refuse(float(seconds[step]), batch, step)
        return seconds

    def decode_line(self, num_decodes: int) -> DecodeLine | None:
        """Return the line of decode steps, which rises from a time > 0; None if there is none."""
        inside = getattr(self.predictor, "decode_line", None)
        line: DecodeLine | None = inside(num_decodes) if inside is not None else None
        if line is None:
            return None
        first = line.step(num_decodes)
        if not (0 <= line.per_key < math.inf and 0 < first < math.inf):
            self._refuse(first, StepBatch((), num_decodes, num_decodes))
        return line

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step."""
        return explained(self.predictor, batch, is_on_the_spot=is_on_the_spot)

    def _of(self, step_time: Callable[[StepBatch], float]) -> Callable[[StepBatch], float]:
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
    what = [f"{batch.num_decodes:,} decodes with {batch.context_sum:,} tokens of context"]
    if batch.chunks:
        what.insert(0, f"{batch.num_prefill_tokens:,} prompt tokens")
    if batch.num_decodes == 0:
        what.pop()
    later = f", {step:,} steps later," if step else ""
    path = getattr(predictor, "path", "")
    where = f" ({path})" if path else ""
    return ScenarioError(
        f"predictor {type_of(predictor)}{where}: a step of {' and '.join(what) or 'nothing'}"
        f"{later} would take {seconds:g} s; every step takes more than 0 s and a finite time: "
        "correct the predictor or what it was measured on"
    )
