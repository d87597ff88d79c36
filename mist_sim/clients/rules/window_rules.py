"""How an engine counts the pages of windows and states."""

from __future__ import annotations

from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache.pages.page_pool import PageRules
from mist_sim.clients.kv_cache.pages.state_pieces import StateRules
from mist_sim.clients.scheduling import ChunkedScheduler


def page_rules(config: EngineConfig, rules: EngineRules) -> PageRules:
    """Return how the pages of a model with windows or states are counted.

    Prompts that take their pages at once count all of them.
    """
    scheduler, ahead = config.scheduler, bool(config.async_scheduling)
    lags, most_beside = ahead and rules.returns_unseen, None
    if isinstance(scheduler, ChunkedScheduler) and scheduler.by_piece and not scheduler.swaps:
        caps = rules.caps_windows or not scheduler.scheduler_reserve_full_isl
        most_beside = (1 + lags) * scheduler.max_num_batched_tokens if caps else None
    drafting = config.speculative_config
    num_again = drafting.num_recomputed_blocks if drafting and not rules.hashes_ahead else 0
    states = StateRules(rules.states_wait, rules.states_stop_shared, rules.states_go_on)
    if isinstance(scheduler, ChunkedScheduler):
        most = scheduler.long_prefill_token_threshold or scheduler.max_num_batched_tokens
        states = states._replace(most=min(most, scheduler.max_num_batched_tokens))
    return PageRules(most_beside, lags, num_again, rules.hybrid_drops, states)
