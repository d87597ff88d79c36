"""Clients in a run: steps, interference of prompts with answers, times in which they were up.

Interference: prompts that are computed in the steps in which a request decodes.

Source: TaiChi (Wang et al., 2025), §2.3.1 and figure 4.

Room: the share of time in which a client's engines could have taken more into their steps.

An engine that decodes one request is busy all the time, though it could decode a hundred more. So
load is measured as time at a limit rather than time in steps: time in steps that hold the largest
number of tokens or sequences, or that leave fewer KV blocks free than a prompt takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from math import ceil, inf, isnan, nan
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.batch import StepLimits
from mist_sim.core.columns import Table
from mist_sim.core.recorder import STATUSES, Recorder
from mist_sim.core.views import State
from mist_sim.hardware.gpu_group import LayoutPeriod
from mist_sim.metrics import latency, stats
from mist_sim.metrics.latency import Array
from mist_sim.metrics.tables import Columns, column, texts
from mist_sim.metrics.together import Tracks, merged, sum_each, together
from mist_sim.units import Seconds

_PIECE = 65_536  # steps looked at together: few enough for a processor's cache
_OF_GAPS = ("start", "num_steps", "num_decodes", "num_gaps")


def pooled_gaps(recorder: Recorder, after: float = 0.0) -> Iterator[stats.Weighted]:
    """Yield, piece by piece, every time between two tokens: seconds, and how many had it.

    after: gaps that end before this time are left out (seconds).
    """
    extra = recorder.gaps.columns()
    counted = extra["time"] >= after
    yield stats.Weighted(extra["gap"][counted], extra["count"][counted])
    for tracks in together(recorder):
        for rows, ends in _pieces(tracks):
            gaps, counts = latency.step_gaps(rows, ends)
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


def timed_gaps(recorder: Recorder, after: float = 0.0) -> TimedGaps:
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
            runs = {name: rows[name][:whole] for name in _OF_GAPS}
            parts.append((ends, *latency.step_gaps(runs, ends)))
    ends, gaps, counts = map(np.concatenate, zip(*parts, strict=True))
    places = np.flatnonzero((counts > 0) & (ends >= after))
    places = places[np.argsort(ends[places], kind="stable")]
    return TimedGaps(ends[places], gaps[places], counts[places])


def gap_percentile(recorder: Recorder, after: float, percentile: float) -> float:
    """Return a percentile (> 0, < 100) of all gaps, seconds; NaN without any."""
    found = stats.describe_weighted(lambda: pooled_gaps(recorder, after), (50.0, percentile))
    return found[f"p{percentile:g}"]


def _pieces(tracks: Tracks) -> Iterator[tuple[dict[str, Any], Array]]:
    """Yield the rows of some runs of tracks, and the ends of their steps, in order."""
    num_steps = tracks.step_cuts[-1]
    rows = {name: tracks.runs[name] for name in _OF_GAPS}
    up_to = np.cumsum(rows["num_steps"])
    cuts = np.searchsorted(up_to, np.arange(_PIECE, num_steps, _PIECE))
    for first, last in pairwise([0, *cuts.tolist(), len(up_to)]):
        if first < last:
            piece = {name: column[first:last] for name, column in rows.items()}
            begin = int(up_to[first] - rows["num_steps"][first])
            yield piece, tracks.between(begin, int(up_to[last - 1]))


def peak_token_rate(
    recorder: Recorder, request_ids: NDArray[np.int64], sent_at: Array, begin: float
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
    recorder: Recorder, request_ids: NDArray[np.int64], sent_at: Array
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
        for name in ("request_id", "track", "first_step", "end_step", "first_count", "resumed")
    }
    sent = sent_at[np.searchsorted(request_ids, columns["request_id"])]
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
    recorder: Recorder, request_ids: NDArray[np.int64], sent_at: Array, time: float
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
    recorder: Recorder, tracks: Tracks, rows: Mapping[str, Any], begin: Any, end: Any
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


def utilisation(recorder: Recorder, arrival: Array) -> float:
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


def run_periods(recorder: Recorder, track: int) -> tuple[Array, Array]:
    """Return when each run of a track began and ended, seconds."""
    rows = recorder.steps[track].columns()
    return rows["start"], recorder.step_ends[track].of(np.cumsum(rows["num_steps"]) - 1)


def interference(recorder: Recorder) -> Array:
    """Return the interference intensity of each row of the requests.

    It is the prompt tokens that the engine of the answer computed between the answer's first and
    last token, divided by the output tokens after the first. TPOT counts the same tokens (the paper
    divides by all output tokens), so TPOT is linear in the intensity wherever step time is linear
    in prompt tokens. Time outside the batch, as after a preemption, does not count. Like TPOT it
    describes the last attempt, and is NaN without a second token.
    """
    requests = recorder.requests.columns()
    order = np.argsort(requests["request_id"])
    ids, computed = requests["request_id"][order], np.zeros(len(order))
    for tracks, rows in _by_tracks(recorder, ids, requests["sent_at"][order]):
        given = tracks.runs["num_prefill_tokens"].astype(np.int64)
        first = np.clip(rows["begin"], rows["first_step"], rows["end_step"])
        before, after = (
            sum_before(tracks.runs["num_steps"], given, steps)
            for steps in (first, rows["end_step"])
        )
        np.add.at(computed, order[np.searchsorted(ids, rows["request_id"])], after - before)
    num_gaps = requests["num_gaps"]
    none = np.full(len(order), np.nan)
    result: Array = np.divide(computed, num_gaps, out=none, where=num_gaps > 0)
    return result


@dataclass(frozen=True)
class InterferenceLaw:
    """TPOT as a line in interference intensity.

    slope: seconds for each prompt token an output token. intercept: seconds of a decode that no
    prompt disturbs. r_squared: the share of TPOT's variance that the line explains.
    """

    slope: Seconds
    intercept: Seconds
    r_squared: float

    @classmethod
    def fit(cls, intensity: Array, tpot: Array) -> InterferenceLaw:
        """Return the least-squares line through requests; NaNs are left out.

        intensity: prompt tokens per output token. tpot: seconds.
        Raises ValueError if fewer than two intensities differ.
        """
        from scipy.stats import linregress  # only now: it takes long to import

        known = ~(np.isnan(intensity) | np.isnan(tpot))
        x, y = np.asarray(intensity)[known], np.asarray(tpot)[known]
        if not len(x) or x.min() == x.max():
            raise ValueError(
                "intensity must have two values that differ, of requests with a TPOT, "
                f"got {len(x)} requests"
            )
        line = linregress(x, y)
        return cls(float(line.slope), float(line.intercept), float(line.rvalue) ** 2)

    def most(self, tpot: Seconds) -> float:
        """Return the intensity (prompt tokens an output token) at which TPOT reaches a value."""
        return (tpot - self.intercept) / self.slope


class LayoutOfClient(TypedDict):
    """A layout of a client, and when it began; seconds of the run.

    start: end of the last step in the layout before; ready: when steps in this one could begin.
    layout: its description. num_gpu_blocks: KV blocks of all its engines. collectives: how they are
        timed, for a client on several nodes.
    """

    client: str
    start: float
    ready: float
    layout: str
    num_gpu_blocks: int
    collectives: NotRequired[str]


def layouts_summary(layouts: Mapping[str, tuple[LayoutPeriod, ...]]) -> list[dict[str, Any]]:
    """Return every layout of each client that changed its layout, a `LayoutOfClient` each."""
    return [
        {"client": name, "start": each.start, "ready": each.ready, "layout": each.title}
        | {"num_gpu_blocks": each.num_gpu_blocks}
        | ({"collectives": each.collectives} if each.collectives else {})
        for name, periods in layouts.items()
        for each in periods
    ]


POWERED: tuple[State, ...] = ("starting", "up", "draining")
"""In which GPUs draw power, if only idle."""
RESERVED: tuple[State, ...] = (*POWERED, "failed")
"""In which GPUs are paid for."""


class Period(NamedTuple):
    """A client was in a state from start to end, seconds."""

    client_id: int
    state: State
    start: float
    end: float


class Lives:
    """The states of all clients in a run; without records of states, all clients are up throughout.

    end: end of the run, seconds.
    """

    def __init__(self, recorder: Recorder, end: float) -> None:
        self.end = end
        names = recorder.states.names
        self._changes_of: dict[int, list[tuple[float, State]]] = defaultdict(list)
        for client_id, time, state in _rows(recorder.states, "client_id", "time", "state"):
            self._changes_of[client_id].append((time, names[state]))
        self._made_up: dict[int, list[float]] = defaultdict(list)
        for client_id, time in _rows(recorder.made_up, "client_id", "time"):
            self._made_up[client_id].append(time)
        self._of: dict[int, list[Period]] = {}
        for client_id, mine in self._changes_of.items():
            ends = [*(time for time, _ in mine[1:]), max(end, mine[-1][0])]
            self._of[client_id] = [
                Period(client_id, state, start, until)
                for (start, state), until in zip(mine, ends, strict=True)
                if until > start
            ]

    @property
    def is_told(self) -> bool:
        """Whether clients change their states."""
        return bool(self._of)

    @property
    def periods(self) -> list[Period]:
        """All periods, by client and in order of time."""
        return [period for client_id in sorted(self._of) for period in self._of[client_id]]

    def count(self, state: State, begin: float = 0.0) -> int:
        """Return how often clients came into a state from a time on, if only for an instant."""
        every = self._changes_of.values()
        return sum(each == state and time >= begin for mine in every for time, each in mine)

    @property
    def failures(self) -> list[tuple[float, float]]:
        """When clients failed, and until when each was missing, seconds; infinite for good.

        That is until it is up again, or its autoscaled group has its wanted number of clients.
        """
        found = []
        for client_id, mine in self._changes_of.items():
            up = [time for time, each in mine if each == "up"]
            made_up = self._made_up[client_id]
            for time in (time for time, each in mine if each == "failed"):
                ends = [t for t in up if t > time] + [t for t in made_up if t >= time]
                found.append((time, min(ends, default=inf)))
        return found

    def seconds(self, client_id: int, states: Collection[State], begin: float = 0.0) -> float:
        """Return how long a client was in some states from a time on."""
        if client_id not in self._of:
            return max(self.end - begin, 0.0)
        return sum(
            max(period.end - max(period.start, begin), 0.0)
            for period in self._of[client_id]
            if period.state in states
        )


def _rows(table: Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of some columns of a table."""
    columns = table.columns()
    return zip(*(columns[name].tolist() for name in names), strict=True)


