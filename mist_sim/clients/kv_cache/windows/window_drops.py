"""Blocks that sliding windows have left, given back while decodes run."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from mist_sim.clients.kv_cache.windows.window_chain import WindowChain
from mist_sim.clients.sequence_state import SequenceState


class Drops(NamedTuple):
    """Window blocks given back in order: `num_nameless` without content ids, then those of chains.

    cached: chains, each with the position of its block.
    """

    num_nameless: int
    cached: list[tuple[WindowChain, int]]


class DroppingClock(Protocol):
    """A decode clock of a model with sliding windows."""

    steps: int

    def num_dropped(self, num_steps: int) -> int:
        """Window blocks that the next steps give back, in all."""

    def drop_step(self, sequence: SequenceState, position: int) -> int:
        """The step in which a sequence on the clock gives back the window block of a position."""


class WindowDrops:
    """Window blocks given back by steps of a decode clock, in the order of the free queue.

    In every step the blocks without cached content come first, then the others in the order in
    which their sequences joined. Only blocks of prompts can be cached, so a sequence has at most a
    window of them, and only these are handled one by one.

    is_kept: whether the order matters yet.
    """

    def __init__(self) -> None:
        self.is_kept = False
        # (step of its next cached block, ticket, sequence); left sequences go lazily
        self._heap: list[tuple[int, int, SequenceState]] = []
        self._drops: list[Drops] = []
        self._left: tuple[SequenceState, int] | None = None

    def watch(self, clock: DroppingClock, sequence: SequenceState) -> None:
        """Note when a sequence, on the clock, gives back its next block that is cached."""
        chain = sequence.chain
        if isinstance(chain, WindowChain) and chain.cached:
            step = clock.drop_step(sequence, chain.cached[0][0])
            heappush(self._heap, (step, sequence.ticket, sequence))

    def advance(self, clock: DroppingClock, num_steps: int) -> None:
        """Note the blocks given back by the next steps; their chains release them."""
        heap, first = self._heap, clock.steps
        num_cached = num_nameless = 0
        while heap and heap[0][0] < first + num_steps:
            step = heap[0][0]
            cached = []
            while heap and heap[0][0] == step:
                _, ticket, sequence = heappop(heap)
                if sequence.ticket == ticket and isinstance(sequence.chain, WindowChain):
                    cached.append((sequence.chain, sequence.chain.drop_first()))
                    self.watch(clock, sequence)
            num_cached += len(cached)
            total = clock.num_dropped(step - first + 1) - num_cached
            self._drops.append(Drops(total - num_nameless, cached))
            num_nameless = total
        rest = clock.num_dropped(num_steps) - num_cached - num_nameless
        if rest:
            self._drops.append(Drops(rest, []))

    def leave(self, sequence: SequenceState, first: int) -> None:
        """Note the first window block of a sequence that leaves the clock, if drafts move it."""
        self._left = sequence, first

    def first_left(self, sequence: SequenceState) -> int | None:
        """Return the notes on the sequence that left the clock last, once; None without any."""
        left, self._left = self._left, None
        return left[1] if left is not None and left[0] is sequence else None

    def take(self) -> list[Drops]:
        """Return the notes, once."""
        drops, self._drops = self._drops, []
        return drops
