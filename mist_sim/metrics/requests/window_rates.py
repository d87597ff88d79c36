"""Rates per second of a time, over what ends and comes in it, whenever it was sent."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.clients.step_figures import output_tokens_before
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder

Mask = NDArray[np.bool_]


def throughput(
    recorder: ColumnRecorder,
    c: Mapping[str, Any],
    finished: Mask,
    begin: float,
    duration: float,
    end: float = inf,
) -> dict[str, float]:
    """Return requests that end, and tokens that come, per second of a time.

    finished: the requests that count, whenever they ended. begin, end: of the time, seconds, of
        which the end itself is no part. duration: by which rates are divided. Output tokens count
        at their step, a prompt at the first token.
    """
    ended = finished & _is_between(c["finished_at"], begin, end)
    num_output = _tokens_before(recorder, c, finished, end)
    num_output -= _tokens_before(recorder, c, finished, begin)
    first = np.where(np.isnan(c["first_token_at"]), c["finished_at"], c["first_token_at"])
    num_input = int(c["num_prompt_tokens"][finished & _is_between(first, begin, end)].sum())
    return {
        "request_throughput": rate(int(np.count_nonzero(ended)), duration),
        "output_throughput": rate(num_output, duration),
        "total_token_throughput": rate(num_input + num_output, duration),
    }


def _is_between(times: Array, begin: float, end: float) -> Mask:
    return np.asarray((times >= begin) & (times < end))


def _tokens_before(
    recorder: ColumnRecorder, c: Mapping[str, Any], finished: Mask, time: float
) -> int:
    """Return how many output tokens of the requests came before a time."""
    ended = finished & (c["finished_at"] < time)
    num_tokens = int(c["num_output_tokens"][ended].sum())
    under_way = np.flatnonzero(finished & ~ended & (c["sent_at"] < time))
    if not len(under_way):
        return num_tokens
    under_way = under_way[np.argsort(c["request_id"][under_way])]
    request_ids, sent_at = c["request_id"][under_way], c["sent_at"][under_way]
    return num_tokens + output_tokens_before(recorder, request_ids, sent_at, time)


def rate(count: int, duration: float) -> float:
    """Return a count a second; 0 where there was no time."""
    return count / duration if duration > 0 else 0.0
