"""The tables of a result, made from its records when someone asks.

docs/guides/results.md says what each column means, and its unit. Sums over the intervals of
`over_time` are the totals of the run: rates times seconds are the tokens and visits of the clients,
watts times seconds their joules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.columns import Categories, Table
from mist_sim.core.events import ADMITTED, ENDED, KINDS, MOVED, NO_REQUEST, Events
from mist_sim.core.recorder import STATUSES, Recorder, empty_table
from mist_sim.metrics import latency, stats
from mist_sim.metrics.clients import POWERED, interference, run_periods
from mist_sim.metrics.latency import Array
from mist_sim.metrics.requests import Breakdown, ends_with_children, request_columns, samples
from mist_sim.metrics.spending import Ledger
from mist_sim.metrics.tables import (
    Coded,
    Columns,
    WithMissing,
    column,
    concatenated,
    in_order,
    texts,
)
from mist_sim.units import require_number


def requests_columns(recorder: Recorder) -> Columns:
    """Return a row per request, in order of injection."""
    c = recorder.requests.columns()
    times = samples(c)
    reasons = [str(reason or "") for reason in recorder.reasons.values]
    models = [str(name or "") for name in recorder.models.values]
    columns: Columns = {
        "request_id": c["request_id"],
        "parent_id": WithMissing(c["parent_id"], c["parent_id"] == c["request_id"]),
        "session_id": WithMissing(c["session_id"], c["session_id"] < 0),
        "model": Coded(c["model"], models),
        "status": Coded(c["status"], STATUSES),
        "arrival_time": c["arrival_time"],
        "sent_at": c["sent_at"],
        "first_token_at": c["first_token_at"],
        "finished_at": c["finished_at"],
        "queued": c["queued"],
        **{name: times[name] for name in latency.SHORT_NAMES},
        "interference": interference(recorder),
        "num_prompt_tokens": c["num_prompt_tokens"],
        "num_output_tokens": c["num_output_tokens"],
        "num_cached_tokens": c["num_cached_tokens"],
        "num_preemptions": c["num_preemptions"],
        "truncated": c["truncated"],
        "num_attempts": c["num_attempts"],
        "wasted_input_tokens": c["wasted_input_tokens"],
        "wasted_output_tokens": c["wasted_output_tokens"],
        "reason": Coded(c["reason"], reasons),
    }
    return in_order(columns, np.argsort(c["request_id"]))


def class_columns(recorder: Recorder, names: Sequence[str]) -> Columns:
    """Return each request's class as a column of the table of requests; absent without classes.

    names: names of the classes, as in `Slo.groups`; "" for none.
    """
    c = request_columns(recorder)
    if "group" not in c:
        return {}
    return {"class": Coded(c["group"][np.argsort(c["request_id"])], names)}


def stages_columns(recorder: Recorder, client_names: list[str]) -> Columns:
    """A row a stage that was served: where, and when it was queued, started and finished.

    Prefill and decode of one visit share the queue; decode starts at the first token. Stages
    that one client served in a row without a mark between them share their times. A stage that
    sent children finishes with the last of them.
    """
    parts = list(_served_stages(recorder, client_names))
    if not parts:
        return {name: texts(()) for name in _STAGE_COLUMNS}
    found: dict[str, Any] = concatenated(parts)
    order = np.lexsort((found["position"], found["queued_at"], found["request_id"]))
    del found["position"]
    return in_order(found, order)


_STAGE_COLUMNS = ("request_id", "stage", "client", "queued_at", "started_at", "finished_at")


class StageLatency(stats.Milliseconds):
    """The time in a stage, milliseconds. count: how often it was served."""

    count: int


def stages_summary(recorder: Recorder, done: NDArray[np.bool_]) -> dict[str, Any]:
    """Return figures of the time in each stage of some requests, milliseconds.

    done: of the rows of requests, which. The time is from the entry into the queue of a client to
    the end, as in `stages_columns`; stages that were served several times count each time.
    """
    ids = recorder.requests.columns()["request_id"][done]
    is_done = np.zeros(int(ids.max(initial=-1)) + 2, dtype=bool)  # the last one: of no request
    is_done[ids] = True
    seconds: dict[str, list[Array]] = {}
    for part in _served_stages(recorder, ()):
        mine = is_done[part["request_id"].clip(-1, len(is_done) - 1)]
        stage: Any = part["stage"]
        times = (part["finished_at"] - part["queued_at"])[mine]
        if len(times):
            seconds.setdefault(stage.texts[stage.codes[0]], []).append(times)
    all_times = {name: np.concatenate(times) for name, times in seconds.items()}
    found = {
        name: {"count": len(times), **stats.milliseconds(times)}
        for name, times in all_times.items()
    }
    return {"stage_latency_ms": found}


def _served_stages(recorder: Recorder, client_names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `stages_columns` for each place in each pipeline, not in order."""
    visits, ends = recorder.visits.columns(), ends_with_children(recorder)
    pipelines: list[Any] = recorder.pipelines.values
    stages = list(dict.fromkeys(kind for kinds in pipelines for kind in kinds))
    for code, kinds in enumerate(pipelines):
        of_engine, of_pipeline = kinds[0] == "prefill", visits["stages"] == code
        for position, kind in enumerate(kinds):
            ended, queued, started = visits["served"], "queued_at", "started_at"
            finished_at = ends if position == len(kinds) - 1 else visits["finished_at"]
            if of_engine and position:  # behind a prompt, in the same visit
                queued = started = "first_token_at"
            elif of_engine:
                has_token = ~np.isnan(visits["first_token_at"])
                ended = has_token | ended
                finished_at = np.where(has_token, visits["first_token_at"], finished_at)
            rows = of_pipeline & ended
            number = int(rows.sum())
            stage = np.full(number, stages.index(kind), dtype=np.int16)
            yield {
                "request_id": visits["request_id"][rows],
                "position": np.full(number, position, dtype=np.int16),
                "stage": Coded(stage, stages),
                "client": Coded(visits["client_id"][rows], client_names),
                "queued_at": visits[queued][rows],
                "started_at": visits[started][rows],
                "finished_at": finished_at[rows],
            }


