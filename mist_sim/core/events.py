"""The decisions of a run that `events=True` keeps, and the parts that read them."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.core.columns import Table

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


NO_REQUEST = -(2**63)
"""The id of no request: blocks that are evicted may be many requests'."""

_MOST_ROWS = 256  # kept as tuples before they are packed


class Events:
    """Takes note of decisions as they are made.

    rows: one a decision. latest: arguments of `note` since they were last cleared; None: they
    are not read.
    """

    def __init__(self) -> None:
        self.rows = Table(
            time="f8", kind="i1", request_id="i8", client_id="i4", reason="text", num_tokens="i8"
        )
        self.latest: list[tuple[float, str, int, int, str, int]] | None = None

    def note(
        self,
        time: float,
        kind: str,
        request_id: int,
        client_id: int,
        reason: str,
        num_tokens: int,
    ) -> None:
        """A client, or the router, decides at `time` (seconds), of `KINDS`, for this reason.

        request_id: `NO_REQUEST` for none. num_tokens: that it is about.
        """
        if self.latest is not None:
            self.latest.append((time, kind, request_id, client_id, reason, num_tokens))
        self.rows.add((time, KINDS.index(kind), request_id, client_id, reason, num_tokens))
        if len(self.rows.rows) >= _MOST_ROWS:
            self.rows.pack()
