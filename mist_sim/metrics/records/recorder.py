"""Records events as columns; finished requests leave no live objects behind."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import nan
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepBatch, attended
from mist_sim.core.events import KINDS
from mist_sim.core.front_end import Servers
from mist_sim.core.recorder import StepSink
from mist_sim.core.request import Request
from mist_sim.core.states import State
from mist_sim.core.visit import SERVED, Failure, Lost, Visit
from mist_sim.metrics import latency
from mist_sim.metrics.records.columns import Categories, Table
from mist_sim.metrics.records.step_ends import StepEnds, pack_many
from mist_sim.stages import Prefill


def num_input_tokens(visit: Visit) -> int:
    """Return how many prompt tokens were computed for a visit."""
    num_tokens = -visit.num_cached_tokens - visit.num_fetched_tokens
    if visit.first_token_at == visit.first_token_at:  # it has a token
        for stage in visit.stages:
            if isinstance(stage, Prefill):
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
    # steps that gave a request its tokens
    "tokens": "request_id:i8 track:i4 first_step:i8 end_step:i8 first_count:i8 resumed:?",
    # times between tokens that no one step took
    "gaps": "time:f8 gap:f8 count:i4",
    # drafts of steps, and those accepted
    "drafts": "time:f8 num_drafts:i8 draft_tokens:i8 accepted_tokens:i8",
    # KV entries that moved
    "moves": """
        request_id:i8 track:i4 kind:i4 source:i4 destination:i4 num_tokens:i8 num_bytes:f8 start:f8
        end:f8 again:?
    """,
    # KV entries that were asked for, by the level that had them
    "retrievals": "request_id:i8 client_id:i4 level:i4 num_tokens:f8 num_bytes:f8 start:f8 end:f8",
    # states that clients come to
    "states": "client_id:i4 time:f8 state:i4",
    # failed clients, when their groups have the wanted number of clients again
    "made_up": "client_id:i4 time:f8",
    # visits that were lost with a client
    "losses": "request_id:i8 client_id:i4 time:f8 num_tokens:i8 retried:?",
    # decisions
    "events": "time:f8 kind:i1 request_id:i8 client_id:i4 reason:i4 num_tokens:i8",
    # one track's runs of steps
    "steps": """
        start:f8 num_steps:i4 num_chunks:i4 num_prefill_tokens:i4 num_decodes:i4 context_sum:i8
        chunk_context_sum:i8 num_prefill_pairs:i8 busy:f8 num_waiting:i4 num_used_blocks:i4
        num_gaps:i4 num_extrapolated:i4
    """,
}
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


class EventTable:
    """Keeps decisions as they are made; implements `core.events.Events`.

    rows: one a decision. reasons: those in it. latest: arguments of `note` since they were last
    cleared; None: nobody reads them.
    """

    def __init__(self) -> None:
        self.rows = empty_table("events")
        self.reasons = Categories()
        self.latest: list[tuple[float, str, int, int, str, int]] | None = None

    def note(
        self,
        time: float,
        kind: str,
        request_id: int,
        client_id: int,
        reason: str,
        num_tokens: int,
    ) -> None:
        """Add a row; see `core.events.Events`."""
        if self.latest is not None:
            self.latest.append((time, kind, request_id, client_id, reason, num_tokens))
        code = KINDS.index(kind)
        row = (time, code, request_id, client_id, self.reasons.code(reason), num_tokens)
        self.rows.rows.append(row)
        if len(self.rows.rows) >= _MOST_ROWS:
            self.rows.pack()


class ColumnRecorder:
    """The `Recorder` of every run.

    requests: a row a request. visits: a row a stay at a client. steps: for each track of steps, a
    row a run; `step_ends`: the end of every step, `track_clients`: whose steps they are,
    `track_layouts`: in which of its layouts, `track_pools`: the first track that counts the same KV
    blocks. gaps: times between tokens that no one step took. tokens: which steps gave a request its
    tokens; with drafts, `first_count` is where in `token_counts` it begins how many each decode
    step gave (-1: one each). step_tokens: for each track, tokens that each decode step gave in all;
    empty where that is its decodes. drafts: a row
    for each stay of a request in a decode batch that verified drafts. moves: a row for KV entries
    of a request that went from one place to another; move_names: the kinds and places in it.
    retrievals: a row for each level that had entries of a requested context, and one for those of
    no level; level_names: the levels. states: a row for each change of a client's state, named in
    state_names; made_up: a row a failed client whose autoscaled group has its wanted number of
    clients again; losses: a row a visit that was lost with its client, or with the one that had its
    KV entries. All are empty where no client changes its state. models: those that requests ask
    for; the first is None, for any. groups: class of each user request, by its id, as `Slo.groups`
    counts classes; empty if the slo has none. labels: the same of classes of the workload, in
    label_names; empty if it has none. adapters: the LoRA adapter of each, in adapter_names, the
    first of which is None; empty if the workload names none. servers: of the front end; None: there
    is none. events: decisions as they are made; None: they are not kept (`keep_events`).

    Visits and steps have the times of clients, requests those of their users: tokens come
    `response` seconds later, the first one `turn` more for each token of the same step before it,
    the last one `output_token` more for each token (see `FrontEnd`).
    """

    response = output_token = turn = 0.0
    servers: Servers | None = None
    events: EventTable | None = None

    def __init__(self) -> None:
        self.requests = empty_table("requests")
        self.visits = empty_table("visits")
        self.track_clients: list[int] = []
        self.track_layouts: list[int] = []
        self.track_pools: list[int] = []
        self._tracks_of: dict[int, list[int]] = {}  # of each client
        self._layouts: dict[int, list[tuple[float, int]]] = {}  # of clients that changed theirs
        self._num_at_once: int | None = None
        self._most_rows = _MOST_ROWS  # of requests, before all tables are looked at
        self.steps: list[Table] = []
        self.step_ends: list[StepEnds] = []
        self.gaps = empty_table("gaps")
        self.tokens = empty_table("tokens")
        self.token_counts: array[int] = array("H")
        self.step_tokens: list[array[int]] = []
        self.drafts = empty_table("drafts")
        self.moves = empty_table("moves")
        self.move_names = Categories()
        self.retrievals = empty_table("retrievals")
        self.level_names = Categories()
        self.level_names.code(None)  # code 0: no level had it
        self.reasons = Categories()
        self.reasons.code(None)  # code 0: finished
        self.models = Categories()
        self.models.code(None)
        self.pipelines = Categories()
        self.states = empty_table("states")
        self.state_names = Categories()
        self.made_up = empty_table("made_up")
        self.losses = empty_table("losses")
        self.groups: array[int] = array("i")
        self.labels: array[int] = array("i")
        self.label_names = Categories()
        self.adapters: array[int] = array("i")
        self.adapter_names = Categories()
        self.adapter_names.code(None)  # code 0: the model's own weights

    def keep_events(self, keep: bool) -> None:
        """Say whether to keep the decisions of the run that begins, too."""
        self.events = EventTable() if keep else None

    def add_track(self, client_id: int, layout: int = 0, pool: int | None = None) -> int:
        """Begin the columns of an engine or a rank; return its number."""
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
        """Note that a client has another layout from now on, with so many tracks."""
        self._layouts.setdefault(client_id, []).append((time, num_tracks))

    def mean_tracks(self, client_id: int, begin: float, end: float) -> float:
        """Return how many tracks a client has at a time, on average from `begin` to `end` (s)."""
        return mean_number(self.num_tracks(client_id), self._layouts.get(client_id), begin, end)

    def record_visit(self, client_id: int, visit: Visit) -> None:
        """Add a row to the visits."""
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

    def record_end(
        self,
        request: Request,
        visits: list[Visit],
        time: float,
        failure: Failure | None = None,
        num_attempts: int = 1,
        in_vain: Sequence[Visit] = (),
    ) -> None:
        """Add a row to the requests: totals over its visits, and how it ended."""
        queued, num_output_tokens, num_preemptions, num_queried, *prefixes = totals(visits)
        num_cached, num_known = prefixes
        first_token_at = self.first_token_at(visits)
        if first_token_at > time:  # its sender had given up, while the step went on
            first_token_at = time if failure is None else nan
        decode_time, num_gaps = self.decode_time(visits, num_output_tokens, failure)
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

    def first_token_at(self, visits: Sequence[Visit]) -> float:
        """Return when a user has the first token of an attempt, seconds; NaN without one."""
        for visit in visits:
            if visit.has_token:
                return visit.first_token_at + (self.response + self.turn * visit.num_beside)
        return nan

    def decode_time(
        self, visits: Sequence[Visit], num_output_tokens: int, failure: Failure | None
    ) -> tuple[float, int]:
        """Return the seconds between the tokens of an attempt at its user, and the gaps."""
        seconds, num_gaps = latency.decode_time(visits)
        if num_gaps:
            late = next((self.turn * visit.num_beside for visit in visits if visit.has_token), 0.0)
            seconds = 0.0 if seconds < late else seconds - late
            if failure is None:
                seconds += self.output_token * num_output_tokens
        return seconds, num_gaps

    def record_whole(self, client_id: int, visit: Visit) -> float:
        """Add the rows of a request that one visit served whole, and of that visit.

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
        """Add a row for a run of steps, and the end of each of them."""
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
        """Return the lists themselves; None if a subclass records steps in its own way."""
        is_plain = type(self).record_steps is ColumnRecorder.record_steps
        table, ends = self.steps[track], self.step_ends[track].latest
        sink = StepSink(table.rows.append, ends)
        return sink if is_plain else None

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
        """Add a row to the moves."""
        names = map(self.move_names.code, (kind, source, destination))
        self.moves.rows.append(
            (request_id, track, *names, num_tokens, num_bytes, start, end, again)
        )

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
        """Add a row to the retrievals."""
        level = self.level_names.code(source)
        self.retrievals.rows.append(
            (request_id, client_id, level, num_tokens, num_bytes, start, end)
        )

    def record_gap(self, track: int, time: float, gap: float, count: int) -> None:
        """Add a row to the table of gaps."""
        self.gaps.rows.append((time, gap, count))

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
        """Note which steps gave a request its tokens."""
        first_count = -1
        if step_tokens is not None:
            first_count = len(self.token_counts)
            self.token_counts.frombytes(step_tokens.astype(np.uint16).tobytes())
        self.tokens.rows.append((request_id, track, first_step, end_step, first_count, resumed))

    def record_drafts(
        self, time: float, num_drafts: int, num_draft_tokens: int, num_accepted_tokens: int
    ) -> None:
        """Add a row to the table of drafts."""
        self.drafts.rows.append((time, num_drafts, num_draft_tokens, num_accepted_tokens))

    def record_state(self, client_id: int, time: float, state: State) -> None:
        """Note that a client is in another state from now on."""
        self.states.rows.append((client_id, time, self.state_names.code(state)))

    def record_made_up(self, client_id: int, time: float) -> None:
        """Note that a failed client's group has its wanted number of clients now."""
        self.made_up.rows.append((client_id, time))

    def record_loss(
        self, client_id: int, request_id: int, time: float, num_tokens: int, *, retried: bool
    ) -> None:
        """Record a lost visit, and whether its request continues at another client.

        num_tokens: tokens whose KV entries were lost with it.
        """
        self.losses.rows.append((request_id, client_id, time, num_tokens, retried))

    def decode_tokens(self, track: int) -> NDArray[np.int64]:
        """Return the tokens that each step of a track gave its decodes in all."""
        rows = self.steps[track].columns()
        tokens = np.repeat(rows["num_decodes"].astype(np.int64), rows["num_steps"].astype(np.int64))
        if self.step_tokens[track]:
            tokens[tokens > 0] = self.step_tokens[track]
        return tokens


class WatchedEnds(ColumnRecorder):
    """A recorder that looks at each request when it has left the system (`ended`)."""

    def record_end(
        self,
        request: Request,
        visits: list[Visit],
        time: float,
        failure: Failure | None = None,
        num_attempts: int = 1,
        in_vain: Sequence[Visit] = (),
    ) -> None:
        """Add a row, and call `ended`; raises what that raises."""
        super().record_end(request, visits, time, failure, num_attempts, in_vain)
        self.ended(request, visits, time, failure)

    def ended(
        self, request: Request, visits: list[Visit], time: float, failure: Failure | None
    ) -> None:
        """Look at a request that left at `time`, seconds; its row is written."""
        raise NotImplementedError
