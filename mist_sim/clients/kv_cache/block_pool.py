"""A pool of equal KV-cache blocks, counted exactly."""

from __future__ import annotations

from mist_sim.errors import InvariantError
from mist_sim.models.kv_groups import KvGroups


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens; holders keep their own counts.

    groups: how groups of layers share the blocks; None if all layers share each block.
    num_in_all: blocks of all lanes of its engine, which have equal parts.
    num_reserved: blocks that admissions leave free for running decodes (vLLM's watermark).
    Raises ValueError for sizes below 1 and for a reserve that leaves nothing.
    """

    __slots__ = ("block_size", "groups", "num_blocks", "num_free", "num_in_all", "num_reserved")

    def __init__(self, num_blocks: int, block_size: int, num_reserved: int = 0) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be >= 1, got {num_blocks}")
        if block_size < 1:
            raise ValueError(f"block_size must be >= 1 token, got {block_size}")
        if not 0 <= num_reserved < num_blocks:
            raise ValueError(f"num_reserved must be in [0, {num_blocks}), got {num_reserved}")
        self.groups: KvGroups | None = None
        self.num_blocks = self.num_in_all = num_blocks
        self.num_reserved = num_reserved
        self.block_size = block_size
        self.num_free = num_blocks

    @property
    def num_used(self) -> int:
        """Blocks that are held."""
        return self.num_blocks - self.num_free

    @property
    def num_token_slots(self) -> int:
        """Tokens that the whole pool can hold."""
        return self.num_blocks * self.block_size

    @property
    def name(self) -> str:
        """Its kind and size, for messages."""
        size = self.block_size
        if self.num_in_all == self.num_blocks:
            tokens = f"{self.num_token_slots} tokens"
            return f"the KV cache of {tokens} ({self.num_blocks} blocks of {size})"
        tokens = f"{self.num_token_slots} of {self.num_in_all * size} tokens"
        blocks = f"{self.num_blocks} of {self.num_in_all} blocks of {size}"
        return f"the part of the KV cache that a lane of the pipeline has, {tokens} ({blocks})"

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` tokens fills, the last perhaps in part."""
        return -(-num_tokens // self.block_size)

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that a sequence holds whose first `num_tokens` tokens are computed."""
        return -(-num_tokens // self.block_size)

    def more_for(self, num_here: int, num_tokens: int, *, in_pieces: bool = False) -> int:
        """Blocks that it takes beside these for `num_tokens` tokens, the first of which are here.

        in_pieces: whether the others are computed piece by piece.
        """
        return num_here // -self.block_size - num_tokens // -self.block_size

    def blocks_alone(self, num_tokens: int) -> int:
        """Blocks that must be free at once for a sequence of `num_tokens` tokens that is alone."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> None:
        """Take blocks; the caller has checked `num_free`. Raises InvariantError if short."""
        if num_blocks > self.num_free:
            raise InvariantError(f"{num_blocks} blocks asked of a pool with {self.num_free} free")
        self.num_free -= num_blocks

    def release(self, num_blocks: int) -> None:
        """Give blocks back. Raises InvariantError when more come back than were taken."""
        self.num_free += num_blocks
        if self.num_free > self.num_blocks:
            raise InvariantError(f"{self.num_free} of {self.num_blocks} blocks are free")
