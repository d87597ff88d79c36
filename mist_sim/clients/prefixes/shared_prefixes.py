"""The prefixes that decodes of one engine share, and the keys that come from the GPU's cache.

Decodes share a page where they hold the same copy of a block in the prefix cache. Of each copy is
counted how many decodes hold which blocks; that changes as a decode joins or leaves, and not from
step to step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.core.batch import ReadsAgain

if TYPE_CHECKING:
    from mist_sim.clients.prefixes.free_queue import Entry
    from mist_sim.clients.prefixes.prefix_cache import Chain

Range = tuple[int, int]  # blocks [start, end) of a request
_SHARED = 2  # decodes that hold a block


class SharedPrefixes:
    """The blocks of a prefix cache that the running decodes of one engine hold.

    reads_again: of the predictor (see `PredictorTraits`). tokens: those that several decodes hold,
        by the number of these decodes.
    """

    def __init__(self, reads_again: ReadsAgain, block_size: int) -> None:
        self._reads_again, self._block_size = reads_again, block_size
        self._held: dict[int, list[tuple[Entry, Range]]] = {}  # by decode, by its ticket
        self._holders: dict[Entry, dict[Range, int]] = {}  # decodes that hold blocks of a copy
        self.tokens: dict[int, int] = {}

    def join(self, ticket: int, chain: Chain | None, num_decodes: int, num_keys: int) -> int:
        """Note the blocks that a decode holds; return the keys that come from the GPU's cache.

        ticket: names the decode until it leaves. num_decodes, num_keys: that all read then.
        """
        if chain is not None and chain.num_held:
            self._held[ticket] = held = _held_by(chain)
            self._count(held, 1)
        return self._reads_again(self.tokens, num_decodes, num_keys) if self.tokens else 0

    def leave(self, ticket: int, num_decodes: int, num_keys: int) -> int:
        """Forget a decode; return the other decodes' keys that come from the GPU's cache."""
        if ticket in self._held:
            self._count(self._held.pop(ticket), -1)
        return self._reads_again(self.tokens, num_decodes, num_keys) if self.tokens else 0

    def _count(self, parts: list[tuple[Entry, Range]], more: int) -> None:
        """Count a decode more, or less, that holds parts of copies."""
        for copy, held in parts:
            if copy not in self._holders:
                self._holders[copy] = {held: 1}
                continue
            holders = self._holders[copy]
            number = holders.get(held, 0)
            if number and len(holders) == 1:  # nearly always: all hold the same blocks
                num_tokens = (held[1] - held[0]) * self._block_size
                if number >= _SHARED:
                    self._add(number, -num_tokens)
                number += more
                if number >= _SHARED:
                    self._add(number, num_tokens)
                _set(holders, held, number)
            else:
                self._add_all(holders, -1)
                _set(holders, held, number + more)
                self._add_all(holders, 1)
            if not holders:
                del self._holders[copy]

    def _add_all(self, holders: dict[Range, int], sign: int) -> None:
        """Add the tokens of a copy, or take them away."""
        changes: dict[int, int] = {}
        for (start, end), number in holders.items():
            changes[start] = changes.get(start, 0) + number
            changes[end] = changes.get(end, 0) - number
        number = last = 0
        for place in sorted(changes):
            if number >= _SHARED:
                self._add(number, sign * (place - last) * self._block_size)
            number, last = number + changes[place], place

    def _add(self, num_decodes: int, num_tokens: int) -> None:
        tokens = self.tokens
        if num_decodes in tokens:
            num_tokens += tokens[num_decodes]
        if num_tokens:
            tokens[num_decodes] = num_tokens
        else:
            del tokens[num_decodes]


def _set(holders: dict[Range, int], held: Range, number: int) -> None:
    """Note how many decodes hold these blocks of a copy."""
    if number:
        holders[held] = number
    else:
        del holders[held]


def _held_by(chain: Chain) -> list[tuple[Entry, Range]]:
    """Return the copies of which a chain holds blocks, and which it holds."""
    held: list[tuple[Entry, Range]] = []
    end = chain.num_held
    for entry in reversed(chain.parts()):
        held.append((entry.whole or entry, (entry.first, end)))
        end = entry.first
    return held
