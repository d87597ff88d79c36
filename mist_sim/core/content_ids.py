"""Content (see `core.request.Content`): ids, apart for each origin, and the beginning of it.

A conversation, a block of a trace and a branch of a request never share an id by chance: the ids
made here are negative. Those that a script or a reader of one's own gives are not.
"""

from __future__ import annotations

from collections.abc import Iterable

from mist_sim.core.request import Content

OF_BLOCK, OF_CONVERSATION, OF_PREFIX, OF_BRANCH, OF_PATH, OF_RUN = range(6)
OF_OTHERS = -1
"""Where content comes from; others' ids are their own numbers, >= 0."""

_NUM_ORIGINS = 8
_STEP = 2 * _NUM_ORIGINS  # between the ids of numbers; those of hashes may be negative


def content_id(origin: int, number: int) -> int:
    """Return the id of the content that has this number at its origin."""
    return number if origin == OF_OTHERS else spans_of(origin, (number,), 1)[0][0]


def spans_of(origin: int, numbers: Iterable[int], length: int) -> list[tuple[int, int]]:
    """Return spans of contents of one origin, all as long."""
    below = origin + _NUM_ORIGINS
    return [
        (~(number * _STEP + origin) if number >= 0 else ~(~number * _STEP + below), length)
        for number in numbers
    ]


def origin_of(span: int) -> tuple[int, int]:
    """Return the origin of a content id, and its number there."""
    if span >= 0:
        return OF_OTHERS, span
    number, origin = divmod(~span, _STEP)
    is_below = origin >= _NUM_ORIGINS
    return (origin - _NUM_ORIGINS, ~number) if is_below else (origin, number)


def computed_by(content: Content, variant: int, num_variants: int) -> Content:
    """Return content whose entries differ by what computes them, such as an adapter.

    variant: 0 <= variant < num_variants.
    """
    found = [(*origin_of(span), length) for span, length in content]
    return tuple(
        [(content_id(origin, n * num_variants + variant), length) for origin, n, length in found]
    )


class Runs:
    """Blocks of many requests, joined to one span as long as they follow one another.

    A block that follows another for the first time continues its run, and one that follows where
    another did before begins a run of its own. So what a request shares with earlier ones is few
    spans, whatever the number of its blocks, and equal spans are equal paths as before.
    """

    def __init__(self) -> None:
        self._runs: list[Content] = []
        self._behind: dict[tuple[int, int, int], int] = {}  # (run, its tokens before, next id)

    def joined(self, content: Content) -> Content:
        """Return the content of a request as runs, unless its blocks are not a trace's."""
        if origin_of(content[0][0])[0] != OF_BLOCK:
            return content
        found: list[tuple[int, int]] = []
        run = num_tokens = 0
        while content:
            key = (run, num_tokens, content[0][0])
            run = self._behind.setdefault(key, len(self._runs))
            if run == len(self._runs):
                self._runs.append(content)
            blocks = self._runs[run]
            same = _num_same(blocks, content)
            num_equal, content, ends = _beginning(blocks[same:], content[same:])
            num_equal += _length(blocks[:same])
            if content and ends:
                self._runs[run] = blocks + content
                num_equal, content = num_equal + _length(content), ()
            found.append((content_id(OF_RUN, run), num_equal))
            num_tokens = num_equal
        return tuple(found)


def _length(content: Content) -> int:
    return sum([length for _, length in content])


def _num_same(run: Content, content: Content) -> int:
    """Return how many first spans two contents share, by halves: slices compare fast."""
    same, most = 0, min(len(run), len(content))
    while same < most:
        middle = (same + most + 1) // 2
        if run[same:middle] == content[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same


def _beginning(run: Content, content: Content) -> tuple[int, Content, bool]:
    """Return the tokens that a content and a run begin with, and what the content has behind them.

    And whether the run ends there.
    """
    if not run:
        return 0, content, True
    theirs, num_equal, left = iter(run), 0, 0
    known: int | None = None
    for place, (span, length) in enumerate(content):
        more = length
        while more:
            if not left:
                known, left = next(theirs, (None, 0))
            if known != span:
                rest = (span, more), *content[place + 1 :]
                return num_equal, rest, known is None
            step = min(more, left)
            num_equal, more, left = num_equal + step, more - step, left - step
    return num_equal, (), False


def leading(content: Content, num_tokens: int) -> Content:
    """Return the content of the first `num_tokens` tokens."""
    spans, left = [], num_tokens
    for span_id, length in content:
        if left <= 0:
            break
        spans.append((span_id, min(length, left)))
        left -= length
    return tuple(spans)
