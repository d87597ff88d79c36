"""Shared by all tables of results: sections, numbers, names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

LONG_MS = 10_000.0  # from here on latencies are easier to read in seconds


def section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    """Yield a title and its content."""
    yield Text(title, style="bold")
    yield Padding(body, (0, 0, 1, 2), expand=False)


def percent(share: float, digits: int = 0) -> str:
    """Return a share in percent, and `-` for a missing one."""
    if math.isnan(share):
        return "-"
    return f"{share * 100:.{digits}f} %"


def count(value: int) -> str:
    """Return a whole number."""
    return f"{value:,}"


def number(value: float) -> str:
    """Return a number with at least three digits, and `-` for a missing one."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def latency(ms: float) -> tuple[str, str]:
    """Return a latency and its unit: milliseconds, from 10 s on seconds."""
    return (number(ms / 1e3), "s") if ms >= LONG_MS else (number(ms), "ms")


def in_ms(ms: float) -> str:
    """Return a latency for a column of milliseconds; a value in seconds has its unit."""
    text, unit = latency(ms)
    return f"{text} s" if unit == "s" else text


LISTED = 4  # names on a line; more are counted


def who(names: Sequence[str], num_all: int | None = None) -> str:
    """Return names, or how many they are where a list would be long. num_all: that there are."""
    if len(names) <= LISTED:
        return ", ".join(names)
    return "all" if len(names) == num_all else f"{names[0]} and {len(names) - 1} others"


def merged(told: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines of names and texts; names that share a text share a line."""
    names: dict[str, list[str]] = {}
    for name, text in told:
        names.setdefault(text, []).append(name)
    return [f"{who(found)}: {text}" if any(found) else text for text, found in names.items()]


def duration(seconds: float) -> str:
    """Return a time in seconds, or below one in milliseconds."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"
