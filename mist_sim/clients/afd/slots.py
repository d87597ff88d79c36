"""The requests in the slots of a bundle, and the tokens that each attention worker holds."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


class Resident:
    """A request in a slot.

    worker: the attention worker that holds its KV entries. num_tokens: entries when it came.
    num_steps: steps that it stays for (>= 1). guest: any object by which its client identifies it.
    first_step: steps that its batch had made when it came.
    """

    __slots__ = ("first_step", "guest", "num_steps", "num_tokens", "worker")

    def __init__(self, worker: int, num_tokens: int, num_steps: int, guest: Any = None) -> None:
        self.worker = worker
        self.num_tokens = num_tokens
        self.num_steps = num_steps
        self.guest = guest
        self.first_step = 0


class BatchSlots:
    """The slots of one batch, on all attention workers.

    held: tokens in the KV cache of each worker. filled: requests on each. num_steps: steps made.
    A step adds a token to each request, so all of this is arithmetic between two changes.
    """

    def __init__(self, num_workers: int, slots: int) -> None:
        self.held: Tokens = np.zeros(num_workers, dtype=np.int64)
        self.filled: Tokens = np.zeros(num_workers, dtype=np.int64)
        self.num_filled = 0
        self.num_steps = 0
        self.slots = slots
        self._due: dict[int, list[Resident]] = {}  # requests that leave, by their last step
        self._due_steps: list[int] = []  # a heap of these steps

    def join(self, resident: Resident) -> None:
        """Let a request take a free slot of its worker."""
        resident.first_step = self.num_steps
        due = self.num_steps + resident.num_steps
        if due in self._due:
            self._due[due].append(resident)
        else:
            self._due[due] = [resident]
            heappush(self._due_steps, due)
        self.held[resident.worker] += resident.num_tokens
        self.filled[resident.worker] += 1
        self.num_filled += 1

    def leave(self, resident: Resident) -> None:
        """Free the slot of a request that has not come to its end."""
        self._due[resident.first_step + resident.num_steps].remove(resident)
        self._free(resident)

    def steps_to_next_end(self) -> int | None:
        """Steps that pass at least before the next request leaves; None without requests."""
        return self._due_steps[0] - self.num_steps if self._due_steps else None

    def advance(self, num_steps: int = 1) -> list[Resident]:
        """Make steps, at most `steps_to_next_end`; return the requests that leave, slots freed."""
        self.held += num_steps * self.filled
        self.num_steps += num_steps
        if not self._due_steps or self._due_steps[0] > self.num_steps:
            return []
        heappop(self._due_steps)
        leaving = self._due.pop(self.num_steps)
        for resident in leaving:
            self._free(resident)
        return leaving

    def _free(self, resident: Resident) -> None:
        tokens = resident.num_tokens + self.num_steps - resident.first_step
        self.held[resident.worker] -= tokens
        self.filled[resident.worker] -= 1
        self.num_filled -= 1
