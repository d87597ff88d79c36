"""Stages around the model: texts before and after it, images, retrieval, and calls of tools."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from mist_sim.core.request import Image, Images, Stage
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


@STAGES.register("encode_images")
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeImages(Stage):
    """Turn a prompt's images into tokens before prefill (encode, prefill and decode apart).

    num_images: of the prompt; in a template, the class stands for those of the row.
    patches, tokens, parts: of each (see `Image`).
    """

    kind: ClassVar[str] = "encode_images"
    num_images: int = 0
    patches: int = 0
    tokens: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("num_images", "patches", "tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.parts < 1:
            raise ValueError(f"parts must be >= 1, got {self.parts}")

    @property
    def is_empty(self) -> bool:
        """Whether the prompt has no images."""
        return not self.num_images

    @property
    def image(self) -> Image:
        """Each of the images."""
        return Image(self.patches, self.tokens, self.parts)

    @classmethod
    def of(cls, images: Images | None) -> EncodeImages:
        """Return the stage for a row's images."""
        if images is None:
            return cls()
        return cls(num_images=images.number, **images.each._asdict())


@STAGES.register("rag")
@dataclass(frozen=True, slots=True, kw_only=True)
class Rag(Stage):
    """Embed the query, search an index, re-rank what was found (MIST §IV-A2).

    Clients of type rag use both numbers; workers ignore them.

    num_query_tokens: length of the query in tokens (> 0); None: clients of type rag take the prompt
        as the query.
    num_documents: documents added to the prompt (> 0); None: the client's own number.
    """

    kind: ClassVar[str] = "rag"
    num_query_tokens: int | None = None
    num_documents: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_query_tokens", "num_documents"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be > 0, got {value}")


@STAGES.register("kv_retrieval")
@dataclass(frozen=True, slots=True, kw_only=True)
class KvRetrieval(Stage):
    """Fetch the KV entries of a known context instead of computing them (MIST §IV-A3).

    num_tokens: context tokens to fetch entries for (> 0); clients of type kv_retrieval fetch at
        most those of the next prompt.
    """

    kind: ClassVar[str] = "kv_retrieval"
    num_tokens: int

    def __post_init__(self) -> None:
        if self.num_tokens <= 0:
            raise ValueError(f"num_tokens must be > 0, got {self.num_tokens}")

    def longer(self, num_tokens: int) -> KvRetrieval:
        """Return a copy that fetches the entries of so many tokens more."""
        return replace(self, num_tokens=self.num_tokens + num_tokens)
