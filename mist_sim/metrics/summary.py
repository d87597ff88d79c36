"""The summary of a run: one flat dictionary with the keys of `vllm bench serve`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics import latency, stats
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.recorder import STATUSES, ColumnRecorder
from mist_sim.metrics.step_figures import peak_token_rate, pooled_gaps, utilisation

Mask = NDArray[np.bool_]

_MS = 1e3


def summarise(
    recorder: ColumnRecorder,
    *,
    num_clients: int,
    slo: Slo,
    warmup: float,
    open_loop: bool,
    estimates: Mapping[str, str],
    assumed: Mapping[str, tuple[str, ...]],
) -> dict[str, Any]:
    """Return the metrics of a run; the parameters are as in `Result`.

    Requests that users send count, and not the children of these. What arrives before the warm-up
    ends is left out, and so are token gaps and engine time
    before it. Rates are per second of `duration`, from the end of the warm-up to the last
    completion. Latencies are in milliseconds over finished requests, ITL over all gaps.
    """
    c: dict[str, Any] = recorder.requests.columns()
    counted = (c["arrival_time"] >= warmup) & (c["parent_id"] == c["request_id"])
    done = counted & (c["status"] == 0)
    duration = float(c["finished_at"][done].max() - warmup) if done.any() else 0.0
    samples = _samples(c, done)
    summary: dict[str, Any] = {
        **_volume(c, counted, done, duration),
        "max_output_tokens_per_s": peak_token_rate(recorder, warmup),
        "max_concurrent_requests": stats.max_inside(
            c["arrival_time"][counted], c["finished_at"][counted]
        ),
        **_failures(c, counted),
        **_memory(recorder, c, counted),
        **_goodput(slo, samples, c["num_gaps"][done], int(counted.sum()), duration),
        **_latencies(samples, recorder, warmup),
        **_speculation(recorder, warmup),
        "utilisation": utilisation(recorder, c["arrival_time"][counted]),
        "unstable": open_loop
        and stats.backlog_grows(c["arrival_time"], c["finished_at"], num_clients),
        "estimates": dict(estimates),
    }
    if assumed:
        summary["assumed"] = {name: list(options) for name, options in assumed.items()}
    if "measured" in estimates.values():
        summary["extrapolated_step_fraction"] = _extrapolated(recorder)
    return summary


def _volume(c: dict[str, Any], counted: Mask, done: Mask, duration: float) -> dict[str, Any]:
    """Return how many requests and tokens were served, and how many a second."""
    num_done = int(done.sum())
    num_input = int(c["num_prompt_tokens"][done].sum())
    num_output = int(c["num_output_tokens"][done].sum())
    return {
        "duration": duration,
        "completed": num_done,
        "failed": int(counted.sum()) - num_done,
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": _rate(num_done, duration),
        "output_throughput": _rate(num_output, duration),
        "total_token_throughput": _rate(num_input + num_output, duration),
    }


def _samples(c: dict[str, Any], done: Mask) -> dict[str, Array]:
    """Return the times of each finished request, seconds, by metric."""
    arrival = c["arrival_time"][done]
    return {
        "ttft": latency.ttft(arrival, c["first_token_at"][done]),
        "tpot": latency.tpot(c["decode_time"][done], c["num_gaps"][done]),
        "e2el": latency.e2e(arrival, c["finished_at"][done]),
        "queue": c["queued"][done],
    }


def _latencies(
    samples: dict[str, Array], recorder: ColumnRecorder, warmup: float
) -> dict[str, float]:
    """Return the figures of every latency in milliseconds; ITL's from all gaps of the run."""
    figures = {name: stats.describe(x[~np.isnan(x)]) for name, x in samples.items()}
    figures["itl"] = stats.describe_weighted(lambda: pooled_gaps(recorder, warmup))
    return {
        f"{figure}_{name}_ms": value * _MS
        for name in ("ttft", "tpot", "itl", "e2el", "queue")
        for figure, value in figures[name].items()
    }


def _goodput(
    slo: Slo,
    samples: dict[str, Array],
    num_gaps: NDArray[np.int64],
    num_counted: int,
    duration: float,
) -> dict[str, float]:
    """Return how many requests kept the limits; nothing without limits."""
    if not slo.is_set:
        return {}
    times = samples["ttft"], samples["tpot"], samples["e2el"]
    good = int(slo.kept(*times, num_gaps).sum())
    return {
        "request_goodput": _rate(good, duration),
        "good_request_fraction": good / num_counted if num_counted else 0.0,
    }


