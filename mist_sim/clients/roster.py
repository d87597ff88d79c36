"""The clients present in a run, and the queries that routers make."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients.base import Client
from mist_sim.clients.kv_cache import ContentHistory
from mist_sim.clients.prefixes.prefix_cache import Chain
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request
from mist_sim.core.views import (
    COUNTS,
    AnswerLengths,
    ClientState,
    ClientView,
    Count,
    KvView,
    Number,
    attribute_of,
)
from mist_sim.core.visit import Visit
from mist_sim.environment import POLL, Environment
from mist_sim.errors import InvariantError

if TYPE_CHECKING:
    from simpy.events import Event

__all__ = ["Roster"]


_FEW_ENOUGH_TO_SORT = 32  # clients that are sorted faster than found in the order of all


class LoadIndex:
    """Clients ordered by one of their counts, then by number.

    The clients of each count are the set bits of one integer, client n being bit n, so a change
    moves one bit and the first of equals is the lowest bit.

    count: of requests; >= 0; memory grows with the largest.
    """

    def __init__(self, states: Iterable[ClientState], count: Count) -> None:
        self._count: Callable[[ClientState], int] = attrgetter(attribute_of(count))
        self._known: dict[int, int] = {}  # the count of each client
        self._of: dict[int, ClientState] = {}
        self._bits: dict[int, int] = {}
        self._with: list[int] = [0]  # clients that have each count
        self._lowest = 0  # no client has less
        for state in states:
            number = state.number
            self._of[number] = state
            self._bits[number] = 1 << number
            self._known[number] = 0
            self._with[0] |= 1 << number
            self.note(state)

    def note(self, state: ClientState) -> None:
        """Take over a client's count."""
        number, count = state.number, self._count(state)
        before = self._known[number]
        if count == before:
            return
        self._known[number] = count
        bit, clients = self._bits[number], self._with
        clients[before] ^= bit
        if count >= len(clients):
            clients.extend([0] * (count + 1 - len(clients)))
        clients[count] |= bit
        if count < self._lowest:  # min() would be a call  # noqa: PLR1730
            self._lowest = count

    def first(self) -> ClientView:
        """Return the client with the smallest count, the first of equals."""
        while not (clients := self._with[self._lowest]):
            self._lowest += 1
        return self._of[(clients & -clients).bit_length() - 1]

    def among(self, clients: int, most: float) -> Iterator[ClientView]:
        """Yield those of some clients, given as bits, whose count is at most `most`, in order."""
        if clients.bit_count() <= _FEW_ENOUGH_TO_SORT:
            known = self._known
            few = sorted([(known[number], number) for number in _numbers(clients)])
            yield from [self._of[number] for count, number in few if count <= most]
            return
        for count in range(self._lowest, len(self._with)):
            if count > most or not clients:
                return
            here = self._with[count] & clients
            clients ^= here
            for number in _numbers(here):
                yield self._of[number]


