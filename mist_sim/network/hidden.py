"""Bytes of entries that travelled while their prompts were computed."""

from __future__ import annotations

from math import inf

from mist_sim.network.fair_shares import Path


class HiddenTransfers:
    """Until when each link is taken by entries that were sent layer by layer.

    Nobody simulates these flows: when a prompt is done, it is known how long the links of its way
    were free while it was computed, and what they carried then is taken from no other prompt's
    time. Of prompts that share a link the first to be done has the earlier part of it.
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
