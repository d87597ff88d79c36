"""Routers that look at no load: random and round-robin."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.routers.base import ROUTERS, group_of


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
    """Send visits to the candidates in turn, with a turn of its own for each kind of stage.

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
