"""The latencies of a run's requests, from which the attainment of any limits follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isnan, nan
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mist_sim.checks import NotNegative, check_fields
from mist_sim.core.recorder import Recorder
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.errors import ScenarioError, brief
from mist_sim.metrics import Slo, latency
from mist_sim.metrics.clients import gap_percentile
from mist_sim.metrics.goodput import ClassLimits, Limits
from mist_sim.metrics.keeping import (
    GOOD,
    Kept,
    LimitOnShare,
    doubts_of,
    first_missed,
    good_share,
    is_sure,
    limits_on_percentiles,
    most_over,
    over,
)
from mist_sim.metrics.latency import NAMES, percentile_of
from mist_sim.metrics.requests import OTHERS, request_columns
from mist_sim.metrics.run_warnings import pooled_warnings
from mist_sim.studies.built import load_in_words
from mist_sim.studies.verdicts.steady_state import least_requests, quantile
from mist_sim.units import DURATION


def percentiles_of(given: object) -> tuple[LimitOnShare, ...]:
    """Return the percentiles of a mapping, such as {p50_ttft: 2 s}, in its order.

    Raises ScenarioError for other names, and times that are not limits.
    """
    if not isinstance(given, Mapping) or not given:
        raise ScenarioError(
            f"percentiles must be a mapping, such as {{p50_ttft: 2 s}}, got {brief(given)}"
        )
    limits = []
    for name, value in given.items():
        if (found := percentile_of(str(name))) is None:
            raise ScenarioError(
                f"{brief(str(name))} is no percentile; percentiles are p1 to p99 of "
                f"{', '.join(NAMES)}, such as p50_ttft"
            )
        try:
            limit = DURATION.parse(value)
        except ScenarioError as error:
            raise ScenarioError(f"{name}: {error}") from None
        if limit <= 0:
            raise ScenarioError(f"{name}: must be > 0 s, got {brief(value)}")
        limits.append(LimitOnShare(found[1], found[0] / 100, limit))
    return tuple(limits)


Array = NDArray[np.float64]
_L = TypeVar("_L", bound=Limits)
_ROUNDING = 1e-9  # 0.9 x 10 requests are 9 in spite of rounding


NO_LIMIT = (
    "slo must set a limit that requests have to keep, got none; such as "
    "--set slo.ttft='500 ms' --set slo.tpot='50 ms'"
)


def counted(columns: Mapping[str, Any], warmup: float) -> dict[str, Any]:
    """Return the rows of users' requests sent at or after `warmup` seconds, by their ids."""
    is_user = columns["parent_id"] == columns["request_id"]
    rows = np.flatnonzero(is_user & (columns["arrival_time"] >= warmup))
    rows = rows[np.argsort(columns["request_id"][rows])]
    return {name: column[rows] for name, column in columns.items()}


@dataclass(frozen=True)
class RequestTimes:
    """Latencies of the requests that count in a run, in order of their ids.

    ttft, tpot, e2el, queue: seconds; infinite if a request failed or was not measured, which keeps
        no limit. An answer of one token has a TPOT of 0, as in `vllm bench serve`. None for queue:
        no one knows it.
    group: the class of each, as `Slo.groups` counts them; None: the slo has none.
    """

    ttft: Array
    tpot: Array
    e2el: Array
    group: NDArray[np.int64] | None = None
    queue: Array | None = None

    @classmethod
    def of(cls, recorder: Recorder, warmup: float) -> RequestTimes:
        """Return the times of user requests sent at or after `warmup` seconds."""
        c = counted(request_columns(recorder), warmup)
        failed = c["status"] != 0
        tpot = latency.tpot(c["decode_time"], c["num_gaps"])
        return cls(
            _known(latency.ttft(c["arrival_time"], c["first_token_at"]), failed),
            _known(np.where(c["num_gaps"] == 0, 0.0, tpot), failed),
            _known(latency.e2e(c["arrival_time"], c["finished_at"]), failed),
            c.get("group"),
            _known(c["queued"], failed),
        )

    def __len__(self) -> int:
        return len(self.ttft)

    @property
    def latencies(self) -> dict[str, Array]:
        """The times by metric, seconds."""
        found = {"ttft": self.ttft, "tpot": self.tpot, "e2el": self.e2el}
        return found if self.queue is None else {**found, "queue": self.queue}


def _known(times: Array, failed: NDArray[np.bool_]) -> Array:
    return np.where(failed | np.isnan(times), np.inf, times)


