"""Records what clients and the coordinator do, as columns; finished requests leave no objects."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import nan
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, attended
from mist_sim.core.columns import Categories, Table
from mist_sim.core.events import Events
from mist_sim.core.front_end import Servers
from mist_sim.core.request import Request
from mist_sim.core.step_ends import StepEnds, pack_many
from mist_sim.core.visit import SERVED, Failure, Lost, Visit

StepRow = tuple[float, int, int, int, int, int, int, int, float, int, int, int, int]
"""A run of steps, as `_TABLES` has its columns."""


class StepSink(NamedTuple):
    """Receives runs of a track's steps in which each decode gets one token.

    add: takes the row of a run. ends: the ends of all its steps, which the caller must append as
        well.
    """

    add: Callable[[StepRow], None]
    ends: array[float]


class End(NamedTuple):
    """A request that left the system at `time`, seconds.

    visits: visits of its last attempt. failure: how that attempt failed; None: it walked its whole
    pipeline. in_vain: visits of earlier attempts, and of the last if it failed.
    """

    request: Request
    visits: list[Visit]
    time: float
    failure: Failure | None = None
    num_attempts: int = 1
    in_vain: Sequence[Visit] = ()


def num_input_tokens(visit: Visit) -> int:
    """Return how many prompt tokens were computed for a visit."""
    num_tokens = -visit.num_cached_tokens - visit.num_fetched_tokens
    if visit.first_token_at == visit.first_token_at:  # it has a token
        stages: Any = visit.stages
        for stage in stages:
            if stage.kind == "prefill":
                num_tokens += stage.num_prompt_tokens
    else:
        num_tokens += visit.num_computed_tokens
    return max(0, num_tokens)


def totals(visits: Sequence[Visit]) -> tuple[float, int, int, int, int, int]:
    """Return the totals over a request's visits.

    The time in queues (seconds), its output tokens, its preemptions; prompt tokens looked up in
    prefix caches, found there, and known to an unlimited one.
    """
    queued = 0.0
    num_output_tokens = num_preemptions = num_queried = num_cached = num_known = 0
    for visit in visits:
        begun_at = visit.started_at
        if begun_at != begun_at and isinstance(visit.outcome, Lost):
            begun_at = visit.finished_at  # it was lost before its turn
        queued += begun_at - visit.queued_at
        num_output_tokens += visit.num_output_tokens
        num_preemptions += visit.num_preemptions
        if visit.num_queried_tokens and not visit.stages[0].is_again:
            num_queried += visit.num_queried_tokens
            num_cached += visit.num_cached_tokens
            num_known += visit.num_known_tokens
    return (
        queued,
        num_output_tokens,
        num_preemptions,
        num_queried,
        num_cached,
        num_known,
    )


def decode_time(visits: Sequence[Visit]) -> tuple[float, int]:
    """Return the seconds between the tokens of a request's answers, and the number of gaps.

    A visit either begins an answer, whose first token has no gap before it, or continues the answer
    of the visit before. If a client served tokens without token times, the time is NaN and there is
    at least one gap. A visit that failed before its first token has no gap.
    """
    seconds, num_gaps = 0.0, 0
    last_token_at = nan
    for visit in visits:
        if not visit.num_output_tokens:
            if visit.continues and not (visit.is_cut or isinstance(visit.outcome, Lost | Failure)):
                seconds, num_gaps = nan, num_gaps + 1
            continue
        if visit.continues_answer:
            seconds += visit.last_token_at - last_token_at
            num_gaps += visit.num_output_tokens
        else:
            seconds += visit.last_token_at - visit.first_token_at
            num_gaps += visit.num_output_tokens - 1
        last_token_at = visit.last_token_at
    return seconds, num_gaps


def mean_number(
    number: int, changes: Sequence[tuple[float, int]] | None, begin: float, end: float
) -> float:
    """Return the mean number from `begin` to `end` (s).

    number: at first. changes: (seconds, how many from then on), in order.
    """
    if not changes or begin == end:
        return number
    area = number * (end - begin)
    for time, later in changes:
        area += (later - number) * max(end - max(time, begin), 0.0)
        number = later
    return area / (end - begin)


_TABLES = {
    # a row a request
    "requests": """
        request_id:i8 parent_id:i8 session_id:i8 arrival_time:f8 sent_at:f8 first_token_at:f8
        finished_at:f8 queued:f8 front_end:f8 at_gateway:f8 decode_time:f8 num_gaps:i8
        num_prompt_tokens:i8 num_output_tokens:i8 num_preemptions:i4 num_queried_tokens:i8
        num_cached_tokens:i8 num_known_tokens:i8 truncated:? num_attempts:i4
        wasted_input_tokens:i8 wasted_output_tokens:i8 status:i1 reason:i4 model:i4
    """,
    # a row a stay at a client
    "visits": """
        request_id:i8 client_id:i4 stages:i4 queued_at:f8 started_at:f8 first_token_at:f8
        finished_at:f8 num_queried_tokens:i8 num_cached_tokens:i8 num_input_tokens:i8
        num_output_tokens:i8 served:? num_served_stages:i4
    """,
    # a request was in the decode batch of a track for steps [first_step, end_step), numbered from
    # 0; the token before came at the end of step first_step - 1, from prefill, unless it had been
    # swapped out and resumed. first_count: with drafts, where in `token_counts` it begins how many
    # each step gave it; -1: one each
    "tokens": "request_id:i8 track:i4 first_step:i8 end_step:i8 first_count:i8 resumed:?",
    # at `time`, `count` requests got a token `gap` seconds after their last, which no one step took
    "gaps": "time:f8 gap:f8 count:i4",
    # at `time`, a request left a decode batch in which num_drafts steps verified drafts of its own
    "drafts": "time:f8 num_drafts:i8 draft_tokens:i8 accepted_tokens:i8",
    # KV entries of a request that went from one place to another (`KvMove`), or the wait of a step
    # for them. source, destination: "gpu", "host", the name of a tier or of a client. num_bytes:
    # NaN if unknown. start: when memory was reserved for the entries; of a swap, when the step that
    # waits for it would have started. again: the request had been preempted before
    "moves": """
        request_id:i8 track:i4 kind:text source:text destination:text num_tokens:i8 num_bytes:f8
        start:f8 end:f8 again:?
    """,
    # KV entries of a context that were asked for, by the level that had them; None: no level, so an
    # engine computes them. num_tokens: a mean if hits are expected values. start, end: of the batch
    "retrievals": """
        request_id:i8 client_id:i4 level:text num_tokens:f8 num_bytes:f8 start:f8 end:f8
    """,
    # clients that come to another state (`State`)
    "states": "client_id:i4 time:f8 state:text",
    # failed clients, when their groups have the number of clients that their autoscaler wants again
    "made_up": "client_id:i4 time:f8",
    # visits lost as their client, or the one that held their KV entries, failed. num_tokens: whose
    # entries are lost. retried: another client continues the request
    "losses": "request_id:i8 client_id:i4 time:f8 num_tokens:i8 retried:?",
    # one track's runs of steps. busy: seconds of work, on all ranks of its pipeline. used blocks:
    # in the last step. num_gaps: decodes whose previous token came at `start`, so that the first
    # step's duration is a gap. num_extrapolated: steps outside what their times were measured for.
    # The others are as in `StepBatch`, of the first step
    "steps": """
        start:f8 num_steps:i4 num_chunks:i4 num_prefill_tokens:i4 num_decodes:i4 context_sum:i8
        chunk_context_sum:i8 num_prefill_pairs:i8 busy:f8 num_waiting:i4 num_used_blocks:i4
        num_gaps:i4 num_extrapolated:i4
    """,
}
"""The tables of a run: what a row is, and its columns with their types; times are seconds."""
_COLUMNS = {
    name: dict(column.split(":") for column in columns.split()) for name, columns in _TABLES.items()
}


def empty_table(name: str) -> Table:
    """Return one of the tables of a run, without rows. name: `requests`, `visits`, and so on."""
    return Table(**_COLUMNS[name])


STATUSES = ("finished", "rejected", "timed_out", "cancelled", "lost")
"""Ends of a request; the position is the code in the table of requests."""

_kind = attrgetter("kind")

_MOST_ROWS = 256  # kept as tuples before they are packed, while they lie in a processor's cache


def noting(
    requests: Iterable[Request], code: Callable[[Request], int], codes: array[int]
) -> Iterator[Request]:
    """Pass the requests of users on, and note a code of each in `codes`."""
    for request in requests:
        codes.append(code(request))
        yield request


class Recorder:
    """The records of a run. A subclass may look at what is recorded, and end the run.

    A row is added to a table where it happens: `recorder.gaps.add((time, gap, count))`; `_TABLES`
    says what rows are. All are empty where nothing of the kind happens.

    steps: a table for each track; `step_ends`: the end of every step, `track_clients`: whose steps
    they are, `track_layouts`: in which of its layouts, `track_pools`: the first track that counts
    the same KV blocks, `step_tokens`: with drafts, tokens that each decode step gave in all, empty
    where that is its decodes. reasons, models: of failures, and that requests ask for; the first is
    None. groups: class of each user request, by its id, as `Slo.groups` counts classes; empty if
    the slo has none. labels: the same of classes of the workload, in label_names; empty if it has
    none. adapters: the LoRA adapter of each, in adapter_names, the first of which is None; empty if
    the workload names none. servers: of the front end; None: there is none. events: takes
    decisions; None: they are not kept (`keep_events`).

    Visits and steps have the times of clients, requests those of their users: tokens come
    `response` seconds later, the first one `turn` more for each token of the same step before it,
    the last one `output_token` more for each token (see `FrontEnd`).
    """

    response = output_token = turn = 0.0
    servers: Servers | None = None
    events: Events | None = None

    def __init__(self) -> None:
        self.requests = empty_table("requests")
        self.visits = empty_table("visits")
        self.tokens = empty_table("tokens")
        self.gaps = empty_table("gaps")
        self.drafts = empty_table("drafts")
        self.moves = empty_table("moves")
        self.retrievals = empty_table("retrievals")
        self.retrievals.code(None)  # code 0: no level had it
        self.states = empty_table("states")
        self.made_up = empty_table("made_up")
        self.losses = empty_table("losses")
        self.steps: list[Table] = []
        self.step_ends: list[StepEnds] = []
        self.step_tokens: list[array[int]] = []
        self.token_counts: array[int] = array("H")
        self.track_clients: list[int] = []
        self.track_layouts: list[int] = []
        self.track_pools: list[int] = []
        self._tracks_of: dict[int, list[int]] = {}  # of each client
        self._layouts: dict[int, list[tuple[float, int]]] = {}  # of clients that changed theirs
        self._num_at_once: int | None = None
        self._most_rows = _MOST_ROWS  # of requests, before all tables are looked at
        self.pipelines, self.label_names = Categories(), Categories()
        self.reasons, self.models, self.adapter_names = (Categories() for _ in range(3))
        for names in (self.reasons, self.models, self.adapter_names):
            names.code(None)  # code 0: finished, any, the model's own weights
        self.groups: array[int] = array("i")
        self.labels: array[int] = array("i")
        self.adapters: array[int] = array("i")

    def keep_events(self, keep: bool) -> None:
        """Say whether to keep the decisions of the run that begins, too."""
        self.events = Events() if keep else None

    def add_track(self, client_id: int, layout: int = 0, pool: int | None = None) -> int:
        """Open a track for steps of a client; return its number, from 0.

        A track holds the steps of one clock in order of time. A client has one per lane: one per
        engine, and in a pipeline one per micro-batch. It opens new ones when it restarts after a
        failure and when it changes its layout.
        layout: number of the client's layout, from 0. pool: the track whose KV blocks these steps
        count, too: of the first rank of a pipeline with one pool; None: they have one of their own.
        """
        self.track_pools.append(len(self.steps) if pool is None else pool)
        self.track_clients.append(client_id)
        self.track_layouts.append(layout)
        self._tracks_of.setdefault(client_id, []).append(len(self.steps))
        self.steps.append(empty_table("steps"))
        self.step_ends.append(StepEnds())
        self.step_tokens.append(array("q"))
        return len(self.steps) - 1

    def tracks_of(self, client_id: int) -> list[int]:
        """Return the tracks of a client; empty for a client without steps."""
        return list(self._tracks_of.get(client_id, ()))

    def all_started(self) -> None:
        """Note that all clients have started; a client that comes back opens new tracks."""
        self._num_at_once = len(self.track_clients)
        self._most_rows = max(_MOST_ROWS, self._num_at_once)  # a look at a track for each request

    def num_tracks(self, client_id: int, layout: int = 0) -> int:
        """Return how many tracks a client has at a time in a layout, by default its first one."""
        if layout:
            return self._layouts[client_id][layout - 1][1]
        tracks = self._tracks_of.get(client_id, ())
        return len(tracks) if self._num_at_once is None else bisect_left(tracks, self._num_at_once)

    def record_layout(self, client_id: int, time: float, num_tracks: int) -> None:
        """Note that a client changes to a layout with `num_tracks` tracks at `time`, seconds."""
        self._layouts.setdefault(client_id, []).append((time, num_tracks))

    def mean_tracks(self, client_id: int, begin: float, end: float) -> float:
        """Return how many tracks a client has at a time, on average from `begin` to `end` (s)."""
        return mean_number(self.num_tracks(client_id), self._layouts.get(client_id), begin, end)

    def record_visit(self, client_id: int, visit: Visit) -> None:
        """Note that a request left a client, served or not."""
        outcome = visit.outcome
        is_served = outcome is SERVED or not isinstance(outcome, Failure | Lost)
        num_served = len(visit.stages) if outcome is SERVED else visit.num_served_stages
        self.visits.rows.append(
            (
                visit.request.request_id,
                client_id,
                self.pipelines.code(tuple(map(_kind, visit.stages))),
                visit.queued_at,
                visit.started_at,
                visit.first_token_at,
                visit.finished_at,
                visit.num_queried_tokens,
                visit.num_cached_tokens,
                num_input_tokens(visit),
                visit.num_output_tokens,
                is_served,
                num_served,
            )
        )

    def record_end(self, end: End) -> None:
        """Note that a request left the system: totals over its visits, and how it ended."""
        request, visits, time, failure, num_attempts, in_vain = end
        found = totals(visits)
        queued, num_output_tokens, num_preemptions, num_queried, num_cached, num_known = found
        at_user = self.tokens_at_user(visits, num_output_tokens, failure)
        first_token_at, decode_time, num_gaps = at_user
        if first_token_at > time:  # its sender had given up, while the step went on
            first_token_at = time if failure is None else nan
        self.requests.rows.append(
            (
                request.request_id,
                request.request_id if request.parent_id is None else request.parent_id,
                -1 if request.session_id is None else request.session_id,
                request.arrival_time,
                request.sent_at if visits or request.at_gateway else time,
                first_token_at,
                time,
                queued + request.at_gateway,
                request.front_end,
                request.at_gateway,
                decode_time,
                num_gaps,
                request.num_prompt_tokens + request.num_appended_input_tokens,
                num_output_tokens,
                num_preemptions,
                num_queried,
                num_cached,
                num_known,
                failure is None
                and num_output_tokens
                < request.num_output_tokens + request.num_appended_output_tokens,
                num_attempts,
                sum([num_input_tokens(visit) for visit in in_vain]) if in_vain else 0,
                sum([visit.num_output_tokens for visit in in_vain]) if in_vain else 0,
                0 if failure is None else STATUSES.index(failure.status),
                0 if failure is None else self.reasons.code(failure.reason),
                0 if request.model is None else self.models.code(request.model),
            )
        )
        if len(self.requests.rows) >= self._most_rows:
            self._pack()

    def tokens_at_user(
        self, visits: Sequence[Visit], num_output_tokens: int, failure: Failure | None
    ) -> tuple[float, float, int]:
        """Return an attempt's tokens as its user sees them.

        When the first one is there (seconds; NaN without one), the seconds between the tokens of
        its answers, and the number of gaps.
        """
        first_token_at, late = nan, 0.0
        for visit in visits:
            if visit.first_token_at == visit.first_token_at:  # it has a token
                late = self.turn * visit.num_beside
                first_token_at = visit.first_token_at + (self.response + late)
                break
        seconds, num_gaps = decode_time(visits)
        if num_gaps:
            seconds = 0.0 if seconds < late else seconds - late
            if failure is None:
                seconds += self.output_token * num_output_tokens
        return first_token_at, seconds, num_gaps

    def record_whole(self, client_id: int, visit: Visit) -> float:
        """Note that a request left its only client, which served it whole, and the system.

        As `record_visit` and `record_end` write it: a prompt, and its answer of a token or more.
        Returns when its user has all of it, seconds.
        """
        request, stages = visit.request, visit.stages
        first_token_at, time = visit.first_token_at, visit.finished_at
        num_queried, num_cached = visit.num_queried_tokens, visit.num_cached_tokens
        num_prompt_tokens, num_output_tokens = request.num_prompt_tokens, visit.num_output_tokens
        model, sent_at, queued_at = request.model, request.sent_at, visit.queued_at
        leaving = self.response + (sending := self.output_token * num_output_tokens)
        late = self.turn * visit.num_beside
        first_at_user, decode_time = first_token_at + (self.response + late), 0.0
        if first_at_user > time + leaving:
            leaving = first_at_user - time
            first_at_user = min(first_at_user, time + leaving)  # but for a rounding
        if num_output_tokens > 1:
            decode_time = visit.last_token_at - first_token_at
            decode_time = (0.0 if decode_time < late else decode_time - late) + sending
        self.visits.rows.append(
            (
                request.request_id,
                client_id,
                self.pipelines.code(tuple(map(_kind, stages))),
                visit.queued_at,
                visit.started_at,
                first_token_at,
                time,
                num_queried,
                num_cached,
                max(0, num_prompt_tokens - num_cached - visit.num_fetched_tokens),
                num_output_tokens,
                True,
                len(stages),
            )
        )
        self.requests.rows.append(
            (
                request.request_id,
                request.request_id if request.parent_id is None else request.parent_id,
                -1 if request.session_id is None else request.session_id,
                request.arrival_time,
                sent_at,
                first_at_user,
                time + leaving,
                visit.started_at - queued_at,
                queued_at - sent_at + leaving,
                0.0,
                decode_time,
                num_output_tokens - 1 if num_output_tokens else 0,
                num_prompt_tokens,
                num_output_tokens,
                visit.num_preemptions,
                num_queried,
                num_cached if num_queried else 0,
                visit.num_known_tokens if num_queried else 0,
                num_output_tokens < request.num_output_tokens,
                1,
                0,
                0,
                0,
                0,
                0 if model is None else self.models.code(model),
            )
        )
        if len(self.requests.rows) >= self._most_rows:
            self._pack()
        return time + leaving

    def _pack(self) -> None:
        """Pack the tables that have grown; between two ends of requests they grow by a few rows."""
        others = (self.gaps, self.drafts, self.moves, self.retrievals)
        for table in (self.requests, self.visits, self.tokens, *self.steps, *others):
            if len(table.rows) >= _MOST_ROWS:
                table.pack()
        pack_many(self.step_ends)

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
        """Note an executed run of `num_steps` steps; other parameters are columns of its row.

        ends: end of each step, perhaps followed by steps not executed (a float for a single step),
            seconds.
        batch: the batch of the first step.
        step_tokens: tokens that each step gave its decodes in all; None: one per decode.
        """
        if step_tokens is not None:
            self.step_tokens[track].frombytes(step_tokens.tobytes())
        latest = self.step_ends[track].latest
        latest.extend([ends] if isinstance(ends, float) else ends[:num_steps])
        chunks = batch.chunks
        num_chunks = num_new = context = pairs = 0
        if chunks:
            num_chunks = len(chunks)
            num_new, context, pairs = attended(chunks, num_steps)
        self.steps[track].rows.append(
            (
                start,
                num_steps,
                num_chunks,
                num_new,
                batch.num_decodes,
                batch.context_sum,
                context,
                pairs,
                busy,
                num_waiting,
                num_used_blocks,
                num_gaps,
                num_extrapolated,
            )
        )

    def step_sink(self, track: int) -> StepSink | None:
        """Return where runs of a track may be added without a call of `record_steps` for each.

        None: in none of them, since a subclass records steps in its own way.
        """
        is_plain = type(self).record_steps is Recorder.record_steps
        table, ends = self.steps[track], self.step_ends[track].latest
        sink = StepSink(table.rows.append, ends)
        return sink if is_plain else None

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
        """Note which steps gave a request its tokens.

        step_tokens: that each step gave it; None: one.
        """
        first_count = -1
        if step_tokens is not None:
            first_count = len(self.token_counts)
            self.token_counts.frombytes(step_tokens.astype(np.uint16).tobytes())
        self.tokens.rows.append((request_id, track, first_step, end_step, first_count, resumed))

    def decode_tokens(self, track: int) -> NDArray[np.int64]:
        """Return the tokens that each step of a track gave its decodes in all."""
        rows = self.steps[track].columns()
        tokens = np.repeat(rows["num_decodes"].astype(np.int64), rows["num_steps"].astype(np.int64))
        if self.step_tokens[track]:
            tokens[tokens > 0] = self.step_tokens[track]
        return tokens
