"""CacheLayout: pages of the KV cache of a model with layers of different kinds.

As vLLM's hybrid manager lays them out: layers that keep entries of all tokens, of a window, or a
state are in groups of equal size, and all pages have the same bytes. A block of tokens is made so
long that its entries are at least a state; the state's page is padded.

Source: vLLM, `_align_hybrid_block_size` in `platforms/interface.py` (before 0.19,
`HybridAttentionMambaModelConfig` in `model_executor/models/config.py`) and
`_get_kv_cache_groups_uniform_page_size` in `v1/core/kv_cache_utils.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import ceil

from mist_sim.errors import ScenarioError
from mist_sim.models.kv_groups import KvGroups, kv_groups
from mist_sim.models.layers import Layers, mixers_of
from mist_sim.models.mixers import Mixer

# vLLM gives DeepSeek-V4 blocks of 256 tokens, two entries of its widest ratio (`--block-size 256`
# in its recipes for the model).
_COMPRESSED_BLOCK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """Pages on one rank.

    groups: the groups of layers.
    page_bytes_per_token: bytes of a page divided by the tokens of a block.
    block_size: least tokens per block; 1: any.
    has_states: whether a sequence holds pages of states.
    """

    groups: KvGroups
    page_bytes_per_token: float
    block_size: int = 1
    has_states: bool = False

    @property
    def has_groups(self) -> bool:
        """Whether there are pages of windows or states."""
        return self.groups.num_window_groups + self.groups.num_state_groups > 0


@cache
def cache_layout(layers: Layers, ranks: int, entry_bytes: int) -> CacheLayout:
    """Return the pages of some layers on a rank.

    entry_bytes: of one cached value.
    Raises ScenarioError for layers of which vLLM has no layout.
    """
    full: dict[Mixer, int] = {}
    windows: dict[Mixer, int] = {}
    states: dict[Mixer, int] = {}
    for mixer, number in mixers_of(layers).items():
        if mixer.token_bytes(ranks, entry_bytes) == 0:
            states[mixer] = number
        else:
            (full if mixer.window is None else windows)[mixer] = number
    if windows and states:
        raise ScenarioError("a model with both sliding windows and states is not supported")
    if any(mixer.state_bytes(ranks, entry_bytes) for mixer in full):
        return _compressed(full, states, ranks, entry_bytes)
    if states:
        return _with_states(full, states, ranks, entry_bytes)
    if windows:
        return _with_windows(full, windows, ranks, entry_bytes)
    in_all = sum(number * each.token_bytes(ranks, entry_bytes) for each, number in full.items())
    return CacheLayout(groups=KvGroups(layers_per_group=len(layers)), page_bytes_per_token=in_all)


def _with_windows(
    full: dict[Mixer, int], windows: dict[Mixer, int], ranks: int, entry_bytes: int
) -> CacheLayout:
    """Return the pages of layers of which some have a window.

    Where both kinds keep equal bytes, as for a model of `window_layers`. Where they do not, a page
    holds all full layers, and a block of a window group fills as many pages as its bytes (vLLM
    gives the smaller entries longer blocks instead; only the last block of a sequence differs).
    """
    window = max(mixer.window or 1 for mixer in windows)
    sizes = {each.token_bytes(ranks, entry_bytes) for each in [*full, *windows]}
    num_full, num_window = sum(full.values()), sum(windows.values())
    if len(sizes) == 1:
        groups = kv_groups(num_full + num_window, num_window, window)
        bytes_ = groups.layers_per_group * sizes.pop()
        return CacheLayout(groups=groups, page_bytes_per_token=bytes_)
    page = sum(number * each.token_bytes(ranks, entry_bytes) for each, number in full.items())
    kept = sum(number * each.token_bytes(ranks, entry_bytes) for each, number in windows.items())
    groups = KvGroups(
        layers_per_group=num_full,
        num_full_groups=1,
        num_window_groups=ceil(kept / page),
        sliding_window=window,
    )
    return CacheLayout(groups=groups, page_bytes_per_token=page)


def _with_states(
    full: dict[Mixer, int], states: dict[Mixer, int], ranks: int, entry_bytes: int
) -> CacheLayout:
    """Return the pages of layers of which some keep a state alone."""
    if not full:
        raise ScenarioError("a model with states must have at least one layer with attention")
    state = max(each.state_bytes(ranks, entry_bytes) for each in states)
    entry = max(each.token_bytes(ranks, entry_bytes) for each in full)
    num_states = sum(states.values())
    aligned = max(each.block_alignment for each in full)
    groups = kv_groups(sum(full.values()), num_states=num_states)
    return CacheLayout(
        groups=groups,
        page_bytes_per_token=groups.layers_per_group * entry,
        block_size=aligned * ceil(state / (aligned * entry)),
        has_states=True,
    )


def _compressed(
    full: dict[Mixer, int], states: dict[Mixer, int], ranks: int, entry_bytes: int
) -> CacheLayout:
    """Return the pages of layers with compressed entries, and windows beside them.

    The part that a sequence keeps at any length fills whole pages.
    """
    entries = sum(number * each.token_bytes(ranks, entry_bytes) for each, number in full.items())
    both: Iterable[tuple[Mixer, int]] = [*full.items(), *states.items()]
    state = sum(number * each.state_bytes(ranks, entry_bytes) for each, number in both)
    groups = KvGroups(
        layers_per_group=sum(full.values()),
        num_full_groups=1,
        num_state_groups=ceil(state / (entries * _COMPRESSED_BLOCK)),
    )
    return CacheLayout(
        groups=groups,
        page_bytes_per_token=entries,
        block_size=_COMPRESSED_BLOCK,
        has_states=True,
    )
