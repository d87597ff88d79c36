"""Best-of-n: several answers to one prompt, of which a reward model chooses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mist_sim.core.request import Request, Stage
from mist_sim.core.visit import Served
from mist_sim.stages.growing.base import (
    Deliver,
    Growing,
    branch_content,
    first_branch,
    generation,
    prompt_content,
    require,
)
from mist_sim.stages.growing.passes import ModelPass
from mist_sim.stages.llm import Decode, Prefill, Prompted
from mist_sim.stages.stage_kinds import STAGES


@STAGES.register("best_of_n")
@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN(Growing, Prompted):
    """Generate several answers in parallel, score each, and deliver the best (MIST §II-E).

    Each answer is a child of the request with the same prompt; with prefix caching they share its
    KV entries. The user gets the best answer once all are scored.

    num_branches: answers (>= 1).
    reward_model: name of the model that scores prompt and answer in one prefill pass, as clients
        serve it; None: no scoring (majority vote).
    model: model that generates; None: the request's.
    num_prompt_tokens, num_output_tokens: of each answer (>= 1); None: those of the row.
    """

    kind: ClassVar[str] = "best_of_n"
    takes_lengths: ClassVar[bool] = True
    leads_to: ClassVar[tuple[str, ...]] = (Prefill.kind, Decode.kind, Deliver.kind)
    names_models: ClassVar[tuple[str, ...]] = ("model", "reward_model")
    num_branches: int
    reward_model: str | None = None
    model: str | None = None
    num_output_tokens: int | None = None

    def __post_init__(self) -> None:
        require("num_branches", self.num_branches)
        for name in ("num_prompt_tokens", "num_output_tokens"):
            if getattr(self, name) is not None:
                require(name, getattr(self, name))

    @property
    def num_input_tokens(self) -> int:
        """Tokens of the prompt; the branches share it, so it counts once."""
        return self.num_prompt_tokens or 0

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Stage:
        """Return a copy that takes missing lengths from a workload row."""
        return replace(
            self,
            num_prompt_tokens=self.num_prompt_tokens or num_prompt_tokens,
            num_output_tokens=self.num_output_tokens or num_output_tokens,
        )

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the branches as children, and the delivery of the best one's answer."""
        num_prompt, num_output = self.num_prompt_tokens, self.num_output_tokens
        if num_prompt is None or num_output is None:
            raise ValueError("the lengths of best_of_n must be given outside of a template")
        stages: tuple[Stage, ...] = generation(num_prompt, num_output)
        if self.reward_model is not None:
            stages += (ModelPass(model=self.reward_model, num_tokens=num_prompt + num_output),)
        prompt, first = prompt_content(request, num_prompt), first_branch(request)
        branches = [
            Request(
                0,
                None,
                stages,
                content=prompt + branch_content(request, first + number, num_output),
                model=self.model,
            )
            for number in range(self.num_branches)
        ]
        return Served(then=(Deliver(num_tokens=num_output),), children=tuple(branches))
