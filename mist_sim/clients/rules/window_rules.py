"""How an engine counts the pages of sliding windows."""

from __future__ import annotations

from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache.windows.page_pool import PageRules
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.models.kv_groups import KvGroups


def page_rules(
    config: EngineConfig, rules: EngineRules, groups: KvGroups | None
) -> PageRules | None:
    """Return how pages are counted one by one; None where sequences take memory at once.

    That is so without windows (a state, which has one page, is as a window of one token), with
    drafts, with a role, and where the scheduler does not cut prompts or swaps.
    """
    if groups is None or groups.sliding_window in (None, 1) or config.role is not None:
        return None
    scheduler, ahead = config.scheduler, bool(config.async_scheduling)
    if not isinstance(scheduler, ChunkedScheduler) or not scheduler.by_piece or scheduler.swaps:
        return None
    if config.speculative_config is not None:
        return None
    num_batches = 2 if ahead and rules.returns_unseen else 1
    is_capped = rules.caps_windows or not scheduler.scheduler_reserve_full_isl
    return PageRules(
        num_batches * scheduler.max_num_batched_tokens if is_capped else None,
        lags=ahead and rules.returns_unseen,
    )
