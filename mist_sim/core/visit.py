"""The stay of a request at a client, and how it may end."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from math import nan
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from mist_sim.core.request import Content, Request, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

FailureStatus = Literal["rejected", "timed_out", "cancelled", "lost"]


@dataclass(frozen=True, slots=True)
class Longer:
    """A stage still ahead in the pipeline becomes longer or shorter.

    stage: class of the stage; if several are ahead, the next one.
    num_tokens: tokens to add at the end of its prompt, or to remove if below 0.
    every: whether to change all stages of this class that are ahead, such as prompts that repeat
        the conversation.
    """

    stage: type[Stage]
    num_tokens: int
    every: bool = False

    def __post_init__(self) -> None:
        stage: Any = self.stage
        if not isinstance(stage, type) or not issubclass(stage, Stage):
            raise TypeError(f"stage must be a class of stages, such as Prefill, got {stage!r}")
        object.__setattr__(self, "num_tokens", index(self.num_tokens))  # NumPy draws its own


@dataclass(frozen=True, slots=True)
class Served:
    """All stages of the visit are done; the stages that follow may change.

    then: stages to walk next, before the stages left.
    children: requests to wait for before the next stage (branches, tools).
    changes: changes of the stages left.
    content: new content of its prompts (`Request.content`); None: unchanged up to the first token
        that changed. Later tokens are unique.
    """

    then: tuple[Stage, ...] = ()
    children: tuple[Request, ...] = ()
    changes: tuple[Longer, ...] = ()
    content: Content | None = None

    def __post_init__(self) -> None:
        for name, cls in (("then", Stage), ("children", Request), ("changes", Longer)):
            items = getattr(self, name)
            if not isinstance(items, list | tuple) or not all(isinstance(i, cls) for i in items):
                raise TypeError(f"{name} must be a tuple of {cls.__name__}, got {items!r}")
            object.__setattr__(self, name, tuple(items))
        spans: Any = self.content or ()
        for span in spans:
            if not (isinstance(span, tuple) and len(span) == 2 and span[1] >= 1):
                raise ValueError(f"content must be pairs (id, tokens >= 1), got {span!r} in it")


SERVED = Served()


@dataclass(frozen=True, slots=True)
class Moved:
    """Another client does the rest of the last stage: `num_tokens` of it (>= 1)."""

    num_tokens: int

    def __post_init__(self) -> None:
        if self.num_tokens < 1:
            raise ValueError(f"num_tokens must be >= 1, got {self.num_tokens}")


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt to serve a request ended without success.

    status: `rejected` by the service, `timed_out` at a limit of the sender's, `cancelled` because
        the user went away, or `lost` with a client that failed.
    time: when the sender gave up or was notified, seconds. Work on it ends then or a step later.
    reason: explanation for the user.
    is_busy: the service was too busy, so that another attempt may succeed (HTTP 503, not 400).
    """

    status: FailureStatus
    time: float
    reason: str
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A client failed; of the visit only the tokens it emitted remain.

    reason: explanation for the user.
    """

    reason: str


Outcome = Served | Moved | Failure | Lost


class Pace(NamedTuple):
    """From which token on the time per token of an answer counts.

    time: when it was emitted, seconds. num_tokens: of the answer, that one included.
    num_backflows: how often the answer has left a client because it was too slow there.
    """

    time: float
    num_tokens: int
    num_backflows: int = 0


@dataclass(slots=True, eq=False)
class HeldKv:
    """KV entries of a request that a client keeps after a visit, for the client of the next one.

    They are either all entries that the answer continues from, or entries of the first tokens of a
    prompt.

    source: name of the client that keeps them. engine: the engine's number there.
    let_go: called once, when the entries are not needed any more; None then, and if they are lost.
    num_tokens: tokens with entries.
    num_prompt_tokens, num_output_tokens: tokens of the prompt, and of the answer so far.
    last_token_at: when the latest of these tokens was emitted, seconds.
    compute_time: seconds from the first work on the prompt until all entries were there.
    num_bytes: bytes of all entries; 0: unknown.
    pace: decode pace of an answer moved during its decode; None: it counts from the latest token.
    """

    is_awaited: ClassVar[bool] = False  # whether they may still have to be computed

    source: str
    let_go: Callable[[], None] | None
    _: KW_ONLY
    num_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int
    last_token_at: float
    engine: int = 0
    compute_time: float = 0.0
    num_bytes: float = 0.0
    pace: Pace | None = None
    _is_copied: bool = field(default=False, init=False)
    _is_lost: bool = field(default=False, init=False)

    def change_hands(self, let_go: Callable[[], None], engine: int, num_bytes: float) -> None:
        """Note that another engine of the same client keeps the entries from now on."""
        self.let_go = let_go
        self.engine = engine
        self.num_bytes = num_bytes

    def begin_copy(self) -> None:
        """A copy starts; until its end (`release`) the entries stay."""
        self._is_copied = True

    def release(self) -> None:
        """They were copied."""
        if self.let_go is not None:
            release, self.let_go = self.let_go, None
            release()

    @property
    def is_there(self) -> bool:
        """Whether they can be copied."""
        return self.let_go is not None

    @property
    def is_waiting(self) -> bool:
        """Whether the entries are there and no copy has begun."""
        return self.let_go is not None and not self._is_copied

    @property
    def is_computed(self) -> bool:
        """Whether they have been computed."""
        return True

    @property
    def is_lost(self) -> bool:
        """Whether the client that kept them failed before they were released."""
        return self._is_lost

    def lose(self) -> None:
        """Note that the client that keeps the entries has failed, and its memory with it."""
        self._is_lost = True
        self.let_go = None

    def drop(self) -> None:
        """Note that no client will ask for the entries any more; a copy under way ends first."""
        if not self._is_copied:
            self.release()


class AwaitedKv(HeldKv):
    """KV entries of a prompt not computed yet, for which the decode client reserves memory ahead.

    `engine`, `last_token_at` and `compute_time` are unknown until `describe` or `fill`.
    """

    is_awaited: ClassVar[bool] = True

    __slots__ = ("_act", "_held", "_is_computed", "_reserved")

    def __init__(
        self,
        source: str,
        reserved: Callable[[], None],
        *,
        num_prompt_tokens: int,
        num_output_tokens: int,
    ) -> None:
        """reserved: called when memory is reserved, or when the entries are no longer needed."""
        super().__init__(
            source,
            self._drop_held,
            num_tokens=num_prompt_tokens - (not num_output_tokens),
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            last_token_at=nan,
        )
        self._reserved: Callable[[], None] | None = reserved
        self._act: Callable[[], None] | None = None
        self._held: HeldKv | None = None
        self._is_computed = False

    @property
    def is_there(self) -> bool:
        """Whether they can be copied now."""
        return self._held is not None and self.let_go is not None

    @property
    def is_dropped(self) -> bool:
        """Whether the entries are no longer needed."""
        return self.let_go is None

    @property
    def is_waiting(self) -> bool:
        """Always False: memory is reserved before they exist, so a copy never waits for it."""
        return False

    @property
    def is_computed(self) -> bool:
        """Whether their visit has noted that it computed them."""
        return self._is_computed

    @property
    def is_lost(self) -> bool:
        """Whether they were computed, and then lost by the client that kept them."""
        return self._held is not None and self._held.is_lost

    def reserve(self, act: Callable[[], None]) -> None:
        """Note that memory is reserved; `act` is called when the entries are there or dropped."""
        self._act = act
        self._tell()

    def describe(self, held: HeldKv) -> None:
        """Copy what is known once the prompt is computed: engine and times."""
        self._is_computed = True
        self.engine = held.engine
        self.last_token_at = held.last_token_at
        self.compute_time = held.compute_time

    def fill(self, held: HeldKv) -> None:
        """Note that the entries are there, and start the transfer."""
        self.describe(held)
        self._held = held
        if self._act is not None:
            self._act()

    def _drop_held(self) -> None:
        if self._held is not None:
            self._held.release()
            return
        self._tell()
        if self._act is not None:
            self._act()

    def _tell(self) -> None:
        if self._reserved is not None:
            tell, self._reserved = self._reserved, None
            tell()


@dataclass(slots=True, eq=False)
class Visit:
    """One stay of a request at a client: its stages, its times, and its outcome.

    Times are seconds since the start of the run, NaN if the event did not happen.
    kv: entries from earlier stages, kept by another client; None if there are none.
    is_followed: whether the next stage continues from the visit's KV entries.
    is_silent: whether its first token is dropped, because the next client emits it again.
    queued_at, started_at, finished_at: entry into the queue, first work on it, end.
    first_token_at, last_token_at: when the client emitted the visit's first and last output token.
    num_output_tokens: tokens emitted during the visit.
    num_beside: tokens of others that its engine emitted before its first one, in the same step.
    num_preemptions: how often the client preempted it.
    num_queried_tokens: prompt tokens looked up in a prefix cache.
    num_cached_tokens: prompt tokens found in it at the first admission.
    num_known_tokens: prompt tokens that a prefix cache of unlimited size, shared by all clients,
        would have found when the request arrived.
    num_fetched_tokens: prompt tokens whose entries were fetched (`kv`) because they were not
        cached.
    num_computed_tokens: prompt tokens computed, if the visit ended without its first token.
    is_cut: whether the context limit cut its answer short.
    outcome: how it ends, once decided; work on an abandoned visit continues until the step in
        flight ends.
    held_kv: entries kept for the next visit, set at its end: entries that the client keeps, or
        after a loss the entries of `kv` that were not fetched.
    """

    request: Request
    stages: tuple[Stage, ...]
    queued_at: float
    kv: HeldKv | None = None
    is_followed: bool = False
    is_silent: bool = False
    started_at: float = nan
    first_token_at: float = nan
    last_token_at: float = nan
    finished_at: float = nan
    num_output_tokens: int = 0
    num_beside: int = 0
    num_preemptions: int = 0
    num_queried_tokens: int = 0
    num_cached_tokens: int = 0
    num_known_tokens: int = 0
    num_fetched_tokens: int = 0
    num_computed_tokens: int = 0
    is_cut: bool = False
    outcome: Outcome | None = None
    held_kv: HeldKv | None = None

    @property
    def failure(self) -> Failure | None:
        """The failure; None while the visit is under way and if it did not fail."""
        return self.outcome if isinstance(self.outcome, Failure) else None

    @property
    def num_served_stages(self) -> int:
        """Number of stages that the visit completed."""
        if isinstance(self.outcome, Failure | Lost):
            return 0
        return len(self.stages) - isinstance(self.outcome, Moved)

    @property
    def continues(self) -> bool:
        """Whether it continues from the KV entries of a visit that emitted a token."""
        return self.stages[0].continues and (self.kv is None or self.kv.num_output_tokens > 0)

    @property
    def continues_answer(self) -> bool:
        """True when its first token continues the answer of the visit before."""
        first = self.stages[0]
        return first.num_emitted > 0 or (first.continues and self.continues)

    @property
    def has_token(self) -> bool:
        """True when the visit has emitted a token."""
        return self.first_token_at == self.first_token_at

    @property
    def is_over(self) -> bool:
        """Whether the client has released the request."""
        return self.finished_at == self.finished_at
