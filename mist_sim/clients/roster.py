"""The clients that there are now, by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mist_sim.clients.base import Client
from mist_sim.core.views import ClientView


class Roster:
    """Clients may join and leave during a run; a number is never used twice.

    Candidates for a stage come in the order in which they joined.
    """

    def __init__(self) -> None:
        self._clients: dict[int, Client] = {}
        self._num_joined = 0
        self._candidates: dict[str, Sequence[ClientView]] = {}  # until someone joins or leaves

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients.values())

    def next_id(self) -> int:
        """Return a number that no client has had."""
        self._num_joined += 1
        return self._num_joined - 1

    def join(self, client: Client) -> None:
        """Let a client that has started be chosen."""
        self._clients[client.client_id] = client
        self._candidates.clear()

    def leave(self, client_id: int) -> None:
        """Let a client be chosen no more; what it has begun, it finishes."""
        del self._clients[client_id]
        self._candidates.clear()

    def get(self, client_id: int) -> Client | None:
        """Return the client of a number; None when there is none now."""
        return self._clients.get(client_id)

    def candidates(self, kind: str) -> Sequence[ClientView]:
        """Return the views of those that serve a kind of stage now."""
        found = self._candidates.get(kind)
        if found is None:
            found = [c.view for c in self._clients.values() if kind in c.serves]
            self._candidates[kind] = found
        return found
