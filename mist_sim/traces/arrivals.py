"""Arrivals of requests: open-loop processes, a trace's own times, closed loops.

MIST §III-B2 lists uniform, normal, Poisson and bursty injection; gamma is what vLLM's and
others' load generators use. Every random process draws its gaps in whole blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, repeat
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mist_sim.checks import Checked, Count, NotNegative, Positive, check_fields
from mist_sim.durations import (
    BLOCK,
    DurationDistribution,
    SecondsOrLaw,
    draws,
    not_reached,
    require_plan,
)
from mist_sim.traces.base import ARRIVALS
from mist_sim.units import PerSecond, Seconds

Gaps = npt.NDArray[np.float64]


@runtime_checkable
class ArrivalProcess(Protocol):
    """Open loop: requests arrive whether or not earlier ones are done.

    `times` yields seconds since the start of the run, never decreasing, without end. Equal
    generators give equal times.
    """

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield arrival times in seconds since the start of the run, without end."""


def _accumulate(draw: Callable[[], Gaps]) -> Iterator[float]:
    clock = np.zeros(1)
    while True:
        times = np.add.accumulate(np.concatenate((clock[-1:], draw())))
        clock = times
        yield from times[1:].tolist()


@ARRIVALS.register("trace")
@dataclass(frozen=True, slots=True, kw_only=True)
class TraceArrivals:
    """The rows' own times; readers count them from their first row, which arrives at time 0.

    speedup: times are divided by it (> 0); 2 sends the same requests in half the time.
    rate: requests a second, on average from the first to the last one, instead of a speedup; the
        file is read once more to find its own rate. None: use `speedup`.
    """

    speedup: Positive[float] = 1.0
    rate: Positive[PerSecond] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.rate is not None and self.speedup != 1.0:
            raise ValueError(f"speedup must be left out where rate is given, got {self.speedup:g}")


@ARRIVALS.register("closed_loop")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop(Checked):
    """A fixed number of users; each sends its next request after its last one has finished.

    concurrency: users (>= 1). think_time: seconds between a user's requests (>= 0), or a law of
        them; load generators take some milliseconds, and a request that comes after a step has
        begun waits for the next one. ramp_up: seconds over which the users send their first
        request, evenly (>= 0).
    sessions: whether a user goes through a whole session, and then begins the next one. Each
        request but the first is sent after the end of the previous one plus the wait that the trace
        gives, such as the time of a tool; think_time lies between two sessions.
    """

    concurrency: Count
    think_time: SecondsOrLaw = 0.0
    ramp_up: NotNegative[Seconds] = 0.0
    sessions: bool = False

    def think_times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield the pauses of users in seconds, in the order in which they begin, without end."""
        law = self.think_time
        return (
            draws(law, rng, "think_time") if isinstance(law, DurationDistribution) else repeat(law)
        )

    def start(self, user: int) -> float:
        """Return when a user, counted from 0, sends its first request, in seconds."""
        return self.ramp_up * user / self.concurrency


@ARRIVALS.register("all_at_once")
@dataclass(frozen=True, slots=True, kw_only=True)
class AllAtOnce:
    """Offline inference: every request is there at time 0."""

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield 0.0 without end."""
        return repeat(0.0)


@ARRIVALS.register("constant")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantArrivals(Checked):
    """Even spacing: request k arrives at k / rate, the first at time 0. rate: per second."""

    rate: Positive[PerSecond]

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield k / rate for k = 0, 1, ... (no sum, so nothing drifts)."""
        return (position / self.rate for position in count())


@ARRIVALS.register("poisson")
@dataclass(frozen=True, slots=True, kw_only=True)
class PoissonArrivals(Checked):
    """A Poisson process: exponential gaps of mean 1 / rate.

    rate: requests per second. stretched: whether the finished schedule is stretched so that the
    last of n requests comes at n / rate, as `vllm bench serve` sends them; then the first ones
    depend on how many follow.
    Source: vLLM, vllm/benchmarks/serve.py, get_request.
    """

    rate: Positive[PerSecond]
    stretched: bool = False

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield arrival times in seconds; the first comes after a gap."""
        return _accumulate(lambda: rng.exponential(1 / self.rate, BLOCK))


