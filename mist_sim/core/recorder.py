"""The protocol through which clients and the coordinator record events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mist_sim.core.batch import StepBatch
from mist_sim.core.events import Events
from mist_sim.core.request import Request
from mist_sim.core.states import State
from mist_sim.core.visit import Failure, Visit

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

StepRow = tuple[float, int, int, int, int, int, int, int, float, int, int, int, int]
"""A run of steps: start, num_steps, num_chunks, num_prefill_tokens, num_decodes, context_sum,
chunk_context_sum, num_prefill_pairs, busy, num_waiting, num_used_blocks, num_gaps and
num_extrapolated, as the table of steps has them."""


class StepSink(NamedTuple):
    """Receives runs of a track's steps in which each decode gets one token.

    add: takes the row of a run. ends: the ends of all its steps, which the caller must append as
        well.
    """

    add: Callable[[StepRow], None]
    ends: array[float]


class Recorder(Protocol):
    """Records what clients and the coordinator do; `metrics` provides the implementation."""

    @property
    def events(self) -> Events | None:
        """What takes decisions; None: they are not kept."""

    def add_track(self, client_id: int, layout: int = 0, pool: int | None = None) -> int:
        """Open a track for steps of a client; return its number, from 0.

        A track holds the steps of one clock in order of time. A client has one track per lane: one
        per engine, and in a pipeline one per micro-batch. It opens new tracks when it restarts
        after a failure and when it changes its layout.
        layout: number of the client's layout, from 0. pool: the track whose KV blocks these steps
        count, too: of the first rank of a pipeline with one pool; None: they have one of their own.
        """

    def record_layout(self, client_id: int, time: float, num_tracks: int) -> None:
        """Record that a client changes to a layout with `num_tracks` tracks at `time`, seconds."""

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
        """Record that a request left the system.

        visits: visits of its last attempt. failure: how that attempt failed; None: it walked its
        whole pipeline. in_vain: visits of earlier attempts, and of the last if it failed.
        """

    def record_steps(
        self,
        track: int,
        start: float,
        ends: list[float] | float,
        num_steps: int,
        batch: StepBatch,
        busy: float,
        num_waiting: int,
        num_used_blocks: int,
        num_gaps: int,
        num_extrapolated: int,
        step_tokens: NDArray[np.int64] | None = None,
    ) -> None:
        """Record an executed run of steps.

        ends: end of each step, perhaps followed by steps not executed (a float for a single step),
            seconds.
        num_steps: steps executed.
        batch: the batch of the first step.
        busy: seconds of work in the steps, on all ranks of the track's pipeline.
        num_used_blocks: KV blocks held in the last step.
        num_gaps: decodes whose previous token came at `start`, so that the first step's duration is
            an inter-token latency.
        num_extrapolated: steps outside the range in which the predictor's times were measured.
        step_tokens: tokens that each step gave its decodes in all; None: one per decode.
        """

    def step_sink(self, track: int) -> StepSink | None:
        """Return where runs of a track may be added without a call of `record_steps` for each.

        None: in none of them, since it does other work.
        """

    def record_whole(self, client_id: int, visit: Visit) -> float:
        """A request left a client that served it whole, in its only visit, and the system.

        As `record_visit` and `record_end` write it: a prompt, and its answer of a token or more.
        Returns when its user has all of it, seconds.
        """

    def record_move(
        self,
        track: int,
        request_id: int,
        kind: str,
        source: str,
        destination: str,
        num_tokens: int,
        num_bytes: float,
        start: float,
        end: float,
        *,
        again: bool,
    ) -> None:
        """Record a move of a request's KV entries, or the wait of a step for one.

        kind: as of `KvMove`. source, destination: "gpu", "host", the name of a tier or of a client.
        num_bytes: NaN if unknown.
        start: seconds, when memory was reserved for the entries; for a swap, when the step that
            waits for it would have started.
        again: whether the request had been preempted before.
        """

    def record_retrieval(
        self,
        client_id: int,
        request_id: int,
        source: str | None,
        num_tokens: float,
        num_bytes: float,
        start: float,
        end: float,
    ) -> None:
        """Record the retrieval of `num_tokens` tokens' KV entries of a context from one level.

        source: the level; None: a miss at all levels, so that an engine computes these entries.
        num_tokens: a mean if hits are expected values. start, end: of the batch, seconds.
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
        """Record that a request was in a track's decode batch for steps [first_step, end_step).

        Steps are numbered per track from 0. The token before these came at the end of step
        `first_step - 1`, from prefill, unless the request had been swapped out and `resumed`.
        step_tokens: tokens that each step gave the request; None: one.
        """

    def record_drafts(
        self, time: float, num_drafts: int, num_draft_tokens: int, num_accepted_tokens: int
    ) -> None:
        """At `time`, a request left a decode batch in which it had drafts verified.

        num_drafts: steps that verified some. num_draft_tokens, num_accepted_tokens: in all.
        """

    def record_state(self, client_id: int, time: float, state: State) -> None:
        """Record that a client is in another state from `time` on, seconds."""

    def record_made_up(self, client_id: int, time: float) -> None:
        """Record that as many clients are up at `time` as a failed client's autoscaler wants."""

    def record_loss(
        self, client_id: int, request_id: int, time: float, num_tokens: int, *, retried: bool
    ) -> None:
        """Record a visit lost because its client, or the client that held its KV entries, failed.

        num_tokens: tokens whose entries are lost. retried: whether another client continues the
            request.
        """
