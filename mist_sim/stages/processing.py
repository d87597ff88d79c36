"""Stages around the model: text processing before and after it, and calls of tools."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from mist_sim.core.request import Stage
from mist_sim.stages.stage_kinds import STAGES
from mist_sim.units import Seconds


def _require_tokens(num_tokens: int) -> None:
    if num_tokens < 0:
        raise ValueError(f"num_tokens must be >= 0, got {num_tokens}")


@STAGES.register("preprocess")
@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess(Stage):
    """Clean, tokenise or classify an input (MIST §IV-A4).

    num_tokens: length of the input; 0 with a task: in a template, the length of the row's prompt.
    task: name of the task, such as normalize or tokenize, for clients with times per task.
    """

    kind: ClassVar[str] = "preprocess"
    takes_lengths: ClassVar[bool] = True
    num_tokens: int = 0
    task: str | None = None

    def __post_init__(self) -> None:
        _require_tokens(self.num_tokens)

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Preprocess:
        """Return a copy for the row's prompt, if its task needs a length and none is given."""
        if self.num_tokens or self.task is None:
            return self
        return replace(self, num_tokens=num_prompt_tokens)

    def longer(self, num_tokens: int) -> Preprocess:
        """Return a copy that processes so many tokens more."""
        return replace(self, num_tokens=self.num_tokens + num_tokens)


@STAGES.register("postprocess")
@dataclass(frozen=True, slots=True, kw_only=True)
class Postprocess(Stage):
    """Detokenise, filter or validate an output (MIST §IV-A4).

    num_tokens: length of the output; 0 with a task: in a template, the length of the row's answer.
    task: name of the task, such as detokenize, validate or enhance, for clients with times per
        task.
    """

    kind: ClassVar[str] = "postprocess"
    takes_lengths: ClassVar[bool] = True
    num_tokens: int = 0
    task: str | None = None

    def __post_init__(self) -> None:
        _require_tokens(self.num_tokens)

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Postprocess:
        """Return a copy for the row's answer, if its task needs a length and none is given."""
        if self.num_tokens or self.task is None:
            return self
        return replace(self, num_tokens=num_output_tokens)

    def longer(self, num_tokens: int) -> Postprocess:
        """Return a copy that processes so many tokens more."""
        return replace(self, num_tokens=self.num_tokens + num_tokens)


@STAGES.register("tool_call")
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall(Stage):
    """Wait for a tool outside the model (MIST §III-B, footnote 4).

    duration: seconds that the tool itself takes (>= 0).
    """

    kind: ClassVar[str] = "tool_call"
    duration: Seconds

    def __post_init__(self) -> None:
        if not 0 <= self.duration < math.inf:
            raise ValueError(f"duration must be finite and >= 0 s, got {self.duration}")
