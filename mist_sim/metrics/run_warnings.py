"""Warnings that a run itself leads to: nothing finished, overload, failures, cut answers.

And which models and classes of the workload fall short of limits that are judged over all of them:
a model with few requests hides behind the others. 90 % of all requests may be good while of its own
only two in three are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mist_sim.core import result_warnings as kinds
from mist_sim.core.recorder import Recorder
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import listed
from mist_sim.metrics.evidence import FAR, NOTHING_LIKE_IT, RESPECTS
from mist_sim.metrics.goodput import Slo
from mist_sim.metrics.latency import limit_of, limit_title
from mist_sim.metrics.recoveries import FEWEST, RECOVERING
from mist_sim.metrics.requests import ANY, OTHERS, Counted, Mask, front_end_use, samples
from mist_sim.metrics.stability import AT_END
from mist_sim.metrics.summary import extrapolated_share

_FULL = 0.95  # of a process; requests wait for ten others then (M/D/1: u / (2 (1 - u)))
LEAST_AT_LIMIT = 0.01  # share of the time from which on a limit is named
_UNITS = ((10800.0, 3600.0, "hours"), (600.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_MAX_REASONS = 12  # that are listed one by one
_MAX_RECOVERIES = 3  # failures with a sentence each
_UNDISTURBED = "undisturbed"
_ROSE = 1.1  # times: a p99 during failures that the eye sees in the table
_FEW = (
    f"Fewer than {FEWEST} requests finished before the first failure: too few to tell when "
    "latencies were as before."
)
_UNSTABLE = (
    "Unstable: more work arrives than the clients can do, and more and more requests wait until "
    "the last arrival. Latencies depend on how long the run is; lower the rate or add clients."
)
_AT_END = (
    "Overloaded at the end: more and more requests waited until the last arrival, so latencies "
    "depend on when the load ends."
)
# Ten times MLPerf's loosest limits on TTFT and TPOT (Llama 3.1 405B, Llama 2 70B: slo_presets), and
# an hour; limits as far above the times as a unit of milliseconds would be, more or less.
_LONG_S = {"ttft": 60.0, "tpot": 2.0, "itl": 2.0, "e2el": 3600.0}
_FAR = 10


def run_warnings(
    summary: Mapping[str, Any],
    recorder: Recorder,
    warmup: float,
    *,
    is_of_rows: bool = False,
) -> Iterator[ResultWarning]:
    """Yield the warnings of a run.

    summary: its figures. recorder, warmup, is_of_rows: as in `Result`.
    """
    yield from distance_warnings(summary.get("expected_errors", {}))
    if not summary["completed"]:
        yield ResultWarning(kinds.NOTHING_FINISHED, nothing_finished(summary))
    if summary["unstable"]:
        yield ResultWarning(kinds.UNSTABLE, _UNSTABLE)
    if line := overload_line(summary):
        at_end = summary.get("stability") == AT_END
        kind, brief = (kinds.OVERLOADED_AT_END, _AT_END) if at_end else (kinds.OVERLOADED, "")
        yield ResultWarning(kind, line, brief=brief)
    for line in recovery_lines(summary):
        yield ResultWarning(kinds.FAILURES, line)
    if summary["completed"] and summary.get("stability") == "too short to tell":
        yield ResultWarning(
            kinds.TOO_SHORT, f"Too short to tell whether {_may_overload(summary, is_of_rows)}"
        )
    yield from record_warnings(recorder, warmup)
    yield from _in_milliseconds(summary)


def distance_warnings(expected: Mapping[str, Any]) -> Iterator[ResultWarning]:
    """Yield how far clients are from all measured runs, if far. expected: as in the summary."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for client, bars in expected.items():
        # the metric that is farther speaks for both
        metric, far = max(
            bars.items(),
            key=lambda of: len(of[1].get("other", ())) if of[1] else 9,
            default=("", {}),
        )
        differ = len({bar["like"] for bar in bars.values() if bar}) > 1
        if line := distance_line(far, metric if differ else ""):
            found.setdefault(line, []).append(client)
    for (text, detail, brief), clients in found.items():
        names = tuple(clients) if len(clients) < len(expected) else ()
        yield ResultWarning(kinds.DISTANCE, text, detail, names, brief)


