"""Sequences in a prefix cache alone, in the blocks of which one finds another's."""

from mist_sim.clients.prefixes.free_queue import FreeQueue
from mist_sim.clients.prefixes.prefix_cache import Chain, Found, PrefixCache
from mist_sim.clients.sequence_state import SequenceState


class CachedBlocks:
    """Blocks with a prefix cache, and the chain of each sequence in them.

    It counts as `Blocks` of the core does, whose compiled methods Python cannot call.
    """

    def __init__(self, num_blocks: int, size: int, *, uncached_first: bool = False) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.cache = PrefixCache(num_blocks)
        self.chains: dict[SequenceState, Chain] = {}
        self._size, self._uncached_first = size, uncached_first
        self._shares = False

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def free_queue(self) -> FreeQueue:
        """All free blocks, in the order in which they will be used."""
        return self.cache.queue if self._shares else FreeQueue(self.num_free)

    def add(self, sequence: SequenceState) -> None:
        if content := sequence.visit.request.content:
            self.chains[sequence] = self._chain(content)

    def _chain(self, content: tuple[tuple[int, int], ...]) -> Chain:
        if not self._shares:
            self._shares = True
            self.cache.queue_anew(self.num_free)
        return Chain(content, self._size)

    def _found(self, sequence: SequenceState) -> Found | None:
        chain = self.chains.get(sequence)
        most = (sequence.num_tokens - 1) // self._size
        return None if chain is None else self.cache.find(chain, most)

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        found = self._found(sequence)
        return 0 if found is None else found.num_found * self._size

    def blocks_to_admit(self, sequence: SequenceState) -> int:
        found = self._found(sequence)
        return -(-sequence.num_tokens // self._size) - (0 if found is None else found.num_held)

    def admit(self, sequence: SequenceState) -> None:
        number = -(-sequence.num_tokens // self._size)
        if found := self._found(sequence):
            self.num_free -= self.cache.hold(self.chains[sequence], found.num_found)
            number -= found.num_found
        self.grow(number)

    def grow(self, number: int) -> None:
        self.num_free -= number
        if self._shares:
            self.cache.evict(number)

    def compute(self, sequence: SequenceState, num_tokens: int) -> None:
        if chain := self.chains.get(sequence):
            number = min(num_tokens // self._size, chain.num_shared)
            if number > chain.num_held:
                self.cache.enter(chain, number)

    def free(self, sequence: SequenceState, number: int, num_tokens: int) -> None:
        self.compute(sequence, num_tokens)
        self._release(self.chains.get(sequence), number, num_tokens)

    def preempt(self, sequence: SequenceState, number: int, num_tokens: int) -> None:
        chain = self.chains.get(sequence) or self._chain(())
        self.chains[sequence] = chain
        chain.make_private()
        self.cache.enter(chain, num_tokens // self._size)
        self._release(chain, number, num_tokens)
        chain.start_over()

    def _release(self, chain: Chain | None, number: int, num_tokens: int) -> None:
        if not self._shares:
            self.num_free += number
            return
        num_held = 0 if chain is None else chain.num_held
        num_full = max(0, num_tokens // self._size - num_held)
        if num_own := number - num_held:
            num_first = num_own - num_full if self._uncached_first else 0
            if num_first:
                self.cache.queue.prepend(num_first)
            if num_own > num_first:
                self.cache.queue.append(None, num_own - num_first)
            self.num_free += num_own
        if chain is not None and num_held:
            self.num_free += self.cache.release(chain)
