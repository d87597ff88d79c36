"""The ranks of an engine, usually one: a predictor for each, and the delay between two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.collectives import send
from mist_sim.hardware.predictors.around import checked
from mist_sim.hardware.predictors.base import Predictor, PredictorTraits, traits_of
from mist_sim.hardware.predictors.explained import OperatorTime, explained, merged
from mist_sim.models.spec import ModelSpec, rank_part


@dataclass(frozen=True, slots=True)
class PipelinePredictor:
    """Times the work of every rank of an engine in a pass.

    ranks: one predictor each, in the order of the layers; equal ranks may share one. A single rank
        computes whole steps: the engine is no pipeline. Impossible times of theirs raise
        ScenarioError (`positive`).
    rank_delay: called with a batch's number of tokens, returns the seconds until its activations
        are on the next rank.
    traits: of a pass through all ranks; origin and overhead are the first rank's.
    """

    ranks: tuple[Predictor, ...]
    rank_delay: Callable[[int], float]
    traits: PredictorTraits = field(init=False)

    def __post_init__(self) -> None:
        if not self.ranks:
            raise ValueError("ranks must have at least one predictor")
        safe = {id(rank): checked(rank) for rank in self.ranks}
        object.__setattr__(self, "ranks", tuple(safe[id(rank)] for rank in self.ranks))
        object.__setattr__(self, "traits", self._traits())

    def _traits(self) -> PredictorTraits:
        first, *others = map(traits_of, self.ranks)
        if not others:
            return first
        every = [first, *others]
        return replace(
            first,
            sums_over_links=all(traits.sums_over_links for traits in every),
            needs_longest_context=any(traits.needs_longest_context for traits in every),
            times_drafts=all(traits.times_drafts for traits in every),
            steps_inside=_inside_all(every),
            step_time_on_the_spot=None,  # pipelines do not plan ahead
        )

    def explain(self, batch: StepBatch, is_on_the_spot: bool = False) -> list[OperatorTime]:
        """Return the operators of a pass through all ranks, and the delays between them."""
        found = [
            operator
            for rank in self.ranks
            for operator in explained(rank, batch, is_on_the_spot=is_on_the_spot)
        ]
        if (num := len(self.ranks) - 1) > 0:
            delay = self.rank_delay(batch.num_prefill_tokens + batch.num_decode_queries)
            found.append(OperatorTime("to_the_next_rank", num * delay, "links", num))
        return merged(found)

    def with_first(self, predictor: Predictor) -> PipelinePredictor:
        """Return a copy with another predictor on the first rank."""
        return replace(self, ranks=(predictor, *self.ranks[1:]))

    def with_last(self, predictor: Predictor) -> PipelinePredictor:
        """Return a copy with another predictor on the last rank."""
        return replace(self, ranks=(*self.ranks[:-1], predictor))


def _inside_all(
    every: list[PredictorTraits],
) -> Callable[[StepBatch, StepGrowth], int] | None:
    """Return a function that counts the steps inside the measured range of all ranks."""
    measured = [traits.steps_inside for traits in every if traits.steps_inside]
    if not measured:
        return None
    return lambda batch, growth: min(inside(batch, growth) for inside in measured)


def ranks_of(predictor: Predictor | PipelinePredictor) -> PipelinePredictor:
    """Return the ranks that a predictor times: a single one, unless it is a `PipelinePredictor`."""
    if isinstance(predictor, PipelinePredictor):
        return predictor
    return PipelinePredictor((predictor,), _no_delay)


def _no_delay(num_tokens: int) -> float:
    return 0.0


def pipeline_predictor(
    make: Callable[[ModelSpec], Predictor], model: ModelSpec, cluster: Cluster
) -> PipelinePredictor:
    """Return a predictor whose ranks are made from their parts of the model.

    A single rank has the whole model. Between two ranks go hidden state and residual of every token
    (vLLM's `IntermediateTensors` of its decoder models). Each GPU of the next rank receives all of
    them over its own link: from one GPU, or a slice from each GPU of the previous rank and the
    other slices from its neighbours (vLLM's `send_tensor_dict` with `all_gather_group`). If any two
    consecutive ranks are on different nodes, all are taken to be.
    """
    size = cluster.pipeline_parallel_size
    if size == 1:
        return ranks_of(make(model))
    made: dict[ModelSpec, Predictor] = {}
    parts = [rank_part(model, rank, size) for rank in range(size)]
    for part in parts:
        if part not in made:
            made[part] = make(part)
    seconds = send(cluster.gpu.interconnect, cluster.spans.stages)
    bytes_per_token = 2 * model.hidden_size * model.dtype_bytes

    @lru_cache(maxsize=4096)  # batches of so many tokens come again and again
    def rank_delay(num_tokens: int) -> float:
        return seconds(num_tokens * bytes_per_token)

    return PipelinePredictor(tuple(made[part] for part in parts), rank_delay)
