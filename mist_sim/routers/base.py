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

    `candidates` is never empty and holds only clients that serve `stage`, ordered by number. It is
    a sequence of views with fast queries that would otherwise loop over all candidates. A router
    reads only what a real gateway could see, changes no client, does not read the request's output
    length, and returns the `client_id` of one candidate.
    """

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the `client_id` of one candidate."""


class RefusalError(Exception):
    """Raised by a router that rejects a request; its text is the reason.

    The request ends as rejected by a busy service, and may be sent again.
    """


def group_of(request: Request, stage: Stage) -> str:
    """Return a key for the group of candidates that a stage and a model share."""
    return stage.kind if request.model is None else f"{stage.kind} of {request.model}"


@runtime_checkable
class Seeded(Protocol):
    """A router that draws random numbers or remembers; the simulation seeds it for each run."""

    def seed(self, rng: Generator) -> None:
        """Begin a run: forget earlier ones, draw from this stream."""
