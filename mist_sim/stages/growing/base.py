"""The base of stages that grow, and the stage that hands a finished answer over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mist_sim.core.content_ids import OF_BRANCH, content_id, leading
from mist_sim.core.request import Content, Request, Stage
from mist_sim.core.visit import Served
from mist_sim.stages.llm import Decode, Prefill
from mist_sim.stages.stage_kinds import STAGES

_MOST_BRANCHES = 2**20  # stages per request: ten times the limit of growth


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing(Stage, ABC):
    """A stage that decides when served what follows: further stages, and children to wait for.

    An `ApplicationClient` serves it at once; a `SequentialClient` serves it after a service time.

    is_work: whether it processes a text and needs a worker; applications then do not serve it.
    leads_to: kinds of stages that it adds; the scenario needs clients for them.
    names_models: its parameters that name models; the scenario needs clients for these.
    """

    grows: ClassVar[bool] = True
    is_work: ClassVar[bool] = False
    leads_to: ClassVar[tuple[str, ...]] = ()
    names_models: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return the outcome, with the stages that follow. rng: the client's own generator."""


@STAGES.register("deliver")
@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver(Growing):
    """Deliver an answer that other requests have generated: all its tokens at once.

    num_tokens: length of the answer (>= 1). They are output tokens of the request, with no gaps
        between.
    """

    kind: ClassVar[str] = "deliver"
    num_tokens: int

    def __post_init__(self) -> None:
        require("num_tokens", self.num_tokens)

    @property
    def num_new_tokens(self) -> int:
        """The tokens that it hands to the user."""
        return self.num_tokens

    def longer(self, num_tokens: int) -> Deliver:
        """Return a copy that hands over so many tokens more."""
        return Deliver(num_tokens=self.num_tokens + num_tokens)

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return an empty outcome."""
        return Served()


def require(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError for a number below its minimum."""
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")


def branch_content(request: Request, number: int, num_tokens: int) -> Content:
    """Return content that only one branch of a request has. number: of the branch, from 1."""
    return ((content_id(OF_BRANCH, request.request_id * _MOST_BRANCHES + number), num_tokens),)


def first_branch(request: Request) -> int:
    """Return the number of a request's next branch, unique among its branches.

    Each branch is an added child or stage, and both are counted.
    """
    return 1 if request.growth is None else 1 + request.growth.num_added


def prompt_content(request: Request, num_tokens: int) -> Content:
    """Return the content of a request's prompt, so that its branches share its KV entries.

    This is the content of its row, cut to the prompt's length; without it, content unique to the
    request.
    """
    kept = leading(request.content, num_tokens)
    num_left = num_tokens - sum([length for _, length in kept])
    return kept + branch_content(request, 0, num_left) if num_left else kept


def generation(num_prompt_tokens: int, num_output_tokens: int) -> tuple[Stage, Stage]:
    """Return the stages of a model's answer."""
    return (
        Prefill(num_prompt_tokens=num_prompt_tokens),
        Decode(num_tokens=num_output_tokens - 1),
    )
