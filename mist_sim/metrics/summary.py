"""The summary of a run: one flat dictionary with the keys of `vllm bench serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics import latency, stats
from mist_sim.metrics.latency import Array
from mist_sim.metrics.recorder import ColumnRecorder

if TYPE_CHECKING:
    from mist_sim.metrics.result import Result

_MS = 1e3


def summarise(result: Result) -> dict[str, Any]:
    """Return the metrics of a run.

    Rates are per second of `duration`, which runs from the first counted arrival's start of
    measurement (the warm-up's end) to the last completion. Latencies are in milliseconds over
    finished requests, ITL over all gaps between tokens of the whole run.
    """
    recorder = result.recorder
    c: dict[str, Any] = recorder.requests.columns()
    counted = c["arrival_time"] >= result.warmup
    done = counted & (c["rejection"] == 0)
    arrival, finished = c["arrival_time"][done], c["finished_at"][done]
    ttft = latency.ttft(arrival, c["first_token_at"][done])
    tpot = latency.tpot(arrival, c["first_token_at"][done], finished, c["num_output_tokens"][done])
    e2el = latency.e2e(arrival, finished)
    duration = float(finished.max() - result.warmup) if len(finished) else 0.0
    num_input = int(c["num_prompt_tokens"][done].sum())
    num_output = int(c["num_output_tokens"][done].sum())
    summary: dict[str, Any] = {
        "duration": duration,
        "completed": int(done.sum()),
        "failed": int(counted.sum() - done.sum()),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": _rate(int(done.sum()), duration),
        "output_throughput": _rate(num_output, duration),
        "total_token_throughput": _rate(num_input + num_output, duration),
        "max_output_tokens_per_s": _peak_token_rate(recorder),
        "max_concurrent_requests": stats.max_inside(c["arrival_time"], c["finished_at"]),
        "num_preemptions": int(c["num_preemptions"][counted].sum()),
    }
    if result.slo.is_set:
        good = int(result.slo.kept(ttft, tpot, e2el).sum())
        summary["request_goodput"] = _rate(good, duration)
        summary["good_request_fraction"] = good / int(counted.sum()) if counted.any() else 0.0
    gaps, counts = pooled_gaps(recorder)
    samples = {
        "ttft": stats.describe(ttft[~np.isnan(ttft)]),
        "tpot": stats.describe(tpot[~np.isnan(tpot)]),
        "itl": stats.describe_weighted(gaps, counts),
        "e2el": stats.describe(e2el),
        "queue": stats.describe(c["queued"][done]),
    }
    for name, figures in samples.items():
        summary |= {f"{figure}_{name}_ms": value * _MS for figure, value in figures.items()}
    summary["utilisation"] = utilisation(recorder, c["arrival_time"])
    visits: dict[str, Any] = recorder.visits.columns()
    summary["unstable"] = result.open_loop and stats.queue_grows(
        visits["queued_at"], visits["started_at"], len(result.client_names)
    )
    summary["estimates"] = dict(result.estimates)
    return summary


def _rate(count: int, duration: float) -> float:
    return count / duration if duration > 0 else 0.0


def client_steps(recorder: ColumnRecorder, client_id: int) -> dict[str, Any]:
    """Return the rows of `steps` that belong to one client, with the `ends` of its steps."""
    c: dict[str, Any] = recorder.steps.columns()
    mine = c["client_id"] == client_id
    rows: dict[str, Any] = {name: values[mine] for name, values in c.items()}
    rows["ends"] = np.frombuffer(recorder.step_ends[client_id], dtype=np.float64)
    return rows


def pooled_gaps(recorder: ColumnRecorder) -> tuple[Array, NDArray[np.int64]]:
    """Return (gap in seconds, how many times it occurred): every time between two tokens."""
    extra: dict[str, Any] = recorder.gaps.columns()
    gaps, counts = [extra["gap"]], [extra["count"]]
    for client_id in range(len(recorder.step_ends)):
        rows = client_steps(recorder, client_id)
        gap, count = latency.step_gaps(
            rows["start"], rows["num_steps"], rows["num_decodes"], rows["num_gaps"], rows["ends"]
        )
        gaps.append(gap)
        counts.append(count)
    return np.concatenate(gaps), np.concatenate(counts)


def _peak_token_rate(recorder: ColumnRecorder) -> float:
    """Return the largest number of output tokens in one second (bins from the run's start)."""
    times, counts = [np.empty(0)], [np.empty(0, np.int64)]
    for client_id in range(len(recorder.step_ends)):
        rows = client_steps(recorder, client_id)
        times.append(rows["ends"])
        counts.append(np.repeat(rows["num_decodes"], rows["num_steps"]))
        tokens: dict[str, Any] = recorder.tokens.columns()
        first = tokens["first_step"][tokens["client_id"] == client_id]
        times.append(rows["ends"][first - 1])  # the token that prefill emitted
        counts.append(np.ones(len(first), np.int64))
    seconds = np.floor(np.concatenate(times)).astype(np.int64)
    if not len(seconds):
        return 0.0
    return float(np.bincount(seconds, weights=np.concatenate(counts)).max())


def utilisation(recorder: ColumnRecorder, arrival: Array) -> float:
    """Return the share of time that engines spend in steps, while requests arrive.

    The period runs from the first to the last arrival; the mean over engines. An engine that
    decodes one request is busy, so a value near 1 means no idle time, not no headroom.
    """
    if not len(arrival) or not recorder.step_ends:
        return float("nan")
    begin, end = float(arrival.min()), float(arrival.max())
    c: dict[str, Any] = recorder.steps.columns()
    engines = np.unique(c["client_id"])
    if end <= begin or not len(engines):
        return float("nan")
    busy = np.minimum(c["end"], end) - np.maximum(c["start"], begin)
    return float(np.maximum(busy, 0.0).sum() / (end - begin) / len(engines))
