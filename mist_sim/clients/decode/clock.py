"""The decode clock: all running decodes advance together, so each decode is arithmetic.

In every decode step each running request generates one token. A request that joins at clock c with
n tokens to go leaves at c + n: one push on a heap, and no work per token. Steps need only sums: the
number of decodes, the tokens in their contexts, and how many of them start a new KV block. (DESIGN
§5; the tests compare it with a plain stepwise engine.)
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from mist_sim.clients.prefixes.shared_prefixes import SharedPrefixes
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import ReadsAgain, StepBatch, StepGrowth

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LEFT = 0  # the ticket of a sequence that is not on the clock


class DecodeClock:
    """The running decodes of one engine.

    steps: decode steps done.
    num_decodes: sequences on the clock.
    context_sum: tokens that the cache holds for them, summed.
    num_queries_each: tokens that each sequence brings into a step.
    num_read_again: keys of shared prefixes that come from the GPU's cache, as of the last sequence
        that joined or left.
    reads_again: of the predictor, see `watch_prefixes`; None: nothing does.
    heap: (step after which it is finished, ticket, sequence); entries of sequences that left are
        dropped lazily.
    phases: item p: blocks that sequences take in steps p, p + block_size, ...
    step_tokens: total tokens of each step of the latest `advance`; None: one per sequence.
    """

    __slots__ = (
        "_longest",
        "_next_ticket",
        "_pages_per_block",
        "_pages_per_cycle",
        "_prefixes",
        "block_size",
        "context_sum",
        "heap",
        "num_decodes",
        "num_queries_each",
        "num_read_again",
        "phases",
        "reads_again",
        "step_tokens",
        "steps",
    )

    def __init__(self, block_size: int) -> None:
        self.steps = 0
        self.num_decodes = 0
        self.context_sum = 0
        self.num_queries_each = 1
        self.step_tokens: NDArray[np.int64] | None = None
        self.block_size = block_size
        # phases[p]: pages that sequences take for new blocks in steps p, p + block_size, ...
        self.phases = [0] * block_size
        self._pages_per_block = 1
        self._pages_per_cycle = 0  # the sum of phases
        # (step after which it is finished, ticket, sequence); left sequences go lazily
        self.heap: list[tuple[int, int, SequenceState]] = []
        self._next_ticket = _LEFT + 1
        # (step at which its context was 0, ticket, sequence), once someone asks for the longest
        self._longest: list[tuple[int, int, SequenceState]] | None = None
        self.num_read_again = 0
        self.reads_again: ReadsAgain | None = None
        self._prefixes: SharedPrefixes | None = None

    @property
    def num_queries(self) -> int:
        """Tokens that the sequences bring into the next step."""
        return self.num_decodes * self.num_queries_each

    @property
    def tells_longest(self) -> bool:
        """Whether it shows the longest context."""
        return self._longest is not None

    def watch_longest(self) -> None:
        """Show the longest context too, from now on; there must be no sequence yet."""
        self._longest = []

    def watch_prefixes(self, reads_again: ReadsAgain | None) -> None:
        """Tell from now on what decodes read again (see `PredictorTraits.reads_again`)."""
        self.reads_again = reads_again
        if reads_again is not None:
            self._prefixes = SharedPrefixes(reads_again, self.block_size)

    def join(self, sequence: SequenceState) -> None:
        """Add a sequence that just left prefill and has more tokens to generate."""
        context = sequence.num_tokens - 1  # the newest token is not in the cache yet
        sequence.block_phase = (self.steps - context) % self.block_size
        self.phases[sequence.block_phase] += self._pages_per_block
        self._pages_per_cycle += self._pages_per_block
        self._enter(sequence, context, sequence.num_final_tokens - sequence.num_tokens)

    def _enter(self, sequence: SequenceState, context: int, num_steps: int) -> None:
        """Count a sequence that stays for so many steps."""
        sequence.join_step = self.steps
        sequence.ticket = self._next_ticket
        self._next_ticket += 1
        self.num_decodes += 1
        self.context_sum += context
        heappush(self.heap, (self.steps + num_steps, sequence.ticket, sequence))
        if self._longest is not None:
            heappush(self._longest, (self.steps - context, sequence.ticket, sequence))
        prefixes = self._prefixes
        if prefixes is not None and (sequence.chain is not None or prefixes.tokens):
            num_keys = self.context_sum + self.num_decodes * self.num_queries_each
            self.num_read_again = prefixes.join(
                sequence.ticket, sequence.chain, self.num_decodes, num_keys
            )

    def stay(self, sequence: SequenceState) -> None:
        """Keep a sequence that is finished, for one more step."""
        heappush(self.heap, (self.steps + 1, sequence.ticket, sequence))

    def leave(self, sequence: SequenceState) -> int:
        """Take a sequence off the clock; return the tokens that it holds memory for."""
        sequence.num_tokens += self.steps - sequence.join_step
        context = sequence.num_tokens - 1
        self.phases[sequence.block_phase] -= self._pages_per_block
        self._pages_per_cycle -= self._pages_per_block
        self._exit(sequence, context)
        return context

    def _exit(self, sequence: SequenceState, context: int) -> None:
        """Count a sequence no longer, for which the cache holds so many tokens."""
        ticket, sequence.ticket = sequence.ticket, _LEFT
        self.num_decodes -= 1
        self.context_sum -= context
        prefixes = self._prefixes
        if prefixes is not None and (sequence.chain is not None or prefixes.tokens):
            num_keys = self.context_sum + self.num_decodes * self.num_queries_each
            self.num_read_again = prefixes.leave(ticket, self.num_decodes, num_keys)

    def context(self, sequence: SequenceState, num_steps: int = 0) -> int:
        """Tokens that the cache holds for a sequence on the clock, after more steps."""
        return sequence.num_tokens - 1 + self.steps + num_steps - sequence.join_step

    def slots(self, sequence: SequenceState, num_steps: int = 0) -> int:
        """Tokens that a sequence on the clock has memory for in the next step but `num_steps`."""
        return self.context(sequence, num_steps) + 1

    def slots_held(self, sequence: SequenceState) -> int:
        """Tokens that a sequence on the clock has memory for before its next step."""
        return self.context(sequence)

    def step_with(self, sequence: SequenceState, num_tokens: int) -> int:
        """The first step before which the cache holds so many tokens of a sequence on the clock."""
        return sequence.join_step + num_tokens - (sequence.num_tokens - 1)

    def context_after(self, num_steps: int) -> int:
        """Tokens that the cache holds for all sequences after more steps of the same ones."""
        return self.context_sum + num_steps * self.num_decodes

    def batch(self, chunks: tuple[tuple[int, int], ...]) -> StepBatch:
        """Return the batch of the next step: the decodes, plus the given chunks of prompts."""
        batch = StepBatch(chunks, self.num_decodes, self.context_sum)
        batch.num_read_again = self.num_read_again
        if self._longest is not None:
            batch.longest_context = self.steps - _head(self._longest)[0] if self.num_decodes else 0
        return batch

    def growth(self, num_steps: int) -> StepGrowth:
        """Return the batch's growth over the next `num_steps` steps, at most `steps_to_change`."""
        return StepGrowth(self.num_decodes, 0, 1)  # by position: names would double its cost

    def steps_to_change(self) -> int:
        """Steps until the first sequence finishes; there must be one on the clock."""
        head = self.heap[0]
        if head[2].ticket != head[1]:
            head = _head(self.heap)
        return head[0] - self.steps

    def blocks_needed_now(self) -> int:
        """New KV blocks that the next step takes."""
        return self.phases[self.steps % self.block_size]

    def blocks_needed_by(self, sequence: SequenceState) -> int:
        """New KV blocks that the next step takes for a sequence on the clock."""
        return int(sequence.block_phase == self.steps % self.block_size)

    def blocks_needed(self, num_steps: int) -> int:
        """New KV blocks that the next `num_steps` steps take, in all."""
        phases, size = self.phases, self.block_size
        first = self.steps % size
        if num_steps == 1:
            return phases[first]
        num_blocks = num_steps // size * self._pages_per_cycle
        end = first + num_steps % size
        if end <= size:
            return num_blocks + sum(phases[first:end])
        return num_blocks + self._pages_per_cycle - sum(phases[end - size : first])

    def steps_within(self, num_free_blocks: int, limit: int) -> int:
        """Steps, at most `limit`, that can run before the free blocks are used up."""
        size = self.block_size
        at_most = (limit // size + 1) * self._pages_per_cycle  # spares the exact count, mostly
        if at_most <= num_free_blocks:
            return limit
        phases = self.phases
        cycles, free = divmod(num_free_blocks, self._pages_per_cycle)
        steps = cycles * size
        phase = self.steps % size
        while steps < limit and (need := phases[phase]) <= free:
            free -= need
            steps += 1
            phase = phase + 1 if phase + 1 < size else 0
        return min(steps, limit)

    def steps_until(self, num_free_blocks: int, limit: int) -> int:
        """Steps, at most `limit`, until a sequence finishes or the free blocks are used up.

        There must be a sequence on the clock, and room for the first step.
        """
        head = self.heap[0]
        if head[2].ticket != head[1]:
            head = _head(self.heap)
        num_left = head[0] - self.steps
        if num_left < limit:  # min() would be a call  # noqa: PLR1730
            limit = num_left
        if limit == 1 or (limit // self.block_size + 1) * self._pages_per_cycle <= num_free_blocks:
            return limit
        return self.steps_within(num_free_blocks, limit)

    def advance(self, num_steps: int) -> int:
        """Let all sequences generate one token in each step; return the KV blocks they took."""
        num_blocks = self.blocks_needed(num_steps)
        self.steps += num_steps
        self.context_sum += num_steps * self.num_decodes
        return num_blocks

    def count(self, num_steps: int) -> None:
        """Do the same where the blocks are taken already."""
        self.steps += num_steps
        self.context_sum += num_steps * self.num_decodes

    def pop_finished(self) -> list[SequenceState]:
        """Return, in the order they joined, the sequences that finish at the present step."""
        finished: list[SequenceState] = []
        heap, steps = self.heap, self.steps
        while heap and heap[0][0] <= steps:
            _, ticket, sequence = heappop(heap)
            if sequence.ticket == ticket:
                finished.append(sequence)
        return finished


def _head(heap: list[tuple[int, int, SequenceState]]) -> tuple[int, int, SequenceState]:
    """Return the first valid entry of a heap, dropping entries of sequences that left."""
    head = heap[0]
    while head[2].ticket != head[1]:
        heappop(heap)
        head = heap[0]
    return head