def distance_line(bar: Mapping[str, Any] | None, metric: str = "") -> tuple[str, str, str] | None:
    """Return how far a client is from all measured runs, from which, and both in brief.

    metric: whose bar it is, where another metric has another. None if it is near.
    """
    if bar is None or (bar and bar["low"] is None):
        why = str(bar["like"]).removeprefix("not known: ") if bar else NOTHING_LIKE_IT
        brief = f"No error bar: {why}."
        return f"{brief} How far off these figures are is not known.", "", brief
    if len(bar.get("other", ())) < FAR:
        return None
    missing = "like this" if bar.get("knows_kernel", True) else "of this kernel on this GPU"
    whose = f", for {metric.upper()}," if metric else ""
    other = f"{len(bar['other'])} of {len(RESPECTS)} are other: {', '.join(bar['other'])}"
    return (
        f"No measurement {missing}: error bars are as wide as errors of runs as far away.",
        f"Here {bar['here']}; the nearest{whose} is {bar['like']} ({other}).",
        f"No measurement {missing}; other: {', '.join(bar['other'])}.",
    )


def record_warnings(recorder: Recorder, warmup: float) -> Iterator[ResultWarning]:
    """Yield the warnings that need no summary, so that a run that ended early has them too."""
    run = Counted(recorder, warmup)
    c, counted = run.c, run.counted
    if cut := int(c["truncated"][counted].sum()):
        yield ResultWarning(
            kinds.TRUNCATED,
            f"{cut:,} answers were cut at max_model_len; a model with a longer context would "
            "generate more.",
        )
    serves = bool((counted & (c["reason"] == 0)).any())
    use = front_end_use(recorder, warmup) if serves else None
    if use is not None and use.share >= _FULL:
        yield ResultWarning(
            kinds.FRONT_END_FULL,
            f"The front end limits throughput: its busiest HTTP server process had "
            f"{100 * use.share:.3g} % of the work that it can do, with {use.requests:.3g} requests "
            f"and {use.tokens:,.0f} output tokens a second. More processes (vLLM's "
            "--api-server-count; front_end.api_server_count) would serve more, or more engines "
            "with their own. How long tokens wait there is no part of TPOT and ITL.",
        )
    for times, reason in _reasons(recorder):
        such = "requests, such as" if times > 1 else "request:"
        yield ResultWarning(kinds.FAILED_REQUESTS, f"Failed: {times:,} {such} {reason}")
    if share := extrapolated_share(recorder):
        yield ResultWarning(
            kinds.EXTRAPOLATED,
            f"{100 * share:.2g} % of the steps lie outside what was measured: their times are "
            "extrapolated.",
        )


def _in_milliseconds(summary: Mapping[str, Any]) -> Iterator[ResultWarning]:
    """Yield limits that were perhaps meant in milliseconds: long, and far above all times."""
    named: dict[str, float] = {}
    for figure, found in summary.get("slo", {}).items():
        metric, _ = limit_of(figure)
        seconds = found["limit"] / 1e3
        is_long = seconds >= _LONG_S.get(metric.rpartition(".")[2], math.inf)
        if is_long and found["limit"] >= _FAR * found["value"]:
            named[metric] = seconds
    for metric, seconds in named.items():
        yield ResultWarning(
            kinds.LIMIT_IN_SECONDS,
            f"The limit on {limit_title(metric)} is {seconds:g} s, more than {_FAR} times what "
            f"requests take. Limits in Python are seconds: {seconds / 1e3:g} means {seconds:g} ms.",
        )


