"""Service-level objectives, the goodput that meets them (vLLM's `--goodput`), and pass or miss."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from mist_sim.checks import Positive, Range, Share, check_fields
from mist_sim.core.recorder import End, Recorder
from mist_sim.core.request import Request
from mist_sim.errors import brief
from mist_sim.metrics.latency import NAMES, Array, percentile_of, tpot
from mist_sim.metrics.stats import known
from mist_sim.units import Seconds

_LIMITS = ("ttft", "tpot", "e2el")
_MS = 1e3
_LONGEST = 40  # characters of a class's name
_ATTAINMENT = 0.9  # DistServe's (Zhong et al., OSDI 2024)
_OF_GAPS = 99.0  # percentile of gaps that a limit on ITL is for: `--metric-percentiles` of vLLM


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits in seconds that a good request keeps; None sets no limit.

    percentiles: percentiles (> 0, <= 100) that must keep a limit for the run to pass; a failed
        request keeps none. None: none are named.

    Raises ValueError for limits that are not positive and finite, and for other percentiles.
    """

    ttft: Positive[Seconds] | None = None
    tpot: Positive[Seconds] | None = None
    e2el: Positive[Seconds] | None = None
    percentiles: Sequence[Annotated[float, Range("(0, 100]")]] | None = None

    def __post_init__(self) -> None:
        check_fields(self, prefix="slo.")
        if self.percentiles is not None and not self.percentiles:
            raise ValueError("slo.percentiles must be one or more, got none")

    @property
    def is_set(self) -> bool:
        """True when at least one limit is given."""
        return any(self.limits.values())

    @property
    def limits(self) -> dict[str, float]:
        """The limits that there are, in seconds, by metric."""
        limits = {name: getattr(self, name) for name in _LIMITS}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def missed_alone(
        self, times: Mapping[str, Array], num_gaps: NDArray[np.int64]
    ) -> dict[str, NDArray[np.bool_]]:
        """Return which requests miss each of these limits, by their times in seconds.

        num_gaps: output tokens after the first. Without any there is no TPOT to keep, as in vLLM,
        which counts it as 0. Any other time that is NaN was not measured, and keeps no limit.
        """
        found = {name: ~(times[name] <= limit) for name, limit in self.limits.items()}
        if "tpot" in found:
            found["tpot"] &= num_gaps > 0
        return found


@dataclass(frozen=True, kw_only=True)
class ClassLimits(Limits):
    """Limits for the requests of one class, in place of the limits for all others.

    priority, model: a request is of the class if it has that priority and names that model; if only
        one is set, that one decides. None for both: the workload gives the class's name.
    percentiles: percentiles that must keep a limit of its requests; None: those of all requests.
    attainment: share of its requests that must be good (> 0, <= 1); None: as for all requests.
    """

    priority: int | None = None
    model: str | None = None
    attainment: Share | None = None

    def takes(self, name: str, request: Request) -> bool:
        """Tell whether a request is of the class of that name."""
        if self.priority is None and self.model is None:
            return request.label == name
        is_asked = self.model is None or request.model == self.model
        return is_asked and self.priority in (None, request.priority)


