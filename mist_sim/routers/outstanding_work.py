"""Load as work: the weight of a request, and the candidate with the least to do."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request
from mist_sim.core.views import ClientView
from mist_sim.errors import brief

Work = Literal["input_length", "kv_cache", "tokens_remaining"]
"""The three loads of MIST §III-C1; there is none of the true length of an answer."""


def check_work(by: str) -> None:
    """Raise ValueError for an unknown measure of work."""
    if by not in get_args(Work):
        raise ValueError(f"by must be one of {', '.join(get_args(Work))}, got {brief(by)}")


def least_loaded(candidates: Candidates, by: Work) -> ClientView:
    """Return the candidate with the least work.

    Ties go to the candidate with the fewest outstanding requests, then to the first. Measuring KV
    memory reads each candidate; measuring remaining tokens reads each outstanding request.
    """
    if by == "input_length":
        tokens = candidates.numbers("num_prompt_tokens")
        equals = np.flatnonzero(tokens == tokens.min())
        outstanding = candidates.numbers("num_outstanding")[equals]
        return candidates[int(equals[outstanding.argmin()])]
    load = kv_load if by == "kv_cache" else _remaining
    return min(candidates, key=lambda view: (load(view), view.num_outstanding))


def kv_load(view: ClientView) -> float:
    """Return the share of a client's KV memory that requests hold, or wait for (may exceed 1)."""
    room = view.num_gpu_blocks * view.block_size
    if not room:
        return 0.0
    return (view.num_kv_blocks * view.block_size + view.num_waiting_tokens) / room


def _remaining(view: ClientView) -> float:
    return view.num_remaining_tokens


def weight(request: Request, candidates: Candidates, by: Work) -> float:
    """Return the weight of a request: tokens of its prompt, of its KV entries, or of its answer.

    KV entries are those of its prompt, and of the answer so far if it brings them. The answer
    counts with its expected length at these candidates; 0 before any answer has ended there.
    """
    kv = request.kv
    if kv is not None and request.to_serve and request.to_serve[0].may_continue:
        kv = None  # they are a part of its prompt
    if by == "input_length" or (by == "kv_cache" and kv is None):
        return request.num_prompt_tokens
    if kv is not None and by == "kv_cache":
        return kv.num_tokens
    return candidates[0].num_answer_tokens(request)


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless a number is finite and > 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be finite and > 0, got {value}")
