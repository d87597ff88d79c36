"""Whether scenarios serve the same workload: compared request by request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import zip_longest

from mist_sim.core.request import Request
from mist_sim.errors import brief
from mist_sim.rng import Streams
from mist_sim.studies.built import Built

_ASKED = (
    "arrival_time",
    "num_prompt_tokens",
    "num_output_tokens",
    "stages",
    "session_id",
    "priority",
    "content",
    "limits",
)


def workloads_differ(scenarios: Mapping[str, Built]) -> str:
    """Return where scenarios have other requests, or send them in another way; "" if none does.

    scenarios: by name, for the message; one or more. The limits of the slo and the warm-up count,
    too.
    """
    (first, one), *others = scenarios.items()
    for name, other in others:
        difference = _difference(one, other)
        if difference is not None:
            return f"{difference} in {first} and {name}"
    return ""


def _difference(first: Built, second: Built) -> str | None:
    """Return the difference, with both values; None if equal."""
    one, other = first.scenario, second.scenario
    mine, yours = first.simulation, second.simulation
    for limit in (field.name for field in fields(mine.slo)):
        values = getattr(mine.slo, limit), getattr(yours.slo, limit)
        if (found := _unlike(f"slo.{limit}", *values)) is not None:
            return found
    for name in ("warmup", "replications"):
        if (found := _unlike(name, getattr(one, name), getattr(other, name))) is not None:
            return found
    left, right = mine.workload, yours.workload
    for name in ("closed_loop", "retries", "max_concurrency"):
        if (found := _unlike(name, getattr(left, name), getattr(right, name))) is not None:
            return found
    pairs = zip_longest(
        left.requests(Streams(one.seed)), right.requests(Streams(other.seed)), fillvalue=None
    )
    for number, (request, its_like) in enumerate(pairs):
        if request is None:
            return f"the number of requests is {number} and more"
        if its_like is None:
            return f"the number of requests is more and {number}"
        if (found := _unlike_requests(request, its_like)) is not None:
            return found
    return None


def _unlike_requests(mine: Request, yours: Request) -> str | None:
    for name in _ASKED:
        where = f"{name} of request {mine.request_id}"
        found = _unlike(where, getattr(mine, name), getattr(yours, name))
        if found is not None:
            return found
    return None


def _unlike(name: str, mine: object, yours: object) -> str | None:
    if mine == yours:
        return None
    return f"{name} is {brief(mine)} and {brief(yours)}"