def steps_columns(recorder: Recorder, client_names: list[str]) -> Columns:
    """Return a row per run of steps with the same members, track by track in order of time.

    A step of a micro-batch in a pipeline lasts from when it is ready until its pass returns.
    """
    if not recorder.steps:
        return dict(_runs(empty_table("steps"), np.empty(0), 0, {"track": 0}, client_names))
    parts, some_change = [], any(recorder.track_layouts)
    for track, table in enumerate(recorder.steps):
        layout = {"layout": recorder.track_layouts[track]} if some_change else {}
        ends = run_periods(recorder, track)[1]
        client_id = recorder.track_clients[track]
        parts.append(_runs(table, ends, client_id, {"track": track} | layout, client_names))
    return concatenated(parts)


def _runs(
    table: Table,
    ends: Array,
    client_id: int,
    numbers: Mapping[str, int],
    client_names: Sequence[str],
) -> dict[str, NDArray[Any] | Coded]:
    """Return the runs of one track. numbers: columns whose value is the same in all rows."""
    columns = table.columns()
    of_track = {name: np.full(len(ends), number) for name, number in numbers.items()}
    return {
        "client": Coded(np.full(len(ends), client_id, dtype=np.int32), client_names),
        **of_track,
        "start": columns["start"],
        "end": ends,
        **{name: columns[name] for name in columns if name not in ("start", "num_gaps")},
    }


def retrievals_columns(recorder: Recorder, client_names: list[str]) -> Columns:
    """Return a row for each level that had entries of a requested context, by start."""
    c = recorder.retrievals.columns()
    columns: Columns = {
        "request_id": c["request_id"],
        "client": Coded(c["client_id"], client_names),
        "level": Coded(c["level"], level_names(recorder)),
        **{name: c[name] for name in ("num_tokens", "num_bytes", "start", "end")},
    }
    return in_order(columns, np.argsort(c["start"], kind="stable"))


def level_names(recorder: Recorder) -> list[str]:
    """Return the levels of retrieval clients by code; the first is "", of what none had."""
    return ["" if name is None else str(name) for name in recorder.retrievals.names]


def breakdown_columns(recorder: Recorder) -> Columns:
    """A row a request of a user, in their order: latency (`e2el`), and the seconds of its parts.

    The time of children counts in the stage that sent them.
    """
    c = recorder.requests.columns()
    e2el = latency.e2e(c["arrival_time"], c["finished_at"])
    columns: Columns = {"request_id": c["request_id"], "e2el": e2el, **Breakdown(recorder).seconds}
    rows = np.argsort(c["request_id"])
    return in_order(columns, rows[(c["parent_id"] == c["request_id"])[rows]])


