"""Counts of many clients, without a look at each: which is the smallest, and all as an array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

import numpy as np

from mist_sim.core.views import ClientState, ClientView, Count, attribute_of

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
