"""Length profiles: small quantile tables of real traces, for sampling without the trace.

A profile is a JSON file in this folder. `python -m tools.length_profile TRACE.csv`
computes one from a trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_FOLDER = Path(__file__).parent


PROMPT_LEVELS = (*(step / 200 for step in range(199)), 0.9925, 0.995, 0.9975, 0.999, 0.9995, 1.0)
OUTPUT_LEVELS = (*(step / 50 for step in range(49)), 0.985, 0.99, 0.995, 1.0)
"""Where quantiles are taken: at even steps, and closer in the upper tail, which holds the mean."""


@dataclass(frozen=True, slots=True, eq=False)
class LengthProfile:
    """Quantiles of prompt lengths, and of output lengths by prompt bin, in tokens.

    source: the trace that it was computed from.
    prompt: quantiles at `prompt_levels`, both of shape (p,).
    output: shape (bins, q), quantiles at `output_levels` of shape (q,); row b is about outputs
        whose prompts lie in the b-th of `bins` equally likely ranges of prompt length.
    """

    prompt_levels: Floats
    prompt: Floats
    output_levels: Floats
    output: Floats
    source: str = ""

    @classmethod
    def of_tables(cls, tables: Mapping[str, Any]) -> LengthProfile:
        """Return what `compute_profile` computed."""
        keys = ("prompt_levels", "prompt", "output_levels", "output")
        quantiles = {key: np.array(tables[key], dtype=np.float64) for key in keys}
        return cls(**quantiles, source=tables.get("source", ""))

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Tokens, Tokens]:
        """Return n prompt lengths and the n output lengths that go with them, in tokens."""
        return self.at(*rng.random((2, n)))

    def at(self, prompt_rank: Floats, output_rank: Floats) -> tuple[Tokens, Tokens]:
        """Return prompts at ranks from 0 to 1, and outputs at ranks within their prompts' bins."""
        prompts = np.interp(prompt_rank, self.prompt_levels, self.prompt)
        outputs = drawn_by_bin(self.output, self.output_levels, prompt_rank, output_rank)
        return np.rint(prompts).astype(np.int64), np.rint(outputs).astype(np.int64)


def drawn_by_bin(table: Floats, levels: Floats, bin_rank: Floats, rank: Floats) -> Floats:
    """Return the values at ranks from 0 to 1 in rows of a table of quantiles.

    table: shape (bins, q), quantiles at `levels` of shape (q,). bin_rank: chooses the row.
    """
    right = np.searchsorted(levels, rank, side="right")
    row = (bin_rank * len(table)).astype(np.int64)
    low, high = table[row, right - 1], table[row, right]
    share = (rank - levels[right - 1]) / (levels[right] - levels[right - 1])
    return np.asarray(low + (high - low) * share)


def profile_names() -> list[str]:
    """Return the names of the shipped profiles, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_profile(name: str) -> LengthProfile:
    """Return a shipped profile; `name` is one of `profile_names()`."""
    table = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return LengthProfile.of_tables(table)


def compute_profile(lengths: Iterable[tuple[int, int]], num_bins: int = 20) -> dict[str, Any]:
    """Return the tables of a profile from (prompt, output) lengths in tokens.

    Requests are sorted by prompt (equal ones by output) and cut into `num_bins` equal parts.
    """
    ordered = np.array(sorted(lengths))
    parts = np.array_split(ordered[:, 1], num_bins)
    return {
        "num_requests": len(ordered),
        "prompt_levels": PROMPT_LEVELS,
        "prompt": _quantiles(ordered[:, 0], PROMPT_LEVELS),
        "output_levels": OUTPUT_LEVELS,
        "output": [_quantiles(part, OUTPUT_LEVELS) for part in parts],
    }


def _quantiles(lengths: Tokens, levels: Sequence[float]) -> list[int]:
    rounded: list[int] = np.rint(np.quantile(lengths, levels)).astype(int).tolist()
    return rounded