def transfers_columns(recorder: Recorder, client_names: list[str]) -> Columns:
    """Return a row per move of a request's KV entries from one place to another, by start."""
    c = recorder.moves.columns()
    clients = np.array(recorder.track_clients, dtype=np.int32)
    names = [str(name) for name in recorder.moves.names]
    columns: Columns = {
        "request_id": c["request_id"],
        "client": Coded(clients[c["track"]], client_names),
        **{name: Coded(c[name], names) for name in ("kind", "source", "destination")},
        "num_tokens": c["num_tokens"],
        "num_bytes": c["num_bytes"],
        "start": c["start"],
        "end": c["end"],
    }
    return in_order(columns, np.argsort(c["start"], kind="stable"))


def events_columns(recorder: Recorder, client_names: list[str]) -> Columns:
    """Return a row per decision, by time; empty unless the run kept its events.

    event: of `core.events.KINDS`. request_id: missing for blocks that are evicted. client: where;
    of an end the last one, empty if there was none. reason: why. num_tokens: of its prompt, where a
    request is routed; to be computed before its next token, cached ones included, where it is
    admitted to an engine or preempted; of its prompt that wait for later steps, where that is cut;
    that are evicted; that move; of the answer, where it ends.
    """
    kept = recorder.events
    parts = (
        []
        if kept is None
        else [_decided(kept), _admitted(recorder), _moved(recorder), _ended(recorder)]
    )
    texts_of = Categories()
    ids, clients, kinds, times, tokens, reasons = (
        np.concatenate([np.asarray(part[number], kind) for part in parts] or [np.zeros(0, kind)])
        for number, kind in enumerate(("i8", "i4", "i4", "f8", "i8", "O"))
    )
    codes = np.array([texts_of.code(text) for text in reasons], dtype=np.int32)
    columns: Columns = {
        "time": times,
        "event": Coded(kinds, KINDS),
        "request_id": WithMissing(ids, ids == NO_REQUEST),
        "client": Coded(clients + 1, ["", *client_names]),
        "reason": Coded(codes, [str(text) for text in texts_of.values]),
        "num_tokens": tokens,
    }
    return in_order(columns, np.lexsort((np.arange(len(times)), kinds, times)))


_Decisions = tuple[Any, Any, Any, Any, Any, Any]
"""Columns: request_id, client_id (-1: none), kind, time, num_tokens, reason."""


def _decided(kept: Events) -> _Decisions:
    """Return what was noted as it was decided."""
    c, texts_of = kept.rows.columns(), texts([str(text) for text in kept.rows.names])
    reasons = texts_of[c["reason"]] if len(texts_of) else []
    return c["request_id"], c["client_id"], c["kind"], c["time"], c["num_tokens"], reasons


def _admitted(recorder: Recorder) -> _Decisions:
    """Return when visits to clients without engines began."""
    c = recorder.visits.columns()
    mine = ~np.isin(c["client_id"], recorder.track_clients) & ~np.isnan(c["started_at"])
    number = int(mine.sum())
    kinds, tokens = np.full(number, KINDS.index(ADMITTED)), np.zeros(number)
    reasons = np.full(number, "first", dtype=object)
    return (
        c["request_id"][mine],
        c["client_id"][mine],
        kinds,
        c["started_at"][mine],
        tokens,
        reasons,
    )


def _moved(recorder: Recorder) -> _Decisions:
    """Return when KV entries began to move."""
    c, names = recorder.moves.columns(), recorder.moves.names
    clients = np.array(recorder.track_clients, dtype=np.int32)[c["track"]]
    kinds = np.full(len(clients), KINDS.index(MOVED))
    ways = zip(c["kind"], c["source"], c["destination"], strict=True)
    reasons = [f"{names[kind]} from {names[one]} to {names[other]}" for kind, one, other in ways]
    return c["request_id"], clients, kinds, c["start"], c["num_tokens"], reasons


