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

from collections.abc import Mapping
from functools import partial
from math import inf, isinf, sqrt
from typing import Any, TypedDict

import numpy as np

from mist_sim.core.recorder import STATUSES, Recorder
from mist_sim.metrics import clients, requests, stats
from mist_sim.metrics.clients import OfClients
from mist_sim.metrics.expected_errors import shares_with_verdicts, with_verdicts
from mist_sim.metrics.goodput import Slo, figure_verdicts
from mist_sim.metrics.latency import Array
from mist_sim.metrics.recoveries import (
    Outage,
    PhaseFigures,
    Recovery,
    outages,
    recoveries,
    through_failures,
)
from mist_sim.metrics.requests import Counted, Mask, OfRequests, OfSomeRequests, samples
from mist_sim.metrics.result_columns import StageLatency, level_names, stages_summary
from mist_sim.metrics.stability import (
    AT_END,
    FALSE_ALARM,
    Judged,
    Stays,
    at_once,
    judged,
    relative_variance,
)
from mist_sim.metrics.together import together

_WINDOWS = 20
_FEWEST = 2 * _WINDOWS  # arrivals of which a variance says anything
_RATE_CHANGES = 2  # in an overload
_OF_CHANGES = 0.7  # of the squares, which they make up in one of 300 times by chance (simulated)
_KEPT = 0.6616  # E of the mean without these of x^2 / 2, x between 20 normal draws (2e6 simulated)
_LEAST = 0.01  # of the time in which requests arrive; less is not worth a sentence


class Overload(TypedDict):
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


class Moves(TypedDict):
    """KV entries on their way, added up. bytes: NaN where not known of all."""

    transfers: int
    tokens: int
    bytes: float
    seconds: float


class OfEveryRun(OfRequests):
    """Figures that every run has; latencies are milliseconds."""

    median_ttft_ms: float
    std_ttft_ms: float
    median_tpot_ms: float
    std_tpot_ms: float
    mean_itl_ms: float
    median_itl_ms: float
    std_itl_ms: float
    p50_itl_ms: float
    p90_itl_ms: float
    p95_itl_ms: float
    p99_itl_ms: float
    max_itl_ms: float
    median_e2el_ms: float
    std_e2el_ms: float
    mean_queue_ms: float
    median_queue_ms: float
    std_queue_ms: float
    p50_queue_ms: float
    p90_queue_ms: float
    p95_queue_ms: float
    p99_queue_ms: float
    has_steady_part: bool
    steady_begin: float
    steady_end: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    peak_requests_in_flight: int
    num_rejected: int
    num_timed_out: int
    num_cancelled: int
    num_retries: int
    wasted_input_tokens: int
    wasted_output_tokens: int
    num_truncated: int
    num_preemptions: int
    prefix_cache_hit_rate: float
    prefix_cache_hit_rate_unbounded: float
    stage_latency_ms: dict[str, StageLatency]
    utilisation: float
    unstable: bool
    estimates: dict[str, str]


