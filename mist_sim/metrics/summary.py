"""The summary of a run: one flat dictionary with the keys of `vllm bench serve`.

Overloads of clients in an open-loop run, even if the queue drained in the end.

`stability` looks only at the last arrival. An earlier burst leaves no trace there: requests wait
for minutes, the queue drains, and the run is stable. This module looks at requests that wait longer
than a request takes to serve. A backlog lasts while there are any. It is an overload if their
number grows by more than chance allows for that many arrivals when arrivals equal capacity
(`stability`). Growth counts from the number of requests that begin within one service time: a
shorter queue makes no request wait that long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf, isinf, sqrt
from typing import Any, NamedTuple

import numpy as np

from mist_sim.core.step_limits import StepLimits
from mist_sim.hardware.setting import Borrowed, Setting
from mist_sim.metrics import stats
from mist_sim.metrics.clients import (
    Lives,
    gap_percentile,
    lives_summary,
    peak_token_rate,
    pooled_gaps,
    utilisation,
)
from mist_sim.metrics.expected_errors import expected_errors, shares_with_verdicts, with_verdicts
from mist_sim.metrics.goodput import Slo, figure_verdicts
from mist_sim.metrics.latency import Array
from mist_sim.metrics.load import load_of_run
from mist_sim.metrics.records.recorder import STATUSES, ColumnRecorder
from mist_sim.metrics.records.together import together
from mist_sim.metrics.recoveries import outages, recoveries, through_failures
from mist_sim.metrics.requests import (
    Breakdown,
    Mask,
    SteadyPart,
    answers_moved,
    breakdown_summary,
    by_group,
    communication,
    goodput,
    request_columns,
    retrievals_summary,
    samples,
    steady_part,
    steady_rates,
    throughput,
    varying_arrivals,
    volume,
)
from mist_sim.metrics.result_columns import stages_summary
from mist_sim.metrics.sensitivity import sensitivities
from mist_sim.metrics.stability import (
    AT_END,
    FALSE_ALARM,
    Judged,
    Stays,
    at_once,
    judged,
    relative_variance,
)

_WINDOWS = 20
_FEWEST = 2 * _WINDOWS  # arrivals of which a variance says anything
_LEAST = 0.01  # of the time in which requests arrive; less is not worth a sentence


class Overload(NamedTuple):
    """A time in which more work arrived than clients could do, and until it was done.

    begin, end: seconds; no later than the last arrival. most_waiting: at a time, of the requests
    that waited longer than a request takes. longest_wait: of these, seconds. left: of these, those
    that waited at the last arrival. is_growing: more and more waited until then.
    """

    begin: float
    end: float
    most_waiting: int
    longest_wait: float
    left: int
    is_growing: bool


def overloads(arrival: Array, in_queue: Stays, request_times: Array) -> list[Overload]:
    """Return the overloads of a run, in order; empty if they last under 1 % of its arrivals.

    arrival: of every request, seconds. in_queue: of every visit, until the client begins with it.
    request_times: seconds that each finished request took, without waits.
    """
    if len(arrival) < _FEWEST or not len(request_times):
        return []
    arrival, mean = np.sort(arrival), float(request_times.mean())
    first, last = float(arrival[0]), float(arrival[-1])
    waits = in_queue.end - in_queue.begin
    is_long = (waits > mean) & (in_queue.begin <= last)
    if not is_long.any():
        return []
    begin, end, waits = in_queue.begin[is_long], in_queue.end[is_long], waits[is_long]
    spread = relative_variance(request_times)
    found = []
    for start, stop in _backlogs(begin, end, mean):
        inside = (begin >= start) & (begin < stop)
        most = _most(begin[inside], end[inside])
        at_hand = mean * inside.sum() / (stop - start)  # that begin while a request takes its time
        if most - at_hand > FALSE_ALARM * _walk(arrival, start, min(stop, last), spread):
            longest = float(waits[inside].max())
            mine = Stays(begin[inside], end[inside])
            left = int(mine.at(last).sum())
            is_growing = _is_growing(arrival, mine, start, last, most, spread, mean)
            found.append(Overload(start, min(stop, last), most, longest, left, is_growing))
    seconds = sum(each.end - each.begin for each in found)
    return found if seconds >= _LEAST * (last - first) else []


def _backlogs(begin: Array, end: Array, gap: float) -> list[tuple[float, float]]:
    """Return the periods in which requests wait, merged across gaps of at most `gap` seconds."""
    order = np.argsort(begin, kind="stable")
    begin, latest = begin[order], np.maximum.accumulate(end[order])
    cuts = np.flatnonzero(begin[1:] > latest[:-1] + gap) + 1
    starts, stops = begin[np.append(0, cuts)], latest[np.append(cuts, len(latest)) - 1]
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _most(begin: Array, end: Array) -> int:
    """Return the largest number waiting at once; departures at an instant come first."""
    times = np.concatenate([end, begin])
    change = np.repeat([-1, 1], [len(end), len(begin)])
    order = np.argsort(times, kind="stable")  # departures come first
    return int(np.cumsum(change[order]).max())


def _is_growing(
    arrival: Array, waiting: Stays, start: float, last: float, most: int, spread: float, mean: float
) -> bool:
    """Tell whether more and more requests waited from a time until the last arrival.

    So it is if their number grew in the second half of that time by more than chance explains, is
    no further below the most that ever waited, and clients need longer to begin nine in ten of them
    than a request takes, the `mean`: what waits for a batch in progress is no backlog.
    waiting: from `start` on.
    """
    half = (start + last) / 2
    is_left = waiting.at(last)
    left, least = int(is_left.sum()), FALSE_ALARM * _walk(arrival, half, last, spread)
    if left - int(waiting.at(half).sum()) <= least or most - left >= least:
        return False
    return bool(stats.percentiles(waiting.end[is_left], (90,))[0] - last >= mean)


def _walk(arrival: Array, start: float, stop: float, spread: float) -> float:
    """Return the standard deviation of a queue's growth in a time, at the limit.

    Infinite of arrivals that are too few to tell.
    """
    inside = arrival[(arrival >= start) & (arrival <= stop)]
    if len(inside) < _FEWEST or start >= stop:
        return inf
    counts, _ = np.histogram(inside, _WINDOWS, (start, stop))
    variance = float(np.mean(np.diff(counts) ** 2)) / 2  # a rate that changes is no noise
    return sqrt((variance / float(counts.mean()) + spread) * len(inside))


_MS = 1e3
_LONGEST = 100  # the percentile that is the longest gap


def summarise(
    recorder: ColumnRecorder,
    *,
    slo: Slo,
    warmup: float,
    open_loop: bool,
    estimates: Mapping[str, str],
    assumed: Mapping[str, tuple[str, ...]],
    assumed_hosts: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Mapping[str, Setting | Borrowed | None]],
    limits: Mapping[str, StepLimits | None],
) -> dict[str, Any]:
    """Return the metrics of a run; the parameters are as in `Result`.

    Only requests that users send count, not their children. Arrivals before the end of the warm-up
    are left out, as are token gaps and engine time before it. Rates are per second of `duration`,
    from the end of the warm-up to the last completion, over everything that ends in it, as vLLM
    counts them; those of the steady part (`steady_part`) are named so. Latencies are in
    milliseconds over finished requests, ITL over all gaps.
    """
    c = request_columns(recorder)
    of_users = c["parent_id"] == c["request_id"]
    counted = of_users & (c["arrival_time"] >= warmup)
    finished = of_users & (c["status"] == 0)
    ended = finished & (c["finished_at"] >= warmup)
    done = ended & counted
    duration = float(c["finished_at"][ended].max() - warmup) if ended.any() else 0.0
    peak = _peak_in_flight(c, of_users, warmup)
    part = steady_part(c, of_users, warmup, duration, lap=1 if open_loop else max(peak, 1))
    summary: dict[str, Any] = {
        **volume(c, counted, done, duration),
        **throughput(recorder, c, finished, warmup, duration),
        "has_steady_part": not part.is_whole,
        "steady_begin": part.begin,
        "steady_end": part.end,
        **_varying(c, of_users, part, open_loop=open_loop),
        **steady_rates(recorder, c, finished, part),
        **_peaks(recorder, c, done),
        "peak_requests_in_flight": peak,
        **_failures(c, counted),
        **_memory(recorder, c, counted),
        **goodput(slo, c, ended, counted, duration, part),
        **_latencies(c, done, recorder, warmup),
        **breakdown_summary(Breakdown(recorder), done),
        **stages_summary(recorder, done),
        **_speculation(recorder, warmup),
        "utilisation": utilisation(recorder, c["arrival_time"][counted]),
        **_stability(recorder, c, of_users, open_loop=open_loop),
        "estimates": dict(estimates),
        **_lives(recorder, c, counted, warmup),
    }
    summary |= by_group(recorder, slo, counted, finished, warmup, duration, part)
    if assumed:
        summary["assumed"] = {name: list(options) for name, options in assumed.items()}
    if assumed_hosts:
        summary["assumed_host"] = {name: dict(worth) for name, worth in assumed_hosts.items()}
    if settings:
        load = load_of_run(recorder, c, done, warmup, open_loop=open_loop)
        found = sensitivities(recorder, list(limits.values()), done) if open_loop else []
        of_clients = dict(zip(limits, found, strict=False))
        summary["expected_errors"] = expected_errors(settings, load, of_clients)
    if "slo" in summary:
        summary["slo"] = with_verdicts(summary["slo"], summary)
    if "slo_shares" in summary:
        summary["slo_shares"] = shares_with_verdicts(summary["slo_shares"], summary["slo"])
    if slo.figures:  # which make no request good or bad, so no share rests on them
        of_run = figure_verdicts(
            slo,
            samples(c, done),
            summary["failed"],
            partial(gap_percentile, recorder, warmup),
        )
        summary["slo"] = summary.get("slo", {}) | with_verdicts(of_run, summary)
    if "measured" in estimates.values():
        summary["extrapolated_step_fraction"] = extrapolated_share(recorder)
    return summary


def _peaks(recorder: ColumnRecorder, c: Mapping[str, Any], done: Mask) -> dict[str, Any]:
    """Return the most chunks of output and requests in a second, counted from the first sending.

    As `calculate_metrics` in vllm/benchmarks/serve.py: finished requests alone, and one is there in
    every second that it touches, so that they are more than ever are in flight at once.
    """
    arrival, end = c["arrival_time"][done], c["finished_at"][done]
    begin = float(arrival.min()) if len(arrival) else 0.0
    order = np.argsort(c["request_id"][done])
    request_ids, sent_at = c["request_id"][done][order], c["sent_at"][done][order]
    return {
        "max_output_tokens_per_s": peak_token_rate(recorder, request_ids, sent_at, begin),
        "max_concurrent_requests": stats.max_inside(
            np.floor(arrival - begin), np.floor(end - begin) + 1
        ),
    }


def _varying(
    c: Mapping[str, Any], of_users: Mask, part: SteadyPart, *, open_loop: bool
) -> dict[str, Any]:
    """Return between which rates arrivals vary in the steady part; empty if they hardly do."""
    found = varying_arrivals(c, of_users, part) if open_loop else None
    return {} if found is None else {"steady_arrivals_per_s": list(found)}


def _peak_in_flight(c: Mapping[str, Any], of_users: Mask, warmup: float) -> int:
    """Return the most requests at a time between arrival and end, failed ones among them."""
    there = of_users & (c["finished_at"] > warmup)
    return stats.max_inside(c["arrival_time"][there].clip(min=warmup), c["finished_at"][there])


def _stability(
    recorder: ColumnRecorder, c: Mapping[str, Any], of_users: Mask, *, open_loop: bool
) -> dict[str, Any]:
    """Return whether the clients kept up at the end of the run, and throughout.

    Covers the whole run; not judged if all requests arrive at once.
    """
    arrival = c["arrival_time"][of_users]
    if not open_loop or not len(arrival) or at_once(arrival):
        return {"unstable": False}
    visits = recorder.visits.columns()
    asked = visits["request_id"] >= 0
    begun = np.where(np.isnan(visits["started_at"]), visits["finished_at"], visits["started_at"])
    finished = of_users & (c["status"] == 0)
    times = (c["finished_at"] - c["sent_at"] - c["queued"] - c["front_end"])[finished]
    joined = joined_at(visits, c)
    in_queue, times = Stays(joined[asked], begun[asked]), times[~np.isnan(times)]
    found = judged(Stays(arrival, c["finished_at"][of_users]), in_queue, times)
    times_over = overloads(arrival, in_queue, times)
    if found.verdict != "unstable" and times_over and times_over[-1].is_growing:
        # the load varies, which `judged` takes for noise; no longer run would tell more
        found = Judged(AT_END)
    return {
        "unstable": found.verdict == "unstable",
        "stability": found.verdict,
        **({} if found.needs is None else {"stability_needs": found.needs}),
        **({} if found.in_system is None else {"stability_growth": list(found.in_system)}),
        **_overloads(arrival, times_over),
    }


def joined_at(visits: Mapping[str, Any], c: Mapping[str, Any]) -> Array:
    """Return when each visit began to wait: at a client, or before that at the gateway.

    A request's time there, and in the front end, counts in front of the first visit of its last
    attempt.
    """
    joined: Array = visits["queued_at"].copy()
    before = c["front_end"] + c["at_gateway"]
    if not before.any():
        return joined
    order = np.argsort(c["request_id"])
    place = np.searchsorted(c["request_id"], visits["request_id"], sorter=order)
    row = order[place.clip(max=len(order) - 1)]
    is_last = (c["request_id"][row] == visits["request_id"]) & (joined >= c["sent_at"][row])
    _, first = np.unique(visits["request_id"][is_last], return_index=True)
    first = np.flatnonzero(is_last)[first]
    mine = row[first]
    joined[first] = np.maximum(c["arrival_time"][mine], joined[first] - before[mine])
    return joined


def _overloads(arrival: Array, found: Sequence[Overload]) -> dict[str, Any]:
    """Return the times when arrivals exceeded capacity, and their effect; empty without any."""
    if not found:
        return {}
    return {
        "overloaded_s": sum(each.end - each.begin for each in found),
        "arrivals_s": float(arrival.max() - arrival.min()),
        "overloads": [each._asdict() for each in found],
    }


def _lives(
    recorder: ColumnRecorder, c: Mapping[str, Any], counted: Mask, warmup: float
) -> dict[str, Any]:
    """Return failures, starts and losses of clients, and when latencies were as before."""
    lives = Lives(recorder, float(c["finished_at"].max(initial=0.0)))
    found = lives_summary(recorder, lives, {"status": c["status"][counted]}, warmup)
    if not (failures := lives.failures):
        return found
    columns = samples(c, counted) | {
        "arrival_time": c["arrival_time"][counted],
        "finished_at": c["finished_at"][counted],
        "is_done": c["status"][counted] == 0,
    }
    return found | {
        "outages": [
            {"begin": begin, "end": None if isinf(end) else end} for begin, end in outages(failures)
        ],
        "through_failures": through_failures(failures, columns),
        "recoveries": [each._asdict() for each in recoveries(failures, columns)],
    }


def _latencies(
    c: Mapping[str, Any], done: Mask, recorder: ColumnRecorder, warmup: float
) -> dict[str, float]:
    """Return the figures of every latency in milliseconds; ITL's from all gaps of the run."""
    times = samples(c, done)
    figures = {name: stats.describe(x[~np.isnan(x)]) for name, x in times.items()}
    del times  # before the gaps of all steps
    asked = (*stats.PERCENTILES, _LONGEST)
    gaps = stats.describe_weighted(lambda: pooled_gaps(recorder, warmup), asked)
    gaps["max"] = gaps.pop(f"p{_LONGEST}")
    figures["itl"] = gaps
    return {
        f"{figure}_{name}_ms": value * _MS
        for name in ("ttft", "tpot", "itl", "e2el", "queue")
        for figure, value in figures[name].items()
    }


