"""Prompts that have waited for so long that a limit on TTFT is in danger."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mist_sim.clients.resharding.queue_heads import next_prompt
from mist_sim.clients.scheduling import LaneState


class DuePrompts:
    """Two thresholds of how long the next prompt of a lane has waited, in seconds.

    From `late` on it is due, up to `early` it is not, and in between a client stays as it is: with
    one threshold it would go to the prompts and back again for every one of them.

    now: returns the time.
    """

    def __init__(self, now: Callable[[], float], early: float, late: float) -> None:
        self._now, self._early, self._late = now, early, late

    def any_of(self, lanes: Sequence[LaneState]) -> bool:
        """Tell whether a prompt is due."""
        now = self._now()
        return any(now >= since + self._late for since in self._since(lanes))

    def none_of(self, lanes: Sequence[LaneState]) -> bool:
        """Tell whether no prompt has waited for long."""
        now = self._now()
        return all(now <= since + self._early for since in self._since(lanes))

    def _since(self, lanes: Sequence[LaneState]) -> list[float]:
        heads = (next_prompt(lane) for lane in lanes)
        return [head.visit.queued_at for head in heads if head is not None]