@dataclass(frozen=True)
class Share:
    """A required share of good requests, and the limits of a good one.

    limits: in seconds, by metric; none: a good one finishes. group: the class that they are of;
    None: all requests. asked: the share. on_top: the metric of a limit on top of the slo's, which
    counts in no attainment; empty for the slo's own.
    """

    limits: Mapping[str, float]
    asked: float
    group: int | None = None
    on_top: str = ""

    def mask(self, times: RequestTimes) -> NDArray[np.bool_]:
        """Return which requests these are."""
        if self.group is None:
            return np.ones(len(times), dtype=bool)
        if times.group is None:
            raise ScenarioError("slo.classes must be left out where requests have no classes")
        return np.asarray(times.group == self.group)

    def ratios(self, times: RequestTimes) -> Array:
        """Return time over limit of all requests, the largest of all limits; a miss is > 1."""
        latencies = times.latencies
        if unknown := self.limits.keys() - latencies.keys():
            raise ScenarioError(f"limits must be on {', '.join(latencies)} here, got {unknown}")
        found = [latencies[name] / limit for name, limit in self.limits.items()]
        if not found:
            return np.where(np.isinf(times.e2el), np.inf, 0.0)
        return np.asarray(np.max(found, axis=0))


def _tells(summary: Mapping[str, Any], limit: LimitOnShare) -> bool:
    """Tell whether a run's own percentile decides a limit: it leaves out requests that failed."""
    return limit.figure in summary and not summary["failed"]


class Misses(NamedTuple):
    """How many requests of a share miss, of how many."""

    num_missed: int
    num_requests: int
    share: Share


