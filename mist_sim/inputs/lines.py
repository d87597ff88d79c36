"""The lines of a text of any length, of which a few at a time are in memory; rows in its quotes."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from itertools import chain
from typing import Any, TextIO

from mist_sim.bounds import LINE_LENGTH
from mist_sim.errors import TraceError, in_words

_CHUNK = 1 << 16  # characters read at once


def lines_of(file: TextIO, path: object) -> Iterator[str]:
    """Yield the lines of a text with their ends, as iterating over the file would.

    file: opened with newline="". path: name in messages.
    Raises TraceError for a line longer than `LINE_LENGTH`.
    """
    return chain.from_iterable(_blocks(file, path))


def has_swallowed(
    fields: Sequence[str], width: int, pick: Callable[[list[str]], Sequence[str]] = list[Any]
) -> bool:
    """Whether a quote too many hides rows in a record of CSV.

    It does where a line within the record has as many columns as the header (`width`), with
    numbers in two of those that are read (`pick`).
    """
    lines = ",".join(fields).replace("\r", "\n").split("\n")[1:]
    rows = (row for line in lines for row in csv.reader([line]) if len(row) == width)
    return any(sum(map(_is_number, pick(row))) > 1 for row in rows)


def swallowed(path: object, first: int, last: int) -> TraceError:
    """Return the error for a record from one line to another that hides rows."""
    lines = in_words(last - first, "line")
    problem = f"a quoted field opened in line {first} swallows {lines}; close or remove its quote"
    return TraceError(path, first, problem)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _blocks(file: TextIO, path: object) -> Iterator[StringIO]:
    """Yield blocks of whole lines, so that the caller is resumed once for many."""
    rest, line = "", 1
    while chunk := file.read(_CHUNK):
        text = rest + chunk
        end = _after_last_line(text)
        block, rest = text[:end], text[end:]
        if len(text) > LINE_LENGTH:  # the first of its lines is the only one longer than a chunk
            _check_first(text, path, line)
        if block:
            yield StringIO(block, newline="")
            line += _num_ends(block)
    if rest:
        yield StringIO(rest, newline="")


def _after_last_line(text: str) -> int:
    r"""Return where the last whole line ends; a \r at the very end may be half of a \r\n."""
    return max(text.rfind("\n"), text.rfind("\r", 0, -1)) + 1


def _num_ends(block: str) -> int:
    return block.count("\n") + block.count("\r") - block.count("\r\n")


def _check_first(text: str, path: object, line: int) -> None:
    """Raise TraceError where the first line of a text is too long."""
    ends = (text.find(end, 0, LINE_LENGTH) for end in "\r\n")
    if max(ends) < 0:
        raise TraceError(
            path,
            line,
            f"a line must have <= {LINE_LENGTH} characters; has the file another form, or lost its "
            "line ends?",
        )
