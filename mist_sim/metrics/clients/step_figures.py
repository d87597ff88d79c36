"""Figures from the steps of engines: gaps between tokens, token rates, time spent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics import latency, stats
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.records.together import Tracks, sum_each, together

_PIECE = 65_536  # steps looked at together: few enough for a processor's cache


def pooled_gaps(recorder: ColumnRecorder, after: float = 0.0) -> Iterator[stats.Weighted]:
    """Yield, piece by piece, every time between two tokens: seconds, and how many had it.

    after: gaps that end before this time are left out (seconds).
    """
    extra = recorder.gaps.columns()
    counted = extra["time"] >= after
    yield stats.Weighted(extra["gap"][counted], extra["count"][counted])
    for tracks in together(recorder):
        for rows, ends in _pieces(tracks):
            gaps, counts = latency.step_gaps(
                rows["start"], rows["num_steps"], rows["num_decodes"], rows["num_gaps"], ends
            )
            counts[ends < after] = 0
            one = len(tracks.ends) == 1  # whose pieces count as parts
            yield stats.Weighted(gaps, counts, None if one else tracks.step_cuts)


class TimedGaps(NamedTuple):
    """Gaps between tokens in the order in which they end.

    ends, gaps: seconds. counts: how many requests had each, above 0.
    """

    ends: Array
    gaps: Array
    counts: NDArray[np.int64]


def timed_gaps(recorder: ColumnRecorder, after: float = 0.0) -> TimedGaps:
    """Return all gaps by their time, even while the run goes on. after: as in `pooled_gaps`.

    The newest steps of a track, up to some hundred, are written later, and are left out until then.
    """
    extra = recorder.gaps.columns()
    parts = [(extra["time"], extra["gap"], extra["count"])]
    for steps, all_ends in zip(recorder.steps, recorder.step_ends, strict=True):
        rows = steps.columns()
        up_to = np.cumsum(rows["num_steps"])
        whole = int(np.searchsorted(up_to, len(all_ends), "right"))
        if whole:
            ends = all_ends[: int(up_to[whole - 1])]
            runs = {name: column[:whole] for name, column in rows.items()}
            found = latency.step_gaps(
                runs["start"], runs["num_steps"], runs["num_decodes"], runs["num_gaps"], ends
            )
            parts.append((ends, *found))
    ends, gaps, counts = map(np.concatenate, zip(*parts, strict=True))
    places = np.flatnonzero((counts > 0) & (ends >= after))
    places = places[np.argsort(ends[places], kind="stable")]
    return TimedGaps(ends[places], gaps[places], counts[places])


def gap_percentile(recorder: ColumnRecorder, after: float, percentile: float) -> float:
    """Return a percentile (> 0, < 100) of all gaps, seconds; NaN without any."""
    found = stats.describe_weighted(lambda: pooled_gaps(recorder, after), (50.0, percentile))
    return found[f"p{percentile:g}"]


def _pieces(tracks: Tracks) -> Iterator[tuple[dict[str, Any], Array]]:
    """Yield the rows of some runs of tracks, and the ends of their steps, in order."""
    names, num_steps = ("start", "num_steps", "num_decodes", "num_gaps"), tracks.step_cuts[-1]
    rows = {name: tracks.runs[name] for name in names}
    up_to = np.cumsum(rows["num_steps"])
    cuts = np.searchsorted(up_to, np.arange(_PIECE, num_steps, _PIECE))
    for first, last in pairwise([0, *cuts.tolist(), len(up_to)]):
        if first < last:
            piece = {name: column[first:last] for name, column in rows.items()}
            begin = int(up_to[first] - rows["num_steps"][first])
            yield piece, tracks.between(begin, int(up_to[last - 1]))


def peak_token_rate(
    recorder: ColumnRecorder, request_ids: NDArray[np.int64], sent_at: Array, begin: float
) -> float:
    """Return the largest number of output chunks in one second, over the last attempts of requests.

    Tokens of one step (verified drafts) form one chunk. Same definition as
    `max_output_tokens_per_s` in `calculate_metrics` of vllm/benchmarks/serve.py, which counts
    stream deliveries.

    request_ids: in order. sent_at: when each was sent for the last time, seconds. begin: where the
    first second begins, seconds.
    """
    all_seconds, all_counts = [np.empty(0)], [np.empty(0)]
    for tracks, rows in _by_tracks(recorder, request_ids, sent_at):
        for ends, chunks in _chunks(tracks, rows):
            seconds = np.floor(ends - begin)
            starts = np.flatnonzero(np.diff(seconds, prepend=np.nan))
            all_seconds.append(seconds[starts])
            all_counts.append(np.add.reduceat(chunks, starts))
    _, places = np.unique(np.concatenate(all_seconds), return_inverse=True)
    return float(np.bincount(places, np.concatenate(all_counts)).max(initial=0.0))


def _by_tracks(
    recorder: ColumnRecorder, request_ids: NDArray[np.int64], sent_at: Array
) -> Iterator[tuple[Tracks, dict[str, Any]]]:
    """Yield the tokens of some requests by tracks put together, in their order there.

    The parameters are those of `peak_token_rate`. Steps are numbered over the tracks together.
    begin: the first step after each was sent. place: of its track in them.
    """
    tokens = recorder.tokens.columns()
    places = np.flatnonzero(np.isin(tokens["request_id"], request_ids))
    places = places[np.argsort(tokens["track"][places], kind="stable")]
    columns = {
        name: tokens[name][places]
        for name in ("track", "first_step", "end_step", "first_count", "resumed")
    }
    sent = sent_at[np.searchsorted(request_ids, tokens["request_id"][places])]
    numbers, firsts = np.unique(columns["track"], return_index=True)
    rest = [*firsts.tolist(), len(places)]
    for tracks in together(recorder, numbers.tolist()):
        cuts, rest = np.array(rest[: len(tracks.numbers) + 1]), rest[len(tracks.numbers) :]
        first, last = int(cuts[0]), int(cuts[-1])
        rows = {name: column[first:last] for name, column in columns.items()}
        rows["place"] = place = np.repeat(np.arange(len(tracks.numbers)), np.diff(cuts))
        before = np.array(tracks.step_cuts)[place]
        rows["first_step"], rows["end_step"] = (
            rows["first_step"] + before,
            rows["end_step"] + before,
        )
        rows["begin"] = tracks.number_until(sent[first:last], (cuts - first).tolist())
        yield tracks, rows


def _chunks(tracks: Tracks, rows: Mapping[str, Any]) -> Iterator[tuple[Array, NDArray[np.int64]]]:
    """Yield some steps at a time: their ends, and to how many of some requests each gave output.

    rows: of the tokens, on those tracks.
    """
    runs, begin = tracks.runs, rows["begin"]
    up_to, is_decode = np.cumsum(runs["num_steps"]), runs["num_decodes"] > 0
    joins = np.sort(np.clip(begin, rows["first_step"], rows["end_step"]))
    leaves = np.sort(rows["end_step"])
    prompts = np.sort((rows["first_step"] - 1)[~rows["resumed"] & (rows["first_step"] > begin)])
    inside = 0
    for first, ends in tracks.pieces():
        last = first + len(ends)
        begun, ended = np.searchsorted(up_to, (first, last - 1), "right")
        here = slice(begun, ended + 1)  # the runs that these steps are of
        lengths = np.diff(up_to[here].clip(max=last), prepend=first)
        more = _numbers(joins, first, last) - _numbers(leaves, first, last)
        decoding = inside + np.cumsum(more)
        inside = decoding[-1]
        decoding *= np.repeat(is_decode[here], lengths)
        yield ends, decoding + _numbers(prompts, first, last)


def _numbers(values: NDArray[np.int64], first: int, last: int) -> NDArray[np.int64]:
    """Return how often each number from `first` to the one before `last` is in sorted values."""
    begin, end = np.searchsorted(values, (first, last))
    return np.bincount(values[begin:end] - first, minlength=last - first)


def sum_before(num_steps: Any, each_step: Any, steps: NDArray[np.int64]) -> Array:
    """Return the sum over all steps before each given step; the steps of a run share one value."""
    num_steps = num_steps.astype(np.int64)
    up_to, given = np.cumsum(num_steps), np.cumsum(num_steps * each_step)
    run = np.minimum(np.searchsorted(up_to, steps, "right"), len(up_to) - 1)
    found: Array = given[run] - (up_to[run] - steps) * each_step[run]
    return found


def output_tokens_before(
    recorder: ColumnRecorder, request_ids: NDArray[np.int64], sent_at: Array, time: float
) -> int:
    """Return the output tokens of some requests before a time, in their last attempts.

    request_ids: in order. sent_at: last sending of each, seconds. A token without a known step,
        from a client without steps, does not count.
    """
    num_tokens, before = 0, np.nextafter(time, -np.inf)
    for tracks, rows in _by_tracks(recorder, request_ids, sent_at):
        times = np.full(len(tracks.numbers), before)
        ends = tracks.number_until(times, range(len(times) + 1))
        begin, end = rows["begin"], ends[rows["place"]]
        by_prompt = rows["first_step"] - 1
        is_first = ~rows["resumed"] & (by_prompt >= begin) & (by_prompt < end)
        num_tokens += int(np.count_nonzero(is_first))
        num_tokens += _decoded_between(recorder, tracks, rows, begin, end)
    return num_tokens


def _decoded_between(
    recorder: ColumnRecorder, tracks: Tracks, rows: Mapping[str, Any], begin: Any, end: Any
) -> int:
    """Return how many tokens the decode steps [begin, end) of tracks gave in some token rows."""
    runs = tracks.runs
    is_decode = (runs["num_decodes"] > 0).astype(np.int64)
    first, last = rows["first_step"], rows["end_step"]
    low = np.clip(begin, first, last)
    high = np.clip(end, low, last)
    at_first, at_low, at_high = (
        sum_before(runs["num_steps"], is_decode, steps) for steps in (first, low, high)
    )
    place = rows["first_count"]
    one_each = place < 0
    num_tokens = int((at_high - at_low)[one_each].sum())
    for row in np.flatnonzero(~one_each).tolist():
        start = place[row] - at_first[row]
        num_tokens += sum(recorder.token_counts[start + at_low[row] : start + at_high[row]])
    return num_tokens


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
    for tracks in together(recorder):
        starts, ends, work = tracks.runs["start"], tracks.run_ends(), tracks.runs["busy"]
        inside = np.maximum(np.minimum(ends, end) - np.maximum(starts, begin), 0.0)
        period = ends - starts
        share = np.divide(work, period, out=np.zeros(len(work)), where=period > 0)
        for seconds in sum_each(inside * share, tracks.run_cuts):
            busy += seconds
    clients = set(recorder.track_clients)
    num_tracks = sum(recorder.mean_tracks(client_id, begin, end) for client_id in clients)
    return busy / (end - begin) / num_tracks


def run_periods(recorder: ColumnRecorder, track: int) -> tuple[Array, Array]:
    """Return when each run of a track began and ended, seconds."""
    rows = recorder.steps[track].columns()
    return rows["start"], recorder.step_ends[track].of(np.cumsum(rows["num_steps"]) - 1)