def bits_of(views: Sequence[ClientView]) -> int:
    """Return the numbers of clients as the bits of an integer."""
    bits = bytearray(max(view.client_id for view in views) // 8 + 1)
    for view in views:
        bits[view.client_id // 8] |= 1 << view.client_id % 8
    return int.from_bytes(bits, "little")


def _numbers(bits: int) -> Iterator[int]:
    """Yield the positions of set bits, the lowest first."""
    while bits:
        bit = bits & -bits
        bits ^= bit
        yield bit.bit_length() - 1


class CountColumn:
    """A count of some clients.

    numbers: that of each client, in their order; live.
    """

    def __init__(self, states: Sequence[ClientState], count: Count) -> None:
        self._count: Callable[[ClientState], int] = attrgetter(attribute_of(count))
        self._places = {state.number: place for place, state in enumerate(states)}
        self.numbers = np.array([self._count(state) for state in states], np.int64)

    def note(self, state: ClientState) -> None:
        """Take over a client's count."""
        self.numbers[self._places[state.number]] = self._count(state)


class EndedAnswers:
    """Lengths of the answers of served visits, by role and model of the client.

    Starts to listen at the first query.
    """

    def __init__(self) -> None:
        self._states: dict[ClientState, None] = {}
        self._listens = False
        self._lengths: dict[tuple[str | None, str | None], AnswerLengths] = {}

    def join(self, state: ClientState) -> None:
        """Learn from a client as well. A client that joins a second time is counted once."""
        if state in self._states:
            return
        state.answers = partial(self._of, state)
        self._states[state] = None
        if self._listens:
            state.watch_ends(self._note)

    def _of(self, state: ClientState) -> AnswerLengths:
        """Return the lengths of answers of clients with the same role and model."""
        if not self._listens:
            self._listens = True
            for each in self._states:
                each.watch_ends(self._note)
        key = state.role, state.model
        if key not in self._lengths:
            self._lengths[key] = AnswerLengths()
        return self._lengths[key]

    def _note(self, state: ClientState, visit: Visit) -> None:
        if visit.failure is None:
            self._of(state).add(visit.request.num_prompt_tokens, visit.num_output_tokens)


_Counts = tuple[int, int, int, int, int]
Gauge = Literal["num_kv_blocks", "num_kv_tokens", "num_remaining_tokens"]
"""What a client computes when it is asked."""


class PolledState(ClientState):
    """A client as of the latest poll, perhaps plus the requests sent to it since.

    Constants, prefixes and distances are the client's own.
    """

    __slots__ = ("_known", "_of", "_polls", "_sent")

    def __init__(self, state: ClientState, polls: Polls) -> None:
        super().__init__(state.client_id, state.name, state.role)
        self._pool = state.pool
        self._of = state
        self._polls = polls
        self._known = counts_of(state)
        self._sent: list[Request] = []
        self.model = state.model
        self._blocks = state.num_gpu_blocks
        self.answers = state.answers
        self.time_from = state.time_from
        self.kv = state.kv
        self.prefill = state.prefill
        self.token_bytes = state.token_bytes
        self.take(self._known)

    @property
    def origin(self) -> ClientState:
        """The client's own, live state."""
        return self._of

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens as of the last poll, plus those sent since if it counts them."""
        return self._num_prompt_tokens

    @property
    def num_kv_blocks(self) -> int:
        """KV blocks as of the last poll."""
        return int(self._polls.gauge("num_kv_blocks", self._of))

    @property
    def num_kv_tokens(self) -> int:
        """Tokens with KV entries as of the last poll."""
        return int(self._polls.gauge("num_kv_tokens", self._of))

    @property
    def num_remaining_tokens(self) -> float:
        """Tokens as of the latest poll, and those of the requests sent since."""
        known = self._polls.gauge("num_remaining_tokens", self._of)
        return known + sum([max(self.num_answer_tokens(request), 1) for request in self._sent])

    def take(self, counts: _Counts) -> None:
        """Apply the result of a poll."""
        self._known = counts
        self._sent.clear()
        phases = self.phases
        (
            self.outstanding,
            phases.num_waiting,
            phases.num_running,
            phases.num_waiting_tokens,
            self._num_prompt_tokens,
        ) = counts
        self._tell_all()

    def forget_sent(self) -> None:
        """Return to the values of the last poll."""
        self.take(self._known)

    def note_sent(self, request: Request) -> None:
        """Add a request that goes to it now, until the next poll."""
        if not self._polls.counts_sent:
            return
        self._sent.append(request)
        self._polls.note_sent(self)
        self.outstanding += 1
        self.phases.num_waiting += 1
        if request.kv is None:
            self.phases.num_waiting_tokens += request.num_prompt_tokens
        self._num_prompt_tokens += request.num_prompt_tokens
        self._tell_all()

    def _tell_all(self) -> None:
        for watcher in self.watchers:
            watcher(self)


class Polls:
    """The clients' values at the last poll: polls happen at 0, at `interval`, and so on.

    A poll reads the values before all other events of its time. It needs no event: when a count
    changes for the first time since a poll, its old value is what the poll read. Only KV memory and
    remaining tokens, which depend on the present time, need an event per poll, while any client has
    work.

    interval: seconds (> 0). counts_sent: whether a view adds the requests sent since the poll.
    """

    def __init__(self, env: Environment, interval: float, counts_sent: bool) -> None:
        self.counts_sent = counts_sent
        self._env = env
        self._interval = interval
        self._number = self._latest()  # of the poll that views are as of
        self._views: dict[ClientState, PolledState] = {}
        self._changed: dict[ClientState, _Counts] = {}  # values of the next poll, if different
        self._sent: set[PolledState] = set()
        self._gauges: dict[Gauge, dict[ClientState, float]] = {}
        self._asks = False  # whether the next poll is an event

    def view(self, state: ClientState) -> PolledState:
        """Return the polled view of a client; a new client is polled at once."""
        if state not in self._views:
            self.catch_up()
            self._views[state] = PolledState(state, self)
            for name, values in self._gauges.items():
                values[state] = getattr(state, name)
            state.watch(self._note, phases=True)
        return self._views[state]

    def catch_up(self) -> None:
        """Apply the latest poll, if there was one since."""
        latest = self._latest()
        if latest == self._number:
            return
        self._number = latest
        for view in self._sent:
            view.forget_sent()
        self._sent.clear()
        for state, counts in self._changed.items():
            self._views[state].take(counts)
        self._changed.clear()

    def gauge(self, name: Gauge, state: ClientState) -> float:
        """Return a computed value of a client as of the latest poll since it was first needed."""
        if name not in self._gauges:
            self._gauges[name] = {state: getattr(state, name) for state in self._views}
            self._ask_next()
        return self._gauges[name][state]

    def note_sent(self, view: PolledState) -> None:
        """Note that a view says more than the latest poll found."""
        self._sent.add(view)

    def _latest(self) -> int:
        number = int(self._env.now // self._interval)
        return number + ((number + 1) * self._interval <= self._env.now)  # rounding may hide one

    def _note(self, state: ClientState) -> None:
        """A client's counts have changed."""
        self.catch_up()
        self._changed[state] = counts_of(state)
        if self._gauges and not self._asks:
            self._ask_next()

    def _ask_next(self) -> None:
        if not self._asks:
            self._asks = True
            time = (self._latest() + 1) * self._interval
            self._env.at(time, POLL).callbacks.append(self._ask)

    def _ask(self, _: Event) -> None:
        """Poll all clients, and again later unless all are idle or only polls are scheduled."""
        self._asks = False
        is_idle = not any(state.num_outstanding for state in self._views)
        for name, values in self._gauges.items():
            for state in values:
                values[state] = found = getattr(state, name)
                is_idle = is_idle and not found
        if not is_idle and not self._env.only_has(POLL):
            self._ask_next()


def counts_of(state: ClientState) -> _Counts:
    """Return the counts of a client now."""
    return (
        state.num_outstanding,
        state.num_waiting,
        state.num_running,
        state.num_waiting_tokens,
        state.num_prompt_tokens,
    )


class PrefixHolders:
    """Content ids with the clients whose prefix caches hold blocks of them, client n as bit n.

    The caches report entries and evictions, as engines send KV-cache events to a gateway (the
    event-driven mode of SGLang's gateway, llm-d's precise prefix scorer), here without delay.

    block_size: tokens per block of these clients.
    asked: clients that also find prefixes in other ways, and must be asked.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.asked = 0
        self._of: dict[Hashable, int] = {}
        self._followers: dict[int, _Follower] = {}

    def watch(self, client_id: int, kv: KvView) -> None:
        """Follow the caches of a client."""
        self._followers[client_id] = follower = _Follower(self._of, 1 << client_id)
        if not kv.watch(follower):
            self.asked |= 1 << client_id

    def forget(self, client_id: int) -> None:
        """Stop following a client's caches, and remove their content."""
        self.asked &= ~(1 << client_id)
        if follower := self._followers.pop(client_id, None):
            follower.stop()

    def levels(self, request: Request, clients: int) -> list[tuple[int, int]]:
        """Yield the clients that may hold a prefix, deepest first, with its largest length.

        Each item is (clients as bits, tokens): clients with blocks of the content span that ends
        there, perhaps of later ones. Clients in `asked` are in the first item, if there are any.
        """
        size, holders = self.block_size, self._of
        most = (request.num_prompt_tokens - 1) // size  # a prompt's last token is computed
        levels = []
        here = clients
        for content_id, end in Chain(request.content, size).spans:
            here &= holders.get(content_id, 0)
            if not here:
                break
            levels.append((here, min(end, most) * size))
            if end >= most:
                break
        levels.reverse()
        if request.content and (asked := self.asked & clients):
            levels.insert(0, (asked, most * size))
        return levels


class _Follower:
    """Follows the caches of one client, which may have several."""

    def __init__(self, holders: dict[Hashable, int], bit: int) -> None:
        self._holders = holders
        self._bit = bit
        self._again: dict[Hashable, int] = {}  # caches that have an id, less one

    def stop(self) -> None:
        """Remove the client's content and ignore later reports of its caches."""
        holders, bit = self._holders, self._bit
        mine = [content_id for content_id, clients in holders.items() if clients & bit]
        self._holders = dict.fromkeys(mine, bit)
        for content_id in mine:
            if clients := holders[content_id] ^ bit:
                holders[content_id] = clients
            else:
                del holders[content_id]

    def enter(self, content_id: Hashable) -> None:
        """Note that its client has one more block with this content."""
        holders, bit = self._holders, self._bit
        clients = holders.get(content_id, 0)
        if clients & bit:
            self._again[content_id] = self._again.get(content_id, 0) + 1
        holders[content_id] = clients | bit

    def leave(self, content_id: Hashable) -> None:
        """Note that its client has one block fewer with this content."""
        if num_others := self._again.pop(content_id, 0):
            if num_others > 1:
                self._again[content_id] = num_others - 1
            return
        clients = self._holders[content_id] ^ self._bit
        if clients:
            self._holders[content_id] = clients
        else:
            del self._holders[content_id]


Holders = dict[int, PrefixHolders]
"""For each block size, the holders of prefixes; empty until a router asks."""

Poll = Callable[[float, bool], Polls]
"""Returns what is known by polls: seconds between two, and whether what is sent since counts."""

_OF_TOKENS = ("num_waiting_tokens", "num_prompt_tokens")  # too large for an index by count

_FEW_ENOUGH_TO_LOOK = 8  # a look at each costs less than to keep them in order
_outstanding = attrgetter("outstanding")


class LiveCandidates(Candidates):
    """The views of some clients, in the order of their numbers.

    Indices are made when a router asks for the first time, and kept up to date from then on.
    """

    def __new__(cls, states: Sequence[ClientState], *_: object, **__: object) -> Self:
        return super().__new__(cls, states)

    def __init__(
        self,
        states: Sequence[ClientState],
        holders: Holders,
        poll: Poll | None = None,
        polls: Polls | None = None,
    ) -> None:
        """Take the views, and the index of prefix holders of all clients.

        poll: creates polls. polls: the polls that the views show; None: live views.
        """
        self._states = tuple(states)
        self._poll = poll
        self._polls = polls
        self._parts: dict[tuple[int, int], LiveCandidates] = {}
        self._polled: dict[tuple[float, bool], LiveCandidates] = {}
        self._are_few = len(states) <= _FEW_ENOUGH_TO_LOOK
        self._holders = holders
        self._by_number = {state.client_id: state for state in states}
        self._bits = bits_of(self)
        self._indices: dict[Count, LoadIndex] = {}
        self._columns: dict[Count, CountColumn] = {}
        self._knows_prefixes = False

    def least(self, number: Number = "num_outstanding") -> ClientView:
        """Return the candidate with the smallest number; that of a count comes from an index."""
        if self._are_few and number == "num_outstanding":
            return min(self._states, key=_outstanding)
        if number not in COUNTS:
            return super().least(number)
        if number in _OF_TOKENS:
            return self[int(self._column(number).numbers.argmin())]
        return (self._indices.get(number) or self._index(number)).first()

    def get(self, client_id: int) -> ClientView | None:
        """Return the candidate with a number; None if there is none."""
        return self._by_number.get(client_id)

    def numbers(self, number: Number) -> NDArray[Any]:
        """Return a copy of the column of a count, or read another number of each candidate."""
        if number not in COUNTS:
            return super().numbers(number)
        return self._column(number).numbers.copy()

    def part(self, first: int, end: int) -> Candidates:
        """Return the candidates from one position up to another; the object is reused."""
        if (first, end) not in self._parts:
            of_it = self._states[first:end]
            part = LiveCandidates(of_it, self._holders, self._poll, self._polls)
            self._parts[first, end] = part
        return self._parts[first, end]

    def polled(self, interval: float, *, counts_sent: bool) -> Candidates:
        """Return the candidates as of polls; the object is reused."""
        if self._poll is None:
            return self
        found = self._polled.get((interval, counts_sent))
        if found is None:
            polls = self._poll(interval, counts_sent)
            views = [polls.view(state) for state in self._states]
            found = LiveCandidates(views, self._holders, polls=polls)
            self._polled[interval, counts_sent] = found
        found.catch_up()
        return found

    def catch_up(self) -> None:
        """Apply the latest poll, if the views show polls."""
        if self._polls is not None:
            self._polls.catch_up()

    def note_sent(self, client_id: int, request: Request) -> None:
        """Add the request to the polled view of its client; live views see it themselves."""
        state = self._by_number.get(client_id)
        if isinstance(state, PolledState):
            state.note_sent(request)

    def longest_prefix(
        self, request: Request, most_outstanding: float
    ) -> tuple[ClientView | None, int]:
        """Return the candidate with the longest cached prefix, by the index of prefix holders."""
        if not request.content:
            return None, 0
        if not self._knows_prefixes:
            self._watch_caches()
        index = self._index("num_outstanding")
        best: ClientView | None = None
        most = 0
        for holders in self._holders.values():
            asked = 0
            for clients, bound in holders.levels(request, self._bits):
                if bound < most:
                    break
                for view in index.among(clients & ~asked, most_outstanding):
                    num_tokens = view.prefix_tokens(request)
                    if num_tokens > most or (num_tokens == most > 0 and _less(view, best)):
                        best, most = view, num_tokens
                    if num_tokens >= bound:
                        break  # no other has a longer prefix or fewer requests
                asked |= clients
        return best, most

    def leave(self) -> None:
        """Follow the clients no longer."""
        notes = {index.note for index in self._indices.values()}
        notes |= {column.note for column in self._columns.values()}
        for state in self._states:
            state.unwatch(notes)
        for others in (*self._parts.values(), *self._polled.values()):
            others.leave()

    def _index(self, count: Count) -> LoadIndex:
        index = self._indices.get(count)
        if index is None:
            index = self._indices[count] = LoadIndex(self._states, count)
            self._follow(index.note, count)
        return index

    def _column(self, count: Count) -> CountColumn:
        column = self._columns.get(count)
        if column is None:
            column = self._columns[count] = CountColumn(self._states, count)
            self._follow(column.note, count)
        return column

    def _follow(self, note: Callable[[ClientState], None], count: Count) -> None:
        """Let the clients tell when a count changes."""
        phases = count not in ("num_outstanding", "num_prompt_tokens")
        for state in self._states:
            state.watch(note, phases=phases)

    def _watch_caches(self) -> None:
        """Subscribe to the caches that do not report yet."""
        self._knows_prefixes = True
        for state in [each.origin for each in self._states]:
            if state.kv is None or state.is_watched:
                continue
            state.is_watched = True
            size = state.kv.block_size
            holders = self._holders.setdefault(size, PrefixHolders(size))
            holders.watch(state.client_id, state.kv)


def _less(view: ClientView, other: ClientView | None) -> bool:
    """Whether a candidate precedes another one with an equally long prefix."""
    if other is None:
        return True
    key = view.num_outstanding, view.client_id
    return key < (other.num_outstanding, other.client_id)


class Roster:
    """Clients may join and leave during a run; a number is never used twice.

    Candidates for a stage come in the order of their numbers.

    models: names of the models that clients serve or served.
    pools: pools of clients, by name, if stages that continue from KV entries stay in them.
    """

    def __init__(self) -> None:
        self.models: set[str] = set()
        self._clients: dict[int, Client] = {}
        self.get = self._clients.get
        """Returns the client with a number; None if it is not present."""
        self._num_joined = 0
        self.pools: Mapping[str, str] = {}
        self._holders: Holders = {}
        self._history = ContentHistory()
        # until someone joins or leaves: by kind of stage, model and pool, and by the set of clients
        self._candidates: dict[tuple[str, str | None, str | None], Candidates] = {}
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

    def candidates(
        self, kind: str, model: str | None = None, pool: str | None = None
    ) -> Candidates:
        """Return the views of the clients that serve a kind of stage now.

        model: that they serve, as all do without a model; None: any. pool: theirs; None: any.
        """
        key = kind, model, pool
        found = self._candidates.get(key)
        if found is None:
            found = self._candidates[key] = self._group(kind, model, pool)
        return found

    def near(self, kind: str, source: str, model: str | None = None) -> Candidates:
        """Return the views of those in a client's pool; model: None: any."""
        return self.candidates(kind, model, self.pools[source] if self.pools else None)

    def neighbours(self, source: str | None) -> frozenset[str] | None:
        """Return the names of a client's pool; None where there are no pools, or no client."""
        if source is None or not self.pools:
            return None
        pool = self.pools[source]
        return frozenset(name for name, other in self.pools.items() if other == pool)

    def _group(self, kind: str, model: str | None, pool: str | None) -> Candidates:
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
