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

_COMPILED = np.array([64, 96, 128, 192, 256])

Sizes = TypeVar("Sizes", int, NDArray[np.int64])


def computed_head(head_dim: Sizes) -> Sizes:
    """Return the values of a head that a kernel computes: those of the next larger kernel.

    Kernels are compiled for heads of 64, 96, 128, 192 and 256 values; larger heads, which none of
    them takes, count as they are. Source: `round_up_headdim` in flash-attention's
    `hopper/flash_api.cpp`.
    """
    place = np.minimum(np.searchsorted(_COMPILED, head_dim), len(_COMPILED) - 1)
    found: Sizes = np.maximum(_COMPILED[place], head_dim)
    return found


def tower_attention(phase: Phase, layers: int, heads: float, head_dim: int) -> PromptAttention:
    """Return the times of so many layers. heads: of a rank."""
    size = int(computed_head(head_dim))

    def attention(_queries: float, _keys: float, pairs: float) -> Operator:
        return Operator("attention", 4 * heads * size * pairs, 0.0)

    return of_all_pairs(prompt_times(phase, "tower_attention", layers, attention, heads=heads))