def _memory(recorder: ColumnRecorder, c: Mapping[str, Any], counted: Mask) -> dict[str, Any]:
    """Return hits, preemptions and peak use of the KV cache."""
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
    memory |= _swaps(recorder, request_ids) | _hand_overs(recorder, request_ids)
    memory |= _fetches(recorder, request_ids) | answers_moved(recorder, request_ids)
    memory |= retrievals_summary(recorder, request_ids)
    return memory | communication(recorder, request_ids)


def _swaps(recorder: ColumnRecorder, request_ids: Any) -> dict[str, Any]:
    """Return the swaps of preempted requests in both directions, and their mean time."""
    moves = recorder.moves.columns()
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
    """Return the hand-overs between clients, and the mean time per request."""
    count, num_tokens, mean = _moves_of(recorder, "hand_over", request_ids)
    if not count:
        return {}
    return {
        "num_hand_overs": count,
        "handed_over_tokens": num_tokens,
        "mean_hand_over_ms": mean,
    }


def _fetches(recorder: ColumnRecorder, request_ids: Any) -> dict[str, Any]:
    """Return the fetches of prompts' KV entries, and their mean time."""
    count, num_tokens, mean = _moves_of(recorder, "fetch", request_ids)
    if not count:
        return {}
    return {"num_fetches": count, "fetched_tokens": num_tokens, "mean_fetch_ms": mean}


