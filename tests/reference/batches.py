"""One queue served in batches, as a plain loop over arrivals; shares no code with the clients."""

from collections.abc import Callable, Sequence
from math import inf


def served(
    arrivals: Sequence[float],
    seconds: Callable[[list[int]], float],
    max_batch_size: int,
    max_wait: float,
) -> list[tuple[float, float]]:
    """Return when each visit's batch begins and ends. arrivals: sorted. seconds: of a batch."""
    times: list[tuple[float, float]] = []
    free = 0.0
    first = 0
    while first < len(arrivals):
        ready = max(free, arrivals[first])
        last = first + max_batch_size - 1
        full = arrivals[last] if last < len(arrivals) else inf
        begin = max(ready, min(arrivals[first] + max_wait, full))
        batch = [k for k in range(first, len(arrivals)) if arrivals[k] <= begin][:max_batch_size]
        free = begin + seconds(batch)
        times += [(begin, free)] * len(batch)
        first += len(batch)
    return times
