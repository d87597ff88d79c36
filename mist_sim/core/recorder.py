"""The protocol to which clients and the coordinator write what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mist_sim.core.batch import StepBatch
from mist_sim.core.request import Request
from mist_sim.core.states import State
from mist_sim.core.visit import Failure, Visit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Recorder(Protocol):
    """Where clients and the coordinator write what happened; `metrics` provides it."""

    def add_track(self, client_id: int, layout: int = 0) -> int:
        """Open a track for steps of a client; return its number, from 0.

        A track holds the steps of one clock in order of time. A client has one for every lane:
        one for each engine, and in a pipeline one for each micro-batch; and others when it comes
        back after a failure, or in another layout.
        layout: number of that of the client, from 0.
        """

    def record_layout(self, client_id: int, time: float, num_tracks: int) -> None:
        """A client has another layout from `time` on, seconds, with so many tracks at a time."""

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
        num_steps: int,
        batch: StepBatch,
        busy: float,
        num_waiting: int,
        num_used_blocks: int,
        num_gaps: int,
        num_extrapolated: int,
        step_tokens: NDArray[np.int64] | None = None,
    ) -> None:
        """A run of steps was executed.

        ends: end of each step and perhaps of more (a float for a single step), seconds.
        num_steps: those that were executed.
        batch: the batch of the first step.
        busy: seconds of work in the steps, on all ranks of the track's pipeline.
        num_used_blocks: KV blocks held in the last step.
        num_gaps: decodes whose previous token came at `start`, so that the first step's
            duration is the time between two tokens of theirs.
        num_extrapolated: steps outside what the predictor's times were measured for.
        step_tokens: tokens that each step gave its decodes in all; None: one each.
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
        """KV entries of a request's tokens were moved, or a step waits until they are.

        kind: as of `KvMove`. source, destination: "gpu", "host", the name of a tier or of a client.
        num_bytes: NaN where it is not known.
        start: seconds, when memory was taken for them, or the step would have begun before which
        they are swapped.
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
        """KV entries of a context were asked for, and so many tokens' came from one level.

        source: the level; None: no level had these, and an engine computes them.
        num_tokens: with expected hits a mean. start, end: seconds, of the batch.
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

    def record_state(self, client_id: int, time: float, state: State) -> None:
        """A client is in another state from `time` on, seconds."""

    def record_loss(
        self, client_id: int, request_id: int, time: float, num_tokens: int, *, retried: bool
    ) -> None:
        """A visit was lost with its client, or with the one that had its KV entries.

        num_tokens: whose entries are lost. retried: whether the request goes on at another client.
        """
