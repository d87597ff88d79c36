"""An agent's loop: the model answers, a tool runs, and the model reads the tool's result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import Served
from mist_sim.stages.growing.base import (
    Growing,
    branch_content,
    first_branch,
    generation,
    prompt_content,
    require,
)
from mist_sim.stages.llm import Decode, Prefill, Prompted
from mist_sim.stages.processing import ToolCall
from mist_sim.stages.stage_kinds import STAGES
from mist_sim.units import Seconds


@STAGES.register("tool_loop")
@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLoop(Growing, Prompted):
    """Turns of an agent: prompt, answer, tool call, and a prompt with the whole conversation.

    The prompt of a turn is the conversation so far plus the tool's result. While the tool runs, the
    KV entries stay in the engine's prefix cache until their blocks are needed, move to its tiers,
    or are computed again, depending on the engine's options.

    num_turns: largest number of answers (>= 1). num_result_tokens: tokens of each tool result (>=
        0).
    duration: seconds that a tool takes (>= 0). more: probability of another turn after each, up to
        num_turns.
    num_prompt_tokens, num_output_tokens: lengths of the first prompt and of each answer (>= 1);
        None: those of the row.
    """

    kind: ClassVar[str] = "tool_loop"
    takes_lengths: ClassVar[bool] = True
    leads_to: ClassVar[tuple[str, ...]] = (ToolCall.kind, Prefill.kind, Decode.kind)
    num_turns: int
    duration: Seconds
    num_result_tokens: int = 0
    more: float = 1.0
    num_output_tokens: int | None = None

    def __post_init__(self) -> None:
        require("num_turns", self.num_turns)
        require("num_result_tokens", self.num_result_tokens, 0)
        if not 0 <= self.duration < math.inf:
            raise ValueError(f"duration must be finite and >= 0 s, got {self.duration}")
        if not 0 <= self.more <= 1:
            raise ValueError(f"more must be in [0, 1], got {self.more}")
        for name in ("num_prompt_tokens", "num_output_tokens"):
            if getattr(self, name) is not None:
                require(name, getattr(self, name))

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Stage:
        """Return a copy that takes missing lengths from a workload row."""
        return replace(
            self,
            num_prompt_tokens=self.num_prompt_tokens or num_prompt_tokens,
            num_output_tokens=self.num_output_tokens or num_output_tokens,
        )

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the first turn."""
        num_prompt, num_output = self.num_prompt_tokens, self.num_output_tokens
        if num_prompt is None or num_output is None:
            raise ValueError("the lengths of tool_loop must be given outside of a template")
        num_known = num_prompt + self.num_turns * (num_output + self.num_result_tokens)
        after = _Turn(loop=self, num_known=num_prompt + num_output, num_before=1)
        return Served(
            then=(*generation(num_prompt, num_output), after),
            content=_conversation(request, num_prompt, num_known),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn(Growing):
    """The continuation after a turn: a tool and the next turn, or the end.

    num_known: tokens of the conversation so far. num_before: turns done.
    """

    kind: ClassVar[str] = "tool_loop"
    loop: ToolLoop
    num_known: int
    num_before: int

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return a tool call, its generation and the next turn; nothing after the last turn."""
        loop, num_output = self.loop, self.loop.num_output_tokens or 1
        if self.num_before == loop.num_turns or (loop.more < 1 and rng.random() >= loop.more):
            return Served()
        num_prompt = self.num_known + loop.num_result_tokens
        after = replace(self, num_known=num_prompt + num_output, num_before=self.num_before + 1)
        turn = (ToolCall(duration=loop.duration), *generation(num_prompt, num_output), after)
        return Served(then=turn)


def _conversation(
    request: Request, num_prompt: int, num_tokens: int
) -> tuple[tuple[int, int], ...]:
    """Return the content of all turns: the prompt, and behind it tokens that are the request's."""
    rest = branch_content(request, first_branch(request), num_tokens - num_prompt)
    return prompt_content(request, num_prompt) + rest
