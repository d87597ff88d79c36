"""Instructions, examples and context that are put around a prompt before the model reads it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mist_sim.core.request import Request
from mist_sim.core.visit import Longer, Served
from mist_sim.stages.growing.base import Growing, require
from mist_sim.stages.llm import Prompted
from mist_sim.stages.stage_kinds import STAGES


@STAGES.register("augment")
@dataclass(frozen=True, slots=True, kw_only=True)
class Augment(Growing):
    """Put a prompt into a template, which lengthens it (MIST §II-A).

    num_added_tokens: tokens of instructions and examples (>= 1), added to the next prompt.
    num_tokens: length of the input; 0: in a template, the length of the row's prompt.
    task: name of the task, for clients with times per task.
    """

    kind: ClassVar[str] = "augment"
    is_work: ClassVar[bool] = True
    takes_lengths: ClassVar[bool] = True
    num_added_tokens: int
    num_tokens: int = 0
    task: str = "augment"

    def __post_init__(self) -> None:
        require("num_added_tokens", self.num_added_tokens)
        require("num_tokens", self.num_tokens, 0)

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Augment:
        """Return a copy that adds as many tokens as the row's prompt has, if none are given."""
        return self if self.num_tokens else replace(self, num_tokens=num_prompt_tokens)

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return an outcome that lengthens the next prompt."""
        return Served(changes=(Longer(Prompted, self.num_added_tokens),))
