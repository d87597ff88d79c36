"""What a policy may see of the clients, and where they count it."""

from __future__ import annotations

from array import array
from typing import Final, Protocol

OUT: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
NUM_PHASES: Final = 3


class ClientView(Protocol):
    """A live, read-only window on one client; counts are exact at any time.

    client_id: a number of its own in the simulation, never used again for another client.
    name: its name, unique in the simulation.
    num_waiting: requests queued at the client, preempted ones included.
    num_running: requests that the client works on.
    num_outstanding: requests sent to the client and not finished there.
    """

    @property
    def client_id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_outstanding(self) -> int: ...


class ClientState:
    """The object behind a `ClientView`; only the stays at the client write to it (`Stay.become`).

    counts: how many stays are in each phase; `OUT` counts down from zero with each that is there.
    """

    __slots__ = ("client_id", "counts", "name")

    def __init__(self, client_id: int, name: str) -> None:
        self.client_id = client_id
        self.name = name
        self.counts = array("q", bytes(8 * NUM_PHASES))

    @property
    def num_waiting(self) -> int:
        return self.counts[WAITING]

    @property
    def num_running(self) -> int:
        return self.counts[RUNNING]

    @property
    def num_outstanding(self) -> int:
        return -self.counts[OUT]
