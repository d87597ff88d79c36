"""A random part of a trace: whole conversations, and requests without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from mist_sim.traces.base import TraceRow

_WHOLE = 2.0**64


def sampled(rows: Iterable[TraceRow], share: float, seed: int = 0) -> Iterator[TraceRow]:
    """Yield each conversation, and each request without one, with probability `share`.

    Times stay, so the rate falls to about that share; memory is constant. With the same seed a
    larger share includes all of a smaller one. Raises ValueError for a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share:g}")
    return (
        row for position, row in enumerate(rows) if _place(seed, position, row.session_id) < share
    )


def _place(seed: int, position: int, session: int | None) -> float:
    """Return a random number from 0 to 1 for a conversation, or for a request without one."""
    name = f"{seed} request {position}" if session is None else f"{seed} session {session}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") / _WHOLE
