"""Content (see `core.request.Content`): ids, apart for each origin, and the beginning of it.

A conversation, a block of a trace and a branch of a request never share an id by chance.
"""

from __future__ import annotations

from collections.abc import Iterable

from mist_sim.core.request import Content

OF_BLOCK, OF_CONVERSATION, OF_PREFIX, OF_BRANCH, OF_PATH = range(5)
"""Where content comes from."""

_NUM_ORIGINS = 8


def content_id(origin: int, number: int) -> int:
    """Return the id of the content that has this number at its origin."""
    return number * _NUM_ORIGINS + origin


def spans_of(origin: int, numbers: Iterable[int], length: int) -> list[tuple[int, int]]:
    """Return spans of contents of one origin, all as long."""
    return [(number * _NUM_ORIGINS + origin, length) for number in numbers]


def origin_of(span: int) -> tuple[int, int]:
    """Return the origin of a content id, and its number there."""
    number, origin = divmod(span, _NUM_ORIGINS)
    return origin, number


def leading(content: Content, num_tokens: int) -> Content:
    """Return the content of the first `num_tokens` tokens."""
    spans, left = [], num_tokens
    for span_id, length in content:
        if left <= 0:
            break
        spans.append((span_id, min(length, left)))
        left -= length
    return tuple(spans)
