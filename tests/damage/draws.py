"""What damage is made of: random choices, and values that are wrong somewhere."""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from mist_sim.rng import Streams

SEED = int(os.environ.get("FUZZ_SEED", "0"))
"""Other seeds make other cases of the same numbers."""

NUMBERS: list[Any] = [
    *(0, -1, 1, 2, 3, 7, 1000, 2**31, 2**53, 2**63, 2**64, -(2**64), 10**9, 10**30, 10**400),
    *(0.0, -0.0, 0.5, 1.5, -2.5, 1e-300, 5e-324, 1e300, -1e300, 1e9, 1e-12, 1.0),
    *(math.nan, math.inf, -math.inf, True, False, None),
]
PATHS: list[Any] = [
    *("/", ".", "..", "~", "~nobody/x", "./x", "../x", "/dev/null", "/dev/zero", "/proc/self/mem"),
    *("x.json", "x.toml", "x.yaml", "s.yaml", "./s.yaml", "folder", "folder/", "pipe", "./pipe"),
    *("x" * 256, "./" + "x" * 300 + ".toml", "y/" * 2_000 + "x.json", "x" * 300 + ".json", "\\x"),
    *("http://localhost/x.csv", "file:///etc/passwd", "/etc/passwd", "-", "a\nb", "\udc80.csv"),
]
TEXTS: list[Any] = [
    *("", " ", "x", "x" * 300, "x" * 5_000, "9" * 200_000, "\0", "\ud800", "\n", "a.b", "-"),
    *("type", "0 s", "1 s", "-1 ms", "1e300 s", "1e-300 s", "1e9 s", "1e-12 s", "nan s", "5"),
    *("1 parsec", "1 /s", "1e300 /s", "1e-300 /s", "1e9 /s", "0 /s", "5 GiB", "0 B", "1e18 B"),
    *("1e300 B", "1 Gb/s", "0 B/s", "llama-3.1-8b", "gpt-oss-20b", "deepseek-v3", "no-such-model"),
    *("h100-sxm", "rtx-3090", "chunked", "static", "mixed", "continuous", "roofline", "bestserve"),
    *("poisson", "trace", "all_at_once", "closed_loop", "synthetic", "profile", "prefill"),
    *("decode", "rag", "true", "\x1b[2J", "<b>", "😀" * 100, "e\u0301", "\u202e", "program"),
    *PATHS,
]
CONTAINERS: list[Any] = [
    *([], {}, [[]], [None], {"type": "x"}, {"type": None}, {1: 2}, {None: 1}, [1, 2, 3], [0, 1]),
    *([{}] * 50, ["prefill"] * 50, {"type": "roofline", "enforce_eager": True}, {"a": {"b": {}}}),
    *({0: 1}, {0: {}}, {True: []}, {1.5: "x"}, {"": ""}, {"x" * 300: 1}, {"type": "program"}),
    *({"type": "table", "format": "steps", "path": path} for path in ("pipe", "s.yaml", "folder")),
    *({"type": "azure", "path": path} for path in ("pipe", "/dev/zero", "s.yaml", "folder")),
    *({"type": "empirical", "path": path} for path in ("pipe", "/dev/zero", "s.yaml", "folder")),
]
WRONG = [*NUMBERS, *TEXTS, *CONTAINERS]

# What may well be right, and is as small or as large as it may be.
EXTREME: list[Any] = [
    *(0, 1, 2, 3, 8, 16, 100, 3_000, 10**6, 10**9, 0.0, 1e-12, 0.1, 0.5, 1.0, 2.0, 1e12),
    *("0 s", "1e-12 s", "1 ms", "1 s", "1e9 s", "1e-9 /s", "1 /s", "1e9 /s", "1 B", "1 MiB"),
    *("1e18 B", "0.1 B/s", "1e18 B/s", None, True, False, "static", "mixed", "continuous"),
    *("poisson", "all_at_once", "closed_loop", "priority", "least_work_left", "swap"),
]
_MARKS = "{}[]:,#&*!|>'\"%@`-? \t\n\r\0é\u2028"


class Draw:
    """Random choices of one case."""

    def __init__(self, case: str) -> None:
        self._rng: np.random.Generator = Streams(SEED).generator(case)

    def choice(self, items: Sequence[Any]) -> Any:
        return items[self.below(len(items))]

    def below(self, number: int) -> int:
        return int(self._rng.integers(number))

    def share(self) -> float:
        return float(self._rng.random())


def worn(draw: Draw, content: bytes) -> bytes:
    """Lose or add a few bytes, or the end, or double a line."""
    for _ in range(draw.choice([1, 1, 2, 5])):
        start = draw.below(len(content) + 1)
        how = draw.share()
        if how < 0.3:
            content = content[:start] + content[start + draw.choice([1, 1, 2, 20]) :]
        elif how < 0.7:
            content = content[:start] + draw.choice(_MARKS).encode() + content[start:]
        elif how < 0.8:
            content = content[:start] + bytes([draw.below(256)]) + content[start + 1 :]
        elif how < 0.9:
            content = content[:start]
        else:
            line = draw.choice(content.splitlines(keepends=True) or [b""])
            content += line * min(draw.choice([1, 2, 200]), 1 + 10**6 // (len(line) + 1))
    return content
