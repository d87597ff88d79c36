"""Bytes of entries that travelled while their prompts were computed."""

from __future__ import annotations

from math import inf

from mist_sim.network.fair_shares import Path


class HiddenTransfers:
    """Times until which entries sent layer by layer occupy each link.

    These flows are not simulated: when a prompt is done, the free time of its route's links during
    its computation is known, and the bytes carried then take no time from other prompts. Of prompts
    that share a link the first to finish gets the earlier part.
    """

    def __init__(self) -> None:
        self._taken_until: dict[int, float] = {}

    def seconds_free(self, path: Path, now: float, seconds: float) -> float:
        """Return for how long, up to now, all links of a way were free; at most `seconds`."""
        free_from = max([self._taken_until.get(link, -inf) for link in path], default=-inf)
        return min(seconds, max(now - free_from, 0.0))

    def take(self, path: Path, until: float) -> None:
        """Note that the links of a way are taken until then."""
        for link in path:
            self._taken_until[link] = max(self._taken_until.get(link, -inf), until)
