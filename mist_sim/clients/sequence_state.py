"""A request inside an LLM engine."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Protocol

from mist_sim.clients.stay import Stay
from mist_sim.core.visit import HeldKv, Visit

if TYPE_CHECKING:
    from mist_sim.clients.decode.draft_paths import DraftPath
    from mist_sim.clients.kv_cache.prefix_cache import Chain


class Home(Protocol):
    """The lane of an engine, as its sequences know it."""

    def give_up(self, sequence: SequenceState) -> None:
        """Let a sequence go as soon as no step in flight computes it."""


class SequenceState(Stay):
    """The record of a visit in a client with engines: the engine's bookkeeping for it.

    lane: where it is queued or runs; None until it has entered an engine.
    arrival: position in the order of arrival at the engine.
    num_prompt_tokens: length of the prompt.
    num_final_tokens: of the prompt and of the whole answer; a policy must not read it.
    num_tokens: tokens known so far, of the prompt and those emitted: what a prefill (or its
        repetition) has to compute; exact while the sequence is not decoding.
    num_computed_tokens: tokens whose KV entries exist, while it is in prefill.
    last_token_at: time of the latest token before it joined the decode batch, seconds.
    first_step: the engine step with which its stay in the decode batch began, None outside.
    chain: what its blocks are, for a prefix cache; None when no other block can be like them.
    path: how many tokens its decode steps give, in an engine that drafts; None before the first.
    incoming: its entries that another client keeps, until it goes on from a copy of them.
    num_before: tokens of the answer that other clients emitted.
    num_coming: moves of its entries that are under way.
    The other fields belong to `DecodeClock`.
    """

    __slots__ = (
        "arrival",
        "block_phase",
        "chain",
        "first_step",
        "incoming",
        "join_step",
        "lane",
        "last_token_at",
        "num_before",
        "num_coming",
        "num_computed_tokens",
        "num_final_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "path",
        "ticket",
    )

    def __init__(self, visit: Visit, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """num_output_tokens: of the whole answer."""
        super().__init__(visit)
        self.lane: Home | None = None
        self.arrival = 0
        self.num_prompt_tokens = self.num_queued_tokens = num_prompt_tokens
        self.num_final_tokens = num_prompt_tokens + num_output_tokens
        self.num_tokens = num_prompt_tokens
        self.num_computed_tokens = 0
        self.last_token_at = nan
        self.first_step: int | None = None
        self.chain: Chain | None = None
        self.path: DraftPath | None = None
        self.incoming: HeldKv | None = None
        self.num_coming = 0
        self.num_before = 0
        self.join_step = 0
        self.block_phase = 0
        self.ticket = 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens emitted so far; exact while the sequence is not decoding."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_new_tokens(self) -> int:
        """Tokens of the answer that were emitted in this visit."""
        return self.num_tokens - self.num_prompt_tokens - self.num_before
