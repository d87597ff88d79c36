"""What follows from the steps of engines: gaps between tokens, token rates, time spent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from mist_sim.metrics import latency, stats
from mist_sim.metrics.latency import Array
from mist_sim.metrics.recorder import ColumnRecorder


def pooled_gaps(recorder: ColumnRecorder, after: float = 0.0) -> Iterator[stats.Weighted]:
    """Yield, client by client, every time between two tokens: seconds, and how many had it.

    after: gaps that end before this time are left out (seconds).
    """
    extra: dict[str, Any] = recorder.gaps.columns()
    counted = extra["time"] >= after
    yield extra["gap"][counted], extra["count"][counted]
    for table, step_ends in zip(recorder.steps, recorder.step_ends, strict=True):
        rows: dict[str, Any] = table.columns()
        ends = np.frombuffer(step_ends, dtype=np.float64)
        gaps, counts = latency.step_gaps(
            rows["start"], rows["num_steps"], rows["num_decodes"], rows["num_gaps"], ends
        )
        counts[ends < after] = 0
        yield gaps, counts


def peak_token_rate(recorder: ColumnRecorder, after: float) -> float:
    """Return the most output tokens in one second (bins from the run's start, seconds)."""
    tokens: dict[str, Any] = recorder.tokens.columns()
    all_seconds, all_counts = [np.empty(0)], [np.empty(0)]
    for track, step_ends in enumerate(recorder.step_ends):
        counts = recorder.decode_tokens(track)
        first = tokens["first_step"][(tokens["track"] == track) & ~tokens["resumed"]]
        np.add.at(counts, first - 1, 1)  # the tokens that prefill emitted
        if not len(counts):
            continue
        seconds = np.floor(np.frombuffer(step_ends))  # never decrease
        starts = np.concatenate(([0], np.flatnonzero(np.diff(seconds)) + 1))
        all_seconds.append(seconds[starts])
        all_counts.append(np.add.reduceat(counts, starts))
    seconds, places = np.unique(np.concatenate(all_seconds), return_inverse=True)
    counts_in = np.bincount(places, np.concatenate(all_counts), minlength=len(seconds))
    return float(counts_in[seconds >= math.floor(after)].max(initial=0.0))


def utilisation(recorder: ColumnRecorder, arrival: Array) -> float:
    """Return the share of time that engines spend in steps, while requests arrive.

    The period runs from the first to the last counted arrival; the mean over engines, and over
    the ranks of a pipeline, which has as many tracks as ranks. Work counts evenly over the run
    of steps that it is in. An engine that decodes one request is busy, so a value near 1 means
    no idle time, not no headroom.
    """
    if not recorder.steps or not len(arrival) or arrival.min() == arrival.max():
        return float("nan")
    begin, end = float(arrival.min()), float(arrival.max())
    busy = 0.0
    for track in range(len(recorder.steps)):
        starts, ends = run_periods(recorder, track)
        inside = np.maximum(np.minimum(ends, end) - np.maximum(starts, begin), 0.0)
        work: Any = recorder.steps[track].columns()["busy"]
        period = ends - starts
        share = np.divide(work, period, out=np.zeros(len(work)), where=period > 0)
        busy += float((inside * share).sum())
    return busy / (end - begin) / len(recorder.steps)


def run_periods(recorder: ColumnRecorder, track: int) -> tuple[Array, Array]:
    """Return when each run of a track began and ended, seconds."""
    rows: dict[str, Any] = recorder.steps[track].columns()
    ends = np.frombuffer(recorder.step_ends[track], dtype=np.float64)
    return rows["start"], ends[np.cumsum(rows["num_steps"]) - 1]