def _ended(recorder: Recorder) -> _Decisions:
    """Return when requests ended, and how."""
    c, visits = recorder.requests.columns(), recorder.visits.columns()
    last = dict(zip(visits["request_id"].tolist(), visits["client_id"].tolist(), strict=True))
    ids = c["request_id"]
    clients = [last.get(each, -1) for each in ids.tolist()]
    kinds = np.full(len(ids), KINDS.index(ENDED))
    why = [STATUSES[code] for code in c["status"]]
    said = [recorder.reasons.values[code] for code in c["reason"]]
    reasons = [f"{one}: {text}" if text else one for one, text in zip(why, said, strict=True)]
    return ids, clients, kinds, c["finished_at"], c["num_output_tokens"], reasons


def token_times(recorder: Recorder, request_id: int) -> Array:
    """Return when the user received each output token of a request, in seconds.

    Tokens of one step (verified drafts) come at the same time. Prefill steps between the request's
    decode steps give it no token and are left out. For a request that was sent several times, these
    are the tokens of its last attempt. Raises ValueError for an unknown request.
    """
    requests = recorder.requests.columns()
    mine = requests["request_id"] == request_id
    if not mine.any():
        num_requests = int((requests["request_id"] >= 0).sum())
        raise ValueError(f"request_id must be in [0, {num_requests}), got {request_id}")
    tokens = recorder.tokens.columns()
    rows = np.flatnonzero(tokens["request_id"] == request_id)
    times = []
    for row in rows:
        track = int(tokens["track"][row])
        first, end = int(tokens["first_step"][row]), int(tokens["end_step"][row])
        ends = recorder.step_ends[track][first:end]
        decode_ends = ends[_is_decode(recorder, track, first, end)]
        counts: Any = 1
        if (place := int(tokens["first_count"][row])) >= 0:
            counts = recorder.token_counts[place : place + len(decode_ends)]
        if not tokens["resumed"][row]:
            times.append(recorder.step_ends[track][first - 1 : first])
        times.append(np.repeat(decode_ends, counts))
    if not times:
        return np.empty(0)
    sent_at = requests["sent_at"][mine]
    found: Array = np.concatenate(times)
    last_attempt: Array = found[found > sent_at]
    first_token_at = requests["first_token_at"][mine]  # which is late among others of its step
    received: Array = np.fmax(last_attempt + recorder.response, first_token_at)
    return received


def _is_decode(recorder: Recorder, track: int, first: int, end: int) -> Any:
    """Return which of a track's steps [first, end) decoded something."""
    c = recorder.steps[track].columns()
    run_ends = np.cumsum(c["num_steps"])
    runs = np.searchsorted(run_ends, np.arange(first, end), side="right")
    return c["num_decodes"][runs] > 0


def clients_columns(
    recorder: Recorder,
    client_names: list[str],
    client_models: list[str],
    num_gpu_blocks: list[int],
) -> Columns:
    """Return a row per client: visits and tokens served, time in steps, mean batch, memory.

    Peaks of several engines are summed; an engine that restarted has one peak; of several layouts
    the highest peak and the largest number of blocks count.
    """
    visits = recorder.visits.columns()
    rows = []
    for client_id, name in enumerate(client_names):
        tracks = [_track_totals(recorder, k) for k in recorder.tracks_of(client_id)]
        totals = _Totals(*map(sum, zip(*tracks, strict=True)))
        mine = visits["client_id"] == client_id
        service = visits["finished_at"][mine] - visits["started_at"][mine]
        rows.append(
            {
                "client": name,
                "model": client_models[client_id],
                "num_visits": int(mine.sum()),
                "num_output_tokens": int(visits["num_output_tokens"][mine].sum()),
                "busy": totals.busy if tracks else float(np.nansum(service)),
                "num_steps": totals.num_steps,
                "num_prefill_tokens": totals.num_prefill_tokens,
                "num_decode_tokens": totals.num_decode_tokens,
                "peak_used_blocks": _peak(recorder, client_id, tracks),
                "mean_running": _mean_running(
                    visits["started_at"][mine], visits["finished_at"][mine]
                ),
                "mean_decodes": totals.num_decodes / totals.decode_steps
                if totals.decode_steps
                else 0.0,
                "num_gpu_blocks": num_gpu_blocks[client_id],
                "prefix_cache_hit_rate": stats.share(
                    visits["num_cached_tokens"][mine].sum(),
                    visits["num_queried_tokens"][mine].sum(),
                ),
            }
        )
    return {name: column(row[name] for row in rows) for name in rows[0]}