@dataclass(frozen=True, kw_only=True)
class Slo(Limits):
    """Upper limits in seconds that a good request keeps; None sets no limit.

    percentiles: percentiles (> 0, <= 100) that must keep a limit for the run to pass; a failed
        request keeps none. None: that of `attainment`. Given without `attainment`, each limit has
        to be kept by the share of the highest, not necessarily of the same requests, in a run as in
        searches and studies.
    itl: limit on the time between two tokens, of all gaps together: each of `percentiles` of them
        has to keep it, or 99 %. at: limits on other percentiles (> 0, < 100) of ttft, tpot, itl,
        e2el and queue, such as {p99_itl: 0.05, p50_ttft: 1}. Neither makes a request good or not:
        they are of a run, and of a goodput, which has to keep them as well.
    attainment: share of the requests that has to be good (> 0, <= 1), in a run as at a goodput, if
        the search sets no other; None: that of `percentiles`, or 0.9. each: each limit has to be
        kept by that share, not necessarily of the same requests.
    classes: limits on requests of a class, by its name; a request is of the first class that takes
        it, keeps the limits of that one alone, and each class has to attain its share. The other
        limits are for requests of no class.

    Raises ValueError for limits that are not positive and finite, for other percentiles, for shares
    outside (0, 1], and for names of classes that are no words.
    """

    itl: Positive[Seconds] | None = None
    at: Mapping[str, Positive[Seconds]] = field(default_factory=dict)
    attainment: Share | None = None
    each: bool = False
    classes: Mapping[str, ClassLimits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.at:
            if percentile_of(name) is None:
                raise ValueError(
                    f"slo.at must have names such as p99_itl or p50_ttft, of {', '.join(NAMES)}, "
                    f"got {brief(name)}"
                )
        for name, limits in self.classes.items():
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", name) or len(name) > _LONGEST:
                raise ValueError(
                    f"slo.classes must be named by up to {_LONGEST} letters, digits and hyphens, "
                    f"got {name[: 2 * _LONGEST]!r}"
                )
            if not limits.is_set:
                raise ValueError(
                    f"slo.classes.{name} must set a limit, such as ttft: 500 ms; without any, "
                    "leave the class out"
                )

    @property
    def is_set(self) -> bool:
        """True when at least one limit is given, to all, to a class or to a percentile."""
        return self.judges_requests or bool(self.figures)

    @property
    def judges_requests(self) -> bool:
        """True when a limit tells good requests from others."""
        return bool(self.classes) or super().is_set

    @property
    def figures(self) -> dict[str, float]:
        """The limits on percentiles of a run, in seconds, by names such as "p99_itl"."""
        of_itl = () if self.itl is None else self.percentiles or (_OF_GAPS,)
        return {**{f"p{p:g}_itl": self.itl or 0.0 for p in of_itl}, **self.at}

    @property
    def asked(self) -> float:
        """The share of good requests that is asked for."""
        if self.attainment is not None:
            return self.attainment
        return _ATTAINMENT if self.percentiles is None else max(self.percentiles) / 100

    @property
    def asks_each(self) -> bool:
        """Whether each limit has to be kept by that share, not all by the same requests."""
        return self.each or (self.attainment is None and self.percentiles is not None)

    @property
    def groups(self) -> dict[str, Limits]:
        """The limits by class name, in order; those without a class first, under "".

        Each has the percentiles that are looked at: its own, those of all requests, or that of the
        share that is asked for.
        """
        shares = self.shares
        return {
            name: replace(
                limits,
                percentiles=limits.percentiles or self.percentiles or (100 * shares[name],),
            )
            for name, limits in {"": self, **self.classes}.items()
        }

    @property
    def shares(self) -> dict[str, float]:
        """The share of good requests that is asked for, by class name as in `groups`."""
        of_class = {name: limits.attainment for name, limits in self.classes.items()}
        return {
            name: self.asked if share is None else share
            for name, share in {"": None, **of_class}.items()
        }

    @property
    def goes_by_priority(self) -> bool:
        """Whether the class of a request depends on its priority."""
        return any(limits.priority is not None for limits in self.classes.values())

    @property
    def named_limits(self) -> dict[str, float]:
        """All limits in seconds by metric, with a class's name in front: "chat.ttft".

        Those of a percentile are by its name, "p99_itl".
        """
        return self.limits_on_requests | self.figures

    @property
    def limits_on_requests(self) -> dict[str, float]:
        """The limits of good requests, named as in `named_limits`."""
        return {
            f"{group}.{name}" if group else name: limit
            for group, limits in self.groups.items()
            for name, limit in limits.limits.items()
        }

    def group_of(self, request: Request) -> int:
        """Return the place of a request's class in `groups`."""
        for place, (name, limits) in enumerate(self.classes.items(), start=1):
            if limits.takes(name, request):
                return place
        return 0

    @property
    def loosest(self) -> Limits:
        """Limits that a good request of any class, or without a class, keeps."""
        found = {
            name: [limits.limits.get(name, math.inf) for limits in self.groups.values()]
            for name in _LIMITS
        }
        ttft, tpot, e2el = (
            most if (most := max(found[name])) < math.inf else None for name in _LIMITS
        )
        return Limits(ttft=ttft, tpot=tpot, e2el=e2el)

    def kept(
        self,
        ttft: Array,
        tpot: Array,
        e2el: Array,
        num_gaps: NDArray[np.int64],
        group: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """Return which requests keep every limit of their class (see `missed_alone`).

        group: place of each request's class in `groups`; None: of no class.
        """
        good = np.ones(len(ttft), dtype=bool)
        times = {"ttft": ttft, "tpot": tpot, "e2el": e2el}
        for missed in self.missed(times, num_gaps, group).values():
            good &= ~missed
        return good

    def missed(
        self,
        times: Mapping[str, Array],
        num_gaps: NDArray[np.int64],
        group: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[np.bool_]]:
        """Return which requests miss each metric's limit, that of their class.

        times: seconds by metric. The rest is as in `kept`.
        """
        found: dict[str, NDArray[np.bool_]] = {}
        for place, limits in enumerate(self.groups.values()):
            if place and group is None:
                break
            for name, missed in limits.missed_alone(times, num_gaps).items():
                mine = missed if group is None else missed & (group == place)
                found[name] = found[name] | mine if name in found else mine
        return found


class SloFigure(TypedDict):
    """A figure beside its limit, milliseconds. verdict: pass, miss, or within error.

    of_requests: whether a good request keeps the limit; else it is one on a percentile of the run.
    error_known: whether the verdict knows the expected error of the step times.
    """

    limit: float
    value: float
    kept: bool
    of_requests: bool
    verdict: str
    error_known: bool


class SloShare(TypedDict):
    """The share of good requests beside the one asked for; the rest is as of `SloFigure`."""

    asked: float
    value: float
    kept: bool
    verdict: str
    error_known: bool


def slo_verdicts(
    slo: Limits, samples: Mapping[str, Array], num_gaps: NDArray[np.int64], num_failed: int
) -> dict[str, dict[str, Any]]:
    """Return each limit's figure and whether it is kept, by names such as `p99_ttft_ms`.

    slo: with the percentiles that are looked at, as in `Slo.groups`. samples: times of the finished
        requests by metric, seconds. num_gaps: their output tokens after the first; requests without
        any have no TPOT. Failed requests and unmeasured times rank as later than all others; if the
        figure is one of these, it is NaN and a miss.
    """
    found = {}
    for metric, limit in slo.limits.items():
        times = samples[metric] if metric != "tpot" else samples[metric][num_gaps > 0]
        is_asked = len(times) or num_failed or not len(num_gaps)
        for percentile in slo.percentiles or ():
            value = _percentile(known(times), len(times) + num_failed, percentile)
            kept = value <= limit or not is_asked
            found[f"p{percentile:g}_{metric}_ms"] = _verdict(limit, value, kept, of_requests=True)
    return found


def figure_verdicts(
    slo: Slo, samples: Mapping[str, Array], num_failed: int, gaps: Callable[[float], float]
) -> dict[str, dict[str, Any]]:
    """Return each limit on a percentile with its figure, by names such as `p99_itl_ms`.

    samples, num_failed: as of `slo_verdicts`. gaps: returns a percentile of all gaps, seconds; NaN
    without any, which keeps the limit where no answer has two tokens.
    """
    found = {}
    for name, limit in slo.figures.items():
        percentile, metric = percentile_of(name) or (0.0, "")
        if metric == "itl":
            value = gaps(percentile)
            kept = not value > limit
        else:
            times = known(samples[metric])
            value = _percentile(times, len(times) + num_failed, percentile)
            kept = value <= limit or not (len(times) or num_failed)
        found[f"{name}_ms"] = _verdict(limit, value, kept, of_requests=False)
    return found


def _verdict(limit: float, value: float, kept: bool, *, of_requests: bool) -> dict[str, Any]:
    figure = {"limit": limit * _MS, "value": value * _MS, "kept": kept}
    return figure | {"of_requests": of_requests}


def _percentile(known: Array, num_all: int, percentile: float) -> float:
    """Return a percentile of `num_all` values, of which the smallest are known; else NaN.

    It interpolates linearly between order statistics, as numpy does.
    """
    rank = percentile / 100 * (num_all - 1)
    above = math.ceil(rank)
    if not 0 <= above < len(known):
        return math.nan
    below = math.floor(rank)
    low, high = np.partition(known, (below, above))[[below, above]].tolist()
    return float(low + (rank - below) * (high - low))


class SloWatch(Recorder):
    """A recorder that knows how many requests have ended and how many of them kept all limits."""

    def __init__(self, slo: Slo) -> None:
        super().__init__()
        self._slo = slo
        self._num_ended = self._num_kept = 0

    def record_end(self, end: End) -> None:
        """Note the end, and whether a user's request kept the limits."""
        super().record_end(end)
        if end.request.parent_id is None:
            self._num_ended += 1
            self._num_kept += end.failure is None and self._is_kept(end)

    def _is_kept(self, end: End) -> bool:
        request, visits, time, *_ = end
        arrival = math.nan if request.arrival_time is None else request.arrival_time
        num_output_tokens = sum([visit.num_output_tokens for visit in visits])
        seconds, num_gaps = self.decode_time(visits, num_output_tokens, None)
        ttft = np.array([min(self.first_token_at(visits), time) - arrival])
        gaps, group = np.array([num_gaps]), np.array([self._slo.group_of(request)])
        times = tpot(np.array([seconds]), gaps), np.array([time - arrival])
        return bool(self._slo.kept(ttft, *times, gaps, group)[0])

    def reader(self) -> Callable[[], float]:
        """Return a function: the share of requests within the limits since its last call.

        NaN if none has ended.
        """
        seen = [0, 0]

        def share() -> float:
            num_ended, num_kept = self._num_ended - seen[0], self._num_kept - seen[1]
            seen[:] = self._num_ended, self._num_kept
            return num_kept / num_ended if num_ended else math.nan

        return share
