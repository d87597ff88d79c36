"""New requests like those of a trace, drawn from a profile of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.core.content_ids import OF_BLOCK, origin_of
from mist_sim.core.request import Content
from mist_sim.errors import ScenarioError
from mist_sim.traces.base import TraceRow, require_count
from mist_sim.traces.profiles import (
    OUTPUT_LEVELS,
    PROMPT_LEVELS,
    LengthProfile,
    compute_profile,
    drawn_by_bin,
)
from mist_sim.traces.statistics import Known
from mist_sim.traces.workload import block_content

Floats = NDArray[np.float64]

_FEWEST = 40  # requests: two in each of twenty bins of prompts
_BINS = 20
_BLOCK = 4096  # requests drawn at a time
_RECENT = 4096  # requests whose prompts may be shared
_LOOK = 64  # requests before and after a chosen one, of which one with enough tokens is sought
_BLOCK_SIZE = 16  # tokens, where a trace has no blocks: vLLM's

KEPT = (
    "lengths of prompts and of the answers to prompts of like length",
    "the rate, and the distribution of gaps between arrivals",
    "how many of a prompt's tokens are known from earlier requests, by length, and how far back",
)
NOT_KEPT = (
    "the order of gaps: bursts of many requests, hours of the day",
    "conversations and the waits in them; classes, priorities and models",
    "how many requests share a prefix: a prefix is the more popular the older it is",
)


@dataclass(frozen=True, eq=False)
class TraceProfile:
    """The statistics of a trace from which new requests are drawn.

    num_requests: of it. lengths: of prompts and answers. gaps: quantiles at PROMPT_LEVELS of the
    seconds between arrivals over their mean, and rate: requests a second; None without times.
    known: quantiles at OUTPUT_LEVELS of the known share of prompts, by prompt bin; None if prompts
    share nothing. distances: how many requests ago the latest one with the same beginning was,
    quantiles at PROMPT_LEVELS. block_size: prefixes are shared in whole blocks of so many tokens.
    """

    num_requests: int
    lengths: LengthProfile
    rate: float | None
    gaps: Floats | None
    known: Floats | None
    distances: Floats | None
    block_size: int

    def rows(
        self, num_requests: int, rng: np.random.Generator, rate: float | None = None
    ) -> Iterator[TraceRow]:
        """Yield so many new requests. rate: in place of the trace's own; None: that.

        Rows have no times where the trace has none and no rate is given; with a rate alone their
        arrivals are Poisson.
        """
        require_count("num_requests", num_requests)
        time, made, earlier = 0.0, 0, _Earlier(self.block_size)
        while made < num_requests:
            rank, output_rank, known_rank, distance_rank, gap_rank = rng.random((5, _BLOCK))
            prompts, outputs = self.lengths.at(rank, output_rank)
            shares = self._shares(rank, known_rank)
            distances = self._distances(distance_rank)
            gaps = self._gaps(gap_rank, rate, rng)
            for position in range(min(_BLOCK, num_requests - made)):
                prompt, output = int(prompts[position]), int(outputs[position])
                content: Content = ()
                if shares is not None:
                    known = shares[position] * prompt
                    content = earlier.content(prompt, output, known, distances[position], rng)
                arrival = None if gaps is None else time
                yield TraceRow(prompt, output, arrival, content=content)
                time += 0.0 if gaps is None else gaps[position]
            made += _BLOCK

    def _shares(self, rank: Floats, known_rank: Floats) -> Floats | None:
        if self.known is None:
            return None
        return drawn_by_bin(self.known, np.array(OUTPUT_LEVELS), rank, known_rank)

    def _distances(self, rank: Floats) -> NDArray[np.int64]:
        if self.distances is None:
            return np.ones(len(rank), dtype=np.int64)
        return np.rint(np.interp(rank, PROMPT_LEVELS, self.distances)).astype(np.int64)

    def _gaps(
        self, rank: Floats, rate: float | None, rng: np.random.Generator
    ) -> list[float] | None:
        wanted = rate or self.rate
        if wanted is None:
            return None
        if self.gaps is None:
            drawn: list[float] = rng.exponential(1 / wanted, len(rank)).tolist()
            return drawn
        found: list[float] = (np.interp(rank, PROMPT_LEVELS, self.gaps) / wanted).tolist()
        return found


def fit_trace(rows: Iterable[TraceRow]) -> TraceProfile:
    """Return the profile of a trace. Raises ScenarioError for fewer than 40 requests."""
    prompts, outputs, times = array("q"), array("q"), array("d")
    shares, distances, seen, block_size = array("d"), array("q"), Known(), 0
    for row in rows:
        prompts.append(row.num_prompt_tokens)
        outputs.append(row.num_output_tokens)
        if row.arrival_time is not None:
            times.append(row.arrival_time)
        known, distance = seen.follow(row.content, row.num_prompt_tokens)
        shares.append(known / row.num_prompt_tokens)
        if distance is not None:
            distances.append(distance)
        block_size = block_size or _block_size(row.content)
    if len(prompts) < _FEWEST:
        raise ScenarioError(
            f"a trace to learn from must have >= {_FEWEST} requests, got {len(prompts)}; take a "
            "longer one"
        )
    pairs = zip(prompts, outputs, strict=True)
    tables = compute_profile(pairs, _BINS)
    rate, gaps = _gaps_of(np.array(times))
    return TraceProfile(
        num_requests=len(prompts),
        lengths=LengthProfile.of_tables(tables),
        rate=rate,
        gaps=gaps,
        known=_by_bin(np.array(prompts), np.array(shares)) if distances else None,
        distances=np.quantile(np.array(distances), PROMPT_LEVELS) if distances else None,
        block_size=block_size or _BLOCK_SIZE,
    )


def _gaps_of(times: Floats) -> tuple[float | None, Floats | None]:
    """Return the rate, and quantiles of gaps over their mean with a mean of exactly 1."""
    if len(times) < _FEWEST or times[-1] == times[0]:
        return None, None
    gaps = np.diff(times)
    quantiles = np.quantile(gaps / gaps.mean(), PROMPT_LEVELS)
    mean = np.trapezoid(quantiles, PROMPT_LEVELS)
    return len(gaps) / float(times[-1] - times[0]), np.asarray(quantiles / mean)


def _by_bin(prompts: NDArray[np.int64], values: Floats) -> Floats:
    """Return quantiles of values in equal parts of the requests sorted by prompt."""
    order = np.argsort(prompts, kind="stable")
    parts = np.array_split(values[order], _BINS)
    return np.array([np.quantile(part, OUTPUT_LEVELS) for part in parts])


def _block_size(content: Content) -> int:
    """Return the tokens of a block; 0 where content is not of blocks."""
    if not content or origin_of(content[0][0])[0] != OF_BLOCK:
        return 0
    return content[0][1] if len(content) > 1 else 0


class _Earlier:
    """Prompts made so far, as ids of blocks, whose beginnings later ones share."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._recent: list[list[int]] = []  # a ring of _RECENT
        self._made = 0
        self._next_id = 0

    def content(self, prompt: int, output: int, known: float, distance: int, rng: Any) -> Content:
        """Return the content of a prompt that shares so many tokens with one that far back."""
        shared = int(known / self._size + rng.random())
        number = -(-prompt // self._size)
        ids = self._beginning(min(shared, prompt // self._size), int(distance))
        new = number - len(ids)
        ids = ids + list(range(self._next_id, self._next_id + new))
        self._next_id += new
        place = self._made % _RECENT
        if place < len(self._recent):
            self._recent[place] = ids
        else:
            self._recent.append(ids)
        self._made += 1
        return block_content(ids, (), prompt, output, self._size)

    def _beginning(self, shared: int, distance: int) -> list[int]:
        """Return the first blocks of an earlier prompt, as near to the distance as possible."""
        if not shared or not self._made:
            return []
        most = min(self._made, _RECENT)
        wanted = min(max(distance, 1), most)
        best: list[int] = []
        for step in range(_LOOK):
            for back in {wanted + step, wanted - step}:
                if 1 <= back <= most:
                    ids = self._recent[(self._made - back) % _RECENT]
                    if len(ids) > shared:
                        return ids[:shared]
                    best = max(best, ids[:-1], key=len)
        return best[:shared]
