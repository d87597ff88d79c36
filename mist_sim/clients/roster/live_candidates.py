"""Candidates of a running simulation, with fast queries for routers, however many clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients.roster.client_counts import CountColumn, LoadIndex, bits_of
from mist_sim.clients.roster.polls import PolledState, Polls
from mist_sim.clients.roster.prefix_holders import PrefixHolders
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request
from mist_sim.core.views import ClientState, ClientView, Count

Holders = dict[int, PrefixHolders]
"""For each block size, who has what in a prefix cache; empty until somebody asks."""

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

    def least(self, count: Count = "num_outstanding") -> ClientView:
        """Return the candidate with the smallest count, the first of equals, from an index."""
        if self._are_few and count == "num_outstanding":
            return min(self._states, key=_outstanding)
        if count in _OF_TOKENS:
            return self[int(self._column(count).numbers.argmin())]
        return (self._indices.get(count) or self._index(count)).first()

    def get(self, client_id: int) -> ClientView | None:
        """Return the candidate with a number; None if there is none."""
        return self._by_number.get(client_id)

    def numbers(self, count: Count) -> NDArray[np.int64]:
        """Return a copy of the column of this count."""
        return self._column(count).numbers.copy()

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
