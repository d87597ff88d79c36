"""Rates per second of the measured time, of requests that end in it, whenever they were sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.clients.step_figures import output_tokens_before
from mist_sim.metrics.records.recorder import ColumnRecorder

Mask = NDArray[np.bool_]


def throughput(
    recorder: ColumnRecorder, c: Mapping[str, Any], ended: Mask, warmup: float, duration: float
) -> dict[str, float]:
    """Return requests and tokens per second of the measured time, which starts after the warm-up.

    ended: finished requests that ended in it. Of requests sent before, only tokens within the time
        count: output tokens at their step, a prompt at the first token.
    """
    num_output = _num_output_tokens(recorder, c, ended, warmup)
    in_time = ended & ~(c["first_token_at"] < warmup)
    num_input = int(c["num_prompt_tokens"][in_time].sum())
    return {
        "request_throughput": rate(int(np.count_nonzero(ended)), duration),
        "output_throughput": rate(num_output, duration),
        "total_token_throughput": rate(num_input + num_output, duration),
    }


def _num_output_tokens(
    recorder: ColumnRecorder, c: Mapping[str, Any], ended: Mask, warmup: float
) -> int:
    """Return how many output tokens of the requests came at the end of the warm-up or later."""
    num_tokens = int(c["num_output_tokens"][ended].sum())
    under_way = np.flatnonzero(ended & (c["sent_at"] < warmup))
    if not len(under_way):
        return num_tokens
    under_way = under_way[np.argsort(c["request_id"][under_way])]
    request_ids, sent_at = c["request_id"][under_way], c["sent_at"][under_way]
    return num_tokens - output_tokens_before(recorder, request_ids, sent_at, warmup)


def rate(count: int, duration: float) -> float:
    """Return a count a second; 0 where there was no time."""
    return count / duration if duration > 0 else 0.0
