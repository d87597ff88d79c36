"""How busy the front end's server processes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import ColumnRecorder
from mist_sim.metrics.requests.steady import SteadyPart, steady_part
from mist_sim.stages import Prefill


class Use(NamedTuple):
    """Work of the busiest process. share: of the time; above 1 more tokens come than it can stream.

    requests, tokens: that it gets, per second.
    """

    share: float
    requests: float
    tokens: float


def front_end_use(recorder: ColumnRecorder, warmup: float) -> Use | None:
    """Return the use of the busiest process in the steady part of a run; None without a front end.

    A process takes its share of all requests, when they enter an engine's queue, and of the output
    tokens of its client, which come evenly between the first and the last of a visit. Visits that
    are under way when a run ends early are not in the records, so that their work is missing.
    """
    servers, c = recorder.servers, recorder.requests.columns()
    if servers is None or not servers.numbers:
        return None
    of_users = c["parent_id"] == c["request_id"]
    part = steady_part(c, of_users, warmup, float(c["finished_at"].max(initial=0.0)) - warmup)
    if part.seconds <= 0:
        return None
    visits = recorder.visits.columns()
    pipelines: Sequence[Any] = recorder.pipelines.values
    with_prompts = [code for code, kinds in enumerate(pipelines) if Prefill.kind in kinds]
    entered = (visits["queued_at"] >= part.begin) & (visits["queued_at"] < part.end)
    entered &= np.isin(visits["stages"], with_prompts)
    processes = sum(servers.numbers.values())
    requests = int(np.count_nonzero(entered)) / part.seconds / processes
    prompts = int(visits["num_input_tokens"][entered].sum()) / part.seconds / processes
    emitted = _tokens_in(part, visits)
    tokens = max(
        float(emitted[visits["client_id"] == client_id].sum()) / part.seconds / number
        for client_id, number in servers.numbers.items()
    )
    times = servers.options
    work = (
        requests * (times.request or 0.0)
        + prompts * (times.prompt_token or 0.0)
        + tokens * (times.stream_token or 0.0)
    )
    return Use(work, requests, tokens)


def _tokens_in(part: SteadyPart, visits: Mapping[str, Any]) -> Array:
    """Return the output tokens of each visit that come in a part of a run."""
    number, end = visits["num_output_tokens"], visits["finished_at"]
    first = np.where(np.isnan(visits["first_token_at"]), end, visits["first_token_at"])
    period = end - first
    inside = np.minimum(end, part.end) - np.maximum(first, part.begin)
    at_once = (end >= part.begin) & (end < part.end)
    share = np.divide(inside, period, out=at_once.astype(float), where=period > 0)
    return np.asarray(number * share.clip(min=0.0), dtype=float)
