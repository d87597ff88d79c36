"""Expected errors of TTFT and TPOT, against real engines, in the form of summaries.

Which they are is a matter of `mist_sim.metrics.evidence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any, NamedTuple, NotRequired, TypedDict

from mist_sim.hardware.setting import Borrowed, Setting
from mist_sim.metrics.evidence import FAR, RESPECTS, ErrorBar, evidence_for, without, words
from mist_sim.metrics.latency import metric_of
from mist_sim.metrics.load import OPEN, Load
from mist_sim.metrics.sensitivity import Sensitivity

WITHIN = "within error"
"""The verdict on a limit that a real engine might keep or miss, by the error of the step times."""


class Range(NamedTuple):
    """Where measured / simulated - 1 of a metric lies, nine times in ten."""

    low: float
    high: float


def error_bar(
    setting: Setting | Borrowed | None,
    metric: str,
    load: Load | None = None,
    sensitivity: Sensitivity | None = None,
    without_origin: str = "",
) -> ErrorBar | None:
    """Return the expected error of a setting; None where it is not known.

    metric: "ttft" or "tpot". load: None: not known. sensitivity: of its client in an open loop, in
        which errors of step times grow; None: they do not. without_origin: rows that are left out.
    """
    if not isinstance(setting, Setting):
        return None
    bar = _bar(setting, metric, load, without_origin)
    if sensitivity is None:
        return bar
    return at_load(bar, metric, _bar(setting, "tpot", load, without_origin), sensitivity)


@cache
def _bar(setting: Setting, metric: str, load: Load | None, without_origin: str) -> ErrorBar | None:
    everyone = evidence_for(setting.source, metric)
    if not without_origin:
        return everyone.bar(setting, load)
    others = without(without_origin, setting.source, metric)
    return others.bar(setting, load, everyone.margin(setting, load))


def at_load(
    bar: ErrorBar | None, metric: str, steps: ErrorBar | None, sensitivity: Sensitivity | None
) -> ErrorBar | None:
    """Return a bar as wide as a load makes it. steps: the bar of step times, that of TPOT."""
    if bar is None or steps is None or sensitivity is None:
        return bar
    shortest, longest = 1 + steps.low, 1 + steps.high
    low = (1 + bar.low) * sensitivity.factor(metric, shortest) / shortest - 1
    high = (1 + bar.high) * sensitivity.factor(metric, longest) / longest - 1
    return bar._replace(low=round(low, 3), high=round(high, 3))


class ExpectedError(TypedDict):
    """The range of nine in ten measurements, as measured / simulated - 1.

    Without one, low and high are None and `like` says why. here: what the client is, in the words
    of `like`. other: in what the nearest measured run is other. sensitivity: in an open loop, what
    its load makes of errors of step times (`metrics.sensitivity`), whose range is `step_times`.
    """

    low: float | None
    high: float | None
    num_points: int
    like: str
    other: list[str]
    here: str
    knows_kernel: bool
    load: str | None
    arrivals: str | None
    sensitivity: NotRequired[dict[str, float]]
    step_times: NotRequired[list[float]]


def expected_errors(
    settings: Mapping[str, Mapping[str, Setting | Borrowed | None]],
    load: Load | None = None,
    sensitivities: Mapping[str, Sensitivity] | None = None,
    without_origin: str = "",
) -> dict[str, dict[str, dict[str, Any] | None]]:
    """Return the expected errors of clients by metric, in the form of the summary.

    settings: as in `Result`. load: of the run; None: unknown, before a run or if no request
        finishes. sensitivities: of clients in an open loop. without_origin: as in `error_bar`.
    """
    found = {}
    for name, of_client in settings.items():
        here = sensitivities.get(name) if sensitivities and load and load.arrivals == OPEN else None
        found[name] = {
            metric: _shown(setting, metric, load, here, without_origin)
            for metric, setting in of_client.items()
        }
    return found


def expected_ranges(summary: Mapping[str, Any]) -> dict[str, Range | None]:
    """Return the expected error ranges of a run's "ttft", "tpot", "itl", "e2el" and "throughput".

    Each is the widest range of the clients; None if nothing comparable to one of them was measured,
    or if no client times steps. ITL has the range of TPOT, as the mean of gaps is that of TPOT but
    for weights. The range of E2E combines those of its parts, each weighted by its share of the
    simulated mean (`end_to_end`). As many requests as before that take longer make a closed loop or
    a burst as much slower (Little); in an open loop arrivals bound the throughput until they are
    too many.

    summary: of a run or of replications, with `expected_errors` and the means of TTFT and E2E.
    """
    expected = summary.get("expected_errors", {})
    ttft, tpot = (_widest(expected, metric) for metric in ("ttft", "tpot"))
    share = float(summary.get("mean_ttft_ms", 0.0)) / (summary.get("mean_e2el_ms") or float("nan"))
    e2el = end_to_end(ttft, tpot, share) if ttft and tpot and isfinite(share) else None
    throughput = _throughput(summary, e2el)
    return {"ttft": ttft, "tpot": tpot, "itl": tpot, "e2el": e2el, "throughput": throughput}


def slower(e2el: Range) -> Range:
    """Return the range of the throughput of a closed loop or a burst, from that of E2E."""
    return Range(1 / (1 + e2el.high) - 1, 1 / (1 + e2el.low) - 1)


def _throughput(summary: Mapping[str, Any], e2el: Range | None) -> Range | None:
    """Return the range of the requests, and of the tokens, that end in a second."""
    if e2el is None:
        return None
    bars = [bar for of in summary["expected_errors"].values() for bar in of.values() if bar]
    if bars[0].get("arrivals") != OPEN:
        return slower(e2el)
    ttft, decode = summary["mean_ttft_ms"], summary["mean_e2el_ms"] - summary["mean_ttft_ms"]
    ends = [
        1 / (1 + Sensitivity(**bar["sensitivity"]).longer(1 + step, ttft, decode) / duration) - 1
        for bar in bars
        if (duration := summary.get("duration", 0.0) * 1e3) > 0 and "step_times" in bar
        for step in bar["step_times"]
    ]
    return Range(min(ends), max(ends)) if ends else None


def is_far(summary: Mapping[str, Any]) -> bool:
    """Return whether a client is far from all measured runs, or like none (`FAR`)."""
    bars = [bar for of in summary.get("expected_errors", {}).values() for bar in of.values()]
    return any(bar is None or len(bar.get("other", ())) >= FAR for bar in bars)


def biases_of(summary: Mapping[str, Any]) -> dict[str, Range]:
    """Return the ranges of `expected_ranges` that lie on one side of 0: biases, by metric.

    Without ITL and throughput, whose ranges are those of the others.
    """
    ranges = expected_ranges(summary)
    found = [(name, ranges[name]) for name in ("ttft", "tpot", "e2el")]
    return {name: each for name, each in found if each and (each.low > 0 or each.high < 0)}


def verdict_of(kept: bool, value: float, limit: float, error: Range | None) -> str:
    """Return "pass", "miss", or "within error" where a real engine might do the other.

    kept: whether the simulated value keeps the limit. error: as `expected_ranges` has it for the
    metric; None: not known, so that the simulated value alone counts. Ranges are of means; one of
    the mean stands for all percentiles.
    """
    if error is not None and isfinite(value):
        if kept and value * (1 + error.high) > limit:
            return WITHIN
        if not kept and value * (1 + error.low) <= limit:
            return WITHIN
    return "pass" if kept else "miss"


def with_verdicts(
    slo: Mapping[str, Mapping[str, Any]], summary: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return each figure that has a limit, with the limit and the verdict (`verdict_of`).

    `error_known` tells whether the verdict knows the expected error.

    slo: as `slo_verdicts` gives them, in milliseconds. summary: as `expected_ranges` takes it.
    """
    ranges = expected_ranges(summary)
    told = {}
    for name, found in slo.items():
        error = ranges.get(metric_of(name))
        verdict = verdict_of(found["kept"], found["value"], found["limit"], error)
        told[name] = {**found, "verdict": verdict, "error_known": error is not None}
    return told


