"""The empirical predictor: step times interpolated between measured ones (MIST §III-F)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.interpolation import Plane, Volume
from mist_sim.hardware.predictors.analytic.phase_time import Known
from mist_sim.hardware.predictors.base import PREDICTORS, PredictorTraits
from mist_sim.hardware.tables import TABLE_FORMATS
from mist_sim.models.spec import ModelSpec
from mist_sim.user_paths import user_path

Array = NDArray[np.float64]
Chunks = tuple[tuple[int, int], ...]

# Prompts of steps that are remembered, and numbers of decodes beside each: requests of equal length
# make equal steps over and over. Together some megabytes at most.
_MOST_KNOWN, _MOST_LINES = 256, 16

# Seconds that a step with prompts takes beyond its layers, whose launches no CUDA graph replays:
# rebuilt step by step, runs on several machines show 2 to 4 ms (docs/background/calibration.md).
_LAUNCHES = 3e-3

_ENDLESS = 1 << 62  # more steps than any run has


@PREDICTORS.register("table")
@dataclass
class TablePredictor:
    """Step times from a file of measured ones, interpolated linearly.

    model, cluster: what is timed; a profile of layers needs their number and size.
    path: the file, or the folder where the format has several.
    format: "layer_profile", "vidur", "splitwise" or "steps" (see docs/background/calibration.md).
    subset: the setting to use of a file with several; an error message lists them.

    Times that fall with more tokens or context are treated as noise and made to rise. Beyond the
    last measured point the last slope continues; `steps_inside` counts the steps within.
    """

    always_positive: ClassVar[bool] = True  # others raise an error that names the table

    model: ModelSpec
    cluster: Cluster
    path: str
    format: str
    subset: str | None = None

    def __post_init__(self) -> None:
        if self.format not in TABLE_FORMATS:
            hint = did_you_mean(self.format, TABLE_FORMATS)
            known = ", ".join(TABLE_FORMATS)
            raise ScenarioError(f"format has no {brief(self.format)}{hint} Known: {known}")
        form = TABLE_FORMATS[self.format]
        if self.subset is not None and not form.has_subsets:
            raise ScenarioError(
                f"subset must be left out with format {self.format}, whose files hold one setting, "
                f"got {brief(self.subset)}"
            )
        if self.cluster.pipeline_parallel_size > 1:
            raise ScenarioError(
                "measured tables hold a whole model; pipeline_parallel_size must be 1, "
                f"got {self.cluster.pipeline_parallel_size}"
            )
        self._tables = form.read(user_path(self.path), self.model, self.cluster, self.subset)
        self._alone = Known(self._decodes_alone)
        self._known: dict[Chunks, _Prompts] = {}

    @property
    def traits(self) -> PredictorTraits:
        """Traits of its times: layers of one rank come without their all-reduces.

        The longest context is needed if the tables give the cost of uneven contexts.
        """
        of_layers = TABLE_FORMATS[self.format].of_layers
        return PredictorTraits(
            estimate="measured",
            compared_as="measured kernels" if of_layers else "",
            beyond_prompts=_LAUNCHES if of_layers else 0.0,
            sums_over_links=of_layers,
            needs_longest_context=self._tables.uneven is not None,
            steps_inside=self.steps_inside,
            needs_scale=self._tables.other_rates,
        )

    @property
    def moved_cells(self) -> tuple[tuple[float, ...], ...]:
        """(tokens, experts) of measured times of experts that are not reproduced exactly.

        They fall with more tokens or experts; see docs/background/calibration.md.
        """
        return self._tables.moved

    # --- times --------------------------------------------------------------------------------

    def step_time(self, batch: StepBatch) -> float:
        """Return the duration of one step in seconds."""
        tables, n = self._tables, batch.num_decodes
        mean = batch.context_sum / n if n else 0.0
        if not batch.chunks:
            if not n:  # a replica that steps with others, which computes one token in vain
                return tables.alone.at(1)
            even = _even_context(tables.uneven, batch, mean)
            seconds = self._alone[n] + tables.decode.at(n, even)
            if not 0.0 < seconds < math.inf:
                raise self._impossible(batch, seconds)
            return seconds
        prompts = self._known.get(batch.chunks) or self._prompts(batch.chunks)
        seconds = self._fixed(prompts, n) + prompts.seconds
        if n:
            beside, even = tables.beside, _even_context(tables.uneven_beside, batch, mean)
            if isinstance(beside, Volume):
                seconds += prompts.largest(beside, n, even)
            else:
                seconds += beside.at(n, even)
        if not 0.0 < seconds < math.inf:
            raise self._impossible(batch, seconds)
        return seconds

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the durations of consecutive steps in seconds, shape (num_steps,)."""
        tables, n = self._tables, batch.num_decodes
        if not (n or batch.chunks):
            return np.full(num_steps, tables.alone.at(1))
        ahead = np.arange(float(num_steps))
        means = (batch.context_sum + growth.contexts(ahead)) / n if n else ahead
        if not batch.chunks:
            even = _even_contexts(tables.uneven, batch, growth, means)
            return self._possible(batch, self._alone[n] + tables.decode.along(n, even))
        prompts = self._known.get(batch.chunks) or self._prompts(batch.chunks)
        seconds = np.zeros(num_steps)
        for new, context in batch.chunks:
            seconds += tables.prefill.along(new, context + new * ahead)
        seconds += self._fixed(prompts, n)
        if n:
            beside = tables.beside
            even = _even_contexts(tables.uneven_beside, batch, growth, means)
            if isinstance(beside, Volume):
                each = [
                    beside.along(new, n, context + new * ahead, even)
                    for new, context in batch.chunks
                ]
                seconds += each[0] if len(each) == 1 else np.maximum.reduce(each)
            else:
                seconds += beside.along(n, even)
        return self._possible(batch, seconds)

    def _possible(self, batch: StepBatch, seconds: Array) -> Array:
        """Return the seconds of a run. Raises ScenarioError unless each is > 0 and finite."""
        if not (seconds.min() > 0.0 and seconds.max() < math.inf):  # NaN is neither
            raise self._impossible(batch, float(seconds.min()))
        return seconds

    def _impossible(self, batch: StepBatch, seconds: float) -> ScenarioError:
        """Return the error for a table that, extrapolated, gives impossible steps."""
        return ScenarioError(
            f"{self.path}: a step of {batch.num_prefill_tokens} prompt tokens and "
            f"{batch.num_decodes} decodes would take {seconds:g} s; a row of the table is far from "
            f"its neighbours: correct it"
        )

    def _decodes_alone(self, num_decodes: int) -> float:
        """Seconds of a step of decodes that do not depend on their contexts."""
        return self._tables.alone.at(num_decodes) + self._tables.sequences.at(num_decodes)

    def _fixed(self, prompts: _Prompts, n: int) -> float:
        """Return seconds of a step with prompts and `n` decodes that do not depend on contexts."""
        tables, number = self._tables, len(prompts.chunks)
        seconds = tables.tokens.at(prompts.num_tokens + n) + tables.sequences.at(n + number)
        return seconds - tables.next_prefill * (number - 1) if number > 1 else seconds

    def _prompts(self, chunks: Chunks) -> _Prompts:
        """Return what the prompts of a step take, which is remembered.

        The cache of other prompts' steps is dropped when it grows large.
        """
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        prefill, seconds = self._tables.prefill, 0.0
        for new, context in chunks:
            seconds += prefill.at(new, context)
        prompts = _Prompts(chunks, sum([new for new, _ in chunks]), seconds)
        self._known[chunks] = prompts
        return prompts

    # --- range --------------------------------------------------------------------------------

    def steps_inside(self, batch: StepBatch, growth: StepGrowth) -> int:
        """Return how many steps, from this one on, lie inside the measured range.

        Outside are steps with more tokens, decodes or context than were measured, together or
        alone, and decodes whose longest context is a larger multiple of their mean than was
        measured.
        """
        tables, n, chunks = self._tables, batch.num_decodes, batch.chunks
        mixed = tables.beside if n and chunks and isinstance(tables.beside, Volume) else None
        steps = _ENDLESS
        if n:
            most, longest = tables.decode.fixed.top, tables.decode.moving.top
            if mixed:
                _, most, _, longest = mixed.tops
            least_even = tables.least_even_beside if chunks else tables.least_even
            if n > most or batch.context_sum < least_even * n * (batch.longest_context or 0):
                return 0  # they only get more even
            steps = _steps_within(longest * n - batch.context_sum, float(growth.context_sum))
        if not chunks:
            return steps
        if batch.num_prefill_tokens + n > tables.most_tokens:
            return 0
        most, longest = tables.prefill.fixed.top, tables.prefill.moving.top
        if mixed:
            most, longest = min(most, mixed.tops[0]), min(longest, mixed.tops[2])
        for new, context in chunks:
            if new > most:
                return 0
            steps = min(steps, _steps_within(longest - context, new))
        return steps