class OfSomeRuns(OfSomeRequests, OfClients, total=False):
    """Figures of runs in which there is something of the kind."""

    stability: str
    stability_needs: int
    stability_growth: list[int]
    overloaded_s: float
    arrivals_s: float
    overloads: list[Overload]
    communication: dict[str, Moves]
    tier_hit_rates: dict[str, float]
    num_swaps: int
    swapped_tokens: int
    swap_time: float
    num_hand_overs: int
    handed_over_tokens: int
    mean_hand_over_ms: float
    num_fetches: int
    fetched_tokens: int
    mean_fetch_ms: float
    num_retrievals: int
    retrieved_tokens: float
    retrieval_hit_rate: float
    retrieval_hit_rates: dict[str, float]
    mean_retrieval_ms: float
    mean_moves_per_request: float
    max_moves_per_request: int
    spec_decode_num_drafts: int
    spec_decode_draft_tokens: int
    spec_decode_accepted_tokens: int
    spec_decode_acceptance_rate: float
    spec_decode_acceptance_length: float
    outages: list[Outage]
    through_failures: dict[str, PhaseFigures]
    recoveries: list[Recovery]
    extrapolated_step_fraction: float


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
    found: list[Overload] = []
    for start, stop in _backlogs(begin, end, mean):
        inside = (begin >= start) & (begin < stop)
        most = _most(begin[inside], end[inside])
        at_hand = mean * inside.sum() / (stop - start)  # that begin while a request takes its time
        if most - at_hand > FALSE_ALARM * _walk(arrival, start, min(stop, last), spread):
            mine = Stays(begin[inside], end[inside])
            each: Overload = {
                "begin": start,
                "end": min(stop, last),
                "most_waiting": most,
                "longest_wait": float(waits[inside].max()),
                "left": int(mine.at(last).sum()),
                "is_growing": _is_growing(arrival, mine, start, last, most, spread, mean),
            }
            found.append(each)
    seconds = sum(each["end"] - each["begin"] for each in found)
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

    Infinite of arrivals that are too few to tell. A rate that changes is no noise: windows beside
    one another tell the variance, without the two pairs that differ most where these make up most
    of it, as a rush and its end do.
    """
    inside = arrival[(arrival >= start) & (arrival <= stop)]
    edges = stats.intervals(start, stop, _WINDOWS)
    if len(inside) < _FEWEST or edges is None:
        return inf
    counts = np.histogram(inside, edges)[0]
    squares = np.sort(np.diff(counts) ** 2)
    variance = float(np.mean(squares)) / 2
    if squares[-_RATE_CHANGES:].sum() > _OF_CHANGES * squares.sum():
        variance = float(np.mean(squares[:-_RATE_CHANGES])) / (2 * _KEPT)
    return sqrt((variance / float(counts.mean()) + spread) * len(inside))


_MS = 1e3
_LONGEST = 100  # the percentile that is the longest gap
_NO_LEVEL = 0  # code of what no level had


def figures(run: Counted, slo: Slo, estimates: Mapping[str, str]) -> dict[str, Any]:
    """Return the metrics of a run that are in its records. estimates: as in `Result`.

    Only requests that users send count, not their children. Arrivals before the end of the warm-up
    are left out, as are token gaps and engine time before it. Rates are per second of `duration`,
    from the end of the warm-up until the last request ends, over everything that ends in it, as
    vLLM counts them; those of the steady part (`steady_part`) are named so. Latencies are in
    milliseconds over finished requests, ITL over all gaps.
    """
    recorder = run.recorder
    return {
        **requests.volume(run),
        **requests.throughput(run, run.warmup, run.duration),
        "has_steady_part": not run.part.is_whole,
        "steady_begin": run.part.begin,
        "steady_end": run.part.end,
        **requests.varying_arrivals(run),
        **requests.steady_rates(run),
        **_peaks(run),
        "peak_requests_in_flight": run.peak,
        **_failures(run),
        **_memory(run),
        **requests.goodput(slo, run),
        **_latencies(run),
        **requests.breakdown_summary(recorder, run.done),
        **stages_summary(recorder, run.done),
        **_speculation(recorder, run.warmup),
        "utilisation": clients.utilisation(recorder, run.c["arrival_time"][run.counted]),
        **_stability(run),
        "estimates": dict(estimates),
        **_lives(run),
        **requests.by_group(slo, run),
    }


def verdicts(run: Counted, slo: Slo, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that have limits, with verdicts that know the expected errors.

    summary: of the run, with its figures and expected errors.
    """
    found: dict[str, Any] = {}
    if "slo" in summary:
        found["slo"] = with_verdicts(summary["slo"], summary)
    if "slo_shares" in summary:
        found["slo_shares"] = shares_with_verdicts(summary["slo_shares"], found["slo"])
    if slo.figures:  # which make no request good or bad, so no share rests on them
        gaps = partial(clients.gap_percentile, run.recorder, run.warmup)
        of_run = figure_verdicts(slo, samples(run.c, run.done), summary["failed"], gaps)
        found["slo"] = found.get("slo", {}) | with_verdicts(of_run, summary)
    return found


def _peaks(run: Counted) -> dict[str, Any]:
    """Return the most chunks of output and requests in a second, counted from the first sending.

    As `calculate_metrics` in vllm/benchmarks/serve.py: finished requests alone, and one is there in
    every second that it touches, so that they are more than ever are in flight at once.
    """
    c, done = run.c, run.done
    arrival, end = c["arrival_time"][done], c["finished_at"][done]
    begin = float(arrival.min()) if len(arrival) else 0.0
    order = np.argsort(c["request_id"][done])
    request_ids, sent_at = c["request_id"][done][order], c["sent_at"][done][order]
    return {
        "max_output_tokens_per_s": clients.peak_token_rate(
            run.recorder, request_ids, sent_at, begin
        ),
        "max_concurrent_requests": stats.max_inside(
            np.floor(arrival - begin), np.floor(end - begin) + 1
        ),
    }


