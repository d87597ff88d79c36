"""Length profiles: small quantile tables of real traces, for sampling without the trace.

A profile is a JSON file beside this module. `python -m mist_sim.traces.profiles TRACE.csv`
computes one from a trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
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

    prompt: quantiles at `prompt_levels`, both of shape (p,).
    output: shape (bins, q), quantiles at `output_levels` of shape (q,); row b is about outputs
        whose prompts lie in the b-th of `bins` equally likely ranges of prompt length.
    """

    prompt_levels: Floats
    prompt: Floats
    output_levels: Floats
    output: Floats

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Tokens, Tokens]:
        """Return n prompt lengths and the n output lengths that go with them, in tokens."""
        prompt_rank, output_rank = rng.random((2, n))
        prompts = np.interp(prompt_rank, self.prompt_levels, self.prompt)
        levels = self.output_levels
        right = np.searchsorted(levels, output_rank, side="right")
        row = (prompt_rank * len(self.output)).astype(np.int64)
        low, high = self.output[row, right - 1], self.output[row, right]
        share = (output_rank - levels[right - 1]) / (levels[right] - levels[right - 1])
        outputs = low + (high - low) * share
        return np.rint(prompts).astype(np.int64), np.rint(outputs).astype(np.int64)


def profile_names() -> list[str]:
    """Return the names of the shipped profiles, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_profile(name: str) -> LengthProfile:
    """Return a shipped profile; `name` is one of `profile_names()`."""
    table = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    keys = ("prompt_levels", "prompt", "output_levels", "output")
    return LengthProfile(*(np.array(table[key], dtype=np.float64) for key in keys))


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
