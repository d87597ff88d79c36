"""The latency metrics, each defined once (vLLM's names and meaning).

All times are seconds of simulated time as a streaming user sees them.

| metric | formula | sample |
|---|---|---|
| TTFT | first token - arrival | one a finished request |
| TPOT | (E2E - TTFT) / (output tokens - 1) | one a finished request with 2 tokens or more |
| ITL  | time between two successive tokens of a request | one a gap, pooled over requests |
| E2E  | end of the last stage - arrival | one a finished request |
| queue | time spent in clients' queues before first work, summed over visits | one a request |

Time queued for decode counts in TTFT as in vLLM: a request's clock starts at its arrival.
Source: vLLM `bench serve`; DESIGN §7.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def ttft(arrival: Array, first_token: Array) -> Array:
    """Time to first token, seconds."""
    return first_token - arrival


def e2e(arrival: Array, finished: Array) -> Array:
    """End-to-end latency, seconds."""
    return finished - arrival


def tpot(
    arrival: Array, first_token: Array, finished: Array, num_output: NDArray[np.int64]
) -> Array:
    """Time per output token after the first, seconds; NaN for a single token."""
    gaps = num_output - 1
    seconds = e2e(arrival, finished) - ttft(arrival, first_token)
    result: Array = np.divide(seconds, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
    return result


def step_gaps(
    start: Array,
    num_steps: NDArray[np.int64],
    num_decodes: NDArray[np.int64],
    num_gaps: NDArray[np.int64],
    step_ends: Array,
) -> tuple[Array, NDArray[np.int64]]:
    """Return (gap, count) of every step of one client: its duration, and whom it counts for.

    start, num_steps, num_decodes, num_gaps: a row a run, in order of time.
    step_ends: end of every step of the client, shape (sum of num_steps,).
    """
    first = np.cumsum(num_steps) - num_steps
    before = np.empty_like(step_ends)
    before[1:] = step_ends[:-1]
    before[first] = start
    count = np.repeat(num_decodes, num_steps)
    count[first] = num_gaps
    return step_ends - before, count
