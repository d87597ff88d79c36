"""Lengths of a trace's prompts, and its decode steps after them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mist_sim.traces import TraceRow

FirstToken = Literal["prefill", "decode"]
"""The client that emits an answer's first token; the other tokens are one decode step each."""

Tokens = NDArray[np.int64]


def slot_lengths(
    rows: Iterable[TraceRow], first_token: FirstToken = "prefill"
) -> tuple[Tokens, Tokens]:
    """Return (prompt tokens, decode steps) of every request, shape (n,) each."""
    lengths = [(row.num_prompt_tokens, row.num_output_tokens) for row in rows]
    prefill, output = np.array(lengths, dtype=np.int64).reshape(-1, 2).T
    return prefill, output - (first_token == "prefill")
