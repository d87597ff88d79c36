"""The stay of a request at a client, and how it may end."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from mist_sim.core.request import Content, Request, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

FailureStatus = Literal["rejected", "timed_out", "cancelled", "lost"]


@dataclass(frozen=True, slots=True)
class Longer:
    """A stage that is still ahead has more tokens than it had, or fewer.

    stage: its class; of several that are ahead the next one.
    num_tokens: how many more; below 0: fewer. Those of a prompt are at its end.
    every: whether all of this class that are ahead have, as prompts that repeat what was said.
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
    """All stages of the visit are done, and what follows may be other than it was.

    then: stages that the request walks next, before those that it had left.
    children: requests that it waits for before its next stage (branches, tools).
    changes: of the stages that it had left.
    content: of its prompts from now on (`Request.content`); None: as it was, up to the first token
        that changed. What is behind is like no other.
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
    time: when the sender gave up or was told, seconds. Work on it ends then or a step later.
    reason: why, for people.
    is_busy: the service was too busy, so that another attempt may succeed (HTTP 503, not 400).
    """

    status: FailureStatus
    time: float
    reason: str
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A client failed, and with it went all that it knew of the visit but the tokens it emitted.

    reason: why, for people.
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


class HeldKv:
    """KV entries of a request that a client keeps after a visit, for the client of the next one.

    Either all that its answer goes on from, or those of the first tokens of a prompt.

    source: name of the client that keeps them. engine: its number there.
    num_tokens: tokens that have entries.
    num_prompt_tokens, num_output_tokens: tokens of the prompt, and of the answer so far.
    last_token_at: when the latest of these was emitted, seconds.
    compute_time: seconds from the first work on the prompt until all entries were there.
    num_bytes: of all entries; 0: not known.
    pace: of an answer that another client began to decode; None: it goes on from the latest token.
    """

    is_awaited: ClassVar[bool] = False  # whether they may still have to be computed

    __slots__ = (
        "_is_copied",
        "_is_lost",
        "_let_go",
        "compute_time",
        "engine",
        "last_token_at",
        "num_bytes",
        "num_output_tokens",
        "num_prompt_tokens",
        "num_tokens",
        "pace",
        "source",
    )

    def __init__(
        self,
        source: str,
        let_go: Callable[[], None],
        *,
        num_tokens: int,
        num_prompt_tokens: int,
        num_output_tokens: int,
        last_token_at: float,
        engine: int = 0,
        compute_time: float = 0.0,
        num_bytes: float = 0.0,
        pace: Pace | None = None,
    ) -> None:
        """let_go: called once, when the entries are not needed any more."""
        self.source = source
        self.num_tokens = num_tokens
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = num_output_tokens
        self.last_token_at = last_token_at
        self.engine = engine
        self.compute_time = compute_time
        self.num_bytes = num_bytes
        self.pace = pace
        self._let_go: Callable[[], None] | None = let_go
        self._is_copied = False
        self._is_lost = False

    def change_hands(self, let_go: Callable[[], None], engine: int, num_bytes: float) -> None:
        """Note that another engine of the same client keeps them from now on."""
        self._let_go = let_go
        self.engine = engine
        self.num_bytes = num_bytes

    def begin_copy(self) -> None:
        """A copy starts; until its end (`release`) the entries stay."""
        self._is_copied = True

    def release(self) -> None:
        """They were copied."""
        if self._let_go is not None:
            let_go, self._let_go = self._let_go, None
            let_go()

    @property
    def is_there(self) -> bool:
        """Whether they can be copied."""
        return self._let_go is not None

    @property
    def is_waiting(self) -> bool:
        """Whether they are there and nobody copies them yet."""
        return self._let_go is not None and not self._is_copied

    @property
    def is_computed(self) -> bool:
        """Whether they have been computed."""
        return True

    @property
    def is_lost(self) -> bool:
        """Whether the client that kept them failed before they were released."""
        return self._is_lost

    def lose(self) -> None:
        """Note that the client that keeps them has failed; there is nothing left to release."""
        self._is_lost = True
        self._let_go = None

    def drop(self) -> None:
        """Note that no client will ask for them any more; a copy under way ends first."""
        if not self._is_copied:
            self.release()


class AwaitedKv(HeldKv):
    """KV entries that a client will keep, for which another one reserves memory before.

    Nobody knows `engine`, `last_token_at` and `compute_time` until they are there (`fill`).
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
        """reserved: called when there is memory for them, or nobody asks for them any more."""
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
        return self._held is not None and self._let_go is not None

    @property
    def is_dropped(self) -> bool:
        """Whether nobody asks for them any more."""
        return self._let_go is None

    @property
    def is_waiting(self) -> bool:
        """Whether they wait to be copied: they never do, there is memory for them before."""
        return False

    @property
    def is_computed(self) -> bool:
        return self._is_computed

    @property
    def is_lost(self) -> bool:
        return self._held is not None and self._held.is_lost

    def reserve(self, act: Callable[[], None]) -> None:
        """Note that there is memory; `act` is called when they are there or dropped."""
        self._act = act
        self._tell()

    def describe(self, held: HeldKv) -> None:
        """Say of them what is known now that the prompt is computed."""
        self._is_computed = True
        self.engine = held.engine
        self.last_token_at = held.last_token_at
        self.compute_time = held.compute_time

    def fill(self, held: HeldKv) -> None:
        """Note that they are there, and somebody asks for them."""
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
    """One stay of a request at a client: what was asked, and what came of it.

    Times are seconds since the start of the run, NaN where the event did not happen.
    kv: entries of the stages before, which another client keeps; None where there are none.
    is_followed: whether the next stage continues from the visit's KV entries.
    is_silent: whether its token is dropped, since the client of the next stage emits it again.
    queued_at, started_at, finished_at: entry into the queue, first work on it, end.
    first_token_at, last_token_at: when the client emitted the visit's first and last output token.
    num_output_tokens: tokens emitted during the visit.
    num_preemptions: how often the client took the memory away and computed again.
    num_queried_tokens: prompt tokens that were looked up in a prefix cache.
    num_cached_tokens: those of them that were found at the first admission.
    num_known_tokens: those that a prefix cache would have had which all clients share and which
        forgets nothing, when the request arrived.
    num_fetched_tokens: prompt tokens whose entries came from elsewhere (`kv`), and were not cached.
    num_computed_tokens: prompt tokens computed, for a visit that ended without its first token.
    is_cut: whether the longest context left no room for a token of it.
    outcome: how it ends, once that is decided; work on a visit that is given up goes on until the
        step in flight ends.
    held_kv: entries that are kept for the next visit, set by the end of this one: those that the
        client keeps, and after a loss those of `kv` that nobody has fetched.
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
        """How it failed; None while it is on its way and when it did not."""
        return self.outcome if isinstance(self.outcome, Failure) else None

    @property
    def num_served_stages(self) -> int:
        """Stages that it has brought to their end."""
        if isinstance(self.outcome, Failure | Lost):
            return 0
        return len(self.stages) - isinstance(self.outcome, Moved)

    @property
    def continues(self) -> bool:
        """True when it goes on from the KV entries of a visit that emitted a token."""
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
        """True when the client has let the request go."""
        return self.finished_at == self.finished_at
