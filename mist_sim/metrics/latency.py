"""The latency metrics, each defined once (vLLM's names and meaning).

All times are seconds of simulated time as a streaming user sees them.

| metric | formula | sample |
|---|---|---|
| TTFT | first token - arrival | one a finished request |
| TPOT | (last token - first token) / (output tokens - 1) | one a finished request with a gap |
| ITL  | time between two successive tokens of a request | one a gap, pooled over requests |
| E2E  | end of the last stage - arrival | one a finished request |
| queue | time spent in clients' queues before first work, summed over visits | one a request |

A request's clock starts at its arrival, so time in queues counts in TTFT, and in the front end
too. Where decode is the last stage, TPOT is vLLM's (E2E - TTFT) / (output tokens - 1). An answer
may come from several clients, prefill from one and decode from another; the time between the last
token here and the first there is a gap like any other. A request with several turns adds the turns
up: their decode times over their gaps; what lies between turns is no gap. Tokens that one step gave
(speculative decoding) come together, with one gap of ITL before them.
Source: vLLM `bench serve`; DESIGN §7.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_FIGURE = re.compile(r"(?:([A-Za-z0-9-]+)\.)?(p[0-9.]+)_([a-z0-9]+)_ms")
_PERCENTILE = re.compile(r"p(100|[0-9]{1,2}(?:\.[0-9]{1,6})?)_([a-z0-9]+)")

SHORT_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}
"""Latencies of a request that may have limits, by their keys, as text calls them."""

NAMES = {**SHORT_NAMES, "itl": "ITL", "queue": "time in queues"}
"""Latencies of which a summary has percentiles."""


def percentile_of(name: str) -> tuple[float, str] | None:
    """Return (percentile, latency) of a name such as "p99_itl"; None for another name.

    The percentile is > 0 and < 100; of all gaps, 100 is their longest.
    """
    found = _PERCENTILE.fullmatch(name)
    if found is None or found[2] not in NAMES or not float(found[1]):
        return None
    return None if found[1] == "100" and found[2] != "itl" else (float(found[1]), found[2])


def is_of_gaps(limit: str) -> bool:
    """Return whether gaps between tokens keep a limit, such as "p99_itl", not requests."""
    return (percentile_of(limit) or (0.0, ""))[1] == "itl"


ALL = "all"
"""Name of all requests beside a share of good ones, where the slo has no classes."""


def limit_title(name: str | None, unknown: str = "the limits") -> str:
    """Return the title of a limit: "TTFT", or "TTFT of chat" for the limit of a class.

    name: key of a latency, such as "ttft", perhaps with a class in front: "chat.ttft"; or of a
    percentile, such as "p99_itl". unknown: title if there is no such limit.
    """
    if (figure := percentile_of(name or "")) is not None:
        return f"p{figure[0]:g} {NAMES[figure[1]]}"
    group, _, metric = (name or "").rpartition(".")
    if metric not in NAMES:
        return unknown
    return f"{NAMES[metric]} of {group}" if group else NAMES[metric]


def limit_of(figure: str) -> tuple[str, str]:
    """Return (limit, percentile) of a figure beside a limit.

    Of "chat.p99_ttft_ms" they are "chat.ttft" and "p99". Raises ValueError for another name.
    """
    found = _FIGURE.fullmatch(figure)
    if found is None:
        raise ValueError(f"figure must be named as p99_ttft_ms or chat.p99_ttft_ms, got {figure}")
    group, percentile, metric = found.groups()
    return f"{group}.{metric}" if group else metric, percentile


def metric_of(figure: str) -> str:
    """Return the latency of a figure beside a limit: "ttft" of "chat.p99_ttft_ms"."""
    return limit_of(figure)[0].rpartition(".")[2]


def ttft(arrival: Array, first_token: Array) -> Array:
    """Time to first token, seconds."""
    return first_token - arrival


def e2e(arrival: Array, finished: Array) -> Array:
    """End-to-end latency, seconds."""
    return finished - arrival


def tpot(decode_time: Array, num_gaps: NDArray[np.int64]) -> Array:
    """Time per output token after the first, seconds; NaN for a single token.

    decode_time: from first token to last, seconds. num_gaps: output tokens after the first.
    """
    none = np.full(len(num_gaps), np.nan)
    result: Array = np.divide(decode_time, num_gaps, out=none, where=num_gaps > 0)
    return result


def step_gaps(runs: Mapping[str, Any], step_ends: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return (gap, count) of every step of one client: its duration, and whom it counts for.

    runs: start, num_steps, num_decodes and num_gaps of each run, in order of time.
    step_ends: end of every step of the client, shape (sum of num_steps,).
    """
    num_steps = runs["num_steps"]
    first = np.cumsum(num_steps) - num_steps
    before = np.empty_like(step_ends)
    before[1:] = step_ends[:-1]
    before[first] = runs["start"]
    count = np.repeat(runs["num_decodes"], num_steps)
    count[first] = runs["num_gaps"]
    return step_ends - before, count