def nothing_finished(summary: Mapping[str, Any]) -> str:
    """Return why there are no latencies."""
    if not summary["failed"]:
        return "No request arrived after the warm-up, so there are no metrics."
    ways = ("rejected", "timed out", "cancelled", "lost")
    counts = ((summary.get(f"num_{way.replace(' ', '_')}", 0), way) for way in ways)
    failed = ", ".join(f"{times:,} {way}" for times, way in counts if times)
    return f"No request finished: {failed}. There are no latencies."


def _may_overload(summary: Mapping[str, Any], is_of_rows: bool) -> str:
    """Return what is open of a run that is too short to tell whether the clients keep up."""
    needs = summary.get("stability_needs", 0)
    more = f"run {rounded_up(needs):,} requests to know" if needs else "run more requests"
    if is_of_rows:
        number = f" of {rounded_up(needs):,} requests" if needs else ""
        more = f"a longer trace{number} tells: mist trace synth makes one like it"
    if not (grown := summary.get("stability_growth")):
        return (
            f"the clients keep up with the arrivals: the load may be more than they carry; {more}."
        )
    filled, last = grown
    return (
        f"the clients keep up with the arrivals: the requests in the system grow, from {filled:,} "
        f"when batches had filled to {last:,} at the last arrival; {more}."
    )


