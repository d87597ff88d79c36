"""Lengths that are drawn: distributions, mixtures of classes, and the sources that draw rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import islice
from statistics import NormalDist
from typing import Annotated, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from mist_sim.checks import Checked, Count, NotNegative, Positive, Range, check_fields
from mist_sim.durations import BLOCK, Floats, lognormal, require_spread
from mist_sim.errors import ScenarioError, brief
from mist_sim.registry import require_method
from mist_sim.traces.base import LENGTHS, SAMPLERS, TraceRow
from mist_sim.traces.profiles import load_profile, profile_names
from mist_sim.traces.workload import prefix_content

Tokens = npt.NDArray[np.int64]

_SAMPLE = "sample(rng, n)"


_Total = Annotated[int, Range("[2, inf)", "null is no limit")]


@runtime_checkable
class LengthDistribution(Protocol):
    """Draw numbers of tokens: `n` of them, each >= 1, from `rng` alone."""

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return `n` lengths in tokens, shape (n,), each >= 1."""


@LENGTHS.register("fixed")
@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength(Checked):
    """Every request has the same number of `tokens` (>= 1)."""

    tokens: Count

    @property
    def shortest(self) -> int:
        """The smallest number of tokens."""
        return self.tokens

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n equal lengths; draws nothing."""
        return np.full(n, self.tokens, dtype=np.int64)


@LENGTHS.register("uniform")
@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLength:
    """Whole numbers of tokens from `low` (>= 1) to `high`, both included, equally likely."""

    low: Count
    high: int

    def __post_init__(self) -> None:
        check_fields(self)
        if self.high < self.low:
            raise ValueError(f"high must be >= low ({self.low}), got {self.high}")

    @property
    def shortest(self) -> int:
        """The smallest number of tokens."""
        return self.low

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        return rng.integers(self.low, self.high, size=n, endpoint=True, dtype=np.int64)


@LENGTHS.register("normal")
@dataclass(frozen=True, slots=True, kw_only=True)
class NormalLength(Checked):
    """A normal distribution rounded to whole tokens; values below 1 are drawn again.

    mean (>= 1), std (>= 0): tokens, of the normal before truncation. The mean of what is drawn
    is higher by std * phi(a) / (1 - Phi(a)) with a = (0.5 - mean) / std: under 0.2 % of the mean
    for mean >= 100 and std <= mean / 3. Source: MIST §III-B2 (lengths as a normal distribution).
    """

    mean: Annotated[float, Range("[1, inf)")]
    std: NotNegative[float]

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        return _redraw_below_one(lambda count: rng.normal(self.mean, self.std, count), n)


def _redraw_below_one(draw: Callable[[int], Floats], n: int) -> Tokens:
    """Return n rounded values >= 1, drawing again for those below; half or more must pass."""
    values = np.rint(draw(n))
    while (below := np.flatnonzero(values < 1)).size:
        values[below] = np.rint(draw(below.size))
    return values.astype(np.int64)


@LENGTHS.register("lognormal")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLength:
    """A lognormal distribution rounded to whole tokens; values below 1 become 1.

    mean (>= 1), std (>= 0): tokens, of the lognormal itself (not of its logarithm). Rounding up
    to 1 raises the mean by less than one token.
    """

    mean: Annotated[float, Range("[1, inf)")]
    std: NotNegative[float]

    def __post_init__(self) -> None:
        check_fields(self)
        require_spread(self.mean, self.std)

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        values = lognormal(rng, self.mean, self.std, n)
        return np.maximum(np.rint(values), 1).astype(np.int64)


@LENGTHS.register("geometric")
@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricLength(Checked):
    """A geometric distribution on 1, 2, ...: after each token the answer ends with 1 / mean.

    mean: tokens (>= 1).
    """

    mean: Annotated[float, Range("[1, inf)")]

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        return rng.geometric(1 / self.mean, n)


@SAMPLERS.register("synthetic")
@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Requests whose prompt and output lengths are drawn independently (MIST §III-B2).

    num_requests: how many (>= 1). prompt, output: distributions of their lengths in tokens.
    max_total_tokens: of prompt and output together (>= 2); requests with more are drawn again, both
        parts of them. None: any.

    Prompt and output have random streams of their own: another `output` does not change the
    prompts, except those that `max_total_tokens` drops.
    """

    num_requests: Count
    prompt: LengthDistribution
    output: LengthDistribution
    max_total_tokens: _Total | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for part in ("prompt", "output"):
            require_method(
                f"{part} (such as FixedLength(tokens=100))", getattr(self, part), _SAMPLE
            )

    @property
    def shortest_prompt(self) -> int:
        """Tokens that each prompt has at least."""
        return shortest_of(self.prompt)

    def sample_rows(self, rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield `num_requests` rows without times.

        Raises ScenarioError for a length below 1, and where hardly any draw is short enough.
        """
        prompt_rng, output_rng = rng.spawn(2)

        def draw() -> tuple[Tokens, Tokens]:
            prompts = self.prompt.sample(prompt_rng, BLOCK)
            outputs = self.output.sample(output_rng, BLOCK)
            return checked_lengths(prompts, self.prompt), checked_lengths(outputs, self.output)

        return _rows(self.num_requests, draw, self.max_total_tokens)


@SAMPLERS.register("profile")
@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Requests with the lengths of a real trace, prompt and output drawn together.

    num_requests: how many (>= 1). name: a shipped profile (see `mist_sim.traces.profiles`).
    A prompt is drawn from its quantiles, then the output from the quantiles of its prompt's bin,
    so both distributions and their dependence are kept. Rows are independent of one another.
    max_total_tokens: of prompt and output together (>= 2); requests with more are drawn again.
        None: any.
    """

    num_requests: Count
    name: str = "azure-conv-2023"
    max_total_tokens: _Total | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.name not in profile_names():
            raise ValueError(
                f"name must be one of {', '.join(profile_names())}, got {brief(self.name)}"
            )

    def sample_rows(self, rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield `num_requests` rows without times.

        Raises ScenarioError where hardly any draw is short enough.
        """
        table = load_profile(self.name)
        return _rows(self.num_requests, lambda: table.sample(rng, BLOCK), self.max_total_tokens)


@SAMPLERS.register("prefix_repetition")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRepetition(Checked):
    """Prompts that share beginnings, such as system prompts (vLLM's dataset of that name).

    num_requests: how many (>= 1). num_prefixes: different beginnings (>= 1); each request has
    one of them, all equally likely (vLLM deals them out evenly). prefix_len: their tokens.
    suffix, output: distributions of the tokens after it, which no other request shares, and of
    the answer.
    """

    num_requests: Count
    suffix: LengthDistribution
    output: LengthDistribution
    num_prefixes: Count = 10
    prefix_len: Count = 256

    @property
    def shortest_prompt(self) -> int:
        """Tokens that each prompt has at least."""
        return self.prefix_len + shortest_of(self.suffix)

    def sample_rows(self, rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield `num_requests` rows without times. Raises ScenarioError for a length below 1."""
        prefix_rng, suffix_rng, output_rng = rng.spawn(3)
        for start in range(0, self.num_requests, BLOCK):
            prefixes = prefix_rng.integers(self.num_prefixes, size=BLOCK)
            suffixes = checked_lengths(self.suffix.sample(suffix_rng, BLOCK), self.suffix)
            outputs = checked_lengths(self.output.sample(output_rng, BLOCK), self.output)
            drawn = zip(prefixes.tolist(), suffixes.tolist(), outputs.tolist(), strict=True)
            for prefix, suffix, output in islice(drawn, self.num_requests - start):
                content = prefix_content(prefix, self.prefix_len)
                yield TraceRow(self.prefix_len + suffix, output, None, None, content)


def shortest_of(distribution: LengthDistribution) -> int:
    """Return the smallest length of a distribution; 1 if unknown."""
    return getattr(distribution, "shortest", 1)


def checked_lengths(lengths: Tokens, distribution: LengthDistribution) -> Tokens:
    """Return lengths that a distribution drew.

    Raises ScenarioError unless they are `BLOCK` whole numbers of 1 or more.
    """
    found, name = np.asarray(lengths), type(distribution).__name__
    if found.shape != (BLOCK,) or found.dtype.kind not in "iu":
        raise ScenarioError(
            f"{name}.sample(rng, n) must return n whole numbers (np.rint(x).astype(int) rounds), "
            f"got {brief(lengths)} for n = {BLOCK}"
        )
    if (shortest := int(found.min())) < 1:
        raise ScenarioError(f"lengths must be >= 1 token, got {shortest} from {name}")
    return found


def _rows(
    num_rows: int, draw: Callable[[], tuple[Tokens, Tokens]], most: int | None
) -> Iterator[TraceRow]:
    """Yield rows of at most so many tokens, drawn in blocks; the rest of the last is dropped.

    Raises ScenarioError where fewer than one draw in a thousand has no more.
    """
    num_left = num_rows
    while num_left:
        prompts, outputs = draw()
        if most is not None:
            fits = prompts + outputs <= most
            if np.count_nonzero(fits) * 1000 < BLOCK:
                raise ScenarioError(
                    f"max_total_tokens must leave one draw in 1,000 or more, got {most:,}; of "
                    f"{BLOCK:,} draws {np.count_nonzero(fits)} had no more, and the shortest had "
                    f"{int((prompts + outputs).min()):,}; raise it, or draw shorter lengths"
                )
            prompts, outputs = prompts[fits], outputs[fits]
        count = min(len(prompts), num_left)
        num_left -= count
        yield from map(TraceRow, prompts[:count].tolist(), outputs[:count].tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass(Checked):
    """Requests of one class.

    prompt, output: distributions of their lengths in tokens, drawn independently. share: of all
    requests, relative to the shares of the other classes (> 0). priority: of its requests; smaller
    is more urgent.
    """

    prompt: LengthDistribution
    output: LengthDistribution
    share: Positive[float] = 1.0
    priority: int = 0


@SAMPLERS.register("mix")
@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Requests of several classes, each with lengths of its own.

    num_requests: how many (>= 1), of all classes. classes: by name, which requests carry as their
        label; limits of the slo may be for a class. A class has `prompt` and `output`, laws of
        lengths as of `synthetic`; `share`, by default 1, relative to those of the others; and
        `priority`, by default 0.

    The class of each request is drawn at random, in the proportion of the shares. Each class has
    its own random streams: changing the lengths of one class changes no other class.
    """

    num_requests: Count
    classes: Mapping[str, RequestClass]

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.classes:
            raise ValueError("classes must have at least one entry, got {}")
        for name in self.classes:
            if not name:
                raise ValueError(f"classes must have names, got {brief(name)}")

    @property
    def shortest_prompt(self) -> int:
        """Tokens that each prompt has at least."""
        return min(shortest_of(each.prompt) for each in self.classes.values())

    def sample_rows(self, rng: np.random.Generator) -> Iterator[TraceRow]:
        """Yield `num_requests` rows without times. Raises ScenarioError for a length below 1."""
        choices, *others = rng.spawn(1 + 2 * len(self.classes))
        pairs = zip(others[::2], others[1::2], strict=True)
        several = [
            _mixed_rows(name, each, *generators)
            for (name, each), generators in zip(self.classes.items(), pairs, strict=True)
        ]
        return islice(map(next, self._drawn(several, choices)), self.num_requests)

    def _drawn(
        self, several: list[Iterator[TraceRow]], rng: np.random.Generator
    ) -> Iterator[Iterator[TraceRow]]:
        shares = np.array([each.share for each in self.classes.values()])
        while True:
            for place in rng.choice(len(several), BLOCK, p=shares / shares.sum()).tolist():
                yield several[place]


def _mixed_rows(
    name: str,
    each: RequestClass,
    prompt_rng: np.random.Generator,
    output_rng: np.random.Generator,
) -> Iterator[TraceRow]:
    while True:
        prompts = checked_lengths(each.prompt.sample(prompt_rng, BLOCK), each.prompt)
        outputs = checked_lengths(each.output.sample(output_rng, BLOCK), each.output)
        for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True):
            yield TraceRow(prompt, output, label=name, priority=each.priority)


_P95 = 0.95
_Z95 = NormalDist().inv_cdf(_P95)
_TAIL = 2 * (NormalDist().pdf(_Z95) / (1 - _P95) - _Z95)
"""Width of the tail in logarithms, as a multiple of the middle's slope: with it the mean of the
logarithms above the 95th percentile is that of a lognormal."""
_NUM_POINTS = 8192
_ERROR = 0.005  # of the mean of whole tokens, relative
_MOST_SKEW = 1e4


@LENGTHS.register("mean_median_p95")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanMedianP95Length:
    """Lengths with three known figures, rounded to whole tokens; values below 1 become 1.

    mean, median, p95: tokens (>= 1); p95 > median. The mean may lie below the median, or far above
    it, where no lognormal has all three.

    The logarithm of the length is a function of a normal draw z in three pieces. From the median to
    the 95th percentile it is a lognormal's of slope s. Below the median the slope is s / k. The
    tail above the 95th percentile is log-uniform and ends at p95 * exp(0.84 s k). The skew k is
    solved for the mean; with 1 the law is close to a lognormal. With k < 1 the middle bends, as (z
    / z95)^(1 / k); near the least possible mean the lengths jump at the median and at p95, and
    samples scatter about both. Nothing but the three figures is fitted: other quantiles are the
    law's own.

    Raises ValueError for impossible figures: half of the lengths are at least 1, 45 % at least the
    median and 5 % at least p95. Source: MIST, Table III gives such figures.
    """

    mean: Annotated[float, Range("[1, inf)")]
    median: Annotated[float, Range("[1, inf)")]
    p95: Annotated[float, Range("[1, inf)")]
    _skew: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.p95 <= self.median:
            raise ValueError(
                f"p95 must be > median ({self.median:g}), got {self.p95:g}; "
                "fixed or uniform are for lengths that hardly vary"
            )
        object.__setattr__(self, "_skew", _skew(self))

    def sample(self, rng: np.random.Generator, n: int) -> Tokens:
        """Return n lengths."""
        normal, uniform = rng.standard_normal(n), rng.random(n)
        return self._lengths(normal, uniform, self._skew)

    @property
    def longest(self) -> float:
        """The end of the tail, tokens."""
        return self.p95 * math.exp(_TAIL * self.slope * self._skew)

    @property
    def slope(self) -> float:
        """Of the logarithm of the length between the median and p95, for each unit of z."""
        return math.log(self.p95 / self.median) / _Z95

    def _lengths(self, normal: Floats, uniform: Floats, skew: float) -> Tokens:
        """Return the lengths of normal draws; in the tail, of uniform draws."""
        slope = self.slope
        bend = max(1.0, 1 / skew)
        middle = _Z95 * slope * np.clip(normal / _Z95, 0, 1) ** bend
        logs = np.where(normal < 0, normal * (slope / skew), middle)
        tail = middle + _TAIL * slope * skew * uniform
        logs = np.where(normal > _Z95, tail, logs)
        return np.maximum(np.rint(self.median * np.exp(logs)), 1).astype(np.int64)

    def mean_at(self, skew: float) -> float:
        """Return the mean in whole tokens with a skew."""
        return float(self._lengths(*_points(), skew).mean())


@lru_cache(maxsize=128)
def _skew(law: MeanMedianP95Length) -> float:
    """Return the skew that gives the mean in whole tokens; the mean grows with the skew.

    Kept, since a scenario with the same three figures is often built many times.
    """
    least = 0.5 + 0.45 * law.median + 0.05 * law.p95
    if law.mean < least:
        raise ValueError(
            f"mean must be >= {least:g} with median {law.median:g} and p95 {law.p95:g}, got "
            f"{law.mean:g}: half of the lengths are >= 1, 45 % >= the median, 5 % >= p95"
        )
    low, high = 1 / _MOST_SKEW, 1.0
    while law.mean_at(high) < law.mean:
        low, high = high, 2 * high
        if high * law.slope * _TAIL > math.log(1e9):
            raise ValueError(
                f"mean must be smaller with median {law.median:g} and p95 {law.p95:g}, got "
                f"{law.mean:g}: the longest twentieth would have more than 1e9 tokens each"
            )
    for _ in range(60):
        middle = math.sqrt(low * high)
        if law.mean_at(middle) < law.mean:
            low = middle
        else:
            high = middle
    if abs(law.mean_at(high) / law.mean - 1) > _ERROR:
        raise ValueError(
            f"mean, median and p95 must be figures that whole tokens can have, got "
            f"{law.mean:g}, {law.median:g} and {law.p95:g}; lengths so short are better "
            "given as uniform or geometric"
        )
    return high


@cache
def _points() -> tuple[Floats, Floats]:
    """Return equally likely normal draws, and for each draw in the tail its place there."""
    shares = (np.arange(_NUM_POINTS) + 0.5) / _NUM_POINTS
    normal = np.array([NormalDist().inv_cdf(share) for share in shares.tolist()])
    return normal, (shares - _P95) / (1 - _P95)
