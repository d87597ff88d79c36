"""The present clients, by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mist_sim.clients.base import Client
from mist_sim.clients.kv_cache import ContentHistory
from mist_sim.clients.roster.ended_answers import EndedAnswers
from mist_sim.clients.roster.live_candidates import Holders, LiveCandidates
from mist_sim.clients.roster.polls import Polls
from mist_sim.core.candidates import Candidates
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError


class Roster:
    """Clients may join and leave during a run; a number is never used twice.

    Candidates for a stage come in the order of their numbers.

    models: names of the models that clients serve or served.
    pools: pools of clients, by name, if stages that continue from KV entries stay in them.
    """

    def __init__(self) -> None:
        self.models: set[str] = set()
        self._clients: dict[int, Client] = {}
        self._num_joined = 0
        self.pools: Mapping[str, str] = {}
        self._holders: Holders = {}
        self._history = ContentHistory()
        # until someone joins or leaves: for each kind of stage, and for each set of clients
        self._candidates: dict[str, Candidates] = {}
        self._of_models: dict[tuple[str, str], Candidates] = {}
        self._local: dict[tuple[str, str, str | None], Candidates] = {}
        self._groups: dict[tuple[int, ...], LiveCandidates] = {}
        self._answers = EndedAnswers()
        self._env: Environment | None = None
        self._polls: dict[tuple[float, bool], Polls] = {}

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
        client.view.join_pool(self.pools.get(client.name))
        self._env = client.env
        self._answers.join(client.view)
        if client.traits.model is not None:
            self.models.add(client.traits.model)
        self._forget_candidates()

    def leave(self, client_id: int) -> None:
        """Stop choosing a client; it finishes the work it has begun."""
        del self._clients[client_id]
        self._forget_candidates()

    def forget(self, client: Client) -> None:
        """Remove the prefix-cache content of a client that has left and lost it."""
        for holders in self._holders.values():
            holders.forget(client.client_id)

    def get(self, client_id: int) -> Client | None:
        """Return the client with a number; None if it is not present."""
        return self._clients.get(client_id)

    def candidates(self, kind: str) -> Candidates:
        """Return the views of the clients that serve a kind of stage now."""
        found = self._candidates.get(kind)
        if found is None:
            found = self._candidates[kind] = self._group(kind)
        return found

    def candidates_of(self, kind: str, model: str) -> Candidates:
        """Return the views of those that serve a model; clients without a model serve all."""
        found = self._of_models.get((kind, model))
        if found is None:
            found = self._of_models[kind, model] = self._group(kind, model)
        return found

    def near(self, kind: str, source: str, model: str | None = None) -> Candidates:
        """Return the views of those in a client's pool; model: None: any."""
        if not self.pools:
            return self.candidates(kind) if model is None else self.candidates_of(kind, model)
        key = kind, self.pools[source], model
        found = self._local.get(key)
        if found is None:
            found = self._local[key] = self._group(kind, model, key[1])
        return found

    def neighbours(self, source: str | None) -> frozenset[str] | None:
        """Return the names of a client's pool; None where there are no pools, or no client."""
        if source is None or not self.pools:
            return None
        pool = self.pools[source]
        return frozenset(name for name, other in self.pools.items() if other == pool)

    def _group(self, kind: str, model: str | None = None, pool: str | None = None) -> Candidates:
        """Return candidates, the same object for kinds that the same clients serve."""
        serving = {n: client for n, client in self._clients.items() if kind in client.traits.serves}
        if model is not None:
            serving = {n: c for n, c in serving.items() if c.traits.model in (None, model)}
        if pool is not None:
            serving = {n: c for n, c in serving.items() if self.pools.get(c.name) == pool}
        numbers = tuple(sorted(serving))
        if not numbers:
            return Candidates()
        if numbers not in self._groups:
            views = [serving[number].view for number in numbers]
            self._groups[numbers] = LiveCandidates(views, self._holders, self._poll)
        return self._groups[numbers]

    def _poll(self, interval: float, counts_sent: bool) -> Polls:
        """Return the polled state of clients, which persists as clients join and leave."""
        if self._env is None:
            raise InvariantError("no client has joined yet")
        key = interval, counts_sent
        if key not in self._polls:
            self._polls[key] = Polls(self._env, interval, counts_sent)
        return self._polls[key]

    def _forget_candidates(self) -> None:
        for group in self._groups.values():
            group.leave()
        self._groups.clear()
        self._candidates.clear()
        self._of_models.clear()
        self._local.clear()