def _moves_of(recorder: ColumnRecorder, kind: str, request_ids: Any) -> tuple[int, int, float]:
    """Return how many moves of a kind there were, their tokens, and their mean milliseconds."""
    moves = recorder.moves.columns()
    is_kind = moves["kind"] == recorder.move_names.code(kind)
    mine = is_kind & np.isin(moves["request_id"], request_ids)
    if not mine.any():
        return 0, 0, 0.0
    mean = float((moves["end"][mine] - moves["start"][mine]).mean()) * _MS
    return int(mine.sum()), int(moves["num_tokens"][mine].sum()), mean


def extrapolated_share(recorder: ColumnRecorder) -> float:
    """Return the share of steps outside the range that their predictor was measured in."""
    runs = [tracks.runs for tracks in together(recorder)]
    num_steps = sum(int(rows["num_steps"].sum()) for rows in runs)
    num_outside = sum(int(rows["num_extrapolated"].sum()) for rows in runs)
    return num_outside / num_steps if num_steps else 0.0


def _speculation(recorder: ColumnRecorder, after: float) -> dict[str, float]:
    """Return the figures of speculative decoding, as in `vllm bench serve`; empty without it.

    acceptance_rate: accepted draft tokens in percent. acceptance_length: tokens per step and
        request, the model's own token included.
    """
    rows = recorder.drafts.columns()
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


