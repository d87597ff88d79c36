"""A request and the stages of its pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, nan
from typing import Any, ClassVar, NamedTuple, Protocol

Content = tuple[tuple[int, int], ...]
"""What the first tokens of a request are: spans of (content id, number of tokens >= 1), in order.

Equal ids mean the same place and the same tokens, and the same tokens in all places before: an
id names a path, as a chain hash does. The spans of an id may differ in length, as those of a
conversation that grows; the shorter one is then the beginning of the longer one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a request's pipeline; subclasses add their parameters.

    `kind` names the stage; a client serves a stage when it lists that kind. A new stage is a
    frozen dataclass with its own `kind`, and a client that knows how long it takes.

    continues: whether it continues from the KV entries that the stage before it left.
    may_continue: whether it takes such entries where there are any, and does without as well.
    is_again: whether it computes again what was computed, and lost with a client.
    grows: whether it says itself what follows when it is served (`stages.growing`).
    takes_lengths: whether a template gives it the lengths of a row (`with_lengths`).
    """

    kind: ClassVar[str] = "stage"
    continues: ClassVar[bool] = False
    may_continue: ClassVar[bool] = False
    is_again: ClassVar[bool] = False
    grows: ClassVar[bool] = False
    takes_lengths: ClassVar[bool] = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, so that no client has to be found for it."""
        return False

    @property
    def num_emitted(self) -> int:
        """Tokens of its answer that were emitted before, and whose KV entries it computes again."""
        return 0

    @property
    def num_input_tokens(self) -> int:
        """Tokens that it prompts a model with; 0 where the request has prompted with them before.

        They are counted as input, once, whatever is computed again.
        """
        return 0

    @property
    def num_new_tokens(self) -> int:
        """Tokens that it emits."""
        return 0

    def longer(self, num_tokens: int) -> Stage:
        """Return it with so many tokens more, or fewer where that is below 0.

        Raises TypeError for a stage without a length, and ValueError for one that is too short.
        """
        raise TypeError(f"a stage {self.kind!r} has no length that can change")

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Stage:
        """Return it with the lengths of a row of the workload, where none were given."""
        return self

    def with_rest(self, num_tokens: int) -> Stage:
        """Return what is left of it when `num_tokens` tokens are left (>= 1).

        Raises TypeError for a stage that cannot be done in part.
        """
        raise TypeError(f"a stage {self.kind!r} cannot be left in part")


class Limits(NamedTuple):
    """Limits on a request's times, in seconds; infinite: none.

    timeout, ttft_timeout: the sender gives up an attempt without the whole answer, without its
    first token, so long after sending it.
    patience: the user goes away, so long after the first sending.
    ttft_deadline: when the first token should be there, counted from each sending; nobody gives
    up at this time, but an engine may know it.
    """

    timeout: float = inf
    ttft_timeout: float = inf
    patience: float = inf
    ttft_deadline: float = inf


