"""Upper limits of an engine's steps, to compute how much room they had."""

from __future__ import annotations

from typing import NamedTuple


class StepLimits(NamedTuple):
    """Limits of the steps of a client whose engines can admit requests at any step.

    tokens: prompt and decode tokens per step; tokens_a_decode: tokens that each decode takes.
    sequences: limit of sequences per step for each track, engine by engine.
    num_blocks, block_size: KV blocks of a track, and tokens per block; blocks_each: pool blocks
        that one block of tokens takes. adapters: LoRA adapters that a step may use; 0: none.
    """

    tokens: int
    tokens_a_decode: int
    sequences: tuple[int, ...]
    num_blocks: int
    block_size: int
    blocks_each: int = 1
    adapters: int = 0
