"""Makes the stages of a request from a row's lengths: pipelines as functions or templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mist_sim.core.request import Stage
from mist_sim.errors import brief
from mist_sim.stages import (
    Decode,
    EncodeImages,
    KvRetrieval,
    Prefill,
    completion,
    validate_pipeline,
)
from mist_sim.traces.base import TraceRow

PipelineTemplate = Callable[[TraceRow], tuple[Stage, ...]]
"""Makes the stages of one request; a plain function will do."""

StageOrClass = Stage | type[EncodeImages] | type[KvRetrieval] | type[Prefill] | type[Decode]


_OF_THE_ROW = (EncodeImages, KvRetrieval, Prefill, Decode)


def completion_pipeline(row: TraceRow) -> tuple[Stage, ...]:
    """Return prefill and decode of the row's lengths."""
    return completion(row.num_prompt_tokens, row.num_output_tokens)


@dataclass(frozen=True, slots=True)
class StageTemplate:
    """A pipeline whose `parts` are the same for every row, except for its lengths.

    parts: stages, used unchanged except for lengths taken from the row (`takes_lengths`), and the
    classes `Prefill` and `Decode`, which stand for the row's prompt and for its output after the
    first token, `KvRetrieval`, for a retrieval of all of that prompt, and `EncodeImages`, for its
    images, where it has any. Raises ValueError for a part of another type, or an order that cannot
    run.
    """

    parts: tuple[StageOrClass, ...]

    def __post_init__(self) -> None:
        for position, part in enumerate(self.parts):
            if part not in _OF_THE_ROW and not isinstance(part, Stage):
                raise ValueError(
                    f"part {position} must be a stage, or the class EncodeImages, KvRetrieval, "
                    f"Prefill or Decode, got {brief(part)}"
                )
        validate_pipeline(self(TraceRow(1, 1)))

    def __call__(self, row: TraceRow) -> tuple[Stage, ...]:
        """Return the stages of a request with the row's lengths."""
        parts = self.parts
        return tuple(
            [_stage(part, row) for part in parts if part is not EncodeImages or row.images]
        )


def _stage(part: StageOrClass, row: TraceRow) -> Stage:
    if isinstance(part, Stage):
        if part.takes_lengths:
            return part.with_lengths(row.num_prompt_tokens, row.num_output_tokens)
        return part
    if part is Prefill:
        return Prefill(num_prompt_tokens=row.num_prompt_tokens)
    if part is EncodeImages:
        return EncodeImages.of(row.images)
    if part is KvRetrieval:
        return KvRetrieval(num_tokens=row.num_prompt_tokens)
    return Decode(num_tokens=row.num_output_tokens - 1)


def template(stages: Sequence[StageOrClass]) -> StageTemplate:
    """Return the pipeline `stages`, in which Prefill and Decode stand for a row's lengths.

    `template([Rag(num_query_tokens=64, num_documents=8), Prefill, Decode])` puts one retrieval
    before each completion. Raises ValueError as `StageTemplate` does.
    """
    return StageTemplate(tuple(stages))
