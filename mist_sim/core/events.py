"""The decisions of a run that `events=True` keeps, and who is told of them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

ROUTED, PREEMPTED, EVICTED, ADMITTED, CUT, MOVED, ENDED = KINDS = (
    "routed",
    "preempted",
    "evicted",
    "admitted",
    "cut",
    "moved",
    "ended",
)
"""Kinds of decisions, in the order in which those of one instant are listed."""


class Decision(NamedTuple):
    """One decision, with the columns of `Result.events`.

    time: seconds. event: of `KINDS`. request_id: None where blocks are evicted. client: by name.
    """

    time: float
    event: str
    request_id: int | None
    client: str
    reason: str
    num_tokens: int


class Events(Protocol):
    """Takes note of decisions as they are made."""

    def note(
        self,
        time: float,
        kind: str,
        request_id: int,
        client_id: int,
        reason: str,
        num_tokens: int,
        /,
    ) -> None:
        """A client, or the router, decides at `time` (seconds), of `KINDS`, for this reason.

        request_id: below -2**62 for none. num_tokens: that it is about.
        """


NO_REQUEST = -(2**63)
"""The id of no request: blocks that are evicted may be many requests'."""
