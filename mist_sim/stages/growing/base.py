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
from mist_sim.stages.registry import STAGES

_MOST_BRANCHES = 2**20  # of a request: ten times as many as it may grow by


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing(Stage, ABC):
    """A stage that says itself what follows when it is served: stages, and children to wait for.

    Clients that have no part in it serve it: an `ApplicationClient` at once, a `SequentialClient`
    after the time that it takes.

    is_work: whether it is work on a text, which takes a worker, so that no application serves it.
    leads_to: kinds of the stages that it adds, for which there have to be clients.
    names_models: its parameters that name models, for which there have to be clients, too.
    """

    grows: ClassVar[bool] = True
    is_work: ClassVar[bool] = False
    leads_to: ClassVar[tuple[str, ...]] = ()
    names_models: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return what follows now that the stage is served. rng: the client's own."""


@STAGES.register("deliver")
@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver(Growing):
    """Hand over an answer that other requests have generated: all its tokens come at once.

    num_tokens: of the answer (>= 1). They are output tokens of the request, with no gaps between.
    """

    kind: ClassVar[str] = "deliver"
    num_tokens: int

    def __post_init__(self) -> None:
        require("num_tokens", self.num_tokens)

    @property
    def num_new_tokens(self) -> int:
        return self.num_tokens

    def longer(self, num_tokens: int) -> Deliver:
        return Deliver(num_tokens=self.num_tokens + num_tokens)

    def follow(self, request: Request, rng: np.random.Generator) -> Served:
        """Return that nothing follows."""
        return Served()


def require(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError unless a number is as large as it has to be."""
    if value < least:
        raise ValueError(f"{name} must be >= {least}, got {value}")


def branch_content(request: Request, number: int, num_tokens: int) -> Content:
    """Return content that only one branch of a request has. number: of the branch, from 1."""
    return ((content_id(OF_BRANCH, request.request_id * _MOST_BRANCHES + number), num_tokens),)


def first_branch(request: Request) -> int:
    """Return a number for the next branch of a request that none of the branches before has had.

    Each branch is a child or a stage that was added, and these are counted.
    """
    return 1 if request.growth is None else 1 + request.growth.num_added


def prompt_content(request: Request, num_tokens: int) -> Content:
    """Return the content of a request's prompt, so that its branches share the KV entries of it.

    That of its row, up to as many tokens; where it has none, content that nobody else has.
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