def states_columns(lives: Lives, client_names: Sequence[str]) -> Columns:
    """A row a period of a client in one state, seconds; empty where all are up all the time."""
    periods = lives.periods
    return {
        "client": texts(client_names[period.client_id] for period in periods),
        "state": texts(period.state for period in periods),
        "start": column(period.start for period in periods),
        "end": column(period.end for period in periods),
    }


class OfClients(TypedDict, total=False):
    """Figures of clients that have limits, and of those that fail, start or leave."""

    room: float
    room_limit: str
    num_lost: int
    num_lost_visits: int
    num_retried_visits: int
    lost_kv_tokens: int
    num_client_failures: int
    num_client_starts: int
    mean_clients_up: float


def lives_summary(recorder: Recorder, lives: Lives, statuses: Any, begin: float) -> OfClients:
    """Return failures, starts and losses of clients; empty if no client changed its state.

    statuses: of the requests that count. begin: end of the warm-up; clients count from there on.
    """
    if not lives.is_told:
        return {}
    losses = recorder.losses.columns()
    ids = {period.client_id for period in lives.periods}
    seconds = max(lives.end - begin, 0.0)
    up = sum(lives.seconds(client_id, ("up", "draining"), begin) for client_id in ids)
    return {
        "num_lost": int((statuses == STATUSES.index("lost")).sum()),
        "num_lost_visits": len(losses["time"]),
        "num_retried_visits": int(losses["retried"].sum()),
        "lost_kv_tokens": int(losses["num_tokens"].sum()),
        "num_client_failures": lives.count("failed", begin),
        "num_client_starts": lives.count("starting", begin),
        "mean_clients_up": up / seconds if seconds else 0.0,
    }