def _stability(run: Counted) -> dict[str, Any]:
    """Return whether the clients kept up at the end of the run, and the times when they did not.

    Covers the whole run; not judged if all requests arrive at once.
    """
    c, of_users, visits = run.c, run.of_users, run.recorder.visits.columns()
    arrival = c["arrival_time"][of_users]
    if not run.open_loop or not len(arrival) or at_once(arrival):
        return {"unstable": False}
    asked = visits["request_id"] >= 0
    begun = np.where(np.isnan(visits["started_at"]), visits["finished_at"], visits["started_at"])
    times = c["finished_at"] - c["sent_at"] - c["queued"] - c["front_end"]
    times = stats.known(times[run.finished])
    in_queue = Stays(joined_at(visits, c)[asked], begun[asked])
    found = judged(Stays(arrival, c["finished_at"][of_users]), in_queue, times)
    times_over = overloads(arrival, in_queue, times)
    if found.verdict != "unstable" and times_over and times_over[-1]["is_growing"]:
        # the load varies, which `judged` takes for noise; no longer run would tell more
        found = Judged(AT_END)
    summary: dict[str, Any] = {
        "unstable": found.verdict == "unstable",
        "stability": found.verdict,
        **({} if found.needs is None else {"stability_needs": found.needs}),
        **({} if found.in_system is None else {"stability_growth": list(found.in_system)}),
    }
    if not times_over:
        return summary
    return summary | {
        "overloaded_s": sum(each["end"] - each["begin"] for each in times_over),
        "arrivals_s": float(arrival.max() - arrival.min()),
        "overloads": times_over,
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


def _lives(run: Counted) -> dict[str, Any]:
    """Return failures, starts and losses of clients, and when latencies were as before."""
    c, counted = run.c, run.counted
    lives = clients.Lives(run.recorder, float(c["finished_at"].max(initial=0.0)))
    lost = clients.lives_summary(run.recorder, lives, c["status"][counted], run.warmup)
    found: dict[str, Any] = {**lost}
    if not (failures := lives.failures):
        return found
    columns = samples(c, counted) | {
        "arrival_time": c["arrival_time"][counted],
        "finished_at": c["finished_at"][counted],
        "is_done": c["status"][counted] == 0,
    }
    return found | {
        "outages": [
            Outage(begin=begin, end=None if isinf(end) else end) for begin, end in outages(failures)
        ],
        "through_failures": through_failures(failures, columns),
        "recoveries": recoveries(failures, columns),
    }


def _latencies(run: Counted) -> dict[str, float]:
    """Return the figures of every latency in milliseconds; ITL's from all gaps of the run."""
    times = samples(run.c, run.done)
    figures = {name: stats.describe(stats.known(x)) for name, x in times.items()}
    del times  # before the gaps of all steps
    asked = (*stats.PERCENTILES, _LONGEST)
    gaps = stats.describe_weighted(lambda: clients.pooled_gaps(run.recorder, run.warmup), asked)
    gaps["max"] = gaps.pop(f"p{_LONGEST}")
    figures["itl"] = gaps
    return {
        f"{figure}_{name}_ms": value * _MS
        for name in ("ttft", "tpot", "itl", "e2el", "queue")
        for figure, value in figures[name].items()
    }


def _memory(run: Counted) -> dict[str, Any]:
    """Return hits and preemptions of the KV cache, and the KV entries that moved."""

    def total(name: str) -> Any:
        return run.c[name][run.counted].sum()

    queried = total("num_queried_tokens")
    return {
        "num_truncated": int(total("truncated")),
        "num_preemptions": int(total("num_preemptions")),
        "prefix_cache_hit_rate": stats.share(total("num_cached_tokens"), queried),
        "prefix_cache_hit_rate_unbounded": stats.share(total("num_known_tokens"), queried),
        **_moves(run.recorder, run.c["request_id"][run.counted], queried),
    }


def _moves(recorder: Recorder, request_ids: Any, queried: Any) -> dict[str, Any]:
    """Return how often KV entries of some requests moved; kinds without moves are absent.

    queried: tokens that they looked up in prefix caches, of which `tier_hit_rates` are shares.
    Seconds are summed, also over simultaneous transfers.
    """
    moves, names = recorder.moves.columns(), [str(name) for name in recorder.moves.names]
    mine = np.isin(moves["request_id"], request_ids)
    codes = np.flatnonzero(np.bincount(moves["kind"][mine])).tolist()
    kinds = {names[code]: mine & (moves["kind"] == code) for code in codes}
    by_kind = {name: _moved(moves, of_kind) for name, of_kind in kinds.items()}
    found = _tier_hit_rates(moves, names, mine, queried)
    if swaps := [kinds[name] for name in ("swap_out", "swap_in") if name in kinds]:
        swapped = _moved(moves, np.any(swaps, axis=0))
        found["num_swaps"] = by_kind["swap_out"]["transfers"] if "swap_out" in kinds else 0
        found |= {"swapped_tokens": swapped["tokens"], "swap_time": swapped["seconds"]}
    for kind, number, tokens in (
        ("hand_over", "num_hand_overs", "handed_over_tokens"),
        ("fetch", "num_fetches", "fetched_tokens"),
    ):
        if moved := by_kind.get(kind):
            found |= {number: moved["transfers"], tokens: moved["tokens"]}
            found[f"mean_{kind}_ms"] = moved["seconds"] / moved["transfers"] * _MS
    found |= _answers_moved(recorder, request_ids) | _retrievals(recorder, request_ids)
    rows = recorder.retrievals.columns()
    retrieved = np.isin(rows["request_id"], request_ids) & (rows["level"] != _NO_LEVEL)
    if retrieved.any():
        by_kind["retrieval"] = _moved(rows, retrieved)
    return found | ({"communication": by_kind} if by_kind else {})


def _moved(rows: Mapping[str, Any], chosen: Mask) -> dict[str, Any]:
    """Return the totals of some moves or retrievals."""
    return {
        "transfers": int(chosen.sum()),
        "tokens": round(float(rows["num_tokens"][chosen].sum())),
        "bytes": float(rows["num_bytes"][chosen].sum()),
        "seconds": float((rows["end"] - rows["start"])[chosen].sum()),
    }


def _tier_hit_rates(
    moves: Mapping[str, Any], names: list[str], mine: Mask, queried: Any
) -> dict[str, Any]:
    """Return the share of the tokens looked up that came from each tier below the GPU."""
    is_load = moves["kind"] == (names.index("load") if "load" in names else -1)
    first = is_load & mine & ~moves["again"]
    tiers = np.flatnonzero(np.bincount(moves["source"][is_load])).tolist()
    rates = {
        names[code]: stats.share(
            moves["num_tokens"][first & (moves["source"] == code)].sum(), queried
        )
        for code in tiers
    }
    return {"tier_hit_rates": rates} if rates else {}


def _answers_moved(recorder: Recorder, request_ids: Any) -> dict[str, Any]:
    """Return how often answers moved: the mean over all requests, and the largest number.

    The hand-over from the client of the prompt to the first decode client does not count. Empty if
    no answer moved.
    """
    visits = recorder.visits.columns()
    pipelines: list[Any] = recorder.pipelines.values
    num_stages = np.array([len(kinds) for kinds in pipelines], dtype=int)
    left_some = visits["num_served_stages"] < num_stages[visits["stages"]]
    movers = visits["request_id"][visits["served"] & left_some]
    movers = movers[np.isin(movers, request_ids)]
    if not len(movers):
        return {}
    _, counts = np.unique(movers, return_counts=True)
    return {
        "mean_moves_per_request": len(movers) / len(request_ids),
        "max_moves_per_request": int(counts.max()),
    }


def _retrievals(recorder: Recorder, request_ids: Any) -> dict[str, Any]:
    """Return the hits of retrievals of some requests; empty without retrievals."""
    rows, names = recorder.retrievals.columns(), level_names(recorder)
    mine = np.isin(rows["request_id"], request_ids)
    if not mine.any():
        return {}
    level, num_tokens = rows["level"][mine], rows["num_tokens"][mine]
    asked, by_level = num_tokens.sum(), np.bincount(level, num_tokens, len(names))
    found = asked - by_level[_NO_LEVEL]
    visits = np.stack([rows[name][mine] for name in ("request_id", "client_id", "start", "end")])
    _, _, start, end = np.unique(visits, axis=1)
    return {
        "num_retrievals": len(start),
        "retrieved_tokens": float(found),
        "retrieval_hit_rate": stats.share(found, asked),
        "retrieval_hit_rates": {
            name: stats.share(by_level[code], asked)
            for code, name in enumerate(names)
            if code != _NO_LEVEL
        },
        "mean_retrieval_ms": float((end - start).mean()) * _MS,
    }


def extrapolated_share(recorder: Recorder) -> float:
    """Return the share of steps outside the range that their predictor was measured in."""
    runs = [tracks.runs for tracks in together(recorder)]
    num_steps = sum(int(rows["num_steps"].sum()) for rows in runs)
    num_outside = sum(int(rows["num_extrapolated"].sum()) for rows in runs)
    return num_outside / num_steps if num_steps else 0.0


def _speculation(recorder: Recorder, after: float) -> dict[str, float]:
    """Return the figures of speculative decoding, as in `vllm bench serve`; empty without it."""
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


def _failures(run: Counted) -> dict[str, int]:
    """Return the number of failed requests by status, and the cost of attempts in vain."""
    c, counted = run.c, run.counted
    by_status = np.bincount(c["status"][counted], minlength=len(STATUSES)).tolist()
    return {
        **{
            f"num_{name}": by_status[code]
            for code, name in enumerate(STATUSES)
            if name not in ("finished", "lost")  # of these, `lives_summary` tells
        },
        "num_retries": int((c["num_attempts"][counted] - 1).sum()),
        "wasted_input_tokens": int(c["wasted_input_tokens"][counted].sum()),
        "wasted_output_tokens": int(c["wasted_output_tokens"][counted].sum()),
    }
