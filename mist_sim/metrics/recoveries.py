"""Latencies around failures, and how long they take to return to their level before each one.

Requests are taken twenty at a time, in the order of their arrival. Before the first failure one in
ten is slower than nine in ten of that time; of twenty as usual, more than five are so in 1.1 % of
the cases. Two such groups in a row are a disturbance. A client is away until it is up again, or
until its autoscaled group has its wanted number of clients. The last disturbance that begins then
ends with the first two groups in a row that are as usual, arrive after the last client is back, of
those that come back, and are followed by no disturbance for as long as nine in ten requests took
before: an empty client that returns fills with answers that all end at once, and again. From their
arrival on, latencies are back. That is judged of TTFT, TPOT, E2E and the wait in queues, each for
itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, nan
from typing import Any, TypedDict

import numpy as np

from mist_sim.metrics.latency import SHORT_NAMES, Array
from mist_sim.metrics.requests import Mask
from mist_sim.metrics.stats import describe

FEWEST = 100
"""Requests that end before the first failure, of which nine in ten say what is usual."""

PHASES = ("before", "during", "after")
"""Of failures, for a request: it ended before the first one, lived while a client was away or was
lost as it failed, or neither."""

RECOVERING = {**SHORT_NAMES, "queue": "queue"}
"""Latencies that failures disturb, by their keys, as text calls them."""

_GROUP = 20
_MOST_SLOW = 5  # of a group: of 20, each slow in 1 of 10 cases, more are in 1.1 %
_USUAL = 0.9
_IN_A_ROW = 2


class Outage(TypedDict):
    """A time in which a failed client was missing, seconds. end: None for good."""

    begin: float
    end: float | None


class PhaseFigures(TypedDict):
    """Requests before, during or after failures; p99 of the finished ones in milliseconds."""

    completed: int
    failed: int
    p99_ttft_ms: float
    p99_tpot_ms: float
    p99_e2el_ms: float
    p99_queue_ms: float
    arrivals_per_s: float


class Recovery(TypedDict):
    """Latencies after a failure, or after several before whose end they were not back.

    begin, end: when the first and the last of them happened, seconds. back_after: seconds from
    `begin` until latencies were as before, by metric: 0 where they always were, None where they
    were not before the last arrival.
    """

    begin: float
    end: float
    back_after: dict[str, float | None]


def outages(absences: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the times in which at least one client was away, in order, seconds.

    absences: from when to when each client was away that failed; infinite for good.
    """
    found: list[tuple[float, float]] = []
    for begin, end in sorted(absences):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def through_failures(
    absences: Sequence[tuple[float, float]], columns: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Return the figures of the requests of each of `PHASES`; NaN where none has a figure.

    absences, columns: as of `recoveries`. completed, failed: numbers of requests. p99_ttft_ms, ...:
    of the finished ones. arrivals_per_s: in the time before the first failure, while a client was
    away, and in the rest.
    """
    away = outages(absences)
    arrival, ended, is_done = (columns[n] for n in ("arrival_time", "finished_at", "is_done"))
    is_during = np.zeros(len(arrival), bool)
    rates = _rates(away, arrival)
    for begin, end in away:
        is_lost = (ended == begin) & ~is_done  # by the failure itself
        is_during |= (arrival < end) & ((ended > begin) | is_lost)
    is_before = (ended <= min((begin for begin, _ in away), default=inf)) & ~is_during
    found = {}
    for phase, mine in zip(PHASES, (is_before, is_during, ~is_before & ~is_during), strict=True):
        done = mine & is_done
        num_done = int(done.sum())
        figures: dict[str, float] = {"completed": num_done, "failed": int(mine.sum()) - num_done}
        for metric in RECOVERING:
            values = columns[metric][done]
            figures[f"p99_{metric}_ms"] = 1e3 * describe(values[~np.isnan(values)])["p99"]
        found[phase] = figures | {"arrivals_per_s": rates[phase]}
    return found


def _rates(away: Sequence[tuple[float, float]], arrival: Array) -> dict[str, float]:
    """Return the arrivals a second of each of `PHASES`; NaN for a phase of no time."""
    first, last = (float(arrival.min()), float(arrival.max())) if len(arrival) else (0.0, 0.0)
    edges = np.clip([first, *np.ravel(away), last], first, last)
    number = np.histogram(arrival, edges)[0] if last > first else np.zeros(len(edges) - 1)
    counts = {"before": number[:1], "during": number[1::2], "after": number[2::2]}
    seconds = np.diff(edges)
    spans = {"before": seconds[:1], "during": seconds[1::2], "after": seconds[2::2]}
    return {
        phase: float(counts[phase].sum() / span.sum()) if span.sum() > 0 else nan
        for phase, span in spans.items()
    }


def recoveries(
    absences: Sequence[tuple[float, float]], columns: Mapping[str, Any]
) -> list[Recovery]:
    """Return when latencies were back after each failure, in order.

    absences: from when to when each client was away that failed, seconds; infinite for good.
    columns: of the requests that count: arrival_time, finished_at, whether each is_done, and its
    latencies, seconds; what failed counts as slower than all others.
    Empty if fewer than `FEWEST` requests finished before the first failure.
    """
    begins = sorted({begin for begin, _ in absences})
    order = np.argsort(columns["arrival_time"], kind="stable")
    c = {name: columns[name][order] for name in (*RECOVERING, "arrival_time", "finished_at")}
    is_done: Mask = columns["is_done"][order]
    before = is_done & (c["finished_at"] <= min(begins, default=-inf))
    slow = {}
    for metric in RECOVERING:
        values = np.where(is_done, c[metric], inf)
        usual = values[before & ~np.isnan(values)]
        if len(usual) >= FEWEST:
            slow[metric] = values > np.quantile(usual, _USUAL), ~np.isnan(values)
    if not slow:
        return []
    lap = float(np.quantile(c["finished_at"][before] - c["arrival_time"][before], _USUAL))
    return list(_each(begins, absences, c["arrival_time"], slow, lap))


def _each(
    begins: Sequence[float],
    absences: Sequence[tuple[float, float]],
    arrival: Array,
    slow: Mapping[str, tuple[Mask, Mask]],
    lap: float,
) -> Iterator[Recovery]:
    """Yield each failure with those that follow before latencies are back.

    lap: seconds without a disturbance after which they are.
    """
    begin = begins[0]
    for last, until in zip(begins, [*begins[1:], inf], strict=True):
        ends = {end for start, end in absences if start <= last}
        there, returned = max(ends), max(ends - {inf}, default=-inf)
        after = (arrival >= last) & (arrival < until)
        back = {
            metric: _back_at(arrival[after & known], is_slow[after & known], there, returned, lap)
            for metric, (is_slow, known) in slow.items()
        }
        if until == inf or None not in back.values():
            waits = {
                name: None if at is None else max(at - begin, 0.0) for name, at in back.items()
            }
            yield {"begin": begin, "end": last, "back_after": waits}
            begin = until


def _back_at(
    arrival: Array, is_slow: Mask, there: float, returned: float, lap: float
) -> float | None:
    """Return the arrival from which on latencies are as usual; minus infinity: they always were.

    there: when all clients are there again, seconds; infinite where one never is. returned: when
    the last of those that come back is. None: not before the last arrival.
    """
    num_groups = len(arrival) // _GROUP
    if num_groups < _IN_A_ROW:
        return None
    of_groups = is_slow[: num_groups * _GROUP].reshape(num_groups, _GROUP).sum(axis=1)
    is_usual = of_groups <= _MOST_SLOW
    begins = arrival[: num_groups * _GROUP : _GROUP]
    disturbed = np.flatnonzero(~is_usual[:-1] & ~is_usual[1:])
    first = disturbed[disturbed < np.searchsorted(begins, there) + _IN_A_ROW]
    if not len(first):
        return -inf
    usual = np.flatnonzero(is_usual[:-1] & is_usual[1:])
    usual = usual[(usual > first[-1]) & (begins[usual] >= returned)]
    following = np.append(begins[disturbed], inf)[np.searchsorted(disturbed, usual)]
    lasting = usual[following - begins[usual] > lap]
    return float(begins[lasting[0]]) if len(lasting) else None
