"""Seconds of the attention of a vision tower: the patches of an image to one another.

The kernel is one of vLLM's flash attention, as of prompts, with three differences. It pads heads to
the sizes that it was compiled for. Its queries, keys and values were just written by the product
before it, and come from the GPU's cache; an image that is too large for that has so many pairs that
they take the time. And it has figures of its own, since it looks up no blocks of a KV cache.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.hardware.predictors.analytic.attention_time import PromptAttention
from mist_sim.hardware.predictors.analytic.compile import Phase, of_all_pairs, prompt_times
from mist_sim.models.operators import Operator

_LEAST, _STEP = 64, 32

Sizes = TypeVar("Sizes", int, NDArray[np.int64])


def computed_head(head_dim: Sizes) -> Sizes:
    """Return the values of a head that a kernel computes.

    Source: flash-attention, `round_up_headdim` in `hopper/flash_api.cpp` (64, 96, 128, ...) and
    `head_size_rounded` in `csrc/flash_attn/flash_api.cpp` (multiples of 32).
    """
    found: Sizes = np.maximum(-(-head_dim // _STEP) * _STEP, _LEAST)
    return found


def tower_attention(phase: Phase, layers: int, heads: float, head_dim: int) -> PromptAttention:
    """Return the times of so many layers. heads: of a rank."""
    size = int(computed_head(head_dim))

    def attention(_queries: float, _keys: float, pairs: float) -> Operator:
        return Operator("attention", 4 * heads * size * pairs, 0.0)

    return of_all_pairs(prompt_times(phase, "tower_attention", layers, attention, heads=heads))
