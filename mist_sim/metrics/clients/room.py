"""Room: the share of time in which a client's engines could have taken more into their steps.

An engine that decodes one request is busy all the time, though it could decode a hundred more. So
load is measured as time at a limit rather than time in steps: time in steps that hold the largest
number of tokens or sequences, or that leave fewer KV blocks free than a prompt takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from math import ceil, nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.step_limits import StepLimits
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.records.together import Tracks, merged, together
from mist_sim.metrics.tables.tabular import Columns, column


class Room(NamedTuple):
    """Shares of the time from the first to the last arrival, over all engines of a client.

    room: without a step, or in steps at no limit. at_tokens: in steps with `max_num_batched_tokens`
        tokens; at_sequences: with `max_num_seqs` requests; at_memory: in steps that leave fewer KV
        blocks free than a prompt of mean length takes (all steps, if the cache has fewer in all).
        NaN if unknown.
    """

    room: float = nan
    at_tokens: float = nan
    at_sequences: float = nan
    at_memory: float = nan

    @property
    def limit(self) -> str:
        """The option or memory whose limit was reached longest; empty if none was."""
        shares = dict(zip(_LIMITS, self[1:], strict=True))
        longest = max(_LIMITS, key=lambda name: shares[name])
        return longest if shares[longest] > 0 else ""


_LIMITS = ("max_num_batched_tokens", "max_num_seqs", "KV memory")


def rooms(
    recorder: ColumnRecorder, limits: Sequence[StepLimits | None], warmup: float
) -> list[Room]:
    """Return the room of each client.

    limits: of each client; None if unknown. warmup: seconds whose arrivals do not count. Room is
        unknown if all requests arrive at once.
    """
    requests = recorder.requests.columns()
    of_users = requests["parent_id"] == requests["request_id"]
    counted = of_users & (requests["arrival_time"] >= warmup)
    arrival: Array = requests["arrival_time"][counted]
    if not len(arrival) or arrival.min() == arrival.max():
        return [Room()] * len(limits)
    begin, end = float(arrival.min()), float(arrival.max())
    prompt_tokens = float(requests["num_prompt_tokens"][counted].mean())
    needed = [0 if each is None else _blocks_of(prompt_tokens, each) for each in limits]
    all_tracks = [
        _LimitedTrack(track, client_id, each, sequences, needed[client_id])
        for client_id, each in enumerate(limits)
        if each is not None
        for track, sequences in zip(recorder.tracks_of(client_id), each.sequences, strict=True)
    ]
    sums = _seconds_at_limits(recorder, all_tracks, len(limits), begin, end)
    return [
        Room()
        if each is None
        else _room(each, blocks, seconds / (len(each.sequences) * (end - begin)))
        for each, blocks, seconds in zip(limits, needed, sums, strict=True)
    ]


def room_summary(found: Sequence[Room], names: Sequence[str]) -> dict[str, Any]:
    """Return the room of the client with the least, and which limit it reached longest.

    names: of the clients. room: NaN if no client's is known. room_limit: such as "KV memory at
    llm"; left out if no limit was reached.
    """
    known = [(float(each.room), each, name) for each, name in zip(found, names, strict=True)]
    known = [each for each in known if each[0] == each[0]]
    if not known:
        return {"room": nan}
    share, least, name = min(known, key=lambda each: each[0])
    return {"room": share} | ({"room_limit": f"{least.limit} at {name}"} if least.limit else {})


def room_columns(found: Sequence[Room]) -> Columns:
    """Return the columns of the table of clients."""
    return {name: column(getattr(each, name) for each in found) for name in Room._fields}


class _LimitedTrack(NamedTuple):
    """A track, and the limits of its steps. needed: KV blocks that a prompt takes."""

    number: int
    client_id: int
    limits: StepLimits
    sequences: int
    needed: int


def _seconds_at_limits(
    recorder: ColumnRecorder,
    all_tracks: Sequence[_LimitedTrack],
    num_clients: int,
    begin: float,
    end: float,
) -> Array:
    """Return the seconds between two times that each client's steps were at any limit, and at each.

    They are summed over its tracks.
    """
    sums = np.zeros((num_clients, 1 + len(_LIMITS)))
    rest = iter(all_tracks)
    for tracks in together(recorder, [track.number for track in all_tracks]):
        tracks = merged(recorder, tracks)  # noqa: PLW2901
        mine = list(islice(rest, len(tracks.numbers)))
        inside = np.minimum(tracks.run_ends(), end) - np.maximum(tracks.runs["start"], begin)
        inside = np.maximum(inside, 0.0)
        at = _at_limits(tracks, mine)
        at = np.vstack([at.any(axis=0), at])
        for track, (first, last) in zip(mine, pairwise(tracks.run_cuts), strict=True):
            here = slice(first, last)
            sums[track.client_id] += [float(inside[here][each[here]].sum()) for each in at]
    return sums


def _at_limits(tracks: Tracks, limited: Sequence[_LimitedTrack]) -> NDArray[np.bool_]:
    """Return which runs of steps of some tracks are at which limit, a row a limit."""
    limits = [
        (*track.limits[:2], track.sequences, track.limits.num_blocks, track.needed)
        for track in limited
    ]
    of_runs = np.repeat(np.array(limits).T, np.diff(tracks.run_cuts), axis=1)
    most_tokens, tokens_a_decode, most_sequences, num_blocks, needed = of_runs
    decodes = tracks.runs["num_decodes"].astype(np.int64)
    return np.array(
        [
            tracks.runs["num_prefill_tokens"] + decodes * tokens_a_decode >= most_tokens,
            tracks.runs["num_chunks"] + decodes >= most_sequences,
            num_blocks - tracks.runs["num_used_blocks"] < needed,
        ]
    )


def _room(limits: StepLimits, needed: int, shares: Array) -> Room:
    """Return the room of a client. shares: of its time, at any limit, and at each."""
    if needed > limits.num_blocks:
        shares[[0, 3]] = 1.0  # also while it has nothing to do
    return Room(1 - shares[0], *shares[1:].tolist())


def _blocks_of(prompt_tokens: float, limits: StepLimits) -> int:
    """Return the KV blocks of a prompt, 1 at least; with windows, in each group of layers."""
    return max(ceil(prompt_tokens / limits.block_size), 1) * limits.blocks_each
