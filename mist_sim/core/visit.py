"""The stay of a request at a client, and how it may end."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Literal, Protocol

from mist_sim.core.request import Request, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

FailureStatus = Literal["rejected", "timed_out", "cancelled"]


@dataclass(frozen=True, slots=True)
class Served:
    """All stages of the visit are done.

    then: stages that the request walks next, before those that it had left.
    children: requests that it waits for before its next stage (branches, tools).
    """

    then: tuple[Stage, ...] = ()
    children: tuple[Request, ...] = ()


SERVED = Served()


@dataclass(frozen=True, slots=True)
class Moved:
    """Another client does the rest of the last stage: `num_tokens` of it (>= 1)."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt to serve a request ended without success.

    status: `rejected` by the service, `timed_out` at a limit of the sender's, or `cancelled`
        because the user went away.
    time: when the sender gave up or was told, seconds. Work on it ends then or a step later.
    reason: why, for people.
    is_busy: the service was too busy, so that another attempt may succeed (HTTP 503, not 400).
    """

    status: FailureStatus
    time: float
    reason: str
    is_busy: bool = False


Outcome = Served | Moved | Failure


class HeldKv(Protocol):
    """KV entries of a request that a client keeps after a visit, for the client of the next one.

    num_tokens: tokens that have entries. num_output_tokens: tokens emitted so far.
    last_token_at: when the latest of them was emitted, seconds.
    source: name of the client that keeps them.
    release: called once, when they were copied or nobody will ask for them.
    """

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def last_token_at(self) -> float: ...
    @property
    def source(self) -> str: ...
    @property
    def release(self) -> Callable[[], None]: ...


@dataclass(slots=True, eq=False)
class Visit:
    """One stay of a request at a client: what was asked, and what came of it.

    Times are seconds since the start of the run, NaN where the event did not happen.
    kv: entries of the stages before, which another client keeps; None where there are none.
    is_followed: whether the stage after the visit's goes on from its KV entries.
    queued_at, started_at, finished_at: entry into the queue, first work on it, end.
    first_token_at, last_token_at: when the client emitted the visit's first and last output token.
    num_output_tokens: tokens emitted during the visit.
    num_preemptions: how often the client took the memory away and computed again.
    num_queried_tokens: prompt tokens that were looked up in a prefix cache.
    num_cached_tokens: those of them that were found at the first admission.
    num_known_tokens: those that a prefix cache would have had which all clients share and which
        forgets nothing, when the request arrived.
    num_computed_tokens: prompt tokens computed, for a visit that ended without its first token.
    outcome: how it ends, once that is decided; work on a visit that is given up goes on until the
        step in flight ends.
    held_kv: entries that the client keeps for the next visit, set by the end of this one.
    """

    request: Request
    stages: tuple[Stage, ...]
    queued_at: float
    kv: HeldKv | None = None
    is_followed: bool = False
    started_at: float = nan
    first_token_at: float = nan
    last_token_at: float = nan
    finished_at: float = nan
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_queried_tokens: int = 0
    num_cached_tokens: int = 0
    num_known_tokens: int = 0
    num_computed_tokens: int = 0
    outcome: Outcome | None = None
    held_kv: HeldKv | None = None

    @property
    def failure(self) -> Failure | None:
        """How it failed; None while it is on its way and when it did not."""
        return self.outcome if isinstance(self.outcome, Failure) else None

    @property
    def continues(self) -> bool:
        """True when its first token continues the answer of the visit before."""
        return self.stages[0].continues

    @property
    def has_token(self) -> bool:
        """True when the visit has emitted a token."""
        return self.first_token_at == self.first_token_at

    @property
    def is_over(self) -> bool:
        """True when the client has let the request go."""
        return self.finished_at == self.finished_at