class Room(NamedTuple):
    """Shares of the time from the first to the last arrival, over all engines of a client.

    room: without a step, or in steps at no limit. at_tokens: in steps with `max_num_batched_tokens`
        tokens; at_sequences: with `max_num_seqs` requests; at_memory: in steps that leave fewer KV
        blocks free than a prompt of mean length takes (all steps, if the cache has fewer in all),
        or than the longest takes, if requests wait meanwhile and the steps are at no other limit.
        at_adapters: in steps while requests wait since `max_loras` other adapters are in use.
        NaN if unknown.
    """

    room: float = nan
    at_tokens: float = nan
    at_sequences: float = nan
    at_memory: float = nan
    at_adapters: float = nan

    @property
    def limit(self) -> str:
        """The option or memory whose limit was reached longest; empty if none was."""
        shares = dict(zip(_LIMITS, self[1:], strict=True))
        longest = max(_LIMITS, key=lambda name: shares[name])
        return longest if shares[longest] > 0 else ""


_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "KV memory", "max_loras")


def rooms(
    recorder: Recorder,
    limits: Sequence[StepLimits | None],
    arrival: Array,
    prompt_tokens: NDArray[np.int64],
) -> list[Room]:
    """Return the room of each client; unknown if all requests arrive at once.

    limits: of each client; None if unknown. arrival, prompt_tokens: of the requests that count,
        seconds and lengths.
    """
    if not len(arrival) or arrival.min() == arrival.max():
        return [Room()] * len(limits)
    begin, end = float(arrival.min()), float(arrival.max())
    mean, longest = float(prompt_tokens.mean()), int(prompt_tokens.max())
    limited = [
        _LimitedTrack(
            track, client_id, each, sequences, _blocks_of(mean, each), _blocks_of(longest, each)
        )
        for client_id, each in enumerate(limits)
        if each is not None
        for track, sequences in zip(recorder.tracks_of(client_id), each.sequences, strict=True)
    ]
    sums, found = _seconds_at_limits(recorder, limited, limits, begin, end), []
    for each, seconds in zip(limits, sums, strict=True):
        if each is None:
            found.append(Room())
            continue
        shares = seconds / (len(each.sequences) * (end - begin))
        if _blocks_of(mean, each) > each.num_blocks:
            shares[[0, 3]] = 1.0  # also while it has nothing to do
        found.append(Room(1 - shares[0], *shares[1:].tolist()))
    return found