def _failures(c: Mapping[str, Any], counted: Mask) -> dict[str, int]:
    """Return the number of failed requests by status, and the cost of attempts in vain."""
    by_status = np.bincount(c["status"][counted], minlength=len(STATUSES)).tolist()
    failures = {
        f"num_{name}": by_status[code]
        for code, name in enumerate(STATUSES)
        if name not in ("finished", "lost")  # of these, `lives_summary` tells
    }
    return {
        **failures,
        "num_retries": int((c["num_attempts"][counted] - 1).sum()),
        "wasted_input_tokens": int(c["wasted_input_tokens"][counted].sum()),
        "wasted_output_tokens": int(c["wasted_output_tokens"][counted].sum()),
    }


def _tier_hit_rates(recorder: ColumnRecorder, requests: Any, counted: Any) -> dict[str, float]:
    """Return the share of the tokens looked up that came from each tier below the GPU."""
    moves = recorder.moves.columns()
    is_load = moves["kind"] == recorder.move_names.code("load")
    mine = is_load & np.isin(moves["request_id"], requests["request_id"][counted]) & ~moves["again"]
    queried = requests["num_queried_tokens"][counted].sum()
    names = recorder.move_names.values
    return {
        str(names[code]): stats.share(
            moves["num_tokens"][mine & (moves["source"] == code)].sum(), queried
        )
        for code in np.flatnonzero(np.bincount(moves["source"][is_load])).tolist()
    }