@ARRIVALS.register("gamma")
@dataclass(frozen=True, slots=True, kw_only=True)
class GammaArrivals(Checked):
    """Gamma-distributed gaps of mean 1 / rate, as `vllm bench serve --burstiness` draws them.

    rate: requests per second. burstiness: the shape (> 0); 1 is a Poisson process, less is
    burstier, more is smoother; gaps have a coefficient of variation of 1 / sqrt(burstiness).
    stretched: as of `PoissonArrivals`; vLLM does.
    Source: vLLM, vllm/benchmarks/serve.py, get_request.
    """

    rate: Positive[PerSecond]
    burstiness: Positive[float]
    stretched: bool = False

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield arrival times in seconds; the first comes after a gap."""
        scale = 1 / (self.rate * self.burstiness)
        return _accumulate(lambda: rng.gamma(self.burstiness, scale, BLOCK))


@ARRIVALS.register("uniform")
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformArrivals(Checked):
    """Gaps uniform on [0, 2 / rate), so of mean 1 / rate. rate: requests per second."""

    rate: Positive[PerSecond]

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield arrival times in seconds; the first comes after a gap."""
        return _accumulate(lambda: rng.uniform(0, 2 / self.rate, BLOCK))


@ARRIVALS.register("normal")
@dataclass(frozen=True, slots=True, kw_only=True)
class NormalArrivals(Checked):
    """Gaps from a normal distribution; those that are not positive are drawn again.

    rate: requests per second; the mean gap after truncation is exactly 1 / rate.
    cv: standard deviation over mean of the normal before truncation (> 0). Truncation lowers
    it: to within 1 % of cv for cv <= 0.33, but to 0.62 for cv = 1, and never above 0.76.
    """

    rate: Positive[PerSecond]
    cv: Positive[float]

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield arrival times in seconds; the first comes after a gap."""
        # With X = m (1 + cv Z) and Z standard normal, X > 0 is Z > -1/cv, and
        # E[Z | Z > -1/cv] = phi(1/cv) / Phi(1/cv); m makes E[X | X > 0] = 1 / rate.
        bound = 1 / self.cv
        density = math.exp(-bound * bound / 2) / math.sqrt(2 * math.pi)
        below = (1 + math.erf(bound / math.sqrt(2))) / 2
        mean = 1 / (self.rate * (1 + self.cv * density / below))

        def positive_gaps() -> Gaps:
            gaps = rng.normal(mean, self.cv * mean, BLOCK)
            return gaps[gaps > 0]

        return _accumulate(positive_gaps)


@ARRIVALS.register("bursty")
@dataclass(frozen=True, slots=True, kw_only=True)
class BurstyArrivals(Checked):
    """An interrupted Poisson process: bursts at `rate_on`, silence between them.

    rate_on: requests per second during a burst. on, off: mean seconds of bursts and silences,
    both exponential (> 0). The mean rate is rate_on * on / (on + off) at all times, since the
    run starts in a burst with probability on / (on + off).
    Method: on the clock that runs in bursts only, ends of bursts are a Poisson process of rate
    1 / on; a gap g of that clock therefore contains Poisson(g / on) silences.
    Source: Kuczura, The interrupted Poisson process as an overflow process, BSTJ 52(3), 1973.
    """

    rate_on: Positive[PerSecond]
    on: Positive[Seconds]
    off: Positive[Seconds]

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield arrival times in seconds; the first comes after a gap."""
        starts_silent = rng.random() * (self.on + self.off) < self.off
        silence = float(rng.exponential(self.off))
        pending = [silence if starts_silent else 0.0]

        def gaps() -> Gaps:
            in_bursts = rng.exponential(1 / self.rate_on, BLOCK)
            silences = rng.poisson(in_bursts / self.on)
            gaps = in_bursts + self.off * rng.standard_gamma(silences)
            gaps[0] += pending.pop() if pending else 0.0
            return gaps

        return _accumulate(gaps)


