"""Routers that look at no load: random, round-robin, and a router for each kind of stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from numpy.random import Generator

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.routers.base import ROUTERS, Router, group_of


@ROUTERS.register("random")
@dataclass
class RandomRouter:
    """Send each visit to a candidate drawn uniformly at random."""

    def seed(self, rng: Generator) -> None:
        """Draw from this stream."""
        self._rng = rng

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return a candidate drawn uniformly at random."""
        return candidates[int(self._rng.random() * len(candidates))].client_id


@ROUTERS.register("round_robin")
@dataclass
class RoundRobinRouter:
    """Send visits to the candidates round-robin, separately for each kind of stage.

    Each model that requests name has its own turn, and so has each local pool.
    """

    def __post_init__(self) -> None:
        self._turns: dict[tuple[str, str | None], int] = {}

    def seed(self, rng: Generator) -> None:
        """Begin every group of clients with its first one."""
        self._turns = {}

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the candidate whose turn it is in its group."""
        group = group_of(request, stage), candidates[0].pool if stage.continues else None
        turn = self._turns.get(group, 0)
        self._turns[group] = turn + 1
        return candidates[turn % len(candidates)].client_id


@dataclass(frozen=True)
class StageRouters:
    """Ask the router of a stage, or the default router if the stage has none.

    For a visit of several stages, the first one selects the router.
    """

    default: Router
    of_stages: Mapping[str, Router]

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the choice of the stage's router."""
        router = self.of_stages.get(stage.kind, self.default)
        return router.choose(request, stage, candidates)
