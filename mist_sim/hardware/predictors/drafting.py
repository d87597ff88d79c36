"""The time of a step in which tokens are drafted and verified.

The target verifies within its own pass; `num_drafts` of the batch tells its predictor. The draft
model then reads what the target read, prompts included, which gives the first draft of every
sequence; each later pass adds one token to each (vLLM v1's `vllm/v1/spec_decode/eagle.py`, which
its `draft_model.py` follows).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.errors import ScenarioError
from mist_sim.hardware.drafter import Drafter
from mist_sim.hardware.predictors.analytic.compile import Phase
from mist_sim.hardware.predictors.analytic.roofline import RooflinePredictor
from mist_sim.hardware.predictors.around import type_of
from mist_sim.hardware.predictors.base import Predictor, PredictorTraits, traits_of
from mist_sim.hardware.predictors.explained import OperatorTime, explained, merged
from mist_sim.hardware.predictors.ranks import PipelinePredictor, ranks_of
from mist_sim.models import operators
from mist_sim.models.speculative import SpeculativeConfig

Array = NDArray[np.float64]


def with_drafting(
    predictor: Predictor | PipelinePredictor, config: SpeculativeConfig, drafter: Drafter | None
) -> PipelinePredictor:
    """Return a predictor that adds the time of drafting to a target's step times.

    The last rank drafts, and a pass returns when the next drafts are there, too.

    drafter: the model that drafts, timed by a roofline; None: no model. Raises ScenarioError for a
    predictor without `times_drafts`.
    """
    target = ranks_of(predictor)
    for rank in target.ranks:
        if not traits_of(rank).times_drafts:
            raise ScenarioError(
                "predictor must be one that times drafts with speculative_config, such as "
                f"roofline, got {type_of(rank)}"
            )
    passes = DraftPasses(drafter, config.num_speculative_tokens) if drafter else None
    return target.with_last(_WithDrafting(target.ranks[-1], passes, config.drafting_time))


@dataclass(slots=True)
class _WithDrafting:
    """A target's step times with drafting added.

    passes: of the draft model; None without one. host: seconds a step beyond kernels.
    """

    adds_to: ClassVar[str] = "target"

    target: Predictor
    passes: DraftPasses | None
    host: float

    @property
    def traits(self) -> PredictorTraits:
        """Those of the target, without its `step_time_on_the_spot`, which leaves drafting out.

        They ask for the longest context if either model does.
        """
        inside = traits_of(self.target)
        asks = inside.needs_longest_context
        if self.passes is not None:
            asks = asks or self.passes.needs_longest_context
        return replace(inside, needs_longest_context=asks, step_time_on_the_spot=None)

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of a step, with those of the draft model and the host."""
        seconds = self.target.step_time(batch) + self.host
        return self.passes.add(seconds, batch) if self.passes else seconds

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a step, the target's first, then the draft model's."""
        found = explained(self.target, batch, is_on_the_spot=is_on_the_spot)
        if self.host:
            found.append(OperatorTime("drafting", self.host, "host"))
        return found + self.passes.explain(batch) if self.passes else found

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> Array:
        """Return the seconds of a run of steps, with those of the draft model and the host."""
        seconds = self.target.run(batch, growth, num_steps)
        seconds += self.host
        return self.passes.add_run(seconds, batch, growth) if self.passes else seconds


class DraftPasses:
    """The passes of a draft model in a step, `num_passes` of them.

    The first pass has the tokens of the target's pass, later ones a token of each sequence; all
    later ones are taken to last as long as the second, although their contexts are a few tokens
    longer. In the first pass only last tokens are sampled; the roofline counts logits for all
    decodes.
    """

    def __init__(self, drafter: Drafter, num_passes: int) -> None:
        self._num_later = num_passes - 1
        self._model = RooflinePredictor(drafter.model, drafter.cluster)
        self._joining = Joining(drafter) if drafter.is_target_layer else None

    @property
    def needs_longest_context(self) -> bool:
        """Whether the draft model's predictor asks for the longest context."""
        return self._model.traits.needs_longest_context

    def add(self, seconds: float, batch: StepBatch) -> float:
        """Return `seconds` with the passes on top."""
        seconds += self._model.step_time(batch)
        later = _later(batch)
        if self._num_later:
            seconds += self._num_later * self._model.step_time(later)
        return seconds + self._join(batch, later)

    def explain(self, batch: StepBatch) -> list[OperatorTime]:
        """Return the operators of all passes, by names that begin with `draft_`."""
        num, later = self._num_later, _later(batch)
        found = self._model.explain(batch)
        if num:
            found += [
                each._replace(
                    seconds=num * each.seconds,
                    layers=num * each.layers,
                    flops=num * each.flops,
                    num_bytes=num * each.num_bytes,
                )
                for each in self._model.explain(later)
            ]
        if self._joining is not None:
            found.append(OperatorTime("joining", self._join(batch, later), "memory", 1 + num))
        return [each._replace(name=f"draft_{each.name}") for each in merged(found)]

    def add_run(self, seconds: Array, batch: StepBatch, growth: StepGrowth) -> Array:
        """Do the same for the steps of a run, whose times are overwritten."""
        num_steps = len(seconds)
        seconds += self._model.run(batch, growth, num_steps)
        later = _later(batch)
        if self._num_later:
            later_growth = _later_growth(batch, growth, num_steps)
            seconds += self._num_later * self._model.run(later, later_growth, num_steps)
        seconds += self._join(batch, later)
        return seconds

    def _join(self, batch: StepBatch, later: StepBatch) -> float:
        if self._joining is None:
            return 0.0
        first = self._joining.time(batch.num_prefill_tokens + batch.num_decode_queries)
        return first + self._num_later * self._joining.time(later.num_decodes)


class Joining:
    """Seconds of the matrix that joins hidden state and embedding (see `Drafter`)."""

    def __init__(self, drafter: Drafter) -> None:
        model, gpu = drafter.model, drafter.cluster.gpu
        hidden, width = model.hidden_size, model.dtype_bytes
        none, one = (
            operators.product(model, "joining", n, 2 * hidden, hidden, width) for n in (0, 1)
        )
        (self._term,) = Phase(gpu, gpu.decode).terms(1, [none], [one])

    def time(self, num_tokens: int) -> float:
        """Return the seconds for so many tokens."""
        return self._term.time(num_tokens)


def _later(batch: StepBatch) -> StepBatch:
    """Return the second pass: each sequence has read the step's tokens and adds one.

    Only the first of a decode's tokens counts as read, as if no draft had been accepted.
    """
    prompts = [new + context for new, context in batch.chunks]
    context_sum = batch.context_sum + batch.num_decodes + sum(prompts)
    later = StepBatch((), batch.num_decodes + len(prompts), context_sum)
    if batch.longest_context is not None or not batch.num_decodes:
        mine = [] if batch.longest_context is None else [batch.longest_context + 1]
        later.longest_context = max([*mine, *prompts], default=None)
    return later


def _later_growth(batch: StepBatch, growth: StepGrowth, num_steps: int) -> StepGrowth:
    num_new, ahead = batch.num_prefill_tokens, np.arange(num_steps)
    if not num_new:
        return growth
    added = growth.context_sum
    sums = added + num_new if isinstance(added, int) else added[:num_steps] + num_new * ahead
    longest = np.max([ahead * new + (new + context) for new, context in batch.chunks], axis=0)
    if batch.longest_context is not None:
        of_decodes = growth.longest(ahead, batch.longest_context + 1).astype(int)
        longest = np.maximum(longest, of_decodes)
    return StepGrowth(sums, longest_context=longest - longest[0])
