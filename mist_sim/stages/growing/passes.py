"""A pass of another model over a request's text: classifiers, safety filters, reward models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import numpy as np

from mist_sim.core.request import Content, Request, Stage
from mist_sim.core.visit import Served
from mist_sim.stages.growing.base import Growing, require
from mist_sim.stages.llm import Prefill
from mist_sim.stages.stage_kinds import STAGES

Text = Literal["prompt", "answer", "both"]


@STAGES.register("model_pass")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPass(Growing):
    """One prefill pass of another model: intent, safety, or the score of an answer.

    The pass is a request of its own to a client of that model; this request waits for it.

    model: its name, as clients serve it, such as qwen2.5-math-prm-7b or shieldgemma-2b.
    num_tokens: tokens to read (> 0); None: those of `text` in the workload row.
    text: text to read in a template's row: prompt, answer or both.
    Source: MIST §IV-A4 (classification by a model of about 2B parameters; PRMs and ORMs as a
    single prefill pass).
    """

    kind: ClassVar[str] = "model_pass"
    takes_lengths: ClassVar[bool] = True
    leads_to: ClassVar[tuple[str, ...]] = (Prefill.kind,)
    names_models: ClassVar[tuple[str, ...]] = ("model",)
    model: str
    num_tokens: int | None = None
    text: Text = "both"

    def __post_init__(self) -> None:
        if self.num_tokens is not None:
            require("num_tokens", self.num_tokens)
        if self.text not in get_args(Text):
            raise ValueError(f"text must be one of {', '.join(get_args(Text))}, got {self.text!r}")

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Stage:
        """Return a copy that takes a missing length from the row's prompt, answer or both."""
        if self.num_tokens is not None:
            return self
        lengths = {"prompt": num_prompt_tokens, "answer": num_output_tokens}
        num_tokens = lengths.get(self.text, num_prompt_tokens + num_output_tokens)
        return replace(self, num_tokens=num_tokens)

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the pass as a child."""
        if self.num_tokens is None:
            raise ValueError("num_tokens of a model_pass must be given outside of a template")
        content = () if self.text == "answer" else request.content
        return Served(children=(one_pass(self.model, self.num_tokens, content),))


def one_pass(model: str, num_tokens: int, content: Content = ()) -> Request:
    """Return a request for one prefill pass of a model."""
    stages = (Prefill(num_prompt_tokens=num_tokens),)
    return Request(0, None, stages, content=content, model=model)