@dataclass(frozen=True, kw_only=True)
class Target:
    """Limits that a service has to attain, and for which share of the requests.

    slo: limits of a good request. attainment: share of the requests that has to be good (> 0,
        <= 1); of each class, where the slo has some, unless that has a share of its own.
    relaxation: by which share a time may exceed its limit (>= 0), such as BestServe's
        0.1 (Algorithm 9), which forgives the noise of short runs.
    each: every limit is kept by that share of the requests, not necessarily the same ones
        (Algorithm 9); else one share of the requests keeps all limits.
    percentiles: limits on top, each with a share of its own, such as MIST's p50 beside its p90.

    Raises ScenarioError for values outside these ranges, and without a limit.
    """

    slo: Slo
    attainment: float = 0.9
    relaxation: NotNegative[float] = 0.0
    each: bool = False
    percentiles: tuple[LimitOnShare, ...] = ()

    def __post_init__(self) -> None:
        check_attainment(self.attainment)
        check_fields(self, ScenarioError)
        if not self.slo.is_set:
            raise ScenarioError(NO_LIMIT)

    @property
    def shares(self) -> dict[str, Share]:
        """The required shares, by name of the class, of the limit (`each`), or percentile."""
        found = self._own_shares
        for each in self.limits_on_percentiles:
            if not each.is_of_gaps:
                limits = {each.metric: each.limit}
                found[each.name] = Share(limits, each.share, on_top=each.metric)
        return found

    @property
    def _own_shares(self) -> dict[str, Share]:
        """The shares required by the slo."""
        found = {}
        for place, (name, limits) in enumerate(self.slo.groups.items()):
            own = limits.attainment if isinstance(limits, ClassLimits) else None
            asked = self.attainment if own is None else own
            group = place if self.slo.classes else None
            slack = {key: limit * (1 + self.relaxation) for key, limit in limits.limits.items()}
            if not self.each:
                found[name] = Share(slack, asked, group)
                continue
            before = f"{name}." if name else ""
            found |= {before + key: Share({key: at}, asked, group) for key, at in slack.items()}
        return found

    @property
    def sees_queues(self) -> bool:
        """Whether a limit is on a time in which a request may wait to begin."""
        limits = {metric for share in self.shares.values() for metric in share.limits}
        return bool(limits & {"ttft", "e2el"})

    @property
    def has_parts(self) -> bool:
        """Whether more is required than one share of all requests."""
        return self.each or bool(self.slo.classes or self.percentiles)

    @property
    def limits_on_shares(self) -> list[LimitOnShare]:
        """The limits on requests of all classes and on gaps, each with the share to keep it."""
        own = [
            LimitOnShare(metric, share.asked, limit)
            for share in self._own_shares.values()
            if share.group is None
            for metric, limit in share.limits.items()
        ]
        return [*own, *self.limits_on_percentiles]

    @property
    def limits_on_percentiles(self) -> list[LimitOnShare]:
        """The limits on top, with their relaxation."""
        slack = 1 + self.relaxation
        return [each._replace(limit=each.limit * slack) for each in self.percentiles]

    @property
    def least_asked(self) -> float:
        """The smallest share that the slo asks for."""
        return min(share.asked for share in self._own_shares.values())

    @property
    def most_asked(self) -> float:
        """The largest share that the slo asks for."""
        return max(share.asked for share in self._own_shares.values())

    @property
    def hardest(self) -> float:
        """The largest share of all that a run in steady state tells of; 0: it is none."""
        return 0.0 if self.most_asked == 1 else max(s.asked for s in self.shares.values())

    @property
    def least_requests(self) -> int:
        """The fewest requests of a run in steady state that can tell of all shares."""
        return least_requests(self.hardest) if self.hardest else 0

    def shares_in(self, times: RequestTimes) -> dict[str, tuple[Share, NDArray[np.bool_]]]:
        """Return the shares that have requests, each with these.

        Classes without requests stay: they attain nothing.
        """
        found = {name: (share, share.mask(times)) for name, share in self.shares.items()}
        return {name: each for name, each in found.items() if each[0].group != 0 or each[1].any()}

    def ratios(self, times: RequestTimes) -> Array:
        """Return time over limit: the largest of all limits in one row; with `each`, a row a limit.

        A request misses where it is > 1.
        """
        return np.array([share.ratios(times) for share in self.shares.values()])

    def attained_in(self, summaries: Sequence[Mapping[str, Any]]) -> bool:
        """Tell whether runs attain it, by their summaries: as means, one run a seed.

        With `each`, where the percentile that is asked for is one of the slo's, by that figure. A
        limit that applies to no request is kept.
        """
        own = self._own_shares.items()
        return all(self._is_attained(name, each, summaries) for name, each in own) and all(
            over(each, summaries) <= 1 for each in self.limits_on_percentiles
        )

    def kept_in(self, name: str, summaries: Sequence[Mapping[str, Any]]) -> Kept:
        """Return whether runs attain it, how sure that is, and which limit misses first.

        name: of what was run, for sentences. summaries: one a seed, one or more.
        """
        every, on_top = self.limits_on_shares, self.limits_on_percentiles
        own = every[: len(every) - len(on_top)]
        keeps = self.attained_in(summaries)
        figures_decide = not self.slo.classes and (self.each or not self.slo.limits)
        share = None if self.has_parts else self.attainment
        return Kept(
            name,
            fmean(map(good_share, summaries)),
            keeps,
            is_sure(every, share, summaries, keeps=keeps),
            doubts_of(every, summaries),
            first_missed(on_top, own, summaries),
            most_over(every, summaries) if figures_decide else nan,
            own[0].share if own and not figures_decide else nan,
        )

    def gaps_over(self, recorder: Recorder, warmup: float) -> tuple[float, str]:
        """Return the largest percentile of a run's gaps over its limit, and its name.

        It misses above 1; 0 without such limits, or gaps. warmup: seconds at the start whose gaps
        do not count.
        """
        found = [(0.0, "")]
        for each in self.percentiles:
            if each.is_of_gaps:
                value = 1e3 * gap_percentile(recorder, warmup, 100 * each.share)
                most = 1e3 * each.limit * (1 + self.relaxation)
                found.append((0.0 if isnan(value) else value / most, each.name))
        return max(found)

    def _is_attained(self, name: str, share: Share, summaries: Sequence[Mapping[str, Any]]) -> bool:
        group, _, metric = name.rpartition(".") if self.each else (name, "", "")
        figure = f"p{100 * share.asked:g}_{metric}_ms"
        key = f"{group}.{figure}" if group else figure
        if all(key in summary["slo"] for summary in summaries):
            found = [summary["slo"][key] for summary in summaries]
            told = [each for each in found if not (isnan(each["value"]) and each["kept"])]
            return not told or fmean(each["value"] for each in told) <= told[0]["limit"]
        asked = LimitOnShare(metric, share.asked, share.limits[metric]) if self.each else None
        if asked and not group and all(_tells(each, asked) for each in summaries):
            return over(asked, summaries) <= 1
        if share.group is not None:
            summaries = [summary["classes"].get(group or OTHERS, {}) for summary in summaries]
            if share.group == 0:
                summaries = [summary for summary in summaries if summary]
        good = [good_share(summary) for summary in summaries]
        return not good or fmean(good) >= share.asked

    def worst_limit(self, times: RequestTimes, gaps: tuple[float, str] = (0.0, "")) -> str | None:
        """Return the limit whose quantile exceeds it most, or comes nearest; None: no requests.

        gaps: as `gaps_over` returns them.
        """
        return self.furthest(times, gaps)[0]

    def furthest(
        self, times: RequestTimes, gaps: tuple[float, str] = (0.0, "")
    ) -> tuple[str | None, float]:
        """Return the limit as `worst_limit` does, and its quantile over it; NaN without one."""
        worst = {gaps[1]: gaps[0]} if gaps[1] else dict[str, float]()
        for name, (share, mine) in replace(self, each=True).shares_in(times).items():
            ratios = share.ratios(times)[mine]
            if len(ratios):
                limit = share.on_top or name
                worst[limit] = max(worst.get(limit, 0.0), quantile(ratios, share.asked))
        if not worst:
            return None, nan
        furthest = max(worst, key=lambda name: worst[name])
        return furthest, worst[furthest]

    def pooled(self, recorder: Recorder, warmup: float) -> tuple[ResultWarning, ...]:
        """Return which models and classes of a run fall short of what is asked of all."""
        classes = {name: self._relaxed(limits) for name, limits in self.slo.classes.items()}
        slo = replace(self._relaxed(self.slo), classes=classes)
        found = pooled_warnings(recorder, slo, warmup, asked=self.attainment, each=self.each)
        return tuple(found)

    def _relaxed(self, limits: _L) -> _L:
        slack: dict[str, Any] = {k: at * (1 + self.relaxation) for k, at in limits.limits.items()}
        return replace(limits, **slack)

    def misses(self, times: RequestTimes) -> list[Misses]:
        """Return how many requests miss, by share."""
        return [
            Misses(int((share.ratios(times)[mine] > 1).sum()), int(mine.sum()), share)
            for share, mine in self.shares_in(times).values()
        ]

    def num_missed(self, times: RequestTimes) -> int:
        """Return how many requests miss; with `each`, the limit that most of them miss."""
        return max(each.num_missed for each in self.misses(times) if not each.share.on_top)

    def most_missed(self, num_requests: int, share: float | None = None) -> int:
        """Return how many of so many requests may miss; of more requests, never fewer.

        share: that has to be good; None: of all.
        """
        asked = self.attainment if share is None else share
        return num_requests - ceil(asked * num_requests - _ROUNDING)


