"""Sampling: the time of top-p and top-k beyond greedy decoding, by sampler and vocabulary."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, get_args

from mist_sim.checks import NotNegative, Positive, Range, Share, check_fields

Sampler = Literal["pytorch", "triton", "flashinfer"]
Filter = Literal["top_k", "top_p", "both"]

PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
SAMPLERS: tuple[Sampler, ...] = get_args(Sampler)
TRITON_ROWS = 8
"""Rows from which on vLLM takes the Triton kernel; fewer are sorted (pull request 33538)."""

PENALTY_FLOOR = 20.6e-6
"""Seconds that penalties take at least: up to eight rows in vLLM pull request 40657."""

PENALTY_BYTES = 4 + 4 + 4 + 1 / 8
"""Bytes of a word and row that they pass over: a logit read and written, a count, a bit of a mask.

Source: `_penalties_kernel` in vllm/v1/worker/gpu/sample/penalties.py (model runner V2). That pull
request's 16 to 128 rows, which take 21 to 68 us, are met within 20 % with 128,256 words and what an
H100's memory sustains; it does not say either.
"""

_TABLE = "sampler_times.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The requests' sampling options that take time.

    Options that are not set come from the model's `generation_config.json`, as in vLLM's server;
    without that file, vLLM samples from the whole vocabulary. Greedy requests, and requests without
    top-p, top-k and penalties, add no time to `overhead.sequence`.

    temperature: 0 draws the most likely token, and disables top_p and top_k.
    top_p: sample from the most likely tokens with this total probability (0 < top_p <= 1); 1: all.
    top_k: sample from this many tokens; 0: all.
    repetition_penalty: of tokens of prompt and answer (> 0); 1: none.
    presence_penalty, frequency_penalty: of tokens of the answer (-2 to 2); 0: none.
    generation_config: defaults of options that are not set: auto takes the model's file, vllm takes
        vLLM's own.
    sampler: the algorithm that masks the other tokens; by default that of the `engine` version:
        pytorch sorts all of them; triton (from eight rows on; with fewer it sorts) and flashinfer
        search.

    Raises ValueError for values outside these ranges, and for a sampler without a mask to compute.
    """

    temperature: NotNegative[float] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Range("[0, inf)", "0 means all words")] | None = None
    repetition_penalty: Positive[float] | None = None
    presence_penalty: Annotated[float, Range("[-2, 2]")] | None = None
    frequency_penalty: Annotated[float, Range("[-2, 2]")] | None = None
    generation_config: Literal["auto", "vllm"] = "auto"
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.generation_config == "vllm" or self.temperature == 0:
            self.check_sampler()

    def check_sampler(self) -> None:
        """Raise ValueError for a sampler that is set, but has no mask to compute."""
        if self.sampler and self.filter is None:
            raise ValueError(
                "sampler has no effect without top_p or top_k at a temperature above 0"
            )

    def or_else(self, said: Mapping[str, float]) -> Sampling:
        """Return the same with what is not set taken from elsewhere, by the names of options."""
        more: dict[str, Any] = {
            key: value for key, value in said.items() if getattr(self, key) is None
        }
        return replace(self, **more) if more else self

    @property
    def filter(self) -> Filter | None:
        """The kind of mask; None: none."""
        if self.temperature == 0:
            return None
        has_top_p = self.top_p is not None and self.top_p < 1
        if self.top_k and has_top_p:
            return "both"
        return "top_k" if self.top_k else "top_p" if has_top_p else None

    @property
    def penalty(self) -> str | None:
        """The first option that penalises tokens; None: none does."""
        if self.repetition_penalty not in (None, 1):
            return "repetition_penalty"
        names = ("presence_penalty", "frequency_penalty")
        return next((name for name in names if getattr(self, name)), None)


class SamplingTimes(dict[int, float]):
    """Seconds that sampling adds to a step, by the number of sequences that get a token.

    A sort's time depends on all tokens of all rows, so its cells lie on one line of rows x
    vocabulary. The other samplers work row by row: their cells are those of the vocabulary sizes
    below and above, with a power law of the vocabulary in between. Between cells, time is a power
    of the rows. Below the first cell the time is constant. Beyond the last one the last slope of a
    sort continues, and other samplers are proportional to rows, each of which is a program of its
    own. Penalties pass over the logits once more, and over counts of tokens (`PENALTY_BYTES`).

    sampling: with what it does not say filled in. sampler: the engine version's default, used if
    `sampling` names none. bytes_per_s: what the GPU's memory sustains.
    """

    def __init__(
        self, sampling: Sampling, vocab_size: int, sampler: Sampler, bytes_per_s: float
    ) -> None:
        super().__init__({0: 0.0})
        self._filter, self._penalises = sampling.filter, sampling.penalty is not None
        self._sampler = sampling.sampler or sampler
        self._vocab_size, self._bytes_per_s = vocab_size, bytes_per_s

    def __missing__(self, num_rows: int) -> float:
        self[num_rows] = seconds = self._masking(num_rows) + self._penalties(num_rows)
        return seconds

    def _penalties(self, num_rows: int) -> float:
        if not self._penalises:
            return 0.0
        read = num_rows * self._vocab_size * PENALTY_BYTES
        return max(PENALTY_FLOOR, read / self._bytes_per_s)

    def _masking(self, num_rows: int) -> float:
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
    names = ("temperature", "top_p", "top_k", *PENALTIES)
    found = {name: parameters[name] for name in names if parameters.get(name) is not None}
    if found.get("top_k") == -1:
        found["top_k"] = 0
    return found
