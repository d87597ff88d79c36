"""What happened: the visit of a request to a client, and the protocol that records it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Literal, Protocol

from mist_sim.core.batch import StepBatch
from mist_sim.core.request import Request, Stage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


FailureStatus = Literal["rejected", "timed_out", "cancelled"]


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt to serve a request ended without success.

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


@dataclass(slots=True, eq=False)
class Visit:
    """One stay of a request at a client: what was asked, and what came of it.

    Times are seconds since the start of the run, NaN where the event did not happen.
    queued_at, started_at, finished_at: entry into the queue, first work on it, end.
    first_token_at: when the client emitted the visit's first output token.
    num_output_tokens: tokens emitted during the visit.
    num_preemptions: how often the client took the memory away and computed again.
    num_queried_tokens: prompt tokens that were looked up in a prefix cache.
    num_cached_tokens: those of them that were found at the first admission.
    num_computed_tokens: prompt tokens computed, for a visit that ended without its first token.
    failure: how it ended without success; None while it is on its way and when it was served.
    """

    request: Request
    stages: tuple[Stage, ...]
    queued_at: float
    started_at: float = nan
    first_token_at: float = nan
    finished_at: float = nan
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_queried_tokens: int = 0
    num_cached_tokens: int = 0
    num_computed_tokens: int = 0
    failure: Failure | None = None

    @property
    def has_token(self) -> bool:
        """True when the visit has emitted a token."""
        return self.first_token_at == self.first_token_at

    @property
    def is_over(self) -> bool:
        """True when the client has let the request go."""
        return self.finished_at == self.finished_at


class Recorder(Protocol):
    """Where clients and the coordinator write what happened; `metrics` provides it."""

    def add_track(self, client_id: int) -> int:
        """Open a track for steps of a client; return its number, from 0.

        A track holds the steps of one clock in order of time. A client has one for every lane:
        one for each engine, and in a pipeline one for each micro-batch.
        """

    def record_visit(self, client_id: int, visit: Visit) -> None:
        """A request left a client, served or not."""

    def record_end(
        self,
        request: Request,
        visits: list[Visit],
        time: float,
        failure: Failure | None = None,
        num_attempts: int = 1,
        in_vain: Sequence[Visit] = (),
    ) -> None:
        """A request left the system.

        visits: those of its last attempt. failure: how that one failed; None: it walked its
        whole pipeline. in_vain: visits of earlier attempts, and of the last if it failed.
        """

    def record_steps(
        self,
        track: int,
        start: float,
        ends: NDArray[np.float64] | float,
        batch: StepBatch,
        busy: float,
        num_waiting: int,
        num_used_blocks: int,
        num_gaps: int,
        num_extrapolated: int,
        step_tokens: NDArray[np.int64] | None = None,
    ) -> None:
        """A run of steps was executed.

        ends: end of each step (a float for a single step), seconds.
        batch: the batch of the first step.
        busy: seconds of work in the steps, on all ranks of the track's pipeline.
        num_used_blocks: KV blocks held in the last step.
        num_gaps: decodes whose previous token came at `start`, so that the first step's
            duration is the time between two tokens of theirs.
        num_extrapolated: steps outside what the predictor's times were measured for.
        step_tokens: tokens that each step gave its decodes in all; None: one each.
        """

    def record_load(
        self,
        track: int,
        request_id: int,
        tier: str,
        num_tokens: int,
        start: float,
        end: float,
        *,
        again: bool,
    ) -> None:
        """KV blocks of a request's tokens came from a tier below the GPU.

        start, end: seconds, of all that was loaded at that time. again: whether the request had
        been admitted before.
        """

    def record_swap(
        self,
        track: int,
        request_id: int,
        num_tokens: int,
        start: float,
        seconds: float,
        *,
        is_out: bool,
    ) -> None:
        """KV blocks of a request's tokens are copied to host memory or back.

        start: when the step would have begun before which that happens, together with the other
        copies of that step. seconds: its own time.
        """

    def record_gap(self, track: int, time: float, gap: float, count: int) -> None:
        """At `time`, `count` requests got a token `gap` seconds after their last.

        For gaps that are not the duration of one step.
        """

    def record_tokens(
        self,
        track: int,
        request_id: int,
        first_step: int,
        end_step: int,
        step_tokens: NDArray[np.int64] | None = None,
        *,
        resumed: bool = False,
    ) -> None:
        """A request stayed in a track's decode batch for steps [first_step, end_step).

        Steps are numbered per track from 0. The token before these came at the end of step
        `first_step - 1`, from prefill, unless the request had been swapped out and `resumed`.
        step_tokens: tokens that each of those that decoded gave it; None: one each.
        """

    def record_drafts(
        self, time: float, num_drafts: int, num_draft_tokens: int, num_accepted_tokens: int
    ) -> None:
        """At `time`, a request left a decode batch in which it had drafts verified.

        num_drafts: steps that verified some. num_draft_tokens, num_accepted_tokens: in all.
        """
