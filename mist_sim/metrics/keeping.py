"""Which of several cases keep their limits at the rate that was run, and how sure that is.

A simulated figure is not sure where a real engine might do the other, given the expected error of
the step times, nor where other seeds might. An overloaded case keeps no limit that sees queues: its
latencies grow with the length of the run. Limits on gaps between tokens see none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite, isnan, nan
from statistics import fmean
from typing import Any, NamedTuple

from mist_sim.metrics.expected_errors import expected_ranges, verdict_of
from mist_sim.metrics.latency import limit_title, percentile_of
from mist_sim.metrics.replications import estimate
from mist_sim.metrics.spending import billed_per_hour
from mist_sim.metrics.stability import grows

GOOD = "good_request_fraction"
_OF_GAPS = {"tpot", "itl"}  # what a request that waits longer does not make longer
_NAMED = 8  # names in a list; of more, the sentence has the number


USERS = "workload.arrivals.concurrency"
"""What a closed loop may have more of; it has no rate."""

NO_RATE = "mist goodput tells how many users a closed loop may have."


def has_no_rate(summaries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all are of closed loops, or of requests that are all sent at once."""
    return all("unstable" in each and "stability" not in each for each in summaries)


class LimitOnShare(NamedTuple):
    """A limit that a share of the requests has to keep: half of them, a TTFT of 2 s.

    metric: of `latency.NAMES`; "itl" is of all gaps, not of requests. share: in (0, 1). limit:
    seconds.
    """

    metric: str
    share: float
    limit: float

    @property
    def figure(self) -> str:
        """The percentile in a summary that decides, in milliseconds, if the summary has it."""
        return f"{self.name}_ms"

    @property
    def name(self) -> str:
        """The percentile, such as "p99_itl"."""
        return f"p{100 * self.share:g}_{self.metric}"

    @property
    def is_of_gaps(self) -> bool:
        """Whether gaps keep it, not requests."""
        return self.metric == "itl"


class Doubts(NamedTuple):
    """Reasons to doubt that figures of a run hold for a real engine, and for long.

    is_overloaded: in more than half of the runs queues grow (`stability.grows`). is_short: in more
    than half of them they do, or these are too short to tell. has_error: the error of the step
    times is known for all limits. sees_queues: whether any limit is on a latency that grows with
    queues.
    """

    is_overloaded: bool = False
    is_short: bool = False
    has_error: bool = True
    sees_queues: bool = True


class Kept(NamedTuple):
    """Whether a case keeps its limits. good: share of good requests.

    keeps: as simulated. is_sure: neither the error of the step times nor another seed would tell
    otherwise, as far as known. first: the limit on a percentile that is missed by most, such as
    "p99 ITL"; empty if none is, or another limit by more. over: its worst figure over its limit,
    where figures decide; NaN where the share of good requests does. asked: that share, where it
    decides; else NaN.
    """

    name: str
    good: float
    keeps: bool
    is_sure: bool
    doubts: Doubts = Doubts()
    first: str = ""
    over: float = nan
    asked: float = nan

    @property
    def lasts(self) -> bool:
        """Whether it keeps its limits, and is not overloaded."""
        return self.keeps and not self.doubts.is_overloaded