@dataclass(slots=True)
class _Prompts:
    """The prompts of a step: their tokens, attention seconds, and the time that decodes add.

    lines: by number of decodes and interval of their mean context, the time that they add beside
        each prompt, as a line over that interval.
    """

    chunks: Chunks
    num_tokens: int
    seconds: float
    lines: dict[tuple[int, int], list[tuple[float, float]]] = field(default_factory=dict)

    def largest(self, beside: Volume, n: int, mean: float) -> float:
        """Return the largest time that decodes add to one of the prompts."""
        q, part = beside.moving[1].place(mean)
        lines = self.lines.get((n, q))
        if lines is None:
            if len(self.lines) >= _MOST_LINES:
                self.lines.clear()
            lines = self.lines[n, q] = beside.lines(self.chunks, n, q)
        if len(lines) == 1:
            start, rise = lines[0]
            return start + rise * part
        return max([start + rise * part for start, rise in lines])


def _steps_within(room: float, per_step: float) -> int:
    """Return the steps until `room` is used up; none if it is below 0."""
    if room < 0:
        return 0
    return int(room // per_step) + 1 if per_step and room < math.inf else _ENDLESS


def _even_context(weights: Plane | None, batch: StepBatch, mean: float) -> float:
    """Return the context of equal decodes that take as long as those of the batch."""
    longest = batch.longest_context
    if weights is None or not longest:
        return mean
    return mean + (longest - mean) * weights.at(batch.num_decodes, mean / longest)


def _even_contexts(
    weights: Plane | None, batch: StepBatch, growth: StepGrowth, means: Array
) -> Array:
    """Return the same for every step of a run."""
    if weights is None or not batch.longest_context:
        return means
    longest = growth.longest(means, batch.longest_context)
    weight = weights.along(batch.num_decodes, means / longest)
    return np.asarray(means + (longest - means) * weight)
