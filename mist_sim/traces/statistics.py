"""Statistics of a trace: lengths, arrivals, conversations, and what prompts have in common."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.request import Content
from mist_sim.traces.base import TraceRow

_LEVELS = (50, 90, 95, 99)


def statistics(rows: Iterator[TraceRow]) -> dict[str, Any]:
    """Return what is worth knowing of a trace, read once.

    num_requests; prompt_tokens, output_tokens: total, mean, std, min, p50 to p99, max; seconds,
    rate (/s, from the first to the last request) and cv (standard deviation over mean of the gaps),
    None without times; sessions and turns_a_session, None without; models: requests by name;
    known_prompt_share: prompt tokens that an earlier request began with, in a cache without limit.
    """
    prompts, outputs, times = array("q"), array("q"), array("d")
    sessions, models = Counter[int](), Counter[str]()
    seen, known = dict[int, int](), 0
    for row in rows:
        prompts.append(row.num_prompt_tokens)
        outputs.append(row.num_output_tokens)
        if row.arrival_time is not None:
            times.append(row.arrival_time)
        if row.session_id is not None:
            sessions[row.session_id] += 1
        if row.model is not None:
            models[row.model] += 1
        if row.content:
            known += _known(row.content, row.num_prompt_tokens, seen)
    return {
        "num_requests": len(prompts),
        "prompt_tokens": _lengths(np.array(prompts)),
        "output_tokens": _lengths(np.array(outputs)),
        **_arrivals(np.array(times)),
        "sessions": len(sessions) or None,
        "turns_a_session": sessions.total() / len(sessions) if sessions else None,
        "models": dict(models.most_common()),
        "known_prompt_share": known / sum(prompts),
    }


def _known(content: Content, num_prompt_tokens: int, seen: dict[int, int]) -> int:
    """Return how many tokens of a prompt earlier content began with; note what it adds."""
    known, is_known, so_far = 0, True, 0
    for span, length in content:
        before = seen.get(span, 0)
        if is_known:
            known += min(before, length)
            is_known = before >= length
        so_far += length
        if length > before:
            seen[span] = length
    return min(known, num_prompt_tokens)


def _lengths(values: NDArray[np.int64]) -> dict[str, float]:
    found = {
        "total": int(values.sum()),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": int(values.min()),
    }
    found |= {f"p{p}": float(np.percentile(values, p)) for p in _LEVELS}
    return found | {"max": int(values.max())}


def _arrivals(times: NDArray[np.float64]) -> dict[str, float | None]:
    if len(times) < 2 or times[-1] == times[0]:
        return {"seconds": None, "rate": None, "cv": None}
    gaps = np.diff(times)
    seconds = float(times[-1] - times[0])
    return {
        "seconds": seconds,
        "rate": len(gaps) / seconds,
        "cv": float(gaps.std() / gaps.mean()),
    }
