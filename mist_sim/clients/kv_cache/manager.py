"""How many KV blocks each sequence holds: plain counting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from mist_sim.clients.kv_cache.answers import AnswerClock
from mist_sim.clients.kv_cache.block_pool import BlockPool
from mist_sim.clients.kv_cache.windows.window_drops import WindowDrops
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import ContentWatcher


class Ahead(NamedTuple):
    """What the steps of a run did that is not accounted for yet.

    num_blocks: that decodes took. computed: sequences with tokens that are computed, those in
    prefill with what is when the step in flight ends.
    """

    num_blocks: int
    computed: list[tuple[SequenceState, int]]


class KvCacheManager:
    """Lends the blocks of a pool to sequences; no sequence uses another's.

    A scheduler calls `add` when a sequence is queued, `admit`, `compute` for each piece of its
    prompt, `grow` for the decodes, and `free` or `preempt` when it leaves.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.publishes = False  # whether prompts are written to tiers that others share
        self.shares_blocks = False  # whether any sequence may find blocks of others, so far
        self.drops: WindowDrops | None = None  # what windows leave, where it may be found again

    looks_ahead: ClassVar[bool] = True  # whether it knows prefixes between the ends of runs
    has_tiers: ClassVar[bool] = False  # whether blocks may be loaded from lower ones
    caches_prefixes: ClassVar[bool] = False  # whether prompts are looked up in a cache

    def add(self, sequence: SequenceState) -> None:
        """Get to know a sequence before it is admitted."""

    def num_cached_tokens(self, sequence: SequenceState) -> int:
        """Tokens of a waiting sequence that need no computation."""
        return 0

    def num_prefix_tokens(self, probe: SequenceState, ahead: Ahead) -> int:
        """Tokens that a sequence would not have computed if it came now; it is not added.

        ahead: what steps did since the manager last heard of them.
        """
        return 0

    def watch(self, watcher: ContentWatcher) -> bool:
        """Tell a watcher which content is cached (see `KvView.watch`)."""
        return True

    def unwatch(self) -> None:
        """Tell the watcher that nothing is cached any more, and then no more."""

    def blocks_to_admit(self, sequence: SequenceState, num_tokens: int | None = None) -> int:
        """Free blocks that the admission of a waiting sequence takes, as things are now.

        num_tokens: its first tokens that get blocks; None: all that are known.
        """
        return self.pool.blocks_for(sequence.num_tokens if num_tokens is None else num_tokens)

    def fewest_blocks_to_admit(
        self, sequence: SequenceState, first_piece: int | None = None
    ) -> int:
        """Free blocks that its admission takes at least, whatever is cached then.

        first_piece: tokens of its prompt that have to fit, at most; None: all.
        """
        return self.pool.blocks_for(sequence.num_tokens if first_piece is None else first_piece)

    def admit(self, sequence: SequenceState, most_new: int | None = None) -> None:
        """Give a sequence blocks and set its `num_computed_tokens`.

        most_new: tokens behind those that are computed for which it gets blocks, at most; None:
            blocks for all its known tokens.
        """
        num_tokens = sequence.num_tokens
        if most_new is not None and most_new < num_tokens:
            num_tokens = most_new
        self.grow(self.pool.blocks_for(num_tokens))

    def num_held(self, sequence: SequenceState, num_computed_tokens: int) -> int:
        """Blocks of a sequence that takes them piece by piece, with so many computed tokens."""
        return self.pool.blocks_for(num_computed_tokens)

    def start_load(self, sequence: SequenceState) -> list[tuple[str, int]]:
        """Admit a waiting sequence that has blocks in lower tiers; return how many in which.

        Returns an empty list, and does nothing, when it has none.
        """
        return []

    def publish(self, sequence: SequenceState) -> None:
        """Note that a prompt has been computed."""

    def abandon(self) -> None:
        """Note that all entries are lost."""

    def reserve(self, sequence: SequenceState, num_tokens: int) -> int:
        """Give a sequence blocks for entries that come from another client; return how many do."""
        num_blocks = self.pool.blocks_for(num_tokens)
        self.grow(num_blocks)
        return num_blocks

    def arrive(self, sequence: SequenceState, num_tokens: int) -> None:
        """Note that a sequence goes on whose first tokens have entries, in blocks of its own."""
        self.compute(sequence, num_tokens)

    def compute(self, sequence: SequenceState, num_tokens: int) -> None:
        """Note that steps planned or executed compute the first `num_tokens` of a sequence."""

    def compute_more(self, sequence: SequenceState, num_new_tokens: int, num_steps: int) -> None:
        """Note what the later ones of equal steps compute; `compute` was told of the first."""
        self.compute(sequence, sequence.num_computed_tokens + num_steps * num_new_tokens)

    def follow(self, clock: AnswerClock, *, is_early: bool, is_late: bool = False) -> None:
        """Get to know the clock of the decodes.

        is_early: whether a decode step takes and enters its blocks when it is planned.
        is_late: whether that goes for what was verified of drafts, too (see `Answers`).
        """

    def note_step(self) -> None:
        """Note that the next decode step is planned, and has its blocks."""

    def note_plan(self, *, is_ahead: bool) -> None:
        """Note whether the next plan is made before the latest step ends."""

    def forget_step(self) -> None:
        """Note that the planned step is lost."""

    def settle(self, sequence: SequenceState) -> None:
        """Enter what a decode has filled that leaves the clock next."""

    def decoded(self, num_over: int, num_begun: int) -> list[tuple[SequenceState, int]]:
        """Return decodes that fill blocks of others' content, with the tokens that may be found.

        num_over, num_begun: steps of the run in flight.
        """
        return []

    def steps_until_gain(self, sequence: SequenceState) -> int | None:
        """Steps after which an admission may take fewer free blocks, since a decode filled one.

        1 as well where blocks that the steps evict make it so. None: as far as is known, nothing
        does.
        """
        return None

    def may_gain(self, sequence: SequenceState) -> bool:
        """Whether a waiting sequence may have to take fewer blocks when others compute theirs."""
        return False

    def is_entering(self, sequence: SequenceState) -> bool:
        """Whether computing more of a sequence can put blocks into the cache."""
        return False

    def are_apart(self, several: Sequence[SequenceState]) -> bool:
        """Whether no blocks that prompts will enter can be those of others, or of decodes."""
        return True

    def grow(self, num_blocks: int) -> None:
        """Give the decodes new blocks."""
        self.pool.allocate(num_blocks)

    def give_back(self, num_blocks: int) -> None:
        """Take back blocks in which there is nothing."""
        self.pool.release(num_blocks)

    def free(
        self,
        sequence: SequenceState,
        num_blocks: int,
        num_computed_tokens: int,
        num_unknown: int = 0,
    ) -> None:
        """Take back all blocks of a sequence that has its tokens.

        num_unknown: tokens computed behind those, whose ids are not known: nobody finds them.
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
        self.pool.release(num_blocks)
        sequence.num_computed_tokens = 0

    def swap_out(self, sequence: SequenceState, num_blocks: int, num_computed_tokens: int) -> None:
        """Take back all blocks of a sequence, of which a copy lies elsewhere."""
        self.free(sequence, num_blocks, num_computed_tokens)

    def swap_in(self, sequence: SequenceState, num_blocks: int, num_computed_tokens: int) -> None:
        """Give a sequence blocks into which its computed tokens are copied back."""
        self.grow(num_blocks)
        self.arrive(sequence, num_computed_tokens)