@ARRIVALS.register("schedule")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledArrivals:
    """A Poisson process whose rate changes at given times.

    at: when the rate changes, ascending from 0 s on.
    rates: requests per second from each of these times on (>= 0).
    period: after which the plan begins again; None: never; the last rate (> 0) holds to the end.

    Method: the time by which S requests are expected, for S of a process of rate 1 (inversion of
    the cumulative rate; Lewis and Shedler, Naval Research Logistics 26(3), 1979).
    """

    at: tuple[Seconds, ...]
    rates: tuple[NotNegative[PerSecond], ...]
    period: Seconds | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        require_plan("rates", self.at, self.rates, self.period)
        if self.period is None and not self.rates[-1]:
            raise ValueError("the last of rates must be > 0 /s without a period, got 0")
        if not any(self.rates):
            raise ValueError("one of rates must be > 0 /s, got 0 alone")

    def scaled(self, factor: float) -> dict[str, object]:
        """Return the parameters for rates that are `factor` times as high."""
        return {"rates": tuple(rate * factor for rate in self.rates)}

    def not_by(self, end: float) -> Iterator[tuple[str, str]]:
        """Yield (place in the file, when) of rates that begin behind the end of a run, seconds."""
        return not_reached("workload.arrivals", self.at, end)

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield arrival times in seconds; the first comes after a gap."""
        rates, starts = np.array(self.rates), np.array(self.at)
        ends = np.append(starts[1:], self.period or starts[-1])
        expected = np.concatenate(([0.0], np.cumsum(rates * (ends - starts))))  # until each change

        def time_of(requests: float) -> float:
            rounds = 0.0
            if self.period is not None:
                rounds, requests = divmod(requests, expected[-1])
            part = int(np.searchsorted(expected[:-1], requests, "right")) - 1
            inside = (requests - expected[part]) / rates[part] if rates[part] else 0.0
            return float(rounds * (self.period or 0.0) + starts[part] + inside)

        latest = 0.0
        for requests in _accumulate(lambda: rng.standard_exponential(BLOCK)):
            latest = max(latest, time_of(requests))  # the last bits of a sum may go back
            yield latest


@ARRIVALS.register("day")
@dataclass(frozen=True, slots=True, kw_only=True)
class DailyArrivals:
    """A Poisson process whose rate goes up and down once a day, as a cosine.

    peak, low: highest and lowest rate, requests per second. peak_at: time of the peak, from
    midnight. starts_at: time of the day at which the run starts. period: length of a day.
    Within each 1,440th of a day (a minute) the rate is constant, at its mean there.
    """

    peak: Positive[PerSecond]
    low: PerSecond
    peak_at: Seconds
    starts_at: Seconds = 0.0
    period: Positive[Seconds] = 86_400.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.low <= self.peak:
            raise ValueError(f"low must be from 0 to peak ({self.peak} /s), got {self.low}")
        for name in ("peak_at", "starts_at"):
            if not 0 <= getattr(self, name) < self.period:
                raise ValueError(
                    f"{name} must be >= 0 s and < period ({self.period} s), "
                    f"got {getattr(self, name)}"
                )

    def scaled(self, factor: float) -> dict[str, object]:
        """Return the parameters for rates that are `factor` times as high."""
        return {"peak": self.peak * factor, "low": self.low * factor}

    def not_by(self, end: float) -> Iterator[tuple[str, str]]:
        """Yield (place in the file, when) of the peak, for a run that ended (seconds) before it."""
        until = (self.peak_at - self.starts_at) % self.period
        return not_reached("the peak of workload.arrivals", (until,), end)

    def times(self, rng: np.random.Generator) -> Iterator[float]:
        """Yield arrival times in seconds; the first comes after a gap."""
        turns = np.arange(_MINUTES + 1) / _MINUTES + (self.starts_at - self.peak_at) / self.period
        mean_cosines = np.diff(np.sin(2 * np.pi * turns)) * _MINUTES / (2 * np.pi)
        rates = self.low + (self.peak - self.low) * (1 + mean_cosines) / 2
        minutes = np.arange(_MINUTES) * (self.period / _MINUTES)
        plan = ScheduledArrivals(
            at=tuple(minutes.tolist()), rates=tuple(rates.tolist()), period=self.period
        )
        return plan.times(rng)


_MINUTES = 24 * 60  # of a day