def _mean_running(started: Array, finished: Array) -> float:
    """Return how many visits run, a mean over time; NaN without any. started: NaN of none."""
    has_begun = ~np.isnan(started)
    if not has_begun.any():
        return float("nan")
    begin, end = started[has_begun], finished[has_begun]
    return stats.share(float((end - begin).sum()), float(end.max() - begin.min()))


class _Totals(NamedTuple):
    """Sums over the steps of a track, or of all of a client's; peak_used_blocks: the most."""

    busy: float = 0.0
    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    peak_used_blocks: int = 0
    num_decodes: int = 0
    decode_steps: int = 0


def _peak(recorder: Recorder, client_id: int, tracks: Sequence[_Totals]) -> int:
    """Return the sum of the peaks of a client's pools, in the layout where it is highest.

    An engine that came back has tracks in each of its lives, and one peak; so have the ranks of a
    pipeline that share its pool.
    """
    peaks: dict[int, dict[int, list[int]]] = {}
    for track, totals in zip(recorder.tracks_of(client_id), tracks, strict=True):
        of_layout = peaks.setdefault(recorder.track_layouts[track], {})
        of_layout.setdefault(recorder.track_pools[track], []).append(totals.peak_used_blocks)
    sums = [0]
    for layout, pools in peaks.items():
        of_pools = list(pools.values())
        num_pools = recorder.num_tracks(client_id, layout) // len(of_pools[0]) or len(of_pools)
        lives = (of_pools[k::num_pools] for k in range(num_pools))
        sums.append(sum(max(map(max, each), default=0) for each in lives))
    return max(sums)


def _busy(starts: Array, ends: Array, busy: Array) -> float:
    """Return the seconds of a track's runs, the same to the bit however they were cut.

    busy: of each; of a pipeline's rank, less than from its start to its end.
    """
    if not len(starts):
        return 0.0
    waits, less = starts[1:] - ends[:-1], busy - (ends - starts)
    in_runs = ends[-1] - starts[0] - waits[waits != 0].sum()
    return float(in_runs + less[less != 0].sum())


def _track_totals(recorder: Recorder, track: int) -> _Totals:
    steps = recorder.steps[track].columns()
    num_steps = steps["num_steps"]
    return _Totals(
        busy=_busy(*run_periods(recorder, track), steps["busy"]),
        num_steps=int(num_steps.sum()),
        num_prefill_tokens=int(np.dot(steps["num_prefill_tokens"], num_steps)),
        num_decode_tokens=int(recorder.decode_tokens(track).sum()),
        peak_used_blocks=int(steps["num_used_blocks"].max(initial=0)),
        num_decodes=int(np.dot(steps["num_decodes"], num_steps)),
        decode_steps=int(num_steps[steps["num_decodes"] > 0].sum()),
    )


_DEFAULT_INTERVALS = 100
_MOST_INTERVALS = 100_000


def over_time_columns(
    recorder: Recorder,
    ledger: Ledger,
    client_names: Sequence[str],
    interval: float | None = None,
) -> Columns:
    """Return a row per client and interval, client by client.

    interval: seconds (> 0); None: a hundredth of the run. The last one may be shorter. Tokens count
    at the end of their step.

    Raises ValueError for an interval that is not positive, or so short that there would be more
    than 100,000.
    """
    edges = _edges(ledger.end, interval)
    parts = []
    for client_id, name in enumerate(client_names):
        sums = _sums(recorder, client_id, edges)
        tracks = [recorder.mean_tracks(client_id, *period) for period in pairwise(edges.tolist())]
        seconds = np.diff(edges)
        rates = {key: np.diff(sum_) / seconds for key, sum_ in sums.items()}
        rates["utilisation"] = rates["busy"] / [number or math.nan for number in tracks]
        if any(ledger.machines) and not ledger.watts_unknown:
            rates["power"] = np.diff(_energy(ledger, client_id, edges)) / seconds
        names = np.full(len(seconds), name, dtype=object)
        parts.append({"client": names, "start": edges[:-1], "end": edges[1:]} | rates)
    return concatenated(parts)


