"""The batched scheduler of MIST §III-E: take what waits, up to a size."""

from __future__ import annotations

from mist_sim.core.visit import Visit


class Waiting:
    """Visits that wait for the next batch, in order of arrival.

    max_batch_size: visits in a batch at most (>= 1); None: all that wait.
    """

    def __init__(self, max_batch_size: int | None = None) -> None:
        self._most = max_batch_size
        self._visits: dict[Visit, None] = {}

    def __len__(self) -> int:
        return len(self._visits)

    def add(self, visit: Visit) -> None:
        """Let a visit wait behind the others."""
        self._visits[visit] = None

    def discard(self, visit: Visit) -> bool:
        """Take a visit out that is given up; return whether it waited."""
        if visit not in self._visits:
            return False
        del self._visits[visit]
        return True

    def take(self) -> list[Visit]:
        """Take out the visits of the next batch; none where nobody waits."""
        batch = list(self._visits)[: self._most]
        for visit in batch:
            del self._visits[visit]
        return batch
