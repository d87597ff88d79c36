"""Clients over time: service rates, utilisation, queues, power, in equal intervals.

Everything follows from the records, after the run. Sums over the intervals are the totals of the
run: rates times seconds are the tokens and visits of the clients, watts times seconds their joules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from mist_sim.metrics.clients.lives import POWERED
from mist_sim.metrics.clients.step_figures import run_periods
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.spending.energy import Ledger
from mist_sim.metrics.tables.tabular import Columns, concatenated

_DEFAULT_INTERVALS = 100
_MOST_INTERVALS = 100_000


def over_time_columns(
    recorder: ColumnRecorder,
    ledger: Ledger,
    client_names: Sequence[str],
    interval: float | None = None,
) -> Columns:
    """Return a row per client and interval, client by client.

    interval: seconds (> 0); None: a hundredth of the run. The last one may be shorter.

    start, end: seconds. visits, prefill_tokens, output_tokens: rates per second of visits that
        ended, prompt tokens computed and tokens emitted; tokens count at the end of their step.
        busy: seconds of work per second, as in the table of clients. utilisation: `busy` divided by
        the number of engines and pipeline ranks; NaN for clients without steps. num_waiting,
        num_in_service: visits in the queue and in service, mean over the interval. power: mean
        watts, idle power included; only with clients that have GPUs.

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
    elif not 0 < interval < math.inf:
        raise ValueError(f"interval must be finite and > 0 s, got {interval}")
    if not end:
        return np.zeros(1)
    if end / interval > _MOST_INTERVALS:
        least = end / _MOST_INTERVALS
        raise ValueError(f"interval must be >= {least:.3g} s in a run of {end:g} s, got {interval}")
    number = max(math.ceil(end / interval * (1 - 1e-12)), 1)
    return np.append(np.arange(number) * interval, end)


def _sums(recorder: ColumnRecorder, client_id: int, edges: Array) -> dict[str, Array]:
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


def _track_sums(recorder: ColumnRecorder, track: int, edges: Array) -> tuple[Array, Array, Array]:
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
    spent = _since(entered, edges) - _since(left, edges)
    return np.asarray(np.maximum.accumulate(spent))  # it never falls, but where it is rounded


def _since(times: Array, edges: Array) -> Array:
    """Return the seconds since each time, summed over the times before each edge."""
    times = np.sort(times)
    number = np.searchsorted(times, edges, side="right")
    up_to = np.concatenate([[0.0], np.cumsum(times)])
    return np.asarray(number * edges - up_to[number])