def room_summary(found: Sequence[Room], names: Sequence[str]) -> OfClients:
    """Return the room of the client with the least, and which limit it reached longest, if any.

    names: of the clients. NaN if no client's room is known.
    """
    known = [(float(each.room), each, name) for each, name in zip(found, names, strict=True)]
    known = [each for each in known if each[0] == each[0]]
    if not known:
        return {"room": nan}
    share, least, name = min(known, key=lambda each: each[0])
    if not least.limit:
        return {"room": share}
    return {"room": share, "room_limit": f"{least.limit} at {name}"}


def room_columns(found: Sequence[Room]) -> Columns:
    """Return the columns of the table of clients."""
    return {name: column(getattr(each, name) for each in found) for name in Room._fields}


class _LimitedTrack(NamedTuple):
    """A track and its steps' limits. needed, longest: KV blocks of the mean and longest prompt."""

    number: int
    client_id: int
    limits: StepLimits
    sequences: int
    needed: int
    longest: int


def _seconds_at_limits(
    recorder: Recorder,
    all_tracks: Sequence[_LimitedTrack],
    limits: Sequence[StepLimits | None],
    begin: float,
    end: float,
) -> Array:
    """Return the seconds between two times that each client's steps were at any limit, and at each.

    They are summed over its tracks.
    """
    sums = np.zeros((len(limits), 1 + len(_LIMITS)))
    waits = _adapter_waits(recorder, limits)
    rest = iter(all_tracks)
    for tracks in together(recorder, [track.number for track in all_tracks]):
        tracks = merged(recorder, tracks)  # noqa: PLW2901
        mine = list(islice(rest, len(tracks.numbers)))
        begins = np.clip(tracks.runs["start"], begin, end)
        ends = np.clip(tracks.run_ends(), begins, end)
        at = _at_limits(tracks, mine)
        at = np.vstack([at.any(axis=0), at])
        for track, (first, last) in zip(mine, pairwise(tracks.run_cuts), strict=True):
            here = slice(first, last)
            inside = ends[here] - begins[here]
            seconds = [float(inside[each[here]].sum()) for each in at]
            waited = _seconds_inside(waits.get(track.number), begins[here], ends[here])
            seconds[0] += float(waited[~at[0][here]].sum())
            sums[track.client_id] += [*seconds, float(waited.sum())]
    return sums


def _at_limits(tracks: Tracks, limited: Sequence[_LimitedTrack]) -> NDArray[np.bool_]:
    """Return which runs of steps of some tracks are at which limit, a row a limit."""
    limits = [
        (*track.limits[:2], track.sequences, track.limits.num_blocks, *track[-2:])
        for track in limited
    ]
    of_runs = np.repeat(np.array(limits).T, np.diff(tracks.run_cuts), axis=1)
    most_tokens, tokens_a_decode, most_sequences, num_blocks, needed, longest = of_runs
    decodes = tracks.runs["num_decodes"].astype(np.int64)
    free = num_blocks - tracks.runs["num_used_blocks"]
    at_tokens = tracks.runs["num_prefill_tokens"] + decodes * tokens_a_decode >= most_tokens
    at_sequences = tracks.runs["num_chunks"] + decodes >= most_sequences
    is_stuck = _waits(tracks) & ~at_tokens & ~at_sequences
    return np.array([at_tokens, at_sequences, (free < needed) | (is_stuck & (free < longest))])


