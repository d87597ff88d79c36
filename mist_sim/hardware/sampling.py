"""Sampling: the time of top-p and top-k beyond greedy decoding, by sampler and vocabulary."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, get_args

Sampler = Literal["pytorch", "triton", "flashinfer"]
Filter = Literal["top_k", "top_p", "both"]

SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)
TRITON_ROWS = 8
"""Rows from which on vLLM takes the Triton kernel; fewer are sorted (pull request 33538)."""

_TABLE = "sampler_times.csv"
_VOCABULARY = 131_072  # words at which every sampler was measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The requests' sampling parameters.

    Greedy requests, and requests without top-p and top-k, add no time to `overhead.sequence`.

    temperature: 0 draws the most likely token, and disables the others.
    top_p: sample from the most likely tokens with this total probability (0 < top_p <= 1); 1: all.
    top_k: sample from this many tokens; 0: all.
    sampler: the algorithm that masks the other tokens; by default that of the `engine` version:
        pytorch sorts all of them; triton (from eight rows on; with fewer it sorts) and flashinfer
        search.

    Raises ValueError for values outside these ranges, and for a sampler without a mask to compute.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be finite and >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be > 0 and <= 1, got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0, where 0 means all words, got {self.top_k}")
        if self.sampler not in (None, *SAMPLERS):
            raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {self.sampler!r}")
        if self.sampler and self.filter is None:
            raise ValueError(
                "sampler has no effect without top_p or top_k at a temperature above 0"
            )

    @property
    def filter(self) -> Filter | None:
        """The kind of mask; None: none."""
        if not self.temperature:
            return None
        if self.top_k and self.top_p < 1:
            return "both"
        return "top_k" if self.top_k else "top_p" if self.top_p < 1 else None


class SamplingTimes:
    """Seconds that sampling adds to a step, by the number of sequences that get a token.

    A sort's time depends on all tokens of all rows, so its cells lie on one line of rows x
    vocabulary. The other samplers work row by row: their cells are those of the vocabulary sizes
    below and above, with a power law of the vocabulary in between. Between cells, time is a power
    of the rows. Below the first cell the time is constant. Beyond the last one the last slope of a
    sort continues, and other samplers are proportional to rows, each of which is a program of its
    own.

    sampling: with a filter. sampler: the engine version's default, used if `sampling` names none.
    """

    def __init__(self, sampling: Sampling, vocab_size: int, sampler: Sampler) -> None:
        self._filter = sampling.filter
        self._sampler = sampling.sampler or sampler
        self._vocab_size = vocab_size
        self._known: dict[int, float] = {0: 0.0}

    def seconds(self, num_rows: int) -> float:
        """Return the seconds of a step that samples so many rows."""
        found = self._known.get(num_rows)
        if found is None:
            found = self._known[num_rows] = self._seconds(num_rows)
        return found

    def _seconds(self, num_rows: int) -> float:
        if self._filter is None:
            return 0.0
        sampler = self._sampler
        if sampler == "pytorch" or (sampler == "triton" and num_rows < TRITON_ROWS):
            cells = _cells("pytorch", self._filter)
            line = sorted((rows * words, ms) for words, all_rows in cells for rows, ms in all_rows)
            return _power(line, num_rows * self._vocab_size) * 1e-3
        by_rows = [
            (float(words), _power([*all_rows, _twice(all_rows[-1])], num_rows))
            for words, all_rows in _cells(sampler, self._filter)
        ]
        if len(by_rows) == 1:  # the words of a row are read one after the other
            return by_rows[0][1] * self._vocab_size / by_rows[0][0] * 1e-3
        return _power(by_rows, self._vocab_size, goes_down=True) * 1e-3


@cache
def _cells(
    sampler: Sampler, masked_by: Filter
) -> Sequence[tuple[int, Sequence[tuple[float, float]]]]:
    """Return the measured cells: for each vocabulary (rows, milliseconds), both rising."""
    text = files("mist_sim.hardware").joinpath(_TABLE).read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found: dict[int, list[tuple[float, float]]] = {}
    for row in csv.DictReader(lines):
        if (row["sampler"], row["filter"]) == (sampler, masked_by):
            cell = float(row["rows"]), float(row["ms"])
            found.setdefault(int(row["vocabulary"]), []).append(cell)
    return [(words, sorted(cells)) for words, cells in sorted(found.items())]


def _twice(cell: tuple[float, float]) -> tuple[float, float]:
    """Return a cell of twice the rows, which take twice the time."""
    return 2 * cell[0], 2 * cell[1]


def _power(cells: Sequence[tuple[float, float]], at: float, *, goes_down: bool = False) -> float:
    """Return the value at a place between cells, as a power of it.

    goes_down: whether the first slope goes on below the first cell too; else its value stays.
    """
    if at <= cells[0][0] and not goes_down:
        return cells[0][1]
    last = len(cells) - 1
    right = next((k for k in range(1, last) if at <= cells[k][0]), last)
    (low, first), (high, second) = cells[right - 1], cells[right]
    slope = math.log(second / first) / math.log(high / low)
    return first * math.pow(at / low, max(slope, 0.0))


def said_by_vllm(parameters: Mapping[str, object]) -> dict[str, object]:
    """Return the options of `Sampling` that vLLM's parameters of the same names say."""
    names = ("temperature", "top_p", "top_k")
    found = {name: parameters[name] for name in names if parameters.get(name) is not None}
    if found.get("top_k") == -1:
        found["top_k"] = 0
    return found
