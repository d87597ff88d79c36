"""KvGroups: how the layers of a model share the pages of one KV-cache pool."""

from __future__ import annotations

from dataclasses import dataclass

_PAD_BELOW = 1.5  # up to this ratio the smaller kind is padded to one group of the larger's size


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroups:
    """Layers in groups of equal size; a page holds one block of tokens of one group's layers.

    layers_per_group: layers (and padding) of a group.
    num_full_groups, num_window_groups: groups of full attention and of sliding windows.
    sliding_window: the window of the latter in tokens; None without them.

    Source: vLLM's hybrid KV cache manager, `_get_kv_cache_groups_uniform_page_size` in
    `vllm/v1/core/kv_cache_utils.py`.
    """

    layers_per_group: int
    num_full_groups: int = 1
    num_window_groups: int = 0
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        if min(self.num_full_groups, self.num_window_groups) < 0 or not self.num_groups:
            raise ValueError(f"the layers must be in groups, got {self}")
        if bool(self.num_window_groups) != (self.sliding_window is not None):
            raise ValueError(f"window groups and sliding_window go together, got {self}")

    @property
    def num_groups(self) -> int:
        """Pages that a block of tokens takes as long as no window drops it."""
        return self.num_full_groups + self.num_window_groups

    def max_window_blocks(self, block_size: int, num_extra_slots: int = 0) -> int:
        """Blocks that a sequence holds at most in a window group.

        A query sees itself and window - 1 tokens before it, which lie in so many blocks and one
        more where they do not begin at a block's start (vLLM's
        `SlidingWindowSpec.max_memory_usage_bytes`, without the tokens of a prompt's chunk).

        num_extra_slots: slots for drafts that a decode holds behind its newest token.
        """
        reach = (self.sliding_window or 1) - 1 + num_extra_slots
        return -(-reach // block_size) + 1


def kv_groups(num_layers: int, num_window_layers: int, sliding_window: int | None) -> KvGroups:
    """Return the groups of a model whose layers all keep the same bytes per token.

    The group is as large as the smaller kind of layers, or as the larger one where that pads less
    than half; the last group of a kind is padded.
    """
    num_full_layers = num_layers - num_window_layers
    kinds = [count for count in (num_full_layers, num_window_layers) if count]
    size, largest = min(kinds), max(kinds)
    if largest < _PAD_BELOW * size:
        size = largest
    return KvGroups(
        layers_per_group=size,
        num_full_groups=-(-num_full_layers // size),
        num_window_groups=-(-num_window_layers // size),
        sliding_window=sliding_window,
    )