def target_of(
    slo: Slo,
    attainment: float | None,
    relaxation: float = 0.0,
    *,
    each: bool = False,
    percentiles: tuple[LimitOnShare, ...] = (),
) -> Target:
    """Return the target of limits. attainment: None: from the limits, or 0.9.

    Raises ScenarioError as `Target` does.
    """
    asked = asked_share(slo, attainment)
    return Target(
        slo=slo,
        attainment=asked,
        relaxation=relaxation,
        each=each or (slo.each if attainment is not None else slo.asks_each),
        percentiles=(*limits_on_percentiles(slo.figures), *percentiles),
    )


def kept_by(
    target: Target | None, name: str, summaries: Sequence[Mapping[str, Any]]
) -> Kept | None:
    """Return whether runs keep what is asked of them (`Target.kept_in`).

    target: None: no limits but those that requests have of their own. None without any, or runs.
    """
    if target is not None and summaries:
        return target.kept_in(name, summaries)
    good = fmean(float(each.get(GOOD, nan)) for each in summaries) if summaries else nan
    if isnan(good):
        return None
    return Kept(name, good, good >= asked_share(Slo()), True, doubts_of((), summaries))


def asked_share(slo: Slo, attainment: float | None = None) -> float:
    """Return the share of good requests that is asked for; None: as the limits say, or 0.9."""
    return slo.asked if attainment is None else attainment


def check_attainment(share: float) -> None:
    """Raise ScenarioError unless a share of the requests can be asked for."""
    if not 0 < share <= 1:
        raise ScenarioError(f"attainment must be in (0, 1], got {share:g}")


def none_counts(warmup: float, rate: float) -> ScenarioError:
    """Return the error of a run in which no request counts; seconds, and a rate or users."""
    return ScenarioError(
        f"warmup must end before the last request arrives, got {warmup:g} s; at "
        f"{load_in_words(rate)} none arrives later; lower it or the rates, or send more requests"
    )
