"""Step times predicted by a regression on measured steps (MIST §IV-A)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.bounds import NUMBER
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError, brief, listed
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.interpolation import seconds_plane
from mist_sim.hardware.predictors.analytic.phase_time import Known
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.inputs import object_in
from mist_sim.models.spec import ModelSpec
from mist_sim.user_paths import user_path

Array = NDArray[np.float64]

FORMAT = "mist-sim regression"
VERSION = 1
_ENDLESS = 1 << 62  # more steps than any run has


@PREDICTORS.register("regression")
@dataclass
class RegressionPredictor:
    """Step times learned from measured steps, as `mist fit` writes them.

    model, cluster: what is timed; must equal what was measured.
    path: the JSON file; arrays of numbers, so that scikit-learn is not needed to read it.

    A step with prompts is looked up by its tokens, decodes included, and by the mean number of
    tokens that a prompt token attends to; a step without prompts by its decodes and their mean
    context. In a step with prompts, decodes add only the time of their contexts. Beyond the
    measurements the last slope continues; `steps_inside` counts the steps within them.
    """

    always_positive: ClassVar[bool] = True  # its grids are > 0 and never fall

    model: ModelSpec
    cluster: Cluster
    path: str

    def __post_init__(self) -> None:
        where = str(self.path)
        content = object_in(user_path(where), name=where)
        self._check(content, where)
        stages = content.get("stages")
        if not isinstance(stages, dict) or set(stages) != {"prefill", "decode"}:
            raise ScenarioError(f"{where}: stages must be prefill and decode, got {brief(stages)}")
        self._prefill = _Stage(stages["prefill"], f"{where}: stages.prefill")
        self._decode = _Stage(stages["decode"], f"{where}: stages.decode")

    def _check(self, content: Mapping[str, Any], where: str) -> None:
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            raise ScenarioError(
                f"{where}: not a regression that mist fit wrote: format and version must be "
                f"{FORMAT!r} and {VERSION}"
            )
        ours = {
            "model": self.model.name,
            "gpu": self.cluster.gpu.name,
            "tensor_parallel_size": self.cluster.tensor_parallel_size,
        }
        for key, own in ours.items():
            measured = content.get(key)
            if measured != own:
                raise ScenarioError(
                    f"{where}: was measured with {key} {listed([measured])}, the client has {own}"
                )
        if self.cluster.pipeline_parallel_size > 1 or self.cluster.num_sharing_replicas > 1:
            raise ScenarioError(
                f"{where}: holds whole steps of one group of GPUs; a pipeline and shared experts "
                "need pipeline_parallel_size 1 and enable_expert_parallel false"
            )

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds."""
        n = batch.num_decodes
        if not batch.chunks:
            return self._decode.grid.at(n, batch.context_sum / n if n else 0.0)
        tokens, pairs = _prompts(batch)
        seconds = self._prefill.grid.at(tokens + n, pairs / tokens)
        if n:
            least = self._decode.least[n]
            added = self._decode.grid.at(n, batch.context_sum / n) - least
            seconds = (max(least, seconds)) + added
        return seconds

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,)."""
        n = batch.num_decodes
        ahead = np.arange(float(num_steps))
        means = (batch.context_sum + growth.contexts(ahead)) / n if n else 0.0 * ahead
        if not batch.chunks:
            return self._decode.grid.along(n, means)
        tokens, pairs = _prompts(batch)
        more = float(sum([new * new for new, _ in batch.chunks]))
        seconds = self._prefill.grid.along(tokens + n, (pairs + more * ahead) / tokens)
        if n:
            added = self._decode.grid.along(n, means) - self._decode.least[n]
            seconds = np.maximum(seconds, self._decode.least[n]) + added
        return seconds

    @property
    def traits(self) -> PredictorTraits:
        """Traits of its times."""
        return PredictorTraits(estimate="measured", steps_inside=self.steps_inside)

    def steps_inside(self, batch: StepBatch, growth: StepGrowth) -> int:
        """Return how many steps, from this one on, lie inside the measured range.

        Outside are steps with more tokens or decodes than were measured, or with more context.
        """
        n, steps = batch.num_decodes, _ENDLESS
        if n:
            steps = _steps_within(
                self._decode.top(n) * n - batch.context_sum, float(growth.context_sum), steps
            )
        if batch.chunks:
            tokens, pairs = _prompts(batch)
            room = self._prefill.top(tokens + n) * tokens - pairs
            more = sum([new * new for new, _ in batch.chunks])
            steps = _steps_within(room, more, steps)
        return steps


def _prompts(batch: StepBatch) -> tuple[int, float]:
    """Return the prompt tokens of a step, and the pairs of query and key that they make."""
    if len(batch.chunks) == 1:
        new, context = batch.chunks[0]
        return new, new * (context + (new + 1) * 0.5)
    tokens, pairs = 0, 0.0
    for new, context in batch.chunks:
        tokens += new
        pairs += new * (context + (new + 1) * 0.5)
    return tokens, pairs


def _steps_within(room: float, per_step: float, most: int) -> int:
    if room < 0:
        return 0
    return min(most, int(room // per_step) + 1) if per_step else most


class _Stage:
    """The compiled regression of one stage."""

    def __init__(self, table: Any, where: str) -> None:
        if not isinstance(table, dict):
            raise ScenarioError(f"{where} must be a table, got {brief(table)}")
        try:
            self._nodes = _numbers("tokens", table["tokens"])
            self._tops = _numbers("measured_contexts", table["measured_contexts"])
            contexts = _numbers("contexts", table["contexts"])
            seconds = [_numbers("seconds", row) for row in table["seconds"]]
            self.grid = seconds_plane(self._nodes, contexts, seconds)
        except KeyError as error:
            raise ScenarioError(f"{where}: {error.args[0]} is missing") from None
        except (OverflowError, TypeError, ValueError) as error:
            raise ScenarioError(f"{where}: {error}") from None
        if len(self._tops) != len(self._nodes):
            raise ScenarioError(f"{where}: measured_contexts must have one entry a token count")
        self.least = Known(partial(self.grid.at, x=0.0))  # at the shortest context

    def top(self, amount: int) -> float:
        """Return the longest mean context measured around so many tokens; -1 beyond all."""
        nodes = self._nodes
        if amount > nodes[-1]:
            return -1.0
        after = bisect_right(nodes, amount)
        near = self._tops[max(after - 1, 0) : after + 1]
        return self._tops[after - 1] if after and nodes[after - 1] == amount else min(near)


def _numbers(key: str, said: Any) -> list[float]:
    """Return a list of a file as numbers. Raises ValueError for impossible measurements."""
    found = [float(number) for number in said]
    for number in found:
        if number and not NUMBER[0] <= abs(number) <= NUMBER[1]:
            raise ValueError(
                f"{key} must be 0 or from {NUMBER[0]:g} to {NUMBER[1]:g} in size, got {number:g}"
            )
    return found
