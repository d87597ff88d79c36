"""KvGroups: how the layers of a model share the pages of one KV-cache pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

StateCache = Literal["none", "align", "all"]
STATE_CACHES: tuple[str, ...] = get_args(StateCache)
"""Which states are kept for later requests: none, those at the ends of pieces, of all blocks."""

_PAD_BELOW = 1.5  # up to this ratio the smaller kind is padded to one group of the larger's size


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroups:
    """Layers in groups of equal size; a page holds one block of tokens of one group's layers.

    layers_per_group: layers (and padding) of a group.
    num_full_groups, num_window_groups: groups of full attention and of sliding windows.
    num_state_groups: groups of layers that keep a state, which takes a page whatever its length.
    sliding_window: the window of the window groups in tokens; None without them.
    state_cache: which states a prefix cache keeps (vLLM's `mamba_cache_mode`). Then a state has
        pages as blocks of tokens come, and returns all but the last one. saves_inside: whether
        kernels save a state before the end of a prompt's last piece.

    Source: vLLM's hybrid KV cache manager, `_get_kv_cache_groups_uniform_page_size` in
    `vllm/v1/core/kv_cache_utils.py`.
    """

    layers_per_group: int
    num_full_groups: int = 1
    num_window_groups: int = 0
    num_state_groups: int = 0
    sliding_window: int | None = None
    state_cache: StateCache = "none"
    saves_inside: bool = False

    def __post_init__(self) -> None:
        numbers = self.num_full_groups, self.num_window_groups, self.num_state_groups
        if min(numbers) < 0 or not self.num_groups:
            raise ValueError(f"the layers must be in groups, got {self}")
        if bool(self.num_window_groups) != (self.sliding_window is not None):
            raise ValueError(f"window groups and sliding_window go together, got {self}")

    @property
    def num_all_groups(self) -> int:
        """Groups of any kind."""
        return self.num_full_groups + self.num_window_groups + self.num_state_groups

    @property
    def num_groups(self) -> int:
        """Pages that a block of tokens takes as long as nothing drops it."""
        return self.num_full_groups + self.num_window_groups + self.num_kept_states

    @property
    def num_kept_states(self) -> int:
        """Groups of states that a prefix cache keeps."""
        return 0 if self.state_cache == "none" else self.num_state_groups


def kv_groups(
    num_layers: int,
    num_window_layers: int = 0,
    sliding_window: int | None = None,
    *,
    num_states: int = 0,
) -> KvGroups:
    """Return the groups of a model whose layers all have pages of the same bytes.

    The group is as large as the smallest kind of layers, or as the largest one where that pads less
    than half; the last group of a kind is padded.

    num_layers: with entries. num_window_layers: those of them with a window. num_states: layers
    that keep a state alone.
    """
    num_full_layers = num_layers - num_window_layers
    kinds = [count for count in (num_full_layers, num_window_layers, num_states) if count]
    size, largest = min(kinds), max(kinds)
    if largest < _PAD_BELOW * size:
        size = largest
    return KvGroups(
        layers_per_group=size,
        num_full_groups=-(-num_full_layers // size),
        num_window_groups=-(-num_window_layers // size),
        num_state_groups=-(-num_states // size),
        sliding_window=sliding_window,
    )
