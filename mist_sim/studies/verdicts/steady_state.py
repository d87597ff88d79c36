"""Whether a service attains its target in steady state, judged during a run.

A share of the requests is good as long as that quantile of their times keeps the limit, so a look
at a run compares the quantile with the limit. The first requests are served too well, by clients
that are empty; requests of one moment share their luck; and after enough looks one of them agrees
with the wish. So a look

- leaves out the ramp;
- divides the rest into batches (of requests; of steps for the gaps between tokens), whose
  quantiles follow each other as an autoregression of first order does (the correction of Skart:
  Tafazzoli and Wilson, IIE Transactions 43, 2011);
- shares out the chance of a wrong verdict among all looks (Bonferroni).

A service near its capacity looks good for a long time: its queue has not grown yet. To attain

- the clients must have filled up;
- so few requests must wait as chance seldom leaves where as much arrives as clients can do (see
  `metrics.stability.most_waiting`);
- there must be so many stretches of requests, each with luck of its own, as their waits tell, that
  bad ones would have been among them.

Where users wait for their answers before they ask again (a closed loop), no queue grows beyond
them, so that the second is no question; and a run goes on until each has sent several requests.

Few such stretches tell little of times near their limit, but they tell of a share far below: were
each stretch good or missed as a whole, the number of good ones would be binomial.

docs/background/verdicts.md says how often a verdict is wrong where the truth is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from math import ceil, inf, nan, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.metrics.latency import Array
from mist_sim.metrics.stability import FILLING, Stays, most_waiting

ERROR = 0.01
"""Chance that a run ends with a wrong verdict, on each side, were quantiles of batches normal.

They lean to one side, so that it is more: docs/background/verdicts.md says how much.
"""

_FEW_TURNS = "the users have sent too few requests each"
_EVER_MORE = "ever more requests are there, so that no steady state is in sight"
_SLOW_WAITS = "the waits change too slowly for so short a run"
_MANY_WAIT = "so many wait at times that the clients may not keep up"
OF_QUEUES = (_EVER_MORE, _SLOW_WAITS, _MANY_WAIT)
"""Reasons of looks at runs in which more may arrive than clients do."""

_FIRST = 400  # requests that have ended at the first look: 8 batches after the ramp
_GROWTH = 1.5  # requests at a look, divided by those at the look before
_BATCHES = 32
_BEYOND = 4  # requests of a batch that are beyond its quantile, at least
_RAMP = 0.2  # of the requests, at least
_FILLED = 2.0  # times of a request that a run goes on after that, at least, to attain
_STRETCHES = 200  # of waits with luck of their own; fewer let more than 5 % of the runs pass
_MISSED = 20  # such stretches among those that may miss, where times are near their limit: misses
# come in clusters, of which a run of 200 stretches has few where 99 % have to be good
_STRETCHES_NEAR = 30  # of requests in the system, where times are near their limit: on fewer, a
# tenth of the verdicts on engines are wrong
_GROWING = 8  # stretches, each with more requests in the system than the one before
_NEAR = 0.25  # logarithm of time over limit: beyond a quarter of the limit a few will do
_MOST_CORRELATED = 0.9  # of batches; the t-quantile hardly changes beyond 32
_ON_THEIR_WAY = 0.05  # of the requests that may miss, so many may still be on their way
_FURTHEST = 100.0  # times the limit, and parts of it, beyond which a time does not matter


class OfClass(NamedTuple):
    """Requests of a class. mask: which they are, by id. share: of them that has to be good.

    Of a limit on top of the slo's, which counts in no attainment, the mask is None: all requests.
    """

    mask: NDArray[np.bool_] | None
    share: float


class SeenGaps(NamedTuple):
    """The gaps between tokens, in order of the time at which they end, and a limit on them.

    ends: seconds. ratios: gap over limit. counts: how many requests had each. share: of the gaps
    that has to keep the limit.
    """

    ends: Array
    ratios: Array
    counts: NDArray[np.int64]
    share: float


class Seen(NamedTuple):
    """The requests of a run that have ended, in order of their arrival.

    ids: by which requests count from 0; one that is not there is on its way.
    ratios: time over limit, a row a limit; or one row with the largest of all limits. Infinite for
    a request that failed.
    stays: of each in the system. times: seconds that each took, waits apart. waits: seconds.
    queue: of all visits, until a client began with them.
    classes: of each row of the ratios, the requests that it is of; None: all of them.
    gaps: between tokens, for each limit on them.
    users: of a closed loop; None: requests come whatever became of others.
    """

    ids: NDArray[np.int64]
    ratios: Array
    stays: Stays
    times: Array
    waits: Array
    queue: Stays
    classes: Sequence[OfClass | None] = ()
    gaps: Sequence[SeenGaps] = ()
    users: int | None = None


@dataclass(frozen=True)
class Look:
    """The verdict of a look at a run.

    attained: None: not known yet, with the `reason`. attainment: share of good requests after the
        ramp. margins: ends of the 95 % interval of time over limit, at the deciding quantile, as
        logarithms: attained if both are negative. num_requests: requests looked at, the ramp
        included. needs: requests that have to end to decide, if the trend holds; None: unknown.
    lasts: whether clients surely keep up where nothing is attained, so that the margins hold for
        longer runs.
    """

    attained: bool | None
    attainment: float
    margins: tuple[float, float]
    num_requests: int
    reason: str = ""
    needs: int | None = None
    lasts: bool = False


def looks(most: int) -> list[int]:
    """Return at how many ended requests one looks at a run of at most so many."""
    found = [min(_FIRST, most)]
    while found[-1] < most:
        found.append(min(ceil(found[-1] * _GROWTH), most))
    return found


def least_requests(share: float) -> int:
    """Return the fewest requests of a run that can tell of a share, in (0, 1), at any rate.

    Two batches follow the ramp, which may take half of the run.
    """
    return max(_FIRST // 2, 4 * _of_a_batch(share))


def least_of_users(users: int) -> int:
    """Return the requests of a run that tell well of a closed loop's users: four ramps."""
    return ceil(4 * FILLING * users)


