"""Figures of some requests of a run, by masks over the recorder's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from mist_sim.metrics import latency
from mist_sim.metrics.goodput import Limits, Slo, slo_verdicts
from mist_sim.metrics.latency import Array
from mist_sim.metrics.records.columns import TableColumns
from mist_sim.metrics.records.recorder import STATUSES, ColumnRecorder
from mist_sim.metrics.requests.steady import SteadyPart
from mist_sim.metrics.requests.window_rates import Mask, rate, throughput
from mist_sim.metrics.tables.tabular import Coded, Columns


def request_columns(recorder: ColumnRecorder) -> TableColumns:
    """Return the columns of requests; if the slo has classes, `group` is the class.

    Children of other requests belong to no class.
    """
    c = recorder.requests.columns()
    if not recorder.groups:
        return c
    groups, ids = np.array(recorder.groups), c["request_id"]
    of_user = ids >= 0
    return c | {"group": np.where(of_user, groups[np.where(of_user, ids, 0)], 0)}


def class_columns(recorder: ColumnRecorder, names: Sequence[str]) -> Columns:
    """Return each request's class as a column of the table of requests; absent without classes.

    names: names of the classes, as in `Slo.groups`; "" for none.
    """
    c = request_columns(recorder)
    if "group" not in c:
        return {}
    return {"class": Coded(c["group"][np.argsort(c["request_id"])], names)}


def volume(c: Mapping[str, Any], counted: Mask, done: Mask, duration: float) -> dict[str, Any]:
    """Return how long the run was, and how many requests and tokens it served."""
    num_done = int(done.sum())
    return {
        "duration": duration,
        "completed": num_done,
        "failed": int(counted.sum()) - num_done,
        "total_input_tokens": int(c["num_prompt_tokens"][done].sum()),
        "total_output_tokens": int(c["num_output_tokens"][done].sum()),
    }


def samples(c: Mapping[str, Any], done: Mask) -> dict[str, Array]:
    """Return the times of each finished request, seconds, by metric."""
    arrival = c["arrival_time"][done]
    return {
        "ttft": latency.ttft(arrival, c["first_token_at"][done]),
        "tpot": latency.tpot(c["decode_time"][done], c["num_gaps"][done]),
        "e2el": latency.e2e(arrival, c["finished_at"][done]),
        "queue": c["queued"][done],
    }


def steady_rates(
    recorder: ColumnRecorder, c: Mapping[str, Any], finished: Mask, part: SteadyPart
) -> dict[str, float]:
    """Return the throughput in the steady part of a run, under names that say so."""
    end = inf if part.is_whole else part.end
    rates = throughput(recorder, c, finished, part.begin, part.seconds, end)
    return {f"steady_{name}": value for name, value in rates.items()}


def goodput(
    slo: Slo, c: Mapping[str, Any], ended: Mask, counted: Mask, duration: float, part: SteadyPart
) -> dict[str, Any]:
    """Return goodput, the causes of misses and the verdict on each limit; empty without limits.

    The goodput of the steady part is of the requests that arrive in it, whenever they end.

    c: columns of requests, with `group` where the slo has classes (`request_columns`). Verdicts on
    the limits of a class have its name before them: `chat.p99_ttft_ms`. Limits that apply
    to none of the counted requests are kept: those of no class, if all are of one.
    """
    if not slo.judges_requests:
        return {}
    group = c.get("group")
    times = samples(c, ended)
    num_gaps = c["num_gaps"][ended]
    of_ended = None if group is None else group[ended]
    kept = slo.kept(times["ttft"], times["tpot"], times["e2el"], num_gaps, of_ended)
    num_counted, num_good = int(counted.sum()), int(kept[counted[ended]].sum())
    arrival = c["arrival_time"][ended]
    in_part = part.is_whole | ((arrival >= part.begin) & (arrival < part.end))
    verdicts: dict[str, dict[str, Any]] = {}
    for place, (name, limits) in enumerate(slo.groups.items()):
        mine = counted if group is None else counted & (group == place)
        prefix = f"{name}." if name else ""
        found = _verdicts(limits, c, mine & ended, int(mine.sum()))
        of_none = {"kept": True} if num_counted and not mine.any() else {}
        verdicts |= {f"{prefix}{key}": verdict | of_none for key, verdict in found.items()}
    return {
        "request_goodput": rate(int(kept.sum()), duration),
        "steady_request_goodput": rate(int((kept & in_part).sum()), part.seconds),
        "good_request_fraction": num_good / num_counted if num_counted else 0.0,
        "num_missed": num_counted - num_good,
        "misses": _misses(slo, c, counted, counted & ended),
        "slo": verdicts,
    }


def _misses(slo: Slo, c: Mapping[str, Any], counted: Mask, done: Mask) -> dict[str, int]:
    """Return how many of the counted requests miss by failing, by status, and by each limit.

    done: the finished ones among them, which may miss several limits.
    """
    by_status = np.bincount(c["status"][counted], minlength=len(STATUSES)).tolist()
    failed = dict(zip(STATUSES[1:], by_status[1:], strict=True))
    times, group = samples(c, done), c.get("group")
    missed = slo.missed(times, c["num_gaps"][done], None if group is None else group[done])
    return failed | {name: int(np.count_nonzero(mask)) for name, mask in missed.items()}


def _verdicts(
    limits: Limits, c: Mapping[str, Any], done: Mask, num_counted: int
) -> dict[str, dict[str, Any]]:
    """Return the verdicts on the limits of some requests. done: the finished ones among them."""
    times, num_gaps = samples(c, done), c["num_gaps"][done]
    return slo_verdicts(limits, times, num_gaps, num_counted - int(done.sum()))
