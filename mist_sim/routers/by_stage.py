"""A router for each kind of stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.routers.base import Router


@dataclass(frozen=True)
class StageRouters:
    """Ask the router of a stage, or the default router if the stage has none.

    For a visit of several stages, the first one selects the router.
    """

    default: Router
    of_stages: Mapping[str, Router]

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return what the router of the stage chooses."""
        router = self.of_stages.get(stage.kind, self.default)
        return router.choose(request, stage, candidates)
