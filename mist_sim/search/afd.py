"""Provisioning of bundles: how many attention workers an FFN worker feeds (AFD).

A bundle has x attention workers and y FFN workers; its ratio is r = x / y. Every attention worker
has B slots in a batch, and a few batches are in flight, so that one is in attention while another
one is in the FFN. Times have the unit of the coefficients. All sections are of arXiv 2601.21351v3:

- A slot serves one request after the other. One with a prompt of P tokens that stays for D decode
  steps holds P, P + 1, ..., P + D - 1 tokens, so long ones are met more often than they arrive
  (lemma 4.1, corollary 4.5). If P(D > x) falls as x^-alpha, the age of a request in a slot falls as
  x^-(alpha - 1): the variance of a slot's load is infinite for alpha <= 3, its mean for alpha <= 2
  (appendix A.7).
- Mean-field rule: the best ratio where all loads are their means (theorem 4.4, appendix A.5).
- Gaussian cycle time: an attention phase ends with the slowest worker. Its tokens are a sum over
  slots, nearly normal, and the slowest worker's the largest of as many (sections 4.2 and 4.3).
- The simulation has slots that are always full: a finished request is replaced at once by the next
  one of an endless queue (section 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, ndtr, roots_legendre

from mist_sim.bounds import BUNDLE
from mist_sim.checks import Checked, NotNegative, Positive, Range
from mist_sim.clients.afd import Bundle, BundleConfig, Placement, Resident
from mist_sim.errors import ScenarioError
from mist_sim.hardware.afd import AfdCoefficients

# 1 - Phi(m)^r is 1 below the first and 0 above the second to 1e-16, for r up to some thousands
_LOW, _HIGH = -9.0, 9.5
_NODES, _WEIGHTS = roots_legendre(160)


def expected_maximum(num_workers: int) -> float:
    """Return kappa_r: the mean of the largest of `num_workers` standard normal variables (5)."""
    return expected_excess(num_workers, _LOW) + _LOW


def expected_excess(num_workers: int, z: float) -> float:
    """Return E[(M - z)+] for M, the largest of `num_workers` (>= 1) standard normal variables.

    It is the integral of P(M > m) from z on; in closed form for one worker and for two.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers must be >= 1, got {num_workers}")
    if num_workers == 1:
        return _density(z) - z * float(ndtr(-z))
    if num_workers == 2:
        above = float(ndtr(-z))
        return (
            2 * _density(z) * (1 - above)
            + float(ndtr(-math.sqrt(2) * z)) / math.sqrt(math.pi)
            - z * above * (2 - above)
        )
    return excess_by_quadrature(num_workers, z)


def excess_by_quadrature(num_workers: int, z: float) -> float:
    """Return the same for any number of workers by Gauss-Legendre quadrature."""
    start = min(max(z, _LOW), _HIGH)
    half = (_HIGH - start) / 2
    m = start + half * (_NODES + 1)
    above = -np.expm1(num_workers * log_ndtr(m))
    return max(_LOW - z, 0.0) + half * float(_WEIGHTS @ above)


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def expected_cycle(
    mean: float, std: float, others: float, num_workers: int, *, rest: float = 0.0, batches: int = 0
) -> float:
    """Return the mean of a cycle, max(a, others), where a is the slowest attention worker's time.

    With `batches` in flight, the cycles of a batch are no shorter than all its phases one after
    the other, so a cycle is max(a, others, (a + rest) / batches). With many, that makes no
    difference, and it is the Gaussian cycle time of the paper (9).

    mean, std: of one worker's time. others: the longest of the other phases. rest: what a batch
    spends outside attention. batches: >= 2, or 0 for as many as it takes.
    """
    if std == 0:
        return max(mean, others, (mean + rest) / batches if batches else 0.0)

    def excess(time: float) -> float:
        return std * expected_excess(num_workers, (time - mean) / std)

    if not batches:
        return others + excess(others)
    from_sum = batches * others - rest  # attention times at which one phase overtakes the next
    from_attention = rest / (batches - 1)
    if from_sum >= from_attention:
        return others + excess(others)
    return others + excess(from_sum) / batches + excess(from_attention) * (1 - 1 / batches)