def _waits(tracks: Tracks) -> NDArray[np.bool_]:
    """Return in which runs of steps requests wait that came before the run ahead of it.

    One that comes while a step runs may wait for the next plan but one, whatever the room.
    """
    at_end = tracks.runs["num_waiting"] > 0
    found: NDArray[np.bool_] = at_end.copy()
    found[:2] = False
    found[2:] &= at_end[1:-1] & at_end[:-2]
    for cut in tracks.run_cuts[:-1]:  # the runs before are of another track
        found[cut : cut + 2] = False
    return found


def _blocks_of(prompt_tokens: float, limits: StepLimits) -> int:
    """Return the KV blocks of a prompt, 1 at least; with windows, in each group of layers."""
    return max(ceil(prompt_tokens / limits.block_size), 1) * limits.blocks_each


_FREED, _LEFT_QUEUE, _QUEUED, _TAKEN = range(4)  # order of what happens at one time


def _adapter_waits(
    recorder: Recorder, limits: Sequence[StepLimits | None]
) -> dict[int, tuple[Array, Array]]:
    """Return from when to when requests wait for a slot, seconds, by track; no two times overlap.

    limits: of each client; None if unknown. A request takes its adapter's slot from its start to
    its end, also while it is preempted.
    """
    if not recorder.adapters:
        return {}
    names = np.array(recorder.adapters)
    visits = recorder.visits.columns()
    tracks = _first_tracks(recorder)
    events: dict[int, list[tuple[float, int, int]]] = {}
    of_users = np.flatnonzero(visits["request_id"] >= 0)
    columns = ("request_id", "client_id", "queued_at", "started_at", "finished_at")
    for request_id, client_id, queued, started, finished in zip(
        *(visits[name][of_users].tolist() for name in columns), strict=True
    ):
        adapter, of = int(names[request_id]), limits[client_id]
        if adapter and of is not None and of.adapters:
            known = tracks.get((request_id, client_id))
            first = next(iter(recorder.tracks_of(client_id)), None)
            if (track := first if known is None else known) is None:
                continue
            mine = events.setdefault(track, [])
            begun = finished if isnan(started) else started
            mine += [(queued, _QUEUED, adapter), (begun, _LEFT_QUEUE, adapter)]
            if begun < finished:
                mine += [(begun, _TAKEN, adapter), (finished, _FREED, adapter)]
    found = {}
    for track, mine in events.items():
        of = limits[recorder.track_clients[track]]
        found[track] = _waits_in(sorted(mine), of.adapters if of else 0)
    return found


def _first_tracks(recorder: Recorder) -> dict[tuple[int, int], int]:
    """Return where requests had their first tokens, by request and client."""
    tokens = recorder.tokens.columns()
    pairs = zip(tokens["request_id"].tolist(), tokens["track"].tolist(), strict=True)
    found: dict[tuple[int, int], int] = {}
    for request_id, track in pairs:
        found.setdefault((request_id, recorder.track_clients[track]), track)
    return found


def _waits_in(events: Sequence[tuple[float, int, int]], slots: int) -> tuple[Array, Array]:
    """Return begins and ends of waits for one of so many slots. events: sorted by time."""
    waiting, running = Counter[int](), Counter[int]()
    num_held = num_used = 0  # requests that wait for a slot; slots in use
    begins, ends = list[float](), list[float]()
    is_held = False
    for time, kind, adapter in events:
        if kind == _QUEUED:
            waiting[adapter] += 1
            num_held += not running[adapter]
        elif kind == _LEFT_QUEUE:
            waiting[adapter] -= 1
            num_held -= not running[adapter]
        elif kind == _TAKEN:
            running[adapter] += 1
            if running[adapter] == 1:
                num_used += 1
                num_held -= waiting[adapter]
        else:
            running[adapter] -= 1
            if not running[adapter]:
                num_used -= 1
                num_held += waiting[adapter]
        now = num_used >= slots and num_held > 0
        if now != is_held:
            (begins if now else ends).append(time)
            is_held = now
    if is_held:
        ends.append(events[-1][0])
    return np.array(begins), np.array(ends)


def _seconds_inside(waits: tuple[Array, Array] | None, begins: Any, ends: Any) -> Array:
    """Return the seconds of such times between begins and ends; none without any."""
    if waits is None or not len(waits[0]):
        return np.zeros(len(begins))
    edges = np.ravel(np.column_stack(waits))
    sums = np.concatenate([[0.0], np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0))])
    return np.asarray(np.interp(ends, edges, sums) - np.interp(begins, edges, sums))