def judged(kept: Kept | None, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return whether a case keeps its limits, how sure that is, its limits, and its dollars.

    summaries: of runs with one seed each; figures beside limits are of the first. Empty without
    limits. Where a share of good requests decides, it is there with the one that is asked for.
    """
    first = summaries[0] if summaries else {}
    if kept is None or not first.get("slo"):
        return {}
    bill = billed_per_hour(first)
    return {
        "keeps": kept.lasts,
        "is_sure": kept.is_sure,
        "is_long": not kept.doubts.is_short,
        "has_error": kept.doubts.has_error,
        **({} if isnan(kept.asked) else {"good": kept.good, "asked": kept.asked}),
        "slo": first["slo"],
        **({} if bill is None else {"usd_per_hour": bill}),
        **{name: first[name] for name in ("expected_errors",) if name in first},
    }


def limits_on_percentiles(figures: Mapping[str, float]) -> list[LimitOnShare]:
    """Return limits on percentiles of a run. figures: as of `Slo.figures`, seconds."""
    found = {name: percentile_of(name) or (nan, "") for name in figures}
    return [LimitOnShare(found[n][1], found[n][0] / 100, limit) for n, limit in figures.items()]


def over(limit: LimitOnShare, summaries: Sequence[Mapping[str, Any]]) -> float:
    """Return a percentile over its limit, as a mean over runs; above 1 it misses.

    Infinite where a summary has none; but without a single gap there is no ITL to keep.
    """
    return fmean(_value(limit, summary) for summary in summaries) / (1e3 * limit.limit)


def most_over(limits: Sequence[LimitOnShare], summaries: Sequence[Mapping[str, Any]]) -> float:
    """Return the worst of several percentiles over its limit, as `over`; NaN without limits."""
    return max((over(limit, summaries) for limit in limits), default=nan)


def good_share(summary: Mapping[str, Any]) -> float:
    """Return the share of good requests; of those that finish, where no limit is on requests."""
    ended = [float(summary.get(name, 0)) for name in ("completed", "failed")]
    return float(summary.get(GOOD, ended[0] / sum(ended) if sum(ended) else 0.0))


def first_missed(
    on_percentiles: Sequence[LimitOnShare],
    others: Sequence[LimitOnShare],
    summaries: Sequence[Mapping[str, Any]],
) -> str:
    """Return which limit on a percentile is missed by most, as text; "" as in `Kept.first`."""
    if not on_percentiles:
        return ""
    worst = max(on_percentiles, key=lambda each: over(each, summaries))
    known = [ratio for each in others if isfinite(ratio := over(each, summaries))]
    return limit_title(worst.name) if over(worst, summaries) > max([1.0, *known]) else ""


def _value(limit: LimitOnShare, summary: Mapping[str, Any]) -> float:
    beside = summary.get("slo", {}).get(limit.figure)
    value = float(summary.get(limit.figure, inf) if beside is None else beside["value"])
    return (0.0 if limit.is_of_gaps else inf) if isnan(value) else value


def doubts_of(limits: Sequence[LimitOnShare], summaries: Sequence[Mapping[str, Any]]) -> Doubts:
    """Return the doubts about runs with one seed each. limits: those that are judged."""
    told = [summary.get("stability") for summary in summaries]
    unstable, unknown = sum(map(grows, summaries)), told.count("too short to tell")
    ranges = expected_ranges(summaries[0])
    return Doubts(
        is_overloaded=2 * unstable > len(told),
        is_short=2 * (unstable + unknown) > len(told),
        has_error=all(ranges.get(each.metric) is not None for each in limits),
        sees_queues=any(each.metric not in _OF_GAPS for each in limits) or not limits,
    )


def is_sure(
    limits: Sequence[LimitOnShare],
    share: float | None,
    summaries: Sequence[Mapping[str, Any]],
    *,
    keeps: bool,
) -> bool:
    """Tell whether a real engine and other seeds would do the same, as far as known.

    limits: by the percentiles of which the error is judged, where summaries have them. share: of
    good requests that is asked for, of the intervals over seeds; None: those do not count.
    summaries: of runs with one seed each.
    """
    means = {
        name: fmean(float(summary.get(name, nan)) for summary in summaries)
        for name in ("mean_ttft_ms", "mean_e2el_ms")
    }
    ranges = expected_ranges({**summaries[0], **means})
    told = []
    for each in limits:
        figures = [
            _value(each, summary) if each.is_of_gaps else float(summary.get(each.figure, nan))
            for summary in summaries
        ]
        value = fmean(figures) / 1e3
        error = ranges.get(each.metric)
        told.append(verdict_of(value <= each.limit, value, each.limit, error))
    if keeps and "within error" in told:
        return False
    if not keeps and "miss" not in told:
        ended = [fmean(float(each[name]) for each in summaries) for name in ("completed", "failed")]
        most = ended[0] / sum(ended) if sum(ended) else 0.0  # can be good: those that finish
        if not any(most < each.share for each in limits if not each.is_of_gaps):
            return False
    if share is not None and len(summaries) > 1:
        good = estimate([float(summary[GOOD]) for summary in summaries])
        if (good.low < share) if keeps else (good.high >= share):
            return False
    return True


def sentence(cases: Sequence[Kept], *, where: str = "", otherwise: str = "") -> str:
    """Return which cases keep their limits, and how sure that is. Empty for no cases.

    where: text behind "keep their limits". otherwise: text on how to learn more.
    """
    if not cases:
        return ""
    keeping = [case for case in cases if case.lasts]
    overloaded = [case for case in cases if case.keeps and not case.lasts]
    told = [_count(keeping, overloaded, cases, where + _rule(cases))]
    if waiting := [case for case in overloaded if case.doubts.sees_queues]:
        told.append(f"Overloaded, so that a longer run would miss: {_names(waiting)}.")
    if gaps := [case for case in overloaded if not case.doubts.sees_queues]:
        told.append(
            f"Overloaded, which limits on gaps between tokens do not see: {_names(gaps)}; add one "
            "on TTFT."
        )
    told += missed_percentiles(cases)
    within = [
        f"{how} by {_names(unsure)}"
        for how, judged_so in (("kept", keeping), ("missed", _missing(cases)))
        if (unsure := [case for case in judged_so if not case.is_sure])
    ]
    if within:
        told.append(f"Within error: {'; '.join(within)}.")
    if short := [case for case in keeping if case.doubts.is_short]:
        told.append(f"Too short to tell whether queues grow: {_names_or_all(short, keeping)}.")
    if unknown := [case for case in cases if not case.doubts.has_error]:
        told.append(f"Error of the step times not known: {_names_or_all(unknown, cases)}.")
    return " ".join([*told, *([otherwise] if otherwise else [])])


def missed_percentiles(cases: Sequence[Kept]) -> list[str]:
    """Return which limits on percentiles miss first, a sentence each."""
    missed = [case for case in _missing(cases) if case.first]
    return [
        f"{first} misses first: {_names([case for case in missed if case.first == first])}."
        for first in dict.fromkeys(case.first for case in missed)
    ]


def _missing(cases: Sequence[Kept]) -> list[Kept]:
    return [case for case in cases if not case.keeps]


def _rule(cases: Sequence[Kept]) -> str:
    """Return the share of good requests that decides for all; empty unless one does."""
    share, *others = {case.asked for case in cases}
    return "" if others or isnan(share) else f" ({100 * share:g} % of requests)"


def _count(
    keeping: Sequence[Kept], overloaded: Sequence[Kept], cases: Sequence[Kept], where: str
) -> str:
    if overloaded and not keeping:
        return f"None keeps its limits{where} and carries the rate."
    if not keeping:
        judged = _missing(cases)
        least = min((case.over for case in judged), default=inf)
        if isfinite(least) and all(case.over > 1 for case in judged):
            nearest = _nearest([case for case in judged if case.over == least])
            return (
                f"None keeps its limits{where}; {nearest}, {100 * least - 100:.3g} % over a limit."
            )
        if not judged or any(case.first for case in judged):
            return f"None keeps its limits{where}."
        most = max(_number(case.good) for case in judged)
        if most == 0:
            return f"None keeps its limits{where}; no request is good."
        nearest = _nearest([case for case in judged if _number(case.good) == most])
        return f"None keeps its limits{where}; {nearest}, with {100 * most:.1f} % good requests."
    if len(keeping) == len(cases):
        return f"All keep their limits{where}."
    return f"{len(keeping)} of {len(cases)} keep their limits{where}: {_names(keeping)}."


def _nearest(cases: Sequence[Kept]) -> str:
    return f"{_names(cases)} {'comes' if len(cases) == 1 else 'come'} nearest"


def _names(cases: Sequence[Kept]) -> str:
    names = [case.name for case in cases]
    more = len(names) - _NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:_NAMED])} and {more} more"


def _names_or_all(named: Sequence[Kept], cases: Sequence[Kept]) -> str:
    is_long = len(named) == len(cases) > 2
    return f"all {len(cases)}" if is_long else _names(named)


def _number(value: float) -> float:
    return 0.0 if isnan(value) else value
