"""Which decode clock a lane has: by its drafting method and its layers' kinds of KV memory."""

from __future__ import annotations

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.decode.speculative_clock import Speculation, SpeculativeClock
from mist_sim.clients.decode.speculative_window_clock import SpeculativeWindowClock
from mist_sim.clients.decode.watched_clock import WatchedClock
from mist_sim.clients.decode.window_clock import WindowClock
from mist_sim.clients.kv_cache import KvCacheManager


def clock_of_lane(
    kv_cache: KvCacheManager,
    speculation: Speculation | None,
    *,
    tells_joins: bool = False,
) -> DecodeClock:
    """Return a new clock; `tells_joins`: whether it lists sequences that joined."""
    block_size, groups = kv_cache.pool.block_size, kv_cache.pool.groups
    if groups:
        if speculation is not None:
            return SpeculativeWindowClock(block_size, speculation, groups)
        return WindowClock(block_size, groups)
    if speculation is not None:
        return SpeculativeClock(block_size, speculation)
    if tells_joins:
        return WatchedClock(block_size)
    return DecodeClock(block_size)