def _memory(recorder: ColumnRecorder, c: dict[str, Any], counted: Mask) -> dict[str, Any]:
    """Return what the KV cache gave, and what it lacked."""
    memory: dict[str, Any] = {
        "num_truncated": int(c["truncated"][counted].sum()),
        "num_preemptions": int(c["num_preemptions"][counted].sum()),
        "prefix_cache_hit_rate": stats.share(
            c["num_cached_tokens"][counted].sum(), c["num_queried_tokens"][counted].sum()
        ),
        "prefix_cache_hit_rate_unbounded": stats.share(
            c["num_known_tokens"][counted].sum(), c["num_queried_tokens"][counted].sum()
        ),
    }
    if tier_hit_rates := _tier_hit_rates(recorder, c, counted):
        memory["tier_hit_rates"] = tier_hit_rates
    request_ids = c["request_id"][counted]
    return memory | _swaps(recorder, request_ids) | _hand_overs(recorder, request_ids)


def _swaps(recorder: ColumnRecorder, request_ids: Any) -> dict[str, Any]:
    """Return what was copied of preempted requests, both ways, and how long that took."""
    moves: dict[str, Any] = recorder.moves.columns()
    is_out = moves["kind"] == recorder.move_names.code("swap_out")
    is_swap = is_out | (moves["kind"] == recorder.move_names.code("swap_in"))
    mine = is_swap & np.isin(moves["request_id"], request_ids)
    if not mine.any():
        return {}
    return {
        "num_swaps": int(is_out[mine].sum()),
        "swapped_tokens": int(moves["num_tokens"][mine].sum()),
        "swap_time": float((moves["end"][mine] - moves["start"][mine]).sum()),
    }


def _hand_overs(recorder: ColumnRecorder, request_ids: Any) -> dict[str, Any]:
    """Return what clients handed over to others, and how long the entries of a request took."""
    moves: dict[str, Any] = recorder.moves.columns()
    is_hand_over = moves["kind"] == recorder.move_names.code("hand_over")
    mine = is_hand_over & np.isin(moves["request_id"], request_ids)
    if not mine.any():
        return {}
    return {
        "num_hand_overs": int(mine.sum()),
        "handed_over_tokens": int(moves["num_tokens"][mine].sum()),
        "mean_hand_over_ms": float((moves["end"][mine] - moves["start"][mine]).mean()) * _MS,
    }


def _extrapolated(recorder: ColumnRecorder) -> float:
    """Return the share of steps that lie outside what their predictor was measured for."""
    runs = [table.columns() for table in recorder.steps]
    num_steps = sum(int(rows["num_steps"].sum()) for rows in runs)
    num_outside = sum(int(rows["num_extrapolated"].sum()) for rows in runs)
    return num_outside / num_steps if num_steps else 0.0


def _speculation(recorder: ColumnRecorder, after: float) -> dict[str, float]:
    """Return what came of draft tokens, as `vllm bench serve` reports it; nothing without any.

    acceptance_rate: accepted draft tokens of 100. acceptance_length: tokens that a step gave a
    request, its own included.
    """
    rows: dict[str, Any] = recorder.drafts.columns()
    counted = rows["time"] >= after
    num_drafts = int(rows["num_drafts"][counted].sum())
    draft_tokens = int(rows["draft_tokens"][counted].sum())
    accepted = int(rows["accepted_tokens"][counted].sum())
    if not num_drafts:
        return {}
    return {
        "spec_decode_num_drafts": num_drafts,
        "spec_decode_draft_tokens": draft_tokens,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_acceptance_rate": 100 * accepted / draft_tokens,
        "spec_decode_acceptance_length": 1 + accepted / num_drafts,
    }


def _failures(c: dict[str, Any], counted: Mask) -> dict[str, int]:
    """Return how many requests failed in which way, and what the attempts in vain have cost."""
    by_status = np.bincount(c["status"][counted], minlength=len(STATUSES)).tolist()
    failures = {f"num_{name}": by_status[code] for code, name in enumerate(STATUSES) if code}
    return {
        **failures,
        "num_retries": int((c["num_attempts"][counted] - 1).sum()),
        "wasted_input_tokens": int(c["wasted_input_tokens"][counted].sum()),
        "wasted_output_tokens": int(c["wasted_output_tokens"][counted].sum()),
    }


def _tier_hit_rates(recorder: ColumnRecorder, requests: Any, counted: Any) -> dict[str, float]:
    """Return the share of the tokens looked up that came from each tier below the GPU."""
    moves: dict[str, Any] = recorder.moves.columns()
    is_load = moves["kind"] == recorder.move_names.code("load")
    mine = is_load & np.isin(moves["request_id"], requests["request_id"][counted]) & ~moves["again"]
    queried = requests["num_queried_tokens"][counted].sum()
    names = recorder.move_names.values
    return {
        str(names[code]): stats.share(
            moves["num_tokens"][mine & (moves["source"] == code)].sum(), queried
        )
        for code in np.unique(moves["source"][is_load]).tolist()
    }


def _rate(count: int, duration: float) -> float:
    return count / duration if duration > 0 else 0.0