class KeptEntries(Protocol):
    """KV entries of a request that a client keeps for the next one, as routers see them.

    source: name of the client. engine: its number there. num_tokens: that have entries. num_bytes:
    of all entries; 0: not known.
    """

    @property
    def source(self) -> str: ...
    @property
    def engine(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_bytes(self) -> float: ...


def token_totals(stages: Iterable[Stage]) -> tuple[int, int]:
    """Return (prompt tokens, output tokens) summed over stages."""
    prompt = output = 0
    for stage in stages:
        prompt += stage.num_input_tokens
        output += stage.num_new_tokens
    return prompt, output


class Declared(NamedTuple):
    """A request as it was before an outcome changed its pipeline; its fields are named alike."""

    num_prompt_tokens: int
    num_output_tokens: int
    content: Content


class Growth:
    """How much the request of a user has grown, with all its children and theirs.

    num_added: stages and children that outcomes have added, in all attempts.
    """

    __slots__ = ("num_added",)

    def __init__(self) -> None:
        self.num_added = 0


@dataclass(slots=True, eq=False)
class Request:
    """One user input that walks its stages in order.

    request_id: position in the injected workload, from 0; unique within a run.
    arrival_time: seconds since the start of the run; None until a closed-loop user sends it.
    stages: the pipeline as it is known at first, at least one stage.
    num_prompt_tokens, num_output_tokens: totals over these stages, as long as they are by now, for
        the records: what is computed again after a loss does not count again. They are
        bookkeeping: no router or scheduler may read `num_output_tokens`, which a real system
        does not know in advance.
    session_id: groups the turns of one conversation; None for a request of its own.
    priority: smaller is more urgent (vLLM's meaning), for schedulers that look at it.
    content: what the tokens of its prompts are from the first one on, and behind a prompt those
        of the answer, for prefix caches. Tokens that no span covers are like no others.
    limits: how long it may take; None: for ever.
    parent_id: of a child, the request that waits for it; None for one that a user sends.
    to_serve: stages that are left to walk; outcomes of stages may add to them.
    num_stages: of its pipeline as it is known by now, without empty ones.
    chosen_ahead: the client chosen for the stage after the present visit; None: not asked yet.
    sent_at: when it was sent, seconds; with retries, the latest time.
    has_token: whether a visit that is over emitted a token since then.
    model: that has to answer, by the name that clients serve; None: any.
    kv: entries that another client keeps for its next stage, while there are any.
    num_losses: how often it was lost with a client since then.
    num_appended_input_tokens, num_appended_output_tokens: of stages that outcomes have appended.
    declared: what it was when it was sent; None: that is what it still is.
    think_time: seconds from the end of the one before in its session until it is sent, where users
        go through sessions.
    growth: that it shares with its parent and its children; None: no outcome added anything.
    keeper: told of each visit as it ends, where what it computed is kept for other requests.
    label: name of its class, where the workload gives one.
    front_end: seconds that it spent since then between its user and the engines.
    """

    request_id: int
    arrival_time: float | None
    stages: tuple[Stage, ...]
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    session_id: int | None = None
    priority: int = 0
    content: Content = ()
    limits: Limits | None = None
    parent_id: int | None = None
    to_serve: tuple[Stage, ...] = ()
    num_stages: int = 0
    chosen_ahead: int | None = None
    sent_at: float = nan
    has_token: bool = False
    model: str | None = None
    kv: KeptEntries | None = None
    num_losses: int = 0
    num_appended_input_tokens: int = 0
    num_appended_output_tokens: int = 0
    declared: Declared | None = None
    growth: Growth | None = None
    think_time: float = 0.0
    keeper: Callable[[Any], None] | None = None  # of a `Visit`, which lies above
    label: str | None = None
    front_end: float = 0.0

    def send(self, now: float) -> None:
        """Begin an attempt to have it served, with the stages that were declared."""
        if self.declared is not None:
            self.num_prompt_tokens, self.num_output_tokens, self.content = self.declared
            self.num_appended_input_tokens = self.num_appended_output_tokens = 0
            self.declared = None
        self.sent_at = now
        self.to_serve = self.stages
        self.num_stages = len(self.stages)
        self.chosen_ahead = None
        self.has_token = False
        self.num_losses = 0
        self.keeper = None
        self.front_end = 0.0

    def limits_left(self, now: float) -> Limits | None:
        """Return the limits of a child sent now: it ends when the sender of its parent gives up."""
        if self.limits is None or self.arrival_time is None:
            return None
        timeout = self.sent_at + self.limits.timeout - now
        if not self.has_token:
            timeout = min(timeout, self.sent_at + self.limits.ttft_timeout - now)
        patience = self.arrival_time + self.limits.patience - now
        if patience < timeout:
            return Limits(patience=patience)
        return Limits(timeout=timeout) if timeout < inf else None

    @property
    def deadline(self) -> float:
        """Time at which the first token is due, seconds; infinite if nothing says so."""
        return inf if self.limits is None else self.sent_at + self.limits.ttft_deadline
