"""The clients that there are now, by number."""

from __future__ import annotations

from collections.abc import Iterator

from mist_sim.clients.base import Client
from mist_sim.clients.kv_cache import ContentHistory
from mist_sim.clients.roster.live_candidates import Holders, LiveCandidates
from mist_sim.core.candidates import Candidates


class Roster:
    """Clients may join and leave during a run; a number is never used twice.

    Candidates for a stage come in the order of their numbers.
    """

    def __init__(self) -> None:
        self._clients: dict[int, Client] = {}
        self._num_joined = 0
        self._holders: Holders = {}
        self._history = ContentHistory()
        # until someone joins or leaves: for each kind of stage, and for each set of clients
        self._candidates: dict[str, Candidates] = {}
        self._groups: dict[tuple[int, ...], LiveCandidates] = {}

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients.values())

    def next_id(self) -> int:
        """Return a number that no client has had."""
        self._num_joined += 1
        return self._num_joined - 1

    def join(self, client: Client) -> None:
        """Let a client that has started be chosen."""
        self._clients[client.client_id] = client
        client.history = self._history
        self._forget_candidates()

    def leave(self, client_id: int) -> None:
        """Let a client be chosen no more; what it has begun, it finishes."""
        del self._clients[client_id]
        self._forget_candidates()

    def get(self, client_id: int) -> Client | None:
        """Return the client of a number; None when there is none now."""
        return self._clients.get(client_id)

    def candidates(self, kind: str) -> Candidates:
        """Return the views of those that serve a kind of stage now."""
        found = self._candidates.get(kind)
        if found is None:
            found = self._candidates[kind] = self._group(kind)
        return found

    def _group(self, kind: str) -> Candidates:
        """Return candidates, the same object for kinds that the same clients serve."""
        numbers = tuple(sorted(n for n, client in self._clients.items() if kind in client.serves))
        if not numbers:
            return Candidates()
        if numbers not in self._groups:
            views = [self._clients[number].view for number in numbers]
            self._groups[numbers] = LiveCandidates(views, self._holders)
        return self._groups[numbers]

    def _forget_candidates(self) -> None:
        for group in self._groups.values():
            group.leave()
        self._groups.clear()
        self._candidates.clear()