Start = Literal["stationary", "fresh"]
Coming = tuple[int, int, int]
"""A request that comes to a slot: tokens in the cache, steps to go, steps in all."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRun:
    """Figures of a bundle until a number of requests were served.

    duration: of the run. num_tokens: those generated in it. num_passes: of all batches.
    throughput: tokens per unit of time and worker, over all tokens.
    throughput_80: the paper's metric: tokens of the first 80 % of the requests that ended, whole,
        over the time until then. Tokens of requests that are under way are not in it.
    halves: `throughput` in the first half of the passes and in the second.
    tpot: time in a slot for each token, mean over the requests that ended.
    attention_idle, ffn_idle: shares of the time in which a worker waits.
    barrier: tokens of the worker that holds the most, over those of the mean worker, mean over the
        passes, tokens (>= 0).
    effective_std: the standard deviation of a slot's tokens at which independent slots would have
        that barrier (nu_eff): what a placement leaves of nu. None with one attention worker.
    """

    duration: float
    num_tokens: int
    num_passes: int
    throughput: float
    throughput_80: float
    halves: tuple[float, float]
    tpot: float
    attention_idle: float
    ffn_idle: float
    barrier: float
    effective_std: float | None


def simulate_bundle(
    config: BundleConfig,
    prefill: ArrayLike,
    decode: ArrayLike,
    rng: np.random.Generator,
    *,
    placement: Placement | None = None,
    start: Start = "stationary",
) -> BundleRun:
    """Serve requests with full slots until there are no more to take a slot.

    prefill, decode: prompt tokens and decode steps (>= 1) of the requests, in their order, shape
        (n,) each.
    placement: of a request among the slots that are freed at one time; None: in their order.
    start: "fresh": the slots begin with the first requests; "stationary": with requests as they are
        met at a random step, drawn from all of these, part of their steps behind them.
    Raises ScenarioError where there are too few requests.
    """
    p, d = np.asarray(prefill, dtype=np.int64), np.asarray(decode, dtype=np.int64)
    least = config.num_slots * (1 if start == "stationary" else 2)
    if len(d) < least:
        raise ScenarioError(
            f"there must be {least} requests or more, for {config.num_slots} slots, got {len(d)}"
        )
    bundle = Bundle(config)
    queue = iter(zip(p.tolist(), d.tolist(), d.tolist(), strict=True))
    first = _stationary(p, d, rng, config.num_slots) if start == "stationary" else queue
    for slots in bundle.batches:
        for worker in np.repeat(range(config.attention_workers), config.slots).tolist():
            slots.join(_resident(next(first), worker, 0.0))
    return _serve(bundle, queue, placement)


def _resident(coming: Coming, worker: int, now: float) -> Resident:
    """Return a request that sits down now; its guest is when, and how many tokens it has in all."""
    num_tokens, num_steps, in_all = coming
    return Resident(worker, num_tokens, num_steps, (now, in_all))


def _stationary(
    p: NDArray[np.int64], d: NDArray[np.int64], rng: np.random.Generator, n: int
) -> Iterator[Coming]:
    """Yield n requests that are met at a random step."""
    steps = np.cumsum(d)
    met = rng.integers(steps[-1], size=n)
    which = np.searchsorted(steps, met, side="right")
    left = steps[which] - met
    tokens = p[which] + d[which] - left
    return iter(zip(tokens.tolist(), left.tolist(), d[which].tolist(), strict=True))


def _serve(bundle: Bundle, queue: Iterator[Coming], placement: Placement | None) -> BundleRun:
    """Run passes until the queue is empty."""
    config = bundle.config
    ends: list[float] = []  # of steps
    served: list[tuple[float, int, float]] = []  # end, tokens, time in the slot for each of them
    is_over, attention, num_passes = False, 0.0, 0
    while not is_over and (batch := bundle.next_batch()) is not None:
        step, step_ends = bundle.run_pass(batch)
        attention += step.attention_end - step.start
        num_passes += 1
        for done, end, leaving in step_ends:
            ends.append(end)
            slots = bundle.batches[done]
            for resident in leaving:
                begun, in_all = resident.guest
                served.append((end, in_all, (end - begun) / resident.num_steps))
            coming = list(islice(queue, len(leaving)))
            is_over = is_over or len(coming) < len(leaving)
            workers = [resident.worker for resident in leaving[: len(coming)]]
            if placement is not None and coming:
                free = config.slots - slots.filled
                workers = placement.place([tokens for tokens, *_ in coming], slots.held, free)
            for request, worker in zip(coming, workers, strict=True):
                slots.join(_resident(request, worker, end))
    slowest = attention / num_passes * bundle.clock.layers
    return _figures(bundle, np.array(ends), np.array(served), slowest)


def _figures(bundle: Bundle, ends: Floats, served: Floats, slowest: float) -> BundleRun:
    """Return the figures of a run. slowest: mean time of attention in a step, all layers."""
    config = bundle.config
    of_each = bundle.attention_work / bundle.num_steps / config.attention_workers
    barrier = max(slowest - of_each, 0.0) / config.coefficients.alpha_a
    workers = config.attention_workers + config.ffn_workers
    per_pass = config.slots_per_batch
    duration = float(ends.max())
    half = len(ends) // 2
    middle = float(ends[:half].max())
    first = served[np.argsort(served[:, 0], kind="stable")][: math.ceil(0.8 * len(served))]
    return BundleRun(
        duration=duration,
        num_tokens=len(ends) * per_pass,
        num_passes=len(ends),
        throughput=len(ends) * per_pass / duration / workers,
        throughput_80=float(first[:, 1].sum() / first[-1, 0]) / workers,
        halves=(
            half * per_pass / middle / workers,
            (len(ends) - half) * per_pass / (duration - middle) / workers,
        ),
        tpot=float(np.mean(served[:, 2])),
        attention_idle=1 - bundle.attention_work / duration / config.attention_workers,
        ffn_idle=1 - bundle.ffn_work / duration / config.ffn_workers,
        barrier=barrier,
        effective_std=(
            barrier / math.sqrt(config.slots) / expected_maximum(config.attention_workers)
            if config.attention_workers > 1
            else None
        ),
    )


MIN_LENGTHS = 400
"""Fewer have too few extremes to judge a tail by."""

FINITE_VARIANCE, FINITE_MEAN = 3.0, 2.0
"""Tail exponents at and below which variance and mean of the load are infinite."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The tail exponent of lengths.

    alpha: infinite for a tail that falls faster than any power, as of geometric lengths.
    low: lower end of its 95 % interval. num_extremes: lengths it is estimated from.
    """

    alpha: float
    low: float
    num_extremes: int

    @property
    def verdict(self) -> str:
        """Moments of the load: "finite", "infinite variance" or "infinite mean"."""
        if self.alpha <= FINITE_MEAN:
            return "infinite mean"
        return "infinite variance" if self.alpha <= FINITE_VARIANCE else "finite"


def tail_of(lengths: ArrayLike) -> Tail | None:
    """Return the tail exponent of lengths (> 0); None where they are too few.

    The moment estimator on the largest n^(2/3) / 2 of n lengths: unlike Hill's, it also covers
    tails that are lighter than a power law. Source: Dekkers, Einmahl and de Haan, Annals of
    Statistics 17, 1989.
    """
    ordered = np.sort(np.asarray(lengths, dtype=float))
    n = len(ordered)
    if n < MIN_LENGTHS:
        return None
    k = int(n ** (2 / 3) / 2)
    logs = np.log(ordered[-k:] / ordered[-k - 1])
    first, second = float(logs.mean()), float((logs**2).mean())
    if second <= first**2:  # all at one value, such as a longest answer
        return Tail(math.inf, math.inf, k)
    gamma = first + 1 - 0.5 / (1 - first**2 / second)
    high = gamma + 1.96 * math.sqrt((1 + gamma**2) / k)
    return Tail(_inverse(gamma), _inverse(high), k)


def _inverse(gamma: float) -> float:
    return 1 / gamma if gamma > 0 else math.inf


def check_tail(tail: Tail | None) -> None:
    """Raise ScenarioError where not even the mean of a slot's load is finite."""
    if tail is not None and tail.verdict == "infinite mean":
        raise ScenarioError(
            f"the trace is too heavy-tailed: the tail exponent of its decode lengths must be > "
            f"{FINITE_MEAN:g} for the mean load of a slot to exist, got {tail.alpha:.2f} from the "
            f"{tail.num_extremes} longest; cut answers at a longest length, as servers do"
        )


