"""Room: the share of time in which a client's engines could have taken more into their steps.

An engine that decodes one request is busy all the time, though it could decode a hundred more. So
load is measured as time at a limit rather than time in steps: time in steps that hold the largest
number of tokens or sequences, or that leave fewer KV blocks free than a prompt takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.step_limits import StepLimits
from mist_sim.metrics.clients.step_figures import run_periods
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder
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
    return [
        Room() if each is None else _room(recorder, client_id, each, prompt_tokens, begin, end)
        for client_id, each in enumerate(limits)
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


def _room(
    recorder: ColumnRecorder,
    client_id: int,
    limits: StepLimits,
    prompt_tokens: float,
    begin: float,
    end: float,
) -> Room:
    """Return the room of a client between two times."""
    needed = _blocks_of(prompt_tokens, limits)
    tracks = recorder.tracks_of(client_id)
    sums = np.zeros(4)
    for track, sequences in zip(tracks, limits.sequences, strict=True):
        starts, ends = run_periods(recorder, track)
        inside = np.maximum(np.minimum(ends, end) - np.maximum(starts, begin), 0.0)
        at = _at_limits(recorder.steps[track].columns(), limits, sequences, needed)
        sums += [float(inside[each].sum()) for each in (at.any(axis=0), *at)]
    shares = sums / (len(tracks) * (end - begin))
    if needed > limits.num_blocks:
        shares[[0, 3]] = 1.0  # also while it has nothing to do
    return Room(1 - shares[0], *shares[1:].tolist())


def _at_limits(
    steps: Mapping[str, Any], limits: StepLimits, sequences: int, needed: int
) -> NDArray[np.bool_]:
    """Return which runs of steps are at which limit, a row a limit."""
    decodes = steps["num_decodes"].astype(np.int64)
    tokens = steps["num_prefill_tokens"] + decodes * limits.tokens_a_decode
    free = limits.num_blocks - steps["num_used_blocks"]
    return np.array(
        [
            tokens >= limits.tokens,
            steps["num_chunks"] + decodes >= sequences,
            free < needed,
        ]
    )


def _blocks_of(prompt_tokens: float, limits: StepLimits) -> int:
    """Return the KV blocks of a prompt, 1 at least; with windows, in each group of layers."""
    return max(ceil(prompt_tokens / limits.block_size), 1) * limits.blocks_each
