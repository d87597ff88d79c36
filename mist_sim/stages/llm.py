"""Stages that a language model serves: prefill, decode, reasoning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mist_sim.core.request import Stage
from mist_sim.stages.stage_kinds import STAGES
from mist_sim.units import is_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompted(Stage):
    """A stage that begins with a prompt; passages and instructions before it lengthen the prompt.

    num_prompt_tokens: length of the prompt (>= 1); None: not known yet, a template fills it in from
        the row.
    """

    kind: ClassVar[str] = "prompt"
    num_prompt_tokens: int | None = None

    def longer(self, num_tokens: int) -> Stage:
        """Return a copy with a longer prompt; raises TypeError if its length is still open."""
        if self.num_prompt_tokens is None:
            raise TypeError(f"num_prompt_tokens of {self.kind} must be given outside of a template")
        return replace(self, num_prompt_tokens=self.num_prompt_tokens + num_tokens)


@STAGES.register("prefill")
@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill(Prompted):
    """Compute KV entries for a prompt and emit the first output token.

    It may begin with entries kept by another client, and then computes the rest.

    num_prompt_tokens: prompt length in tokens (> 0).
    """

    kind: ClassVar[str] = "prefill"
    may_continue: ClassVar[bool] = True
    num_prompt_tokens: int

    def __post_init__(self) -> None:
        if not is_whole(self.num_prompt_tokens):
            raise ValueError(f"num_prompt_tokens must be whole, got {self.num_prompt_tokens!r}")
        if self.num_prompt_tokens <= 0:
            raise ValueError(f"num_prompt_tokens must be > 0, got {self.num_prompt_tokens}")

    @property
    def num_input_tokens(self) -> int:
        """Tokens of its prompt."""
        return self.num_prompt_tokens

    @property
    def num_new_tokens(self) -> int:
        """1: the first token of the answer."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation(Prefill):
    """Recompute a prompt and the tokens of its answer so far, and emit the next token.

    A gateway sends this to another client after the client with the KV entries has failed.

    num_prompt_tokens: prompt tokens plus emitted tokens. num_before: emitted
    tokens. last_token_at: when the latest was emitted, seconds; NaN without any.
    """

    is_again: ClassVar[bool] = True
    num_before: int
    last_token_at: float

    @property
    def num_emitted(self) -> int:
        """Tokens of the answer that the user has already."""
        return self.num_before

    @property
    def num_input_tokens(self) -> int:
        """None: its request has prompted with these before."""
        return 0


@STAGES.register("decode")
@dataclass(frozen=True, slots=True, kw_only=True)
class Decode(Stage):
    """Generate output tokens one step at a time, after prefill emitted the first.

    num_tokens: output tokens after the first (>= 0); an answer of n tokens has n - 1.
    """

    kind: ClassVar[str] = "decode"
    continues: ClassVar[bool] = True
    num_tokens: int

    def __post_init__(self) -> None:
        if not is_whole(self.num_tokens):
            raise ValueError(f"num_tokens must be whole, got {self.num_tokens!r}")
        if self.num_tokens < 0:
            raise ValueError(f"num_tokens must be >= 0, got {self.num_tokens}")

    @property
    def is_empty(self) -> bool:
        """True of an answer of one token, which prefill emits."""
        return self.num_tokens == 0

    @property
    def num_new_tokens(self) -> int:
        """Tokens of the answer after its first."""
        return self.num_tokens

    def longer(self, num_tokens: int) -> Decode:
        """Return a copy that generates so many tokens more."""
        return replace(self, num_tokens=self.num_tokens + num_tokens)

    def with_rest(self, num_tokens: int) -> Decode:
        """Return a copy that generates `num_tokens` tokens in all."""
        return replace(self, num_tokens=num_tokens)


@STAGES.register("reasoning")
@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning(Stage):
    """Generate thinking tokens that the user does not see, on a worker.

    Of an engine they are tokens of the answer: count them in `output`.

    num_tokens: thinking tokens of one branch (>= 0).
    """

    kind: ClassVar[str] = "reasoning"
    num_tokens: int

    def __post_init__(self) -> None:
        if self.num_tokens < 0:
            raise ValueError(f"num_tokens must be >= 0, got {self.num_tokens}")

    @property
    def num_new_tokens(self) -> int:
        """Tokens of the chain of thought."""
        return self.num_tokens

    def longer(self, num_tokens: int) -> Reasoning:
        """Return a copy that thinks so many tokens more."""
        return replace(self, num_tokens=self.num_tokens + num_tokens)