def look(seen: Seen, share: float, error: float) -> Look:
    """Tell whether a service attains a share of good requests in steady state.

    share: that has to be good, in (0, 1); where classes have shares of their own, the largest.
    error: chance that this look is wrong, on each side.
    """
    num_known = _num_known(seen.ids, _ON_THEIR_WAY * (1 - share))
    if num_known < _FIRST // 2:
        return Look(None, nan, (-inf, inf), num_known, "too few requests have ended in their turn")
    ids, arrival, times = seen.ids[:num_known], seen.stays.begin[:num_known], seen.times[:num_known]
    num = int(ids[-1]) + 1
    time = float(np.nanmean(times)) if not np.isnan(times).all() else 0.0
    if seen.users is None:
        filled_at = arrival[0] + FILLING * time
        num_filling = int(ids[min(np.searchsorted(arrival, filled_at), num_known - 1)])
    else:  # a user's time from one request to the next is that in which all users send one
        num_filling = ceil(FILLING * seen.users)
        if 2 * num_filling > num:
            needs = ceil(_GROWTH * 2 * num_filling)
            return Look(None, nan, (-inf, inf), num, _FEW_TURNS, needs)
        filled_at = arrival[np.searchsorted(ids, num_filling)]
    ramp = min(max(ceil(_RAMP * num), num_filling), num // 2)
    if (ids >= ramp).sum() < 2 * _of_a_batch(share):
        reason = "too few requests have ended for two batches"
        needs = ceil(_GROWTH * max(len(seen.ids), least_requests(share)))
        return Look(None, nan, (-inf, inf), num, reason, needs)
    begin = float(arrival[np.searchsorted(ids, ramp)])
    of_requests = _each_limit(seen, num_known, ramp, share, error)
    compared = [*of_requests, *_each_limit_on_gaps(seen, begin, error)]
    if untold := [each for each in compared if isinstance(each, _TooFew)]:
        factor = max(each.factor for each in untold)
        return Look(None, nan, (-inf, inf), num, untold[0].reason, _needs(len(seen.ids), factor))
    found = [each for each in compared if isinstance(each, _Compared)]
    attainment = min(each.attainment for each in found if each.counts)
    worst = max(found, key=lambda each: sum(each.margins))
    seems = attainment, worst.margins, num
    crowd = _in_system(arrival, seen.stays.end[:num_known])[ids >= ramp]
    num_crowds = len(crowd) / _together(crowd)
    near = 0.0 if num_crowds >= _STRETCHES_NEAR else _NEAR
    if any(each.low > near or _surely_fewer(each, num_crowds, error) for each in found):
        return Look(False, *seems)
    num_ended = len(seen.ids)
    is_near = any(each.high > -_NEAR for each in found)
    least = max(_STRETCHES, _MISSED / (1 - share)) if is_near else _STRETCHES
    unsettled = _unsettled(seen, num_known, ramp, filled_at + _FILLED * time, num_filling, least)
    if any(each.high > -near for each in found):
        told = _near_limit(found, crowd, num_ended, num_crowds, is_open=seen.users is None)
        return Look(None, *seems, *told, lasts=not near and unsettled is None)
    if unsettled is None:
        return Look(True, *seems)
    reason, times_as_many = unsettled
    return Look(None, *seems, reason, _needs(num_ended, times_as_many))


def _unsettled(
    seen: Seen, num_known: int, ramp: int, full_at: float, num_filling: int, least: float
) -> tuple[str, float] | None:
    """Return why it is not known that clients keep up; None: they surely do.

    And so many times as many requests that would tell, about. ramp, num_filling: requests.
    full_at: seconds, until which no client is as full as it may become. least: stretches of waits.
    """
    ids, arrival = seen.ids[:num_known], seen.stays.begin[:num_known]
    num, times = int(ids[-1]) + 1, seen.times[:num_known]
    waits = seen.waits[:num_known][ids >= ramp]
    num_stretches = len(waits) / _together(waits)
    if num_stretches < least:
        return _SLOW_WAITS, least / num_stretches
    lasted = float(arrival[-1] - arrival[0])
    if num_filling > num // 2 or arrival[-1] < full_at:
        filling = (full_at - arrival[0]) / lasted if lasted > 0 else inf
        return "the clients are still filling up", max(filling, 2 * num_filling / num)
    if seen.users is not None:  # no more wait than there are
        return None
    most, few = most_waiting(arrival, seen.queue, times[~np.isnan(times)])
    if most > few:
        return _MANY_WAIT, (most / few) ** 2 if few > 0 else inf
    return None


class _Compared(NamedTuple):
    """A quantile of time over limit, as a logarithm: negative where the limit is kept.

    asked: the share that has to be good. low, high: at the level of the look; margins: at 95 %.
    factor: so many times as many requests would tell. counts: whether the share of good ones is one
    of the slo's.
    """

    attainment: float
    asked: float
    low: float
    high: float
    margins: tuple[float, float]
    factor: float
    counts: bool = True


class _TooFew(NamedTuple):
    """A limit of which a run is too short to tell. factor: as in `_Compared`."""

    reason: str
    factor: float


def _each_limit(
    seen: Seen, num_known: int, ramp: int, share: float, error: float
) -> Iterator[_Compared | _TooFew]:
    """Compare the requests after the ramp with each limit. share, error: as in `look`."""
    ids = seen.ids[:num_known]
    for ratios, of_class in zip_longest(seen.ratios, seen.classes):
        series = _with_gaps(ratios[:num_known], ids)[ramp:]
        if of_class is None:
            yield _compare(series, share, error)
            continue
        asked, mask = of_class.share, of_class.mask
        if mask is not None:
            series = series[mask[ramp : len(series) + ramp]]
        num_class = int((~np.isnan(series)).sum())
        least = 2 * _of_a_batch(asked)
        if num_class < least:
            factor = _GROWTH * least / num_class if num_class else inf
            yield _TooFew("too few requests of a class have ended for two batches", factor)
        else:
            yield _compare(series, asked, error)._replace(counts=mask is not None)


def _each_limit_on_gaps(seen: Seen, begin: float, error: float) -> Iterator[_Compared | _TooFew]:
    """Compare the gaps that end from `begin` (seconds) on with each limit on them."""
    for gaps in seen.gaps:
        first = int(np.searchsorted(gaps.ends, begin))
        num_steps, least = len(gaps.ends) - first, 2 * _of_a_batch(gaps.share)
        if not len(gaps.ends):  # the limit is kept
            continue
        if num_steps < least:
            factor = least / num_steps if num_steps else inf
            yield _TooFew("too few steps have ended for two batches", factor)
        else:
            yield _compare_gaps(gaps.ratios[first:], gaps.counts[first:], gaps.share, error)


def _surely_fewer(found: _Compared, num_stretches: float, error: float) -> bool:
    """Tell whether too few are good even if each stretch is as a whole good or missed.

    Then the number of good stretches is binomial: no dependence of requests leaves more to chance.
    """
    from scipy.special import betainc

    good = found.attainment * num_stretches
    below = float(betainc(num_stretches - good, good + 1, 1 - found.asked))
    return found.low > 0 and below < error


def _near_limit(
    found: Sequence[_Compared], crowd: Array, num_ended: int, num_stretches: float, *, is_open: bool
) -> tuple[str, int | None]:
    """Return why times near their limit tell nothing, and how many requests would tell.

    crowd: requests in the system when each arrives, num_stretches of them independent. Where ever
    more are there, times have no quantile that more requests would make out, but of the users of a
    closed loop (not is_open).
    """
    means = [part.mean() for part in np.array_split(crowd, _GROWING)]
    if is_open and all(later > earlier for earlier, later in pairwise(means)):
        return _EVER_MORE, None
    is_between = any(each.low <= 0 <= each.high for each in found)
    if is_between and not any(each.low > 0 for each in found):
        needs = _needs(num_ended, max(each.factor for each in found))
        if any(abs(each.low + each.high) / 2 < _NEAR for each in found if each.low <= 0):
            return "the times are too near to their limit", needs
        return "the times differ too much from stretch to stretch of so short a run", needs
    reason = "the number of requests in the system changes too slowly for so short a run"
    return reason, _needs(num_ended, _STRETCHES_NEAR / num_stretches)


def _needs(num_ended: int, factor: float) -> int | None:
    return ceil(num_ended * max(factor, _GROWTH)) if factor < inf else None


def _num_known(ids: NDArray[np.int64], on_their_way: float) -> int:
    """Return how many of the ended requests count: up to the last before which few have not."""
    few = ids - np.arange(len(ids)) <= on_their_way * (ids + 1)
    return int(np.flatnonzero(few)[-1]) + 1 if few.any() else 0


def _with_gaps(ratios: Array, ids: NDArray[np.int64]) -> Array:
    """Return logarithms of time over limit of all requests, NaN for those on their way."""
    found = np.full(int(ids[-1]) + 1, nan)
    found[ids] = log_ratios(ratios)
    return found


def log_ratios(ratios: Array) -> Array:
    """Return logarithms of time over limit, cut where a time does not matter any more."""
    return np.log(np.clip(ratios, 1 / _FURTHEST, _FURTHEST))


def _compare(series: Array, share: float, error: float) -> _Compared:
    """Compare a quantile of a series with 0, as its batches show it.

    One on its way counts as good where that is missed, and as missed where it is attained.
    """
    best, worst = (np.nan_to_num(series, nan=end) for end in (-inf, inf))
    known = series[~np.isnan(series)]
    num_batches = min(_BATCHES, len(known) // _of_a_batch(share))
    batches = [quantile(part, share) for part in np.array_split(known, num_batches)]
    ends = quantile(best, share), quantile(worst, share)
    return _compared(ends, np.array(batches), share, float((known <= 0).mean()), error)


def _compare_gaps(
    ratios: Array, counts: NDArray[np.int64], share: float, error: float
) -> _Compared:
    """Compare a quantile of gaps over their limit with 1; as `_compare`.

    Batches have as many steps each: all gaps of a step are equal, and those of one request are of
    steps that follow each other, so that steps and not gaps are counted.
    """
    series = log_ratios(ratios)
    num_batches = min(_BATCHES, len(series) // _of_a_batch(share))
    parts = zip(*(np.array_split(each, num_batches) for each in (series, counts)), strict=True)
    batches = np.array([quantile(part, share, weights) for part, weights in parts])
    whole = quantile(series, share, counts)
    good = float(counts[series <= 0].sum() / counts.sum())
    return _compared((whole, whole), batches, share, good, error)._replace(counts=False)


def _compared(
    ends: tuple[float, float], batches: Array, share: float, attainment: float, error: float
) -> _Compared:
    """Return how a quantile between two ends compares with 0. batches: the quantile of each."""
    from scipy.special import stdtrit

    (low, high), num_batches = ends, len(batches)
    deviation = sqrt(float(batches.var(ddof=1)) / num_batches * inflation(batches))
    width = float(stdtrit(num_batches - 1, 1 - error)) * deviation
    distance = abs(low + high) / 2
    factor = (width / distance) ** 2 if distance else inf
    half = float(stdtrit(num_batches - 1, 0.975)) * deviation
    margins = low - half, high + half
    return _Compared(attainment, share, low - width, high + width, margins, factor)


def _of_a_batch(share: float) -> int:
    """Return the smallest batch with a meaningful quantile: 40 for nine in ten."""
    return ceil(_BEYOND / (1 - share) * (1 - 1e-9))


def quantile(values: Array, share: float, counts: NDArray[np.int64] | None = None) -> float:
    """Return the least value that a share of the values does not exceed.

    counts: how often each occurs; None: once.
    """
    if counts is not None:
        order = np.argsort(values)
        up_to = np.cumsum(counts[order])
        rank = max(ceil(share * int(up_to[-1]) - 1e-9), 1)
        return float(values[order[np.searchsorted(up_to, rank)]])
    rank = min(max(ceil(share * len(values) - 1e-9), 1), len(values)) - 1
    return float(np.partition(values, rank)[rank])


def _in_system(arrival: Array, end: Array) -> Array:
    """Return how many requests there are when each arrives."""
    return (np.arange(len(arrival)) - np.searchsorted(np.sort(end), arrival)).astype(np.float64)


def _together(series: Array) -> float:
    """Return how many values in a row share their luck: variance of a sum over that of its parts.

    By ranks, which no outlier moves, and which are equal for equal values.
    """
    ordered = np.sort(series)
    ranks = np.searchsorted(ordered, series, "left") + np.searchsorted(ordered, series, "right")
    variance = float(ranks.var())
    if variance == 0:
        return 1.0
    parts = np.array_split(ranks, min(_BATCHES, len(ranks)))
    means = np.array([part.mean() for part in parts])
    size = len(ranks) / len(parts)
    return max(size * float(means.var(ddof=1)) / variance * inflation(means), 1.0)


def inflation(batches: Array) -> float:
    """Return by how much the variance of their mean is larger, since batches follow each other."""
    around = batches - batches.mean()
    total = float(around @ around)
    if total == 0:
        return 1.0
    lag = float(around[1:] @ around[:-1]) / total
    follows = lag + (1 + 4 * lag) / len(batches)  # without the bias of few, to first order
    follows = min(max(follows, 0.0), _MOST_CORRELATED)
    return (1 + follows) / (1 - follows)
