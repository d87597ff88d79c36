"""Whether scenarios serve the same workload: compared request by request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import zip_longest

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
        for difference in _differences(one, other):
            return f"{difference} in {first} and {name}"
    return ""


def _differences(first: Built, second: Built) -> Iterator[str]:
    """Yield the differences of two scenarios, with both values, up to the first other request."""
    one, other = first.scenario, second.scenario
    mine, yours = first.simulation, second.simulation
    for limit in fields(mine.slo):
        yield from _unlike(f"slo.{limit.name}", limit.name, mine.slo, yours.slo)
    for name in ("warmup", "replications"):
        yield from _unlike(name, name, one, other)
    for name in ("closed_loop", "retries", "max_concurrency"):
        yield from _unlike(name, name, mine.workload, yours.workload)
    all_mine = mine.workload.requests(Streams(one.seed))
    all_yours = yours.workload.requests(Streams(other.seed))
    for number, (request, its_like) in enumerate(zip_longest(all_mine, all_yours)):
        if request is None or its_like is None:
            ends = (f"{number}", "more") if request is None else ("more", f"{number}")
            yield f"the number of requests is {' and '.join(ends)}"
            return
        for name in _ASKED:
            yield from _unlike(f"{name} of request {request.request_id}", name, request, its_like)


def _unlike(where: str, name: str, one: object, other: object) -> Iterator[str]:
    """Yield where an attribute is unlike, if it is."""
    mine, yours = getattr(one, name), getattr(other, name)
    if mine != yours:
        yield f"{where} is {brief(mine)} and {brief(yours)}"
