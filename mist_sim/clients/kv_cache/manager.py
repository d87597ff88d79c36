"""How many KV blocks each sequence holds: plain counting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.reusable_decodes import Answers
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import ContentWatcher


class Ahead(NamedTuple):
    """The part of a run's steps that is not accounted for yet.

    num_blocks: blocks that decodes took. computed: sequences with their computed tokens; prefills
        as of the end of the step in flight.
    """

    num_blocks: int
    computed: list[tuple[SequenceState, int]]


class LowerTiers(Protocol):
    """Tiers below the GPUs' memory.

    publishes: whether prompts are written to tiers that others share. takes_all: whether sequences
    take memory for all of their tokens at once. in_step: whether the step that admits a sequence
    waits for its blocks.
    """

    publishes: bool
    takes_all: bool
    in_step: bool

    def start_load(self, sequence: SequenceState) -> list[tuple[str, int]]:
        """Admit a waiting sequence that has blocks in tiers; return the number in each.

        Returns an empty list, and does nothing, if it has none.
        """

    def load_time(self, loads: list[tuple[str, int]]) -> float:
        """Return the seconds in which blocks come from tiers, one load after the other."""

    def end_load(self, sequence: SequenceState) -> None:
        """Note that it is the turn of a sequence whose blocks have come."""

    def publish(self, sequence: SequenceState) -> None:
        """Note that a prompt has been computed."""

    def abandon(self) -> None:
        """Note that all entries are lost."""

    def most_steps(self, limit: int) -> int:
        """Return the steps, at most `limit`, after which blocks may be taken all at once."""


class KvCacheManager:
    """Lends the blocks of a pool to sequences; no sequence uses another's.

    A scheduler calls `add` when a sequence is queued, `admit`, `compute` for each piece of its
    prompt, `grow` for the decodes, and `free` or `preempt` when it leaves.

    looks_ahead: whether it knows prefixes between the ends of runs.
    caches_prefixes: whether prompts are looked up in a cache.
    shares_blocks: whether any sequence may find blocks of others, so far.
    num_plans: plans that a scheduler has made.
    tiers: where blocks may be loaded from; None without tiers.
    answers: decodes whose blocks others may reuse; without a prefix cache there are none.
    """

    looks_ahead: ClassVar[bool] = True
    caches_prefixes: ClassVar[bool] = False

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.shares_blocks = False
        self.tiers: LowerTiers | None = None
        self.answers = Answers(pool.block_size)
        self.num_plans = 0

    def add(self, sequence: SequenceState) -> None:
        """Get to know a sequence before it is admitted."""

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        """Tokens of a waiting sequence that need no computation."""
        return 0

    def num_prefix_tokens(self, probe: SequenceState, ahead: Ahead) -> int:
        """Tokens of a sequence that would be found if it arrived now; the sequence is not added.

        ahead: steps not accounted for yet.
        """
        return 0

    def watch(self, watcher: ContentWatcher) -> bool:
        """Tell a watcher which content is cached (see `KvView.watch`)."""
        return True

    def unwatch(self) -> None:
        """Tell the watcher that nothing is cached any more, and remove it."""

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Free blocks that the admission of a waiting sequence takes, as things are now.

        num_tokens: its first tokens that get blocks; None: all that are known.
        """
        return self.pool.blocks_for(sequence.num_tokens if num_tokens is None else num_tokens)

    def fewest_blocks_to_admit(
        self, sequence: SequenceState, first_piece: int | None = None
    ) -> int:
        """Free blocks that its admission takes at least, with any content of the cache.

        first_piece: tokens of its prompt that have to fit, at most; None: all.
        """
        return self.pool.blocks_for(sequence.num_tokens if first_piece is None else first_piece)

    def num_first_tokens(self, sequence: SequenceState, first_piece: int) -> int:
        """Tokens that get blocks when a sequence is admitted with a piece of its prompt."""
        return min(sequence.num_tokens, self.num_cached_tokens(sequence) + first_piece)

    def num_reserved(self, sequence: SequenceState) -> int:
        """Blocks of a sequence before its admission, whose entries have come or are on the way."""
        return self.pool.blocks_for(sequence.num_brought)

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Give a sequence blocks and set its `num_computed_tokens`.

        most_new: most tokens beyond those computed for which it gets blocks; None: all its known
            tokens.
        """
        num_tokens = sequence.num_tokens
        if most_new is not None and most_new < num_tokens:
            num_tokens = most_new
        self.grow(self.pool.blocks_for(num_tokens))

    def num_held(self, sequence: SequenceState, num_computed_tokens: int) -> int:
        """Blocks of a sequence that takes them piece by piece, with so many computed tokens."""
        return self.pool.blocks_for(num_computed_tokens)

    def blocks_to_reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Free blocks that `reserve` takes."""
        return self.pool.blocks_of(num_tokens)

    def reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Give a sequence blocks for entries that come from another client; return how many do."""
        num_blocks = self.pool.blocks_for(num_tokens)
        self.grow(num_blocks)
        return num_blocks

    def arrive(self, sequence: SequenceState, num_tokens: int) -> None:
        """Note that a sequence continues with loaded first entries, in its own blocks."""
        self.compute(sequence, num_tokens)

    def go_on(self, sequence: SequenceState, num_here: int, num_tokens: int) -> None:
        """Give a prompt blocks for so many tokens after its first entries have arrived."""
        self.grow(self.pool.blocks_for(num_tokens) - self.pool.blocks_for(num_here))

    def compute(self, sequence: SequenceState, num_tokens: int) -> None:
        """Note that steps planned or executed compute the first `num_tokens` of a sequence."""

    def compute_more(self, sequence: SequenceState, num_new_tokens: int, num_steps: int) -> None:
        """Note the tokens of the later ones of equal steps; `compute` noted those of the first."""
        self.compute(sequence, sequence.num_computed_tokens + num_steps * num_new_tokens)

    def steps_until_gain(self, sequence: SequenceState) -> int | None:
        """Steps until admitting this sequence could need fewer free blocks, as a decode fills one.

        Also 1 if blocks that the steps evict could have that effect. None: no known step has it.
        """
        return None

    def is_entering(self, sequence: SequenceState) -> bool:
        """Whether computing more of a sequence can put blocks into the cache."""
        return False

    def are_apart(self, several: Sequence[SequenceState]) -> bool:
        """Whether no block of the prompts can equal another's, or a decode's."""
        return True

    def grow(self, num_blocks: int) -> None:
        """Give the decodes new blocks."""
        self.pool.allocate(num_blocks)

    def give_back(self, num_blocks: int) -> None:
        """Take back empty blocks."""
        self.pool.release(num_blocks)

    def free(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Take back all blocks of a sequence that is done.

        num_unknown: tokens computed beyond its known ones, whose ids are unknown and cannot be
            found.
        """
        self.pool.release(num_blocks)

    def forget(self, sequence: SequenceState, num_blocks: int) -> None:
        """Take back the blocks of a sequence that was given up before it was admitted."""
        self.free(sequence, num_blocks, 0)

    def preempt(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Take back all blocks of a sequence that will need them again; as `free`."""
        self.free(sequence, num_blocks, num_computed_tokens)
        sequence.num_computed_tokens = 0

    def swap_out(self, sequence: SequenceState, num_blocks: int, num_computed_tokens: int) -> None:
        """Take back all blocks of a sequence, of which a copy lies elsewhere."""
        self.free(sequence, num_blocks, num_computed_tokens)

    def swap_in(self, sequence: SequenceState, num_blocks: int, num_computed_tokens: int) -> None:
        """Give a sequence blocks into which its computed tokens are copied back."""
        self.grow(num_blocks)
        self.arrive(sequence, num_computed_tokens)
