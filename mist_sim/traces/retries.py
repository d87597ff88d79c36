"""Retries of requests that failed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from mist_sim.checks import Fraction, Positive, Range, check_fields
from mist_sim.units import Seconds

_MOST = 100  # keeps factor ** max_attempts a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Exponential back-off: after attempt k, wait min(backoff x factor^(k - 1), max_backoff).

    max_attempts: how often a request is sent at most, the first time included (1 to 100).
    backoff, max_backoff: seconds of the first wait (> 0), and of the longest.
    factor: by which each wait is longer than the one before (1 to 100).
    jitter: share of a wait, at most, that is left out at random (0 to 1): the wait is multiplied
        by 1 - jitter x U, with U uniform on [0, 1).
    on: which failures are tried again. A rejection is only when the service was too busy; a
        request that can never be served is not sent again. One is lost with a client that failed.
    Source: the defaults are those of OpenAI's Python client (openai-python, `_constants.py`
    and `_calculate_retry_timeout` in `_base_client.py`).
    """

    max_attempts: Annotated[int, Range(f"[1, {_MOST}]")] = 3
    backoff: Positive[Seconds] = 0.5
    factor: Annotated[float, Range(f"[1, {_MOST}]")] = 2.0
    max_backoff: Seconds = 8.0
    jitter: Fraction = 0.25
    on: tuple[Literal["timed_out", "rejected", "lost"], ...] = ("timed_out", "rejected", "lost")

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.backoff <= self.max_backoff < math.inf:
            raise ValueError(
                f"max_backoff must be finite and >= backoff ({self.backoff} s), "
                f"got {self.max_backoff}"
            )
        if not self.on:
            raise ValueError("on must have at least one entry, got none")

    def wait(self, num_attempts: int, draw: float) -> float:
        """Return the seconds before the next attempt; `draw` is uniform on [0, 1)."""
        longest = min(self.backoff * self.factor ** (num_attempts - 1), self.max_backoff)
        return longest * (1 - self.jitter * draw)
