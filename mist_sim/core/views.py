"""What a policy may see of a client."""

from __future__ import annotations

from typing import Protocol


class ClientView(Protocol):
    """A live, read-only window on one client; counts are exact at any time.

    client_id: position of the client in the simulation, from 0.
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
    """The object behind a `ClientView`; only its client writes to it."""

    __slots__ = ("client_id", "name", "num_outstanding", "num_running", "num_waiting")

    def __init__(self, client_id: int, name: str) -> None:
        self.client_id = client_id
        self.name = name
        self.num_waiting = 0
        self.num_running = 0
        self.num_outstanding = 0
