"""How an engine counts the pages of windows and states."""

from __future__ import annotations

from mist_sim.clients.engine.queued.form import QueueForm
from mist_sim.clients.engine_config import EngineConfig
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache.pages.page_pool import DraftRules, PageRules
from mist_sim.clients.kv_cache.pages.state_pieces import StateRules
from mist_sim.clients.scheduling import ChunkedScheduler


def page_rules(
    config: EngineConfig, rules: EngineRules, form: QueueForm | None = None
) -> PageRules:
    """Return how the pages of a model with windows or states are counted.

    Prompts that take their pages at once count all of them.

    form: how batches of a pipeline are queued; None: no more than one is planned ahead.
    """
    scheduler, most_beside = config.scheduler, None
    num_batches = form.size if form else 1 + bool(config.async_scheduling)
    lags = num_batches > 1 and rules.returns_unseen
    if isinstance(scheduler, ChunkedScheduler) and scheduler.by_piece and not scheduler.swaps:
        caps = rules.caps_windows or not scheduler.scheduler_reserve_full_isl
        num_counted = num_batches if lags else 1
        most_beside = num_counted * scheduler.max_num_batched_tokens if caps else None
    drafting = config.speculative_config
    num_again = drafting.num_recomputed_blocks if drafting and not rules.hashes_ahead else 0
    states = StateRules(rules.states_wait, rules.states_stop_shared, rules.states_go_on)
    if isinstance(scheduler, ChunkedScheduler):
        most = scheduler.long_prefill_token_threshold or scheduler.max_num_batched_tokens
        states = states._replace(most=min(most, scheduler.max_num_batched_tokens))
    drafts = DraftRules()
    if drafting is not None:
        num_ahead = drafting.num_lookahead_tokens
        num_first = num_ahead if rules.admits_lookahead else 0
        drafts = DraftRules(num_ahead, num_first, rules.caches_verified)
    return PageRules(most_beside, lags, num_again, rules.hybrid_drops, states, drafts)