Rule = Literal["attention", "communication", "ffn", "crossing", "senders"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ratio at which the throughput may be largest.

    rule: "attention": where communication or FFN begin to take longer than attention;
        "communication", "ffn": where their own throughput is largest; "crossing": where FFN begins
        to take longer than communication, or the reverse; "senders": as many attention workers as
        FFN cards, above which these receive more than each worker sends.
    ratio: attention workers for each FFN worker; None where there is no such ratio above 0.
    throughput: tokens a unit of time for each worker of either kind; None without a ratio.
    """

    rule: Rule
    ratio: float | None
    throughput: float | None


def mean_field_cycle(
    coefficients: AfdCoefficients, mean_load: float, slots: int, ratio: float, senders: int = 1
) -> float:
    """Return tau_mf, the longest of attention, communication and FFN (8).

    mean_load: tokens of a slot (theta). slots: of one attention worker in a batch (B). senders: as
    in `BundleSpec`.
    """
    return float(
        max(
            coefficients.attention_time(slots * mean_load),
            coefficients.communication_time(slots * max(ratio, senders)),
            coefficients.ffn_time(slots * ratio),
        )
    )


def per_instance(slots: int, ratio: float, cycle: float, ffn_weight: float = 1.0) -> float:
    """Return tokens a unit of time for each worker, attention and FFN together (1).

    ffn_weight: as how many attention workers an FFN worker counts.
    """
    return ratio * slots / ((ratio + ffn_weight) * cycle)


def candidates(
    coefficients: AfdCoefficients,
    mean_load: float,
    slots: int,
    ffn_weight: float = 1.0,
    senders: int = 1,
) -> tuple[Candidate, ...]:
    """Return the four candidates of (10), in order, and that of several senders.

    Those that are no valid ratio are None.

    Where an FFN worker counts as w attention workers, the stationary points are sqrt(w beta /
    (alpha B)), and nothing else changes.
    """
    c, weight = coefficients, ffn_weight
    attention = c.attention_time(slots * mean_load)
    ends = [
        (attention - beta) / (alpha * slots)
        for alpha, beta in ((c.alpha_c, c.beta_c), (c.alpha_f, c.beta_f))
        if alpha
    ]
    peak_c = math.sqrt(weight * c.beta_c / (c.alpha_c * slots)) if c.alpha_c else None
    crossing = None
    if c.alpha_f != c.alpha_c:
        crossing = (c.beta_c - c.beta_f) / (slots * (c.alpha_f - c.alpha_c))

    def candidate(rule: Rule, ratio: float | None) -> Candidate:
        if ratio is None or ratio <= 0:
            return Candidate(rule, None, None)
        cycle = mean_field_cycle(c, mean_load, slots, ratio, senders)
        return Candidate(rule, ratio, per_instance(slots, ratio, cycle, weight))

    return (
        candidate("attention", min(ends)),
        candidate("communication", peak_c),
        candidate("ffn", math.sqrt(weight * c.beta_f / (c.alpha_f * slots))),
        candidate("crossing", crossing),
        *([candidate("senders", float(senders))] if senders > 1 else []),
    )


def best_candidate(found: tuple[Candidate, ...]) -> Candidate:
    """Return the candidate with the largest throughput; of equals the first."""
    return max(found, key=lambda candidate: candidate.throughput or 0.0)


@dataclass(frozen=True, slots=True)
class SlotLoad(Checked):
    """Mean and variance of a slot's tokens: theta and nu^2 of the paper.

    Raises ValueError unless mean > 0 and variance >= 0, both finite.
    """

    mean: Positive[float]
    variance: NotNegative[float]

    @property
    def std(self) -> float:
        """Nu: the standard deviation, tokens."""
        return math.sqrt(self.variance)


def geometric_slot_load(mean_prefill: float, var_prefill: float, mean_decode: float) -> SlotLoad:
    """Return the load where D is geometric on 1, 2, ... and independent of P."""
    _check_means(mean_prefill, mean_decode)
    tokens_before_last = mean_decode - 1
    return SlotLoad(
        mean_prefill + tokens_before_last,
        var_prefill + tokens_before_last * (tokens_before_last + 1),
    )


def _check_means(mean_prefill: float, mean_decode: float) -> None:
    if not 0 <= mean_prefill < math.inf:
        raise ValueError(f"mean_prefill must be finite and >= 0 tokens, got {mean_prefill}")
    if not 1 <= mean_decode < math.inf:
        raise ValueError(f"mean_decode must be finite and >= 1 step, got {mean_decode}")


MIN_REQUESTS = 30
"""Fewer give no interval that a normal law would justify."""

WIDEST = 0.5
"""Half width of theta's interval, as a share of theta, beyond which there is nothing to provision
by."""


@dataclass(frozen=True, slots=True)
class Estimated:
    """A value and the ends of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLoadEstimate:
    """A slot's load, estimated from a trace.

    theta, nu_squared: mean and variance of the tokens in a slot. confidence: of their intervals.
    num_requests: of those that decode. mean_prefill, mean_decode: E[P] and E[D] of these.
    covariance: of P and D.
    """

    theta: Estimated
    nu_squared: Estimated
    confidence: float
    num_requests: int
    mean_prefill: float
    mean_decode: float
    covariance: float

    @property
    def load(self) -> SlotLoad:
        """The load to provision by."""
        return SlotLoad(self.theta.value, self.nu_squared.value)


def estimate_slot_load(
    prefill: ArrayLike, decode: ArrayLike, *, confidence: float = 0.95
) -> SlotLoadEstimate:
    """Return theta and nu^2 of a trace (15, 16), with intervals by the delta method.

    Both are ratios of sums over requests, or smooth in such ratios, so they are normal for many
    requests. The intervals assume independent requests; if a trace's lengths drift, the true
    intervals are wider.

    prefill: prompt lengths in tokens, shape (n,). decode: decode steps of the same requests (>= 0;
    those of 0 never come to a slot and are left out).
    confidence: in (0, 1).
    Raises ScenarioError for a trace that is too short, ValueError for other wrong input.
    Source: arXiv 2601.21351v3, appendix A.6.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    p, d = _lengths(prefill, decode)
    n, mean_decode = len(d), float(d.mean())
    tokens = d * p + d * (d - 1) / 2
    squares = d * p**2 + p * d * (d - 1) + d * (d - 1) * (2 * d - 1) / 6
    theta = float(tokens.sum() / d.sum())
    second = float(squares.sum() / d.sum())
    of_theta = (tokens - theta * d) / mean_decode  # influence of each request on theta, times n
    of_second = (squares - second * d) / mean_decode
    z = NormalDist().inv_cdf((1 + confidence) / 2) / math.sqrt(n)
    half = z * float(of_theta.std())
    if half > WIDEST * theta:
        raise ScenarioError(
            f"the trace is too short or too heavy-tailed: theta = {theta:.4g} tokens is known to "
            f"+-{half:.4g} only, of {n} requests; at most {WIDEST:.0%} are accepted"
        )
    variance = max(second - theta**2, 0.0)
    half_variance = z * float((of_second - 2 * theta * of_theta).std())
    return SlotLoadEstimate(
        theta=Estimated(theta, theta - half, theta + half),
        nu_squared=Estimated(
            variance, max(variance - half_variance, 0.0), variance + half_variance
        ),
        confidence=confidence,
        num_requests=n,
        mean_prefill=float(p.mean()),
        mean_decode=mean_decode,
        covariance=float(np.mean((p - p.mean()) * (d - mean_decode))),
    )


def _lengths(prefill: ArrayLike, decode: ArrayLike) -> tuple[Floats, Floats]:
    """Return the lengths of requests that decode, after checks."""
    p, d = np.asarray(prefill, dtype=float), np.asarray(decode, dtype=float)
    if p.ndim != 1 or p.shape != d.shape:
        raise ValueError(f"prefill and decode must be of one length, got {p.shape} and {d.shape}")
    if not (np.isfinite(p).all() and np.isfinite(d).all()) or (p < 0).any() or (d < 0).any():
        raise ValueError("prefill and decode must be finite numbers >= 0")
    decodes = d > 0
    p, d = p[decodes], d[decodes]
    if len(d) < MIN_REQUESTS:
        raise ScenarioError(
            f"the trace is too short: it must have {MIN_REQUESTS} requests that decode, or more, "
            f"got {len(d)}"
        )
    # all sums are over steps: of answers of unequal length only so many count
    effective = float(d.sum() ** 2 / (d**2).sum())
    if effective < MIN_REQUESTS:
        raise ScenarioError(
            f"the trace is too heavy-tailed: its answers are so unequal that {len(d)} of them "
            f"count for {effective:.1f} equal ones, and {MIN_REQUESTS} are needed; the longest has "
            f"{d.max() / d.sum():.0%} of all steps"
        )
    return p, d


MOST_WORKERS = BUNDLE["attention_workers"]
"""Attention workers of an FFN worker, beyond which no ratio is searched."""


@dataclass(frozen=True, slots=True)
class BundleSpec(Checked):
    """Input of the choice of a ratio: coefficients, the load of a slot, and slots.

    slots: of one attention worker in one batch (B). batches: in flight (m, >= 2, since attention
        and FFN work at the same time). ffn_weight: as how many attention workers an FFN worker
        counts, such as the GPUs of the one over those of the other (> 0). senders: the attention
        workers that fill the links of an FFN worker, such as its GPUs: fewer take as long as these,
        since each sends its whole batch over a link of its own.
    Raises ValueError for numbers below these and beyond the bounds (`mist_sim.bounds.BUNDLE`).
    """

    coefficients: AfdCoefficients
    load: SlotLoad
    slots: Annotated[int, Range(f"[1, {BUNDLE['slots']}]")]
    batches: Annotated[int, Range(f"[2, {BUNDLE['batches']}]")] = 2
    ffn_weight: Positive[float] = 1.0
    senders: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Figures of a bundle of x attention and y FFN workers.

    cycle_mean_field, cycle_gaussian: between two batches that end (8, 9), as with many in flight.
    cycle: the same with the batches that are in flight.
    tpot: time between two tokens of a request. ffn_weight: as in `BundleSpec`.
    attention_idle, ffn_idle: shares of the time in which a worker waits. attention, ffn,
    communication: time of a batch in each part, attention with the mean load of its slots.
    """

    attention_workers: int
    ffn_workers: int
    slots: int
    cycle_mean_field: float
    cycle_gaussian: float
    cycle: float
    tpot: float
    attention_idle: float
    ffn_idle: float
    attention: float
    ffn: float
    communication: float
    ffn_weight: float = 1.0

    @property
    def binds(self) -> str:
        """The part that takes longest, which the mean-field cycle is.

        "sum": none alone, since a batch passes all of them in the time of all batches in flight.
        """
        parts = {name: getattr(self, name) for name in ("attention", "communication", "ffn")}
        longest = max(parts, key=lambda name: parts[name])
        is_sum = sum(parts.values()) * self.cycle > self.tpot * parts[longest]
        return "sum" if is_sum else longest

    @property
    def ratio(self) -> float:
        """Attention workers for each FFN worker."""
        return self.attention_workers / self.ffn_workers

    @property
    def throughput_gaussian(self) -> float:
        """Tokens a unit of time for each worker, with many batches in flight (11)."""
        return per_instance(self.slots, self.ratio, self.cycle_gaussian, self.ffn_weight)

    @property
    def throughput(self) -> float:
        """Tokens a unit of time for each worker, with the batches that are in flight."""
        return per_instance(self.slots, self.ratio, self.cycle, self.ffn_weight)


def predict(spec: BundleSpec, attention_workers: int, ffn_workers: int = 1) -> Prediction:
    """Predict a bundle of so many workers (>= 1 of each)."""
    for name, value in (("attention_workers", attention_workers), ("ffn_workers", ffn_workers)):
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
    c, slots, ratio = spec.coefficients, spec.slots, attention_workers / ffn_workers
    attention = c.attention_time(slots * spec.load.mean)
    spread = c.alpha_a * slots**0.5 * spec.load.std
    ffn = c.ffn_time(slots * ratio)
    communication = c.communication_time(slots * max(ratio, spec.senders))
    others = max(ffn, communication)
    cycle = expected_cycle(
        attention,
        spread,
        others,
        attention_workers,
        rest=ffn + communication,
        batches=spec.batches,
    )
    return Prediction(
        attention_workers=attention_workers,
        ffn_workers=ffn_workers,
        slots=slots,
        cycle_mean_field=mean_field_cycle(c, spec.load.mean, slots, ratio, spec.senders),
        cycle_gaussian=expected_cycle(attention, spread, others, attention_workers),
        cycle=cycle,
        tpot=spec.batches * cycle,
        attention_idle=1 - attention / cycle,
        ffn_idle=1 - ffn / cycle,
        attention=attention,
        ffn=ffn,
        communication=communication,
        ffn_weight=spec.ffn_weight,
    )


@dataclass(frozen=True, slots=True)
class Provisioning:
    """The best ratios, by rule.

    candidates: those of the mean-field rule; mean_field: the best of them.
    mean_field_integer: the best bundle with one FFN worker by that rule; gaussian: by (12);
    in_flight: with the batches in flight.
    """

    candidates: tuple[Candidate, ...]
    mean_field: Candidate
    mean_field_integer: Prediction
    gaussian: Prediction
    in_flight: Prediction


def provision(spec: BundleSpec) -> Provisioning:
    """Return the best ratios. Raises ScenarioError where they are out of bounds."""
    found = candidates(spec.coefficients, spec.load.mean, spec.slots, spec.ffn_weight, spec.senders)
    mean_field = best_candidate(found)
    ratio = mean_field.ratio or 0.0
    if not 0 < ratio <= MOST_WORKERS:
        raise ScenarioError(
            f"the best ratio must be <= {MOST_WORKERS} attention workers for an FFN worker, and "
            f"above 0, got {ratio:.6g}; check the units of the coefficients, and slots"
        )
    return Provisioning(
        found,
        mean_field,
        _best(spec, lambda p: per_instance(p.slots, p.ratio, p.cycle_mean_field, spec.ffn_weight)),
        _best(spec, lambda p: p.throughput_gaussian),
        _best(spec, lambda p: p.throughput),
    )


def provision_interval(spec: BundleSpec, estimate: SlotLoadEstimate) -> tuple[float, float]:
    """Return the best mean-field ratios at the ends of theta's interval; it grows with theta."""

    def ratio(theta: float) -> float:
        found = candidates(spec.coefficients, theta, spec.slots, spec.ffn_weight, spec.senders)
        return best_candidate(found).ratio or 0.0

    return ratio(estimate.theta.low), ratio(estimate.theta.high)


def _best(spec: BundleSpec, throughput: Callable[[Prediction], float]) -> Prediction:
    """Return the bundle with one FFN worker whose throughput is largest.

    A cycle is no shorter than its FFN phase. The search ends where not even that alone would do
    better, since from its own best ratio on (`candidates`, "ffn") it only gets worse.
    """
    c, slots, weight = spec.coefficients, spec.slots, spec.ffn_weight
    peak = (weight * c.beta_f / (c.alpha_f * slots)) ** 0.5
    best = predict(spec, 1)
    for workers in range(2, MOST_WORKERS + 1):
        bound = per_instance(slots, workers, c.ffn_time(slots * workers), weight)
        if workers > peak and bound < throughput(best):
            break
        if throughput(found := predict(spec, workers)) > throughput(best):
            best = found
    return best


SPREAD = 4.0
"""Standard deviations above its mean for which a worker's memory must have room: a normal load
is higher at one step of 30,000."""


@dataclass(frozen=True, slots=True)
class BundleChoice:
    """A bundle that keeps the limits.

    batches: in flight. kv_tokens: that an attention worker needs room for, over all batches.
    """

    prediction: Prediction
    batches: int
    kv_tokens: float


def best_bundles(
    coefficients: AfdCoefficients,
    load: SlotLoad,
    *,
    slots: Iterable[int],
    batches: Iterable[int] = (2, 3, 4),
    attention_workers: Iterable[int] = range(1, 65),
    max_tpot: float | None = None,
    max_kv_tokens: float | None = None,
    ffn_weight: float = 1.0,
    senders: int = 1,
) -> list[BundleChoice]:
    """Return the bundles with one FFN worker that keep the limits, by falling throughput.

    slots, batches, attention_workers: the values to choose from. max_tpot: longest mean time
    between two tokens, in the unit of the coefficients. max_kv_tokens: that an attention worker has
    memory for. ffn_weight, senders: as in `BundleSpec`.
    Raises ScenarioError with the nearest figure where no bundle keeps the limits.
    """
    workers, flights = list(attention_workers), list(batches)
    found: list[BundleChoice] = []
    least_tokens = least_tpot = math.inf
    for each in slots:
        for num_batches in flights:
            tokens = kv_tokens_needed(load, each * num_batches)
            least_tokens = min(least_tokens, tokens)
            if max_kv_tokens is not None and tokens > max_kv_tokens:
                continue
            spec = BundleSpec(coefficients, load, each, num_batches, ffn_weight, senders)
            predicted = [predict(spec, number) for number in workers]
            least_tpot = min([least_tpot, *(p.tpot for p in predicted)])
            found += [
                BundleChoice(p, num_batches, tokens)
                for p in predicted
                if max_tpot is None or p.tpot <= max_tpot
            ]
    if found:
        return sorted(found, key=lambda choice: -choice.prediction.throughput)
    if max_kv_tokens is not None and least_tokens > max_kv_tokens:
        raise ScenarioError(
            f"max_kv_tokens must be >= {least_tokens:,.0f} for the fewest slots and batches, "
            f"got {max_kv_tokens:,.0f}"
        )
    if max_tpot is not None and math.isfinite(least_tpot):
        raise ScenarioError(
            f"max_tpot must be >= {least_tpot:.4g}, the shortest of all bundles, got {max_tpot:g}"
        )
    raise ScenarioError("slots, batches and attention_workers must have a value each, got none")


def kv_tokens_needed(load: SlotLoad, num_slots: int) -> float:
    """Return a number of tokens that a worker with so many slots rarely exceeds."""
    return num_slots * load.mean + SPREAD * math.sqrt(num_slots) * load.std


def most_slots(load: SlotLoad, num_tokens: float) -> int:
    """Return the slots of a worker that rarely exceed so many tokens."""
    spread = SPREAD * load.std
    root = (math.sqrt(spread**2 + 4 * load.mean * num_tokens) - spread) / (2 * load.mean)
    return math.floor(root**2)