def rounded_up(number: int) -> int:
    """Return a number with its first digit, rounded up, alone."""
    unit = int(10 ** (len(str(number)) - 1))
    return -(-number // unit) * unit


def overload_line(summary: Mapping[str, Any]) -> str:
    """Return for how long, when, and how many waited; empty for a run that never was overloaded."""
    periods = summary.get("overloads")
    if not periods:
        return ""
    all_seconds = summary["arrivals_s"]
    unit, name = next((unit, name) for least, unit, name in _UNITS if all_seconds >= least)
    share = f"{summary['overloaded_s'] / unit:.3g} of {all_seconds / unit:.3g} {name}"
    first, longest = periods[0], max(period["longest_wait"] for period in periods)
    when = f"from {first['begin'] / unit:.3g} to {first['end'] / unit:.3g}"
    if len(periods) > 1:
        when = f"{len(periods)} times, the first {when}"
    most = max(period["most_waiting"] for period in periods)
    waited = f"{longest:,.0f}" if longest >= 100 else f"{longest:.3g}"
    return (
        f"Overloaded for {share} ({when}){_end_of(periods[-1], summary)}: up to {most:,} requests "
        f"waited, for up to {waited} s. Percentiles of the whole run mix these times with the "
        "others."
    )


def _end_of(last: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return what became of the queue of the last overload; empty where another warning says so."""
    if summary["unstable"]:
        return ""
    if summary.get("stability") == AT_END:
        return ", and more and more waited until the last arrival"
    if last.get("left"):  # files of older versions have none
        return f", of whose queue {last['left']:,} were left at the last arrival"
    return ", though the queue drained in the end"


def room_line(summary: Mapping[str, Any]) -> str:
    """Return which limit left no room for more, and for how long; empty where there was room."""
    taken = 1 - summary.get("room", 1.0)
    if not taken >= LEAST_AT_LIMIT or "room_limit" not in summary:
        return ""
    return f"No room in {100 * taken:.0f} % of the time, mostly for {summary['room_limit']}."


def recovery_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield when latencies were as before, a sentence a failure; none without failures."""
    found = summary.get("recoveries")
    if found is None:
        return
    if not found:
        yield _FEW
    for each in found[:_MAX_RECOVERIES]:
        yield _recovery(each, summary.get("through_failures", {}))
    if len(found) > _MAX_RECOVERIES:
        yield f"{len(found) - _MAX_RECOVERIES} failures more: see recoveries in the summary."
    if found:
        yield from _unsteady_load(summary.get("through_failures", {}))


def _unsteady_load(phases: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence where requests came faster or slower behind a failure than before it."""
    rates = {phase: of["arrivals_per_s"] or 0.0 for phase, of in phases.items()}
    known = {phase: rate for phase, rate in rates.items() if rate > 0}  # not NaN: no such time
    before = known.pop("before", None)
    if before and any(_differs(phases["before"], phases[phase]) for phase in known):
        others = ", ".join(f"{rate:.3g} /s {phase}" for phase, rate in known.items())
        yield (
            f"The load was not steady: {before:.3g} requests/s before the failure, {others}. So "
            "latencies may differ for the load's sake: compare with a run without failures."
        )


def _differs(before: Mapping[str, Any], behind: Mapping[str, Any]) -> bool:
    """Whether arrivals of a phase are more or fewer by a tenth, and by more than chance makes it.

    By three standard errors of a Poisson process with as many arrivals.
    """
    numbers = [each["completed"] + each["failed"] for each in (before, behind)]
    ratio = abs(math.log(behind["arrivals_per_s"] / before["arrivals_per_s"]))
    return ratio > max(math.log(_ROSE), 3 * math.sqrt(sum(1 / max(n, 1) for n in numbers)))


def _recovery(each: Mapping[str, Any], phases: Mapping[str, Any]) -> str:
    """Return when latencies were as before. phases: `through_failures`."""
    begin, first = each["begin"], ""
    when = f"failure at {begin:.4g} s of the run"
    if each["end"] > begin:
        first, when = (
            "first of the ",
            f"failures from {begin:.4g} to {each['end']:.4g} s of the run",
        )
    back = {
        RECOVERING[metric]: _when(seconds, begin, _slowest(metric, phases))
        for metric, seconds in each["back_after"].items()
    }
    if not any(text != _UNDISTURBED for text in back.values()):
        return f"Latencies stayed as they were through the {when}."
    words = ", ".join(f"{name} {text}" for name, text in back.items())
    return f"Latencies are as before the {first}{when} again: {words}."


def _when(seconds: float | None, begin: float, slowest: str) -> str:
    """Return when a latency was back. seconds: after the first failure, at `begin` of the run."""
    if seconds is None:
        return "not by the last arrival"
    if seconds == 0:
        return f"as usual but for the slowest ({slowest})" if slowest else _UNDISTURBED
    return f"{seconds:.3g} s later (at {begin + seconds:.4g} s)"


def _slowest(metric: str, phases: Mapping[str, Any]) -> str:
    """Return the p99 before and during failures if it rose, which twenty in a row do not show."""
    before, during = (phases.get(n, {}).get(f"p99_{metric}_ms") for n in ("before", "during"))
    if before is None or during is None or not during > _ROSE * before:
        return ""
    return f"p99 {before:,.0f} ms before, {during:,.0f} ms during failures"


def _reasons(recorder: Recorder) -> list[tuple[int, str]]:
    """Return (count, an example) of reasons that differ in numbers or clients only."""
    times = np.bincount(recorder.requests.columns()["reason"])
    found: dict[str, tuple[int, str]] = {}
    for reason, number in sorted(
        (str(reason), number)
        for reason, number in zip(recorder.reasons.values, times.tolist(), strict=False)
        if reason and number
    ):
        kind = re.sub(r"\d+", "#", reason.partition(": ")[2] or reason)
        before, example = found.get(kind, (0, reason))
        found[kind] = before + number, example
    groups = sorted(found.values(), key=lambda group: (-group[0], group[1]))
    rest = sum(number for number, _ in groups[_MAX_REASONS:])
    return groups[:_MAX_REASONS] + ([(rest, "those with other reasons")] if rest else [])


_STANDARD_ERRORS = 2.0  # standard errors of a share by which it falls short, else chance may do it
_MOST_PARTS = 8  # models or classes whose shares are told
_REMEDIES = {
    "models": "Limits by model have each judged: slo.classes, each with its model.",
    "classes": "Limits by class have each judged: slo.classes, by the names of the workload's.",
}


def pooled_warnings(
    recorder: Recorder,
    slo: Slo,
    warmup: float,
    *,
    asked: float | None = None,
    each: bool | None = None,
) -> Iterator[ResultWarning]:
    """Yield models, and classes of the workload, that keep limits less often than is asked of all.

    Nothing where all together keep them less often, too. warmup: as in `Result`. asked, each: the
    share and the way to count it, in place of those of the limits.
    """
    if not slo.judges_requests or not (len(recorder.models.values) > 1 or recorder.labels):
        return
    run = Counted(recorder, warmup)
    c: dict[str, Any] = {name: column[run.counted] for name, column in run.c.items()}
    group = c.get("group", np.zeros(len(c["status"]), dtype=int))
    good = _good_masks(slo, c, slo.asks_each if each is None else each)
    parts = {"models": _by_model(recorder, c), "classes": _by_label(recorder, c)}
    for place, (name, limits) in enumerate(slo.groups.items()):
        own = slo.classes[name].attainment if name else None
        share = own if own is not None else slo.asked if asked is None else asked
        mine = group == place
        if not limits.limits or _is_short(good, mine, share):
            continue
        for what, masks in parts.items():
            inside = {part: mask & mine for part, mask in masks.items() if (mask & mine).any()}
            if any(_is_short(good, mask, share) for mask in inside.values()) and len(inside) > 1:
                who = name or (OTHERS if slo.classes else "")
                yield _pooled(what, who, share, good, inside)


def _good_masks(slo: Slo, c: Mapping[str, Any], each: bool) -> list[Mask]:
    """Return which requests are good; with `each`, which keep a limit, limit by limit."""
    done = c["status"] == 0
    group = c["group"][done] if "group" in c else None
    missed = slo.missed(samples(c, done), c["num_gaps"][done], group).values()
    kept = [~mask for mask in missed] if each else [~np.any(list(missed), axis=0)]
    found = []
    for mask in kept:
        good = np.zeros(len(done), dtype=bool)
        good[done] = mask
        found.append(good)
    return found


def _by_model(recorder: Recorder, c: Mapping[str, Any]) -> dict[str, Mask]:
    names = recorder.models.values
    return {str(names[k] or ANY): c["model"] == k for k in np.unique(c["model"]).tolist()}


def _by_label(recorder: Recorder, c: Mapping[str, Any]) -> dict[str, Mask]:
    """Return the requests by class of the workload; nothing where it has none."""
    if not recorder.labels:
        return {}
    labels = np.array(recorder.labels)[c["request_id"]]
    names = recorder.label_names.values
    return {str(names[k] or OTHERS): labels == k for k in np.unique(labels).tolist()}


def _least_share(good: list[Mask], mine: Mask) -> float:
    return min(float(mask[mine].mean()) for mask in good)


def _is_short(good: list[Mask], mine: Mask, asked: float) -> bool:
    """Whether some requests are good less often than asked, by more than chance."""
    number = int(mine.sum())
    if not number:
        return True
    return (
        _least_share(good, mine) + _STANDARD_ERRORS * math.sqrt(asked * (1 - asked) / number)
        < asked
    )


def _pooled(
    what: str, who: str, asked: float, good: list[Mask], parts: Mapping[str, Mask]
) -> ResultWarning:
    shares = {name: _least_share(good, mask) for name, mask in parts.items()}
    found = sorted(shares, key=lambda name: shares[name])
    told = listed([f"{100 * shares[name]:.1f} % of {name}" for name in found[:_MOST_PARTS]])
    of = f" of {who}" if who else ""
    return ResultWarning(
        kinds.POOLED,
        f"The limits{of} are for all {what} together: {100 * asked:g} % of all requests have to "
        f"keep them. Of each: {told}. {_REMEDIES[what]}",
        brief=f"{100 * shares[found[0]]:.1f} % of {found[0]} keep the limits; the "
        f"{100 * asked:g} % asked are of all {what} together.",
    )
