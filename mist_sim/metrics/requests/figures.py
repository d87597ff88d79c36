"""Figures of some requests of a run, by masks over the recorder's columns."""

from __future__ import annotations

from typing import Any

from mist_sim.metrics import latency
from mist_sim.metrics.goodput import Slo, slo_verdicts
from mist_sim.metrics.latency import Array
from mist_sim.metrics.requests.rates import Mask, rate


def volume(c: dict[str, Any], counted: Mask, done: Mask, duration: float) -> dict[str, Any]:
    """Return how long the run was, and how many requests and tokens it served."""
    num_done = int(done.sum())
    return {
        "duration": duration,
        "completed": num_done,
        "failed": int(counted.sum()) - num_done,
        "total_input_tokens": int(c["num_prompt_tokens"][done].sum()),
        "total_output_tokens": int(c["num_output_tokens"][done].sum()),
    }


def samples(c: dict[str, Any], done: Mask) -> dict[str, Array]:
    """Return the times of each finished request, seconds, by metric."""
    arrival = c["arrival_time"][done]
    return {
        "ttft": latency.ttft(arrival, c["first_token_at"][done]),
        "tpot": latency.tpot(c["decode_time"][done], c["num_gaps"][done]),
        "e2el": latency.e2e(arrival, c["finished_at"][done]),
        "queue": c["queued"][done],
    }


def goodput(
    slo: Slo, c: dict[str, Any], ended: Mask, counted: Mask, duration: float
) -> dict[str, Any]:
    """Return how many requests kept the limits, and which limits were kept; nothing without any."""
    if not slo.is_set:
        return {}
    times = samples(c, ended)
    kept = slo.kept(times["ttft"], times["tpot"], times["e2el"], c["num_gaps"][ended])
    is_counted = counted[ended]
    mine = {name: values[is_counted] for name, values in times.items()}
    num_counted, num_done = int(counted.sum()), int(is_counted.sum())
    num_gaps = c["num_gaps"][ended][is_counted]
    return {
        "request_goodput": rate(int(kept.sum()), duration),
        "good_request_fraction": int(kept[is_counted].sum()) / num_counted if num_counted else 0.0,
        "slo": slo_verdicts(slo, mine, num_gaps, num_counted - num_done),
    }