def _edges(end: float, interval: float | None) -> Array:
    """Return where intervals begin, and where the last one ends."""
    if interval is None:
        interval = end / _DEFAULT_INTERVALS
    else:
        require_number("interval", interval)
        if not 0 < interval < math.inf:
            raise ValueError(f"interval must be finite and > 0 s, got {interval}")
    if not end:
        return np.zeros(1)
    if end / interval > _MOST_INTERVALS:
        least = end / _MOST_INTERVALS
        raise ValueError(f"interval must be >= {least:.3g} s in a run of {end:g} s, got {interval}")
    number = max(math.ceil(end / interval * (1 - 1e-12)), 1)
    return np.append(np.arange(number) * interval, end)


def _sums(recorder: Recorder, client_id: int, edges: Array) -> dict[str, Array]:
    """Return a client's cumulative sums from the start of the run up to each time."""
    visits = recorder.visits.columns()
    mine = visits["client_id"] == client_id
    queued, begun, ended = (
        visits[name][mine] for name in ("queued_at", "started_at", "finished_at")
    )
    is_begun = ~np.isnan(begun)
    left = np.where(is_begun, begun, ended)
    in_service = _area(begun[is_begun], ended[is_begun], edges)
    tracks = [_track_sums(recorder, k, edges) for k in recorder.tracks_of(client_id)]
    nothing = np.zeros(len(edges))
    prompts, tokens, busy = (
        (sum(sums, nothing) for sums in zip(*tracks, strict=True))
        if tracks
        else (nothing, nothing, in_service)
    )
    return {
        "visits": _events(ended, np.ones(len(ended)), edges),
        "prefill_tokens": prompts,
        "output_tokens": tokens,
        "busy": busy,
        "num_waiting": _area(queued, left, edges),
        "num_in_service": in_service,
    }


def _track_sums(recorder: Recorder, track: int, edges: Array) -> tuple[Array, Array, Array]:
    """Return prompt tokens computed, tokens emitted and seconds of work of a track."""
    rows = recorder.steps[track].columns()
    ends = recorder.step_ends[track][:]
    prompts = np.repeat(rows["num_prefill_tokens"], rows["num_steps"])
    emitted = recorder.decode_tokens(track).astype(float)
    tokens = recorder.tokens.columns()
    is_first = (tokens["track"] == track) & ~tokens["resumed"]
    emitted += np.bincount(tokens["first_step"][is_first] - 1, minlength=len(ends))
    start, end = run_periods(recorder, track)
    return (
        _events(ends, prompts, edges),
        _events(ends, emitted, edges),
        _linear(start, end, rows["busy"], edges),
    )


def _energy(ledger: Ledger, client_id: int, edges: Array) -> Array:
    """Return a client's joules up to each time; those of a run spread evenly over its steps."""
    joules = np.zeros(len(edges))
    left = [ledger.lives.seconds(client_id, POWERED, edge) for edge in edges.tolist()]
    powered = ledger.lives.seconds(client_id, POWERED) - np.array(left)
    all_runs = ledger.runs(client_id)
    for number, group in enumerate(ledger.groups(client_id)):
        busy = np.zeros(len(edges))
        for runs in all_runs:
            if runs.group == number:
                joules += _linear(runs.start, runs.end, runs.energy, edges)
                busy += _linear(runs.start, runs.end, runs.gpu_seconds, edges)
        joules = joules + (powered * group.num_gpus - busy) * ledger.idle_watts(group)
    return joules


def _events(times: Array, counts: Array, edges: Array) -> Array:
    """Return how much came up to each time, that time included. times: never decrease."""
    up_to = np.concatenate([[0.0], np.cumsum(counts)])
    found: Array = up_to[np.searchsorted(times, edges, side="right")]
    found[0] = 0.0  # an event at time 0 belongs to the first interval
    return found


def _linear(start: Array, end: Array, amounts: Array, edges: Array) -> Array:
    """Return how much came up to each time, evenly in periods that follow one another."""
    if not len(start):
        return np.zeros(len(edges))
    up_to = np.concatenate([[0.0], np.cumsum(amounts)])
    found = np.interp(edges, np.stack([start, end], axis=1).ravel(), np.repeat(up_to, 2)[1:-1])
    return np.asarray(found)


def _area(entered: Array, left: Array, edges: Array) -> Array:
    """Return the time spent inside up to each time, summed over all visits."""
    spent = stats.areas(entered, edges) - stats.areas(left, edges)
    return np.asarray(np.maximum.accumulate(spent))  # it never falls, but where it is rounded
