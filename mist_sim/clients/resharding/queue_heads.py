"""Prompts at the heads of lanes' queues."""

from __future__ import annotations

from mist_sim.clients.scheduling import LaneState
from mist_sim.clients.sequence_state import SequenceState


def next_prompt(lane: LaneState) -> SequenceState | None:
    """Return the prompt at the head of the queue, ignoring answers that wait to come back."""
    if lane.coming.loaded:
        return lane.coming.loaded[0]
    return lane.waiting.head() if lane.waiting else None
