"""Runs of steps of any length give the same results: what is compared, and how they are cut."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

from mist_sim.clients.engine import pipelined, run_length
from mist_sim.metrics import Result
from tests.reference.comparison import expanded_steps

LIMITS = ((run_length, "_FIRST_RUN", "_LONGEST_RUN"), (pipelined, "_FIRST_PASSES", "_MOST_PASSES"))
"""Where it stands how many steps are computed ahead at first, and at most."""


def assert_run_lengths_do_not_show(
    simulate: Callable[[], Result], first: int, longest: int
) -> None:
    """Compare all records of a simulation with those of single steps, and of some other runs."""
    normal = records(simulate())
    for limits in ((1, 1), (first, longest)):
        with ExitStack() as patches:
            for module, *names in LIMITS:
                for name, limit in zip(names, limits, strict=True):
                    patches.enter_context(patch.object(module, name, limit))
            assert records(simulate()) == normal


def records(result: Result) -> dict[str, object]:
    """All that does not depend on how steps were put together into runs."""
    visits = result.recorder.visits.columns()
    return {
        "left": list(zip(visits["client_id"], visits["request_id"], strict=True)),
        "steps": [expanded_steps(result, k) for k in range(len(result.recorder.steps))],
        "requests": result.requests.to_csv(),  # floats as repr writes them: all their bits
        "stages": result.stages.to_csv(),
        "tokens": [result.token_times(int(k)).tolist() for k in result.requests["request_id"]],
    }
