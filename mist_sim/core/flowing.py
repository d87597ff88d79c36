"""Rules that send an answer from the client that decodes it to another client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mist_sim.core.hand_over import HandOverPolicy


@dataclass(frozen=True, slots=True)
class Backflow:
    """Move answers whose decode is too slow; their time per token starts anew at the next client.

    most_seconds: seconds per token above which an answer moves (> 0). most_times: how often one
        answer may move (>= 0); None: no limit.

    Source: TaiChi (arXiv:2508.01989), Algorithm 1, lines 1 to 3; the limit `most_times` is ours.
    """

    most_seconds: float
    most_times: int | None = None


@dataclass(frozen=True, slots=True)
class Degradation:
    """The longest answers leave while memory runs short.

    watermark: part of the KV blocks above which they do (> 0, <= 1). counts_seats: whether they
        also do above that part of the requests that may run at once.

    Source: TaiChi (arXiv:2508.01989), Algorithm 1, lines 4 to 13; seats are ours.
    """

    watermark: float
    counts_seats: bool = False


FlowRule = Backflow | Degradation


@runtime_checkable
class FlowPolicy(HandOverPolicy, Protocol):
    """A hand-over policy that may also move an answer to another client between two tokens."""

    def flow(self, role: str | None) -> FlowRule | None:
        """Return when answers leave a client of a role; None: they stay."""
