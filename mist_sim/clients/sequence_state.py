"""A request inside an LLM engine."""

from __future__ import annotations

from math import nan
from typing import Any, Protocol

from mist_sim.clients.draft_paths import DraftPath
from mist_sim.clients.stay import Stay
from mist_sim.core.views import OUT, WAITING
from mist_sim.core.visit import HeldKv, Visit
from mist_sim.stages import Decode, Prefill, Recomputation


class Home(Protocol):
    """The lane of an engine, as its sequences know it."""

    @property
    def core(self) -> Any:
        """Its lane in the core, which has taken all steps before now."""

    def give_up(self, sequence: SequenceState) -> None:
        """Let a sequence go as soon as no step in flight computes it."""

    def settle(self, sequence: SequenceState) -> Visit:
        """Write a visit's progress so far into its record."""

    def forget_brought(self, sequence: SequenceState) -> None:
        """Let a prompt in the queue be computed from its start, as its entries are lost."""


class SequenceState(Stay):
    """The record of a visit in a client with engines: the engine's bookkeeping for it.

    lane: its lane; None until it has entered an engine.
    arrival: position in the order of arrival at the engine.
    num_prompt_tokens: length of the prompt.
    num_final_tokens: tokens of the prompt and of the whole answer; no policy may read it.
    num_tokens: tokens known so far, of the prompt and those emitted: what a prefill (or its
        repetition) must compute; exact while the sequence is not decoding.
    num_computed_tokens: tokens whose KV entries exist, while it is in prefill.
    last_token_at: time of the latest token before it joined the decode batch, seconds.
    first_step: the engine step with which its stay in the decode batch began, None outside.
    path: tokens of its decode steps, in an engine that drafts; None before the first.
    incoming: its entries kept elsewhere, until it continues from a copy of them.
    is_brought: whether entries of it come from elsewhere, until it continues with them.
    num_brought: tokens whose entries come from elsewhere.
    has_rest: whether these are the first tokens of a prompt whose rest is computed here.
    num_before: tokens of the answer that other clients emitted.
    num_coming: moves of its entries under way.
    slot: its place in a lane of the engine core.
    """

    __slots__ = (
        "arrival",
        "first_step",
        "has_rest",
        "incoming",
        "is_brought",
        "lane",
        "last_token_at",
        "num_before",
        "num_brought",
        "num_coming",
        "num_computed_tokens",
        "num_final_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "path",
        "slot",
    )

    def __init__(self, visit: Visit, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """num_output_tokens: of the whole answer."""
        # as in `Stay`, without a call for every request
        self.visit = visit
        self.phase = OUT
        self.leaves = None
        self.lane: Home | None = None
        self.arrival = 0
        self.num_prompt_tokens = self.num_queued_tokens = num_prompt_tokens
        self.num_final_tokens = num_prompt_tokens + num_output_tokens
        self.num_tokens = num_prompt_tokens
        self.num_computed_tokens = 0
        self.last_token_at = nan
        self.first_step: int | None = None
        self.path: DraftPath | None = None
        self.incoming: HeldKv | None = None
        self.num_coming = 0
        self.num_before = 0
        self.is_brought = False
        self.num_brought = 0
        self.has_rest = False
        self.slot = 0

    @classmethod
    def of_visit(cls, visit: Visit) -> SequenceState:
        """Return the sequence of a visit: one prompt, and the tokens to generate.

        A visit that continues an answer knows its prompt and the tokens that other clients
        emitted. A prompt may begin with entries that are kept elsewhere.
        """
        kv, num_prompt_tokens, num_output_tokens = visit.kv, 0, 0
        first = visit.stages[0]
        if kv is not None and first.continues:
            num_prompt_tokens = kv.num_prompt_tokens
            # 0: this client emits the first token
            num_output_tokens = kv.num_output_tokens or 1
        for stage in visit.stages:
            if isinstance(stage, Prefill):
                num_prompt_tokens += stage.num_prompt_tokens
                num_output_tokens += 1
            elif isinstance(stage, Decode):
                num_output_tokens += stage.num_tokens
        sequence = cls(visit, num_prompt_tokens, num_output_tokens)
        if isinstance(first, Recomputation):
            sequence.last_token_at = first.last_token_at
        if kv is not None and first.continues:
            sequence.continue_from(kv)
        elif kv is not None:
            sequence.begin_from(kv)
        return sequence

    def continue_from(self, kv: HeldKv) -> None:
        """Continue an answer whose entries are kept elsewhere.

        Tokens that other clients emitted are known, and nothing has to be computed again.
        """
        self.num_before = kv.num_output_tokens
        self.num_tokens += self.num_before
        self.num_queued_tokens = 0
        self.bring(kv.num_tokens)
        self.incoming = kv
        self.last_token_at = kv.last_token_at

    def begin_from(self, kv: HeldKv) -> None:
        """Begin a prompt with entries that are kept elsewhere; its last token is computed here."""
        self.bring(min(kv.num_tokens, self.num_prompt_tokens - 1), has_rest=True)
        self.incoming = kv
        self.num_queued_tokens = self.num_tokens - self.num_brought

    def bring(self, num_tokens: int, *, has_rest: bool = False) -> None:
        """Wait for entries of so many tokens; `has_rest`: more of its prompt is to be computed."""
        self.is_brought, self.num_brought, self.has_rest = True, num_tokens, has_rest

    def have_brought(self) -> None:
        """Continue, with or without the entries; no more will come."""
        self.incoming = None
        self.is_brought, self.num_brought, self.has_rest = False, 0, False

    def forget_brought(self) -> None:
        """Wait to compute all of a prompt, since its entries are lost before they were here."""
        self.have_brought()
        if self.phase == WAITING:
            self.load.phases.num_waiting_tokens += self.num_tokens - self.num_queued_tokens
        self.num_queued_tokens = self.num_tokens

    def limit_to(self, longest: int | None) -> str | None:
        """Cut the answer at the longest context; return why a prompt is too long, or None."""
        if longest is None or self.num_final_tokens <= longest:
            return None
        self.num_final_tokens = longest
        if self.num_prompt_tokens < longest:
            return None
        return (
            f"a prompt of {self.num_prompt_tokens} tokens leaves no room for an answer in "
            f"max_model_len={longest}"
        )

    @property
    def waits_to_decode(self) -> bool:
        """Whether all entries that its next decode step needs come from elsewhere."""
        return self.is_brought and not self.has_rest

    @property
    def num_output_tokens(self) -> int:
        """Tokens emitted so far; exact while the sequence is not decoding."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_new_tokens(self) -> int:
        """Tokens of the answer that were emitted in this visit."""
        return self.num_tokens - self.num_prompt_tokens - self.num_before
