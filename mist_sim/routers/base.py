"""The seam between the coordinator and a routing policy."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from numpy.random import Generator

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.registry import Registry

ROUTERS = Registry("routers")


@runtime_checkable
class Router(Protocol):
    """Choose the client that serves a request's next stages.

    `candidates` is never empty and holds only clients that serve `stage`, ordered by number: a
    sequence of views, whose own methods answer what would else take a look at each. A router reads
    what a real gateway could see, changes no client, does not read the request's output length,
    and returns one candidate's `client_id`.
    """

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the `client_id` of one candidate."""


class RefusalError(Exception):
    """Raised by a router that turns a request away; the reason is its text.

    It ends as one that a busy service rejected, and may be sent again.
    """


def group_of(request: Request, stage: Stage) -> str:
    """Return what tells apart the candidates of stages, and of the models that requests name."""
    return stage.kind if request.model is None else f"{stage.kind} of {request.model}"


@runtime_checkable
class Seeded(Protocol):
    """A router that draws random numbers or remembers; the simulation seeds it for each run."""

    def seed(self, rng: Generator) -> None:
        """Begin a run: forget earlier ones, draw from this stream."""