def shares_with_verdicts(
    shares: Mapping[str, Mapping[str, Any]], slo: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return each share of good requests, with a verdict as `with_verdicts` gives figures.

    A real engine might do the other where it might at a limit that good requests keep.

    shares: of all, or by class. slo: figures with verdicts, those of a class under its name; those
    not `of_requests` make no request good or bad.
    """
    of_class: dict[str, list[Mapping[str, Any]]] = {}
    for name, each in slo.items():
        if not each.get("of_requests", True):
            continue
        of_class.setdefault(name.rpartition(".")[0], []).append(each)
    told = {}
    for name, found in shares.items():
        mine = of_class.get(name, of_class.get("", []))
        verdicts = {each["verdict"] for each in mine}
        is_known = all(each["error_known"] for each in mine)
        is_near = WITHIN in verdicts if found["kept"] else is_known and "miss" not in verdicts
        verdict = WITHIN if is_near else "pass" if found["kept"] else "miss"
        told[name] = {**found, "verdict": verdict, "error_known": is_known}
    return told


def end_to_end(ttft: Range | ErrorBar, tpot: Range | ErrorBar, ttft_share: float) -> Range:
    """Return the range of E2E from the ranges of TTFT and of the time after it.

    ttft_share: share of TTFT in E2E, in [0, 1]. The time after the first token counts as decode.
    """
    rest = 1 - ttft_share
    return Range(
        low=ttft_share * ttft.low + rest * tpot.low,
        high=ttft_share * ttft.high + rest * tpot.high,
    )


def _widest(expected: Mapping[str, Any], metric: str) -> Range | None:
    """Return the widest range of the clients; None if one has no range or there are no clients."""
    bars = [of_client[metric] for of_client in expected.values() if metric in of_client]
    if not bars or any(bar is None or bar["low"] is None for bar in bars):
        return None
    return max((Range(bar["low"], bar["high"]) for bar in bars), key=lambda r: r.high - r.low)


def _shown(
    setting: Setting | Borrowed | None,
    metric: str,
    load: Load | None,
    sensitivity: Sensitivity | None,
    without_origin: str,
) -> dict[str, Any] | None:
    """Return an error bar as data; one that is not known has no ends, and gives the reason."""
    if setting is None:
        return None
    kind, arrivals = load or ("", "")
    of_load: dict[str, Any] = {"load": kind or None, "arrivals": arrivals or None}
    bar = error_bar(setting, metric, load, sensitivity, without_origin)
    if sensitivity is not None:
        of_load["sensitivity"] = {n: round(v, 4) for n, v in sensitivity._asdict().items()}
    if bar is not None:
        found = {"low": bar.low, "high": bar.high, "num_points": bar.num_points}
        here = words(setting) if isinstance(setting, Setting) else ""
        like = {"like": bar.like, "other": list(bar.other), "knows_kernel": bar.knows_kernel}
        if sensitivity is not None and (
            steps := error_bar(setting, "tpot", load, without_origin=without_origin)
        ):
            of_load["step_times"] = [steps.low, steps.high]
        return {**found, **like, "here": here, **of_load}
    if isinstance(setting, Borrowed):
        why = setting.why
    else:
        why = f"not known: {evidence_for(setting.source, metric).unknown(setting)}"
    nothing = {"low": None, "high": None, "num_points": 0, "knows_kernel": False}
    return {**nothing, "like": why, "other": list(RESPECTS), "here": "", **of_load}
