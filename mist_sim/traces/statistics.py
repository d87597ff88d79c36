"""Statistics of a trace: lengths, arrivals, conversations and shared prefixes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.request import Content
from mist_sim.traces.base import TraceRow

_LEVELS = (50, 90, 95, 99)


class Figures:
    """Figures of every row, in columns.

    prompts, outputs: tokens. times: seconds. known: prompt tokens that repeat the beginning of an
    earlier request (an unlimited prefix cache would have them). sessions, models: requests by
    session and by model.
    """

    def __init__(self, rows: Iterable[TraceRow]) -> None:
        prompts, outputs, known, times = array("q"), array("q"), array("q"), array("d")
        self.sessions, self.models = Counter[int](), Counter[str]()
        seen = Known()
        for row in rows:
            prompts.append(row.num_prompt_tokens)
            outputs.append(row.num_output_tokens)
            known.append(seen.follow(row.content, row.num_prompt_tokens)[0])
            if row.arrival_time is not None:
                times.append(row.arrival_time)
            if row.session_id is not None:
                self.sessions[row.session_id] += 1
            if row.model is not None:
                self.models[row.model] += 1
        self.prompts, self.outputs, self.known = map(np.array, (prompts, outputs, known))
        self.times = np.array(times)


def statistics(rows: Iterable[TraceRow] | Figures) -> dict[str, Any]:
    """Return the statistics of a trace, which is read once.

    num_requests; prompt_tokens, output_tokens: total, mean, std, min, p50 to p99, max; seconds,
    rate (/s, from the first to the last request) and cv (standard deviation over mean of the gaps),
    None without times, the last two also where all requests come at once; sessions and
    turns_a_session, None without; models: requests by name; known_prompt_share: share of prompt
    tokens that an unlimited prefix cache would have.
    """
    found = rows if isinstance(rows, Figures) else Figures(rows)
    sessions = found.sessions
    return {
        "num_requests": len(found.prompts),
        "prompt_tokens": _lengths(found.prompts),
        "output_tokens": _lengths(found.outputs),
        **_arrivals(found.times),
        "sessions": len(sessions) or None,
        "turns_a_session": sessions.total() / len(sessions) if sessions else None,
        "models": dict(found.models.most_common()),
        "known_prompt_share": float(found.known.sum() / found.prompts.sum()),
    }


class Known:
    """The prefixes of all earlier requests: a prefix cache without limit."""

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}  # the longest part of each span
        self._last: dict[int, int] = {}  # the last request that had it
        self._number = 0

    def follow(self, content: Content, num_prompt_tokens: int) -> tuple[int, int | None]:
        """Return how many tokens of a prompt earlier prompts had, and remember the prompt.

        Also return how many requests ago the latest one was that had all of them; None if no token
        is known.
        """
        known, is_known, distance = 0, True, None
        self._number += 1
        for span, length in content:
            before = self._lengths.get(span, 0)
            if is_known and before:
                known += min(before, length)
                distance = self._number - self._last[span]
            is_known = is_known and before >= length
            if length > before:
                self._lengths[span] = length
            self._last[span] = self._number
        return min(known, num_prompt_tokens), distance


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
    if not len(times):
        return {"seconds": None, "rate": None, "cv": None}
    gaps = np.diff(times)
    seconds = float(times[-1] - times[0])
    if not seconds:
        return {"seconds": seconds, "rate": None, "cv": None}
    return {
        "seconds": seconds,
        "rate": len(gaps) / seconds,
        "cv": float(gaps.std() / gaps.mean()),
    }
