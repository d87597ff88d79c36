"""Rules of an engine that depend only on its version: vLLM has no option for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SharedStop = Literal["never", "at_first", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """The rules of a release; by default those of vLLM 0.12.

    Which releases have them, and where: `scenario.engines.versions`.

    uncached_first: whether free blocks without cached content are used before all others, instead
        of in the order in which they were freed. With sliding windows only where prompts take
        memory by piece.
    threshold_spares_one: whether a request that is alone, running or waiting, gets more tokens in a
        step than `long_prefill_token_threshold`. In a pipeline of ours, alone in its lane.
    pass_goes_on: whether under `priority` the requests after one that preempts itself still get
        their turn, and preempting an earlier request skips no other.
    local_cadence: whether `prefill_schedule_interval` holds in an engine that is not in lockstep
        with others.
    held_spares_hits: whether a step without prompts (by cadence) still admits a prompt whose tokens
        but the last are cached, unless its blocks came from another store.
    batch_queue: whether a pipeline has one scheduler, and a queue of batches (v1), and not an
        engine with memory of its own for each batch (v0's virtual engines). As far as it is
        simulated (`EngineConfig.no_batch_queue`).
    async_pipelines: whether pipelines may plan ahead.
    staggers_decodes: whether they have one batch more then, and plan a decode every so many steps
        as there are ranks.
    fills_queue: whether plans that compute nothing fill the queue, and the next batch is planned
        before one of them that is the oldest leaves it.
    drains_preempted: whether a request preempted in flight waits for all batches that compute it,
        and other requests pass it. Without it, it waits for none where steps are planned ahead, and
        else for those that give it a token.
    caches_verified: whether the tokens that a step verified, of drafts, are cached as it ends, and
        not when the next one of their request is planned. The two differ in what the last step of a
        request leaves.
    pads_prompts: whether a prompt that is admitted with only its last token to compute gets drafts,
        too, as if it decoded: they are refused, but take memory and budget, and it waits where the
        budget lacks for them. Not in a step that carries pieces of running prompts, not for a lone
        prompt of one token, and here not for prompts whose first entries came from another client.
    hashes_ahead: whether, with a layer that drafts, the hash of a block covers the token behind it,
        so that the block is found once that is known, and no found one is computed again. Not with
        tiers.
    hybrid_drops: last blocks of full attention that a hit loses, where a layer drafts and others
        have windows, before these lose one, too; None: a hit loses one after the other, and nothing
        is left.
    keeps_counts: whether counts of tokens, for penalties, stay on the GPU from step to step, and
        are not made anew on the host in each.
    admits_lookahead: whether the first piece of a prompt takes memory for what a drafting model
        writes ahead, as every later one does.
    caps_windows: whether the admission of a whole prompt counts in window groups no more than the
        pages of a window and of a step's tokens, rather than those of all its tokens.
    returns_unseen: whether a page behind a window is returned only when no step in flight sees it.
        Such steps' tokens count for `caps_windows`, too.
    states_wait: whether a request waits a step for a cached state that another one saves in it.
    states_stop_shared: which pieces of a prompt end where full attention found more of it than the
        states did, so that the next such prompt finds these, too: none, the first or any.
    states_go_on: whether a prompt whose piece ended inside a block goes on to the end of that
        block, and gets less than a block where no step has more.
    reserves_prefills: whether blocks are loaded from a tier only where memory is left for the rest
        of all prompts that have begun or are being loaded. Without it, loaded prompts may wait for
        each other's memory; vLLM hangs then, here the one loaded last gives it up.
    loaded_first: whether under `priority` a prompt whose blocks were loaded precedes all that wait,
        rather than those that it would precede anyhow. In other orders it always does.
    preempted_first: whether in other orders than `priority` a preempted request goes before those
        whose blocks are, or were, loaded when it was preempted (one `Scheduler.waiting`), rather
        than behind them (`skipped_waiting`). Not where a step waits for loads.
    defers_frees: whether with tiers, where steps are planned ahead, blocks that a step in flight
        may write are free only when it is over: a plan that is short of memory then preempts all
        requests from the one on that has none.
    spares_in_flight: whether such a plan preempts no sequence that a step in flight computes; the
        request that has no blocks then, and all after it, sit the step out. Not with drafts.
    async_drafts: methods of drafting with which the version plans ahead where it does so by
        default. async_any_drafts: whether the others can be planned ahead, too: a draft model, and
        n-grams where the GPU looks for them.
    """

    uncached_first: bool = False
    threshold_spares_one: bool = False
    pass_goes_on: bool = False
    local_cadence: bool = False
    held_spares_hits: bool = False
    batch_queue: bool = False
    async_pipelines: bool = False
    staggers_decodes: bool = False
    fills_queue: bool = False
    drains_preempted: bool = False
    caches_verified: bool = False
    pads_prompts: bool = False
    hashes_ahead: bool = False
    hybrid_drops: int | None = 1
    keeps_counts: bool = False
    admits_lookahead: bool = False
    caps_windows: bool = False
    returns_unseen: bool = False
    states_wait: bool = False
    states_stop_shared: SharedStop = "never"
    states_go_on: bool = False
    reserves_prefills: bool = False
    loaded_first: bool = False
    preempted_first: bool = False
    defers_frees: bool = False
    spares_in_flight: bool = False
    async_drafts: tuple[str, ...] = ()
    async_any_drafts: bool = False
