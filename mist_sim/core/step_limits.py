"""What the steps of an engine may hold, for those who ask how much more it could have taken."""

from __future__ import annotations

from typing import NamedTuple


class StepLimits(NamedTuple):
    """What limits the steps of a client whose engines take requests in at any step.

    tokens: of a step, those of prompts and decodes; tokens_a_decode: each decode takes so many.
    sequences: that may be in a step, of each track, engine by engine.
    num_blocks, block_size: KV blocks of a track, and their tokens; blocks_each: a block of tokens
        takes so many.
    """

    tokens: int
    tokens_a_decode: int
    sequences: tuple[int, ...]
    num_blocks: int
    block_size: int
    blocks_each: int = 1
