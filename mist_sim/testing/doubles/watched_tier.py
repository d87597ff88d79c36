"""A tier below the KV cache that detects when a scheduler computes tokens it could load."""

from __future__ import annotations

from mist_sim.clients.kv_cache import BlockPool, CacheTier, SerialLink, TieredManager
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.testing.rules import require

_TIER = CacheTier("lower tier", 1_000, 3.0, 0.25)  # a load takes 3 steps and one for four blocks


class WatchedTier(TieredManager):
    """A tier with room for all; raises AssertionError, in a scheduler's name, where it is missed.

    Times are in steps.
    """

    def __init__(self, pool: BlockPool, scheduler: str) -> None:
        super().__init__(pool, [_TIER])
        self._link = SerialLink()
        self._scheduler = scheduler
        self._starts_load = False

    def start_load(self, sequence: SequenceState) -> list[tuple[str, int]]:
        """Note, while the load starts, that it does."""
        self._starts_load = True
        counts = super().start_load(sequence)
        self._starts_load = False
        return counts

    def load(self, num_blocks: int, now: float) -> float:
        """Begin to load blocks; return when they are there."""
        return self._link.send(_TIER.latency + num_blocks * _TIER.seconds_per_block, now)

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Let a sequence in, unless it has to be loaded first."""
        num_missing = 0 if self._starts_load else sum(self.missing(sequence))
        require(
            not num_missing,
            f"{self._scheduler}: a sequence is computed whose {num_missing} blocks lie in a tier; "
            f"admit with admit_next, or whom next_to_admit returns",
        )
        super().admit(sequence, most_new)
