"""Adds what follows a growing stage to the outcome of its visit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mist_sim.core.request import Stage
from mist_sim.core.visit import Visit
from mist_sim.errors import ScenarioError
from mist_sim.stages import Growing


def num_until_growth(stages: Sequence[Stage]) -> int:
    """Return the number of stages up to the first that grows, after which stages are unknown."""
    for number, stage in enumerate(stages, 1):
        if stage.grows:
            return number
    return len(stages)


def let_grow(client: str, visit: Visit, rng: np.random.Generator, now: float) -> None:
    """Let the last stage of a served visit add what follows; tokens it emits come at once.

    Raises ScenarioError for a stage that is not `Growing` or whose `follow` fails.
    """
    stage = visit.stages[-1]
    if not isinstance(stage, Growing):
        raise ScenarioError(
            f"{client}: {stage} must be a Growing stage, since it says that it grows"
        )
    try:
        visit.outcome = stage.follow(visit.request, rng)
    except (TypeError, ValueError) as error:
        raise ScenarioError(
            f"{client}: what follows {stage} of request {visit.request.request_id} at {now} s: "
            f"{error}"
        ) from error
    if stage.num_new_tokens:
        visit.num_output_tokens = stage.num_new_tokens
        visit.first_token_at = visit.last_token_at = now
