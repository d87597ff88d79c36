"""The batched scheduler of MIST §III-E: it takes the waiting visits, up to a size."""

from __future__ import annotations

from collections import OrderedDict

from mist_sim.core.visit import Visit


class Waiting:
    """Visits that wait for the next batch, in order of arrival.

    max_batch_size: visits in a batch at most (>= 1); None: all that wait.
    """

    def __init__(self, max_batch_size: int | None = None) -> None:
        self._most = max_batch_size
        self._visits: OrderedDict[Visit, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._visits)

    @property
    def oldest(self) -> Visit:
        """The visit that has waited longest; only while requests wait."""
        return next(iter(self._visits))

    @property
    def is_full(self) -> bool:
        """Whether there are enough of them for a batch of the largest size."""
        return self._most is not None and len(self._visits) >= self._most

    def add(self, visit: Visit) -> None:
        """Queue a visit behind the others."""
        self._visits[visit] = None

    def discard(self, visit: Visit) -> bool:
        """Take a visit out that is given up; return whether it waited."""
        if visit not in self._visits:
            return False
        del self._visits[visit]
        return True

    def take(self) -> list[Visit]:
        """Remove and return the visits of the next batch; empty if none waits."""
        number = len(self._visits) if self._most is None else min(self._most, len(self._visits))
        return [self._visits.popitem(last=False)[0] for _ in range(number)]
