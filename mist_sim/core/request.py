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
conversation that grows; the shorter one is then the beginning of the longer one. Ids of your own
are any numbers >= 0; those that the package makes are negative.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a request's pipeline; subclasses add their parameters.

    `kind` names the stage; a client serves a stage when it lists that kind. A new stage is a
    frozen dataclass with its own `kind`, and a client that knows how long it takes.

    continues: whether it needs the KV entries of the stage before it.
    may_continue: whether it uses such entries if there are any, and computes them otherwise.
    is_again: whether it recomputes entries that were lost with a client.
    grows: whether the stage itself decides what follows it (`stages.growing`).
    takes_lengths: whether a template fills in the lengths of a workload row (`with_lengths`).
    """

    kind: ClassVar[str] = "stage"
    continues: ClassVar[bool] = False
    may_continue: ClassVar[bool] = False
    is_again: ClassVar[bool] = False
    grows: ClassVar[bool] = False
    takes_lengths: ClassVar[bool] = False

    @property
    def is_empty(self) -> bool:
        """Whether the stage has nothing to do, so that it needs no client."""
        return False

    @property
    def num_emitted(self) -> int:
        """Tokens of the answer that were emitted before and whose KV entries it recomputes."""
        return 0

    @property
    def num_input_tokens(self) -> int:
        """Prompt tokens that count as input; 0 if the request already counted this prompt.

        Each prompt counts once, even if it is computed again.
        """
        return 0

    @property
    def num_new_tokens(self) -> int:
        """Tokens that the stage emits."""
        return 0

    def longer(self, num_tokens: int) -> Stage:
        """Return a copy with `num_tokens` more tokens, or fewer if that is negative.

        Raises TypeError for a stage without a length, and ValueError if the result is too short.
        """
        raise TypeError(f"a stage {self.kind!r} has no length that can change")

    def with_lengths(self, num_prompt_tokens: int, num_output_tokens: int) -> Stage:
        """Return a copy that takes lengths it does not have from a workload row."""
        return self

    def with_rest(self, num_tokens: int) -> Stage:
        """Return a copy in which `num_tokens` tokens are left to do (>= 1).

        Raises TypeError for a stage that cannot be split.
        """
        raise TypeError(f"a stage {self.kind!r} cannot be left in part")


class Image(NamedTuple):
    """An image.

    patches: of each of its parts, within which a vision tower attends. tokens: of the prompt.
    parts: 1, or its tiles.
    """

    patches: int
    tokens: int
    parts: int = 1


class Images(NamedTuple):
    """Equal images, with which a prompt begins. number: of them (>= 1)."""

    number: int
    each: Image

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt that are theirs."""
        return self.number * self.each.tokens

    def reached(self, first: int, last: int) -> int:
        """Return how many begin among the tokens [first, last) of the prompt."""
        size = self.each.tokens
        return min(self.number, -(-last // size)) - min(self.number, -(-first // size))


class Limits(NamedTuple):
    """Time limits of a request, in seconds; infinite: no limit.

    timeout, ttft_timeout: time from sending after which the sender abandons an attempt if it has
        not got the whole answer, or the first token.
    patience: time from the first sending after which the user leaves.
    ttft_deadline: when the first token is due, counted from each sending. Missing it ends nothing,
    but an engine may schedule by it.
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
    def source(self) -> str:
        """Name of the client that keeps them."""

    @property
    def engine(self) -> int:
        """Number of the engine there."""

    @property
    def num_tokens(self) -> int:
        """Tokens that have entries."""

    @property
    def num_bytes(self) -> float:
        """Bytes of all entries; 0: not known."""


def token_totals(stages: Iterable[Stage]) -> tuple[int, int]:
    """Return (prompt tokens, output tokens) summed over stages."""
    prompt = output = 0
    for stage in stages:
        prompt += stage.num_input_tokens
        output += stage.num_new_tokens
    return prompt, output


class Declared(NamedTuple):
    """The fields of a request before an outcome changed its pipeline; named as in `Request`."""

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
    stages: the pipeline as first known, at least one stage.
    num_prompt_tokens, num_output_tokens: totals over these stages at their present length, for the
        records; recomputation after a loss does not count again. No router or scheduler may read
        `num_output_tokens`, which a real system does not know in advance.
    num_predicted_tokens: tokens that a predictor says its answer will have, for routers and orders
        of the queue; None: no prediction.
    session_id: groups the turns of one conversation; None for a request without a conversation.
    priority: smaller is more urgent (as in vLLM), for schedulers that use it.
    content: ids of the tokens of its prompts, from the first prompt's first token on, each prompt
        followed by its answer, for prefix caches. Tokens outside all spans are unique.
    limits: its time limits; None: no limits.
    parent_id: of a child, the request that waits for it; None for a request that a user sends.
    to_serve: stages left to walk; outcomes of stages may add to them.
    num_stages: length of its pipeline as known so far, without empty stages.
    chosen_ahead: the client chosen for the stage after the present visit; None: not chosen yet.
    sent_at: when its latest attempt was sent, seconds.
    has_token: whether a finished visit of this attempt emitted a token.
    model: name of the model that must answer, as clients name it; None: any.
    adapter: name of the LoRA adapter that must answer; None: the model's own weights.
    images: that the client which computes its prompt has to encode; None: none.
    kv: entries that another client keeps for the request's next stage; None if there are none.
    num_losses: how often this attempt was lost with a client.
    num_appended_input_tokens, num_appended_output_tokens: tokens of stages that outcomes appended.
    declared: the request's fields when it was sent; None: unchanged.
    think_time: seconds between the end of the previous request of its session and the sending of
        this one, in a closed loop with sessions.
    growth: shared counter of the family of a request, its parent and its children; None: no outcome
        added anything.
    keeper: notified at the end of each visit, if computed entries are kept for other requests.
    label: name of its class, if the workload has classes.
    front_end: seconds that this attempt spent between its user and the engines. at_gateway: that it
        waited there to be let in.
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
    at_gateway: float = 0.0
    adapter: str | None = None
    images: Images | None = None
    num_predicted_tokens: int | None = None

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
        self.front_end = self.at_gateway = 0.0

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
        """Time at which the first token is due, seconds; infinite without a deadline."""
        return inf if self.limits is None else self.sent_at + self.limits.ttft_deadline
