"""Flows on links, as plainly as can be: the water rises for all until a link is full.

Every flow has its bytes left. Between two changes nothing but time passes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

ALMOST = 1e-12

Path = tuple[int, ...]


@dataclass(frozen=True)
class Sent:
    """A flow: when it begins, the links that it crosses, and its bytes."""

    start: float
    path: tuple[int, ...]
    num_bytes: float


def water_levels(capacities: Sequence[float], paths: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the rate of each flow."""
    rates = [0.0] * len(paths)
    rising = set(range(len(paths)))
    while rising:
        rooms = []
        for link, capacity in enumerate(capacities):
            crossing = [flow for flow in rising if link in paths[flow]]
            used = sum(rates[flow] for flow, path in enumerate(paths) if link in path)
            if crossing:
                rooms.append((max(capacity - used, 0.0) / len(crossing), link))
        rise = min(rooms)[0]
        for flow in rising:
            rates[flow] += rise
        full = {link for room, link in rooms if room <= rise * (1 + ALMOST) + ALMOST * rise}
        rising = {flow for flow in rising if not full & set(paths[flow])}
    return rates


def ends_of(
    capacities: Sequence[float],
    flows: Sequence[Sent],
    changes: Sequence[float] = (),
    way: Callable[[float, Path], Path | None] = lambda _, path: path,
) -> list[float]:
    """Return when each flow has sent its last byte.

    way: returns the path that flows of a path take at a time, None while they wait; another one
    only after the times of `changes`.
    """
    left = [flow.num_bytes for flow in flows]
    ends = [inf] * len(flows)
    now = 0.0
    while inf in ends:
        begun = [k for k, flow in enumerate(flows) if flow.start <= now and ends[k] == inf]
        ways = {k: way(now, flows[k].path) for k in begun}
        there = [k for k in begun if ways[k] is not None]
        rates = water_levels(capacities, [ways[k] for k in there])
        times = [left[k] / rate for k, rate in zip(there, rates, strict=True)]
        starts = [flow.start - now for flow in flows if flow.start > now]
        starts += [time - now for time in changes if time > now]
        step = min(times + starts)
        for k, rate, time in zip(there, rates, times, strict=True):
            left[k] -= rate * step
            if time <= step * (1 + ALMOST):
                ends[k] = now + step
        told = [*[flow.start for flow in flows], *changes]
        now = min([time for time in told if time - now == step], default=now + step)
    return ends
