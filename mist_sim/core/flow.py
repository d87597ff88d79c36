"""Rules by which an answer leaves the client that decodes it, for another one to go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mist_sim.core.hand_over import HandOverPolicy


@dataclass(frozen=True, slots=True)
class Backflow:
    """Answers leave that become too slow, and are counted anew where they go on.

    most_seconds: per token, above which one leaves (> 0). most_times: how often one answer does
        (>= 0); None: as often as it is too slow.

    Source: TaiChi (arXiv:2508.01989), Algorithm 1, lines 1 to 3; how often is ours.
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
    """A policy of hand-overs that also lets answers go on elsewhere after some of their tokens."""

    def flow(self, role: str | None) -> FlowRule | None:
        """Return when answers leave a client of a role; None: they stay."""
