"""Rules that every autoscaling policy keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import nan
from typing import Any

from mist_sim.lifecycle import Autoscaler, GroupView
from mist_sim.testing.rules import name_of, repeated, require, stream_of


def check_autoscaler(factory: Callable[[], Autoscaler]) -> None:
    """Check that a policy returns a number of clients, depending only on the view.

    `wanted` returns a whole number >= 0 for any view, even if no client is up and no data are known
    yet, and the same for an equal view and for another object of the same kind.
    """
    policy, views = factory(), list(_views())
    require(isinstance(policy, Autoscaler), f"{name_of(policy)} needs wanted(group)")
    repeated(
        factory, lambda each: [_wanted(each, view) for view in views], "decide by the view alone"
    )


def _wanted(policy: Autoscaler, view: GroupView) -> int:
    kind = name_of(policy)
    try:
        number: Any = policy.wanted(view)
    except Exception as error:
        raise AssertionError(f"{kind}.wanted raised {error!r} for {view}") from error
    require(
        isinstance(number, int) and number >= 0,
        f"{kind}.wanted must return a whole number >= 0, got {number!r} for {view}",
    )
    return int(number)


def _views() -> Iterator[GroupView]:
    """Yield views of groups of 0 to 8 clients, with much and little to do."""
    draws = stream_of("check_autoscaler")
    for number in range(300):
        up, starting, waiting, running = draws.integers(0, [9, 3, 50, 50]).tolist()
        busy, usage, kept = draws.random(3).tolist()
        knows = number % 4 > 0
        yield GroupView(
            now=10.0 * number,
            num_up=up,
            num_starting=starting,
            num_waiting=waiting,
            num_running=running if up else 0,
            busy=busy if up else nan,
            kv_usage=usage if up else nan,
            attainment=kept if knows else nan,
        )
