"""Code shared by all file readers: opening, CSV headers, checks of values, the first n rows."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from mist_sim.bounds import COUNT, TRACE_TIME
from mist_sim.errors import ScenarioError, TraceError, brief, did_you_mean, in_words
from mist_sim.inputs.files import check_ordinary, is_there, names_in
from mist_sim.inputs.lines import lines_of
from mist_sim.traces.base import TraceRow

_MAX_DIGITS = 15  # longer texts are garbage, not numbers

A_SECOND = {"s": 1.0, "ms": 1e3, "ns": 1e9}
"""A second, in each unit of times."""

_IN_WORDS = {"s": "seconds", "ms": "milliseconds", "ns": "nanoseconds"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader:
    """A reader of one file, whose `_read` yields the rows of all of it.

    path: the file. num_requests: read the first so many rows; None reads all.
    """

    path: str
    num_requests: int | None = None

    def __post_init__(self) -> None:
        if self.num_requests is not None and self.num_requests < 1:
            raise ValueError(
                f"num_requests must be >= 1 (leave it out for all), got {self.num_requests}"
            )

    def rows(self) -> Iterator[TraceRow]:
        """Yield the rows; raises as `TraceReader.rows` says."""
        return first_rows(self._read(), self.num_requests, self.path)

    def _read(self) -> Iterator[TraceRow]:
        """Yield the rows of the whole file."""
        raise NotImplementedError


@contextmanager
def open_trace(path: str) -> Iterator[TextIO]:
    """Open a trace as UTF-8 text (a byte-order mark is dropped, line ends are kept).

    A name that ends with .gz is unpacked as it is read. Raises ScenarioError when the file is
    missing, unreadable, not text, or no ordinary file.
    """
    try:
        check_ordinary(Path(path))
        with _opened(path) as file:
            yield file
    except FileNotFoundError:
        raise ScenarioError(f"trace {path}: no such file{_similar_file(path)}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"trace {path}: cannot be read ({reason})") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(
            f"trace {path}: not UTF-8 text (byte {error.object[error.start]:#04x}); "
            "decompress or convert the file first"
        ) from error


def _opened(path: str) -> TextIO:
    if path.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return Path(path).open(encoding="utf-8-sig", newline="")


def _similar_file(path: str) -> str:
    folder = Path(path).parent
    if not is_there(folder):
        return f"; there is no folder {folder} either"
    return did_you_mean(Path(path).name, names_in(folder))


def csv_records(
    file: TextIO, path: str, columns: Sequence[str], also: str = "", remedy: str = ""
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (line, values of `columns`, two or more) for every row of a CSV file with a header.

    also: a column whose value comes behind them where the header has it. remedy: what to do about
    a column that is missing.

    Columns may stand in any order and beside others; blank lines are skipped. Raises TraceError
    for an empty file, a header without one of the columns, or a row of another width.
    """
    reader = csv.reader(lines_of(file, path), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        columns = (*columns, also) if also in header else columns
        places = [_place(path, header, name, columns, remedy) for name in columns]
        pick = itemgetter(*places)
        width = len(header)
        for fields in reader:
            if len(fields) == width:
                yield reader.line_num, pick(fields)
            elif fields:
                raise TraceError(
                    path,
                    reader.line_num,
                    f"a row must have {width} columns like the header, got {len(fields)}; "
                    "complete or remove the row",
                )
    except csv.Error as error:
        raise TraceError(path, reader.line_num, f"not valid CSV: {error}") from error


def _place(path: str, header: list[str], name: str, needed: Sequence[str], remedy: str) -> int:
    """Return the position of a column in the header, or raise TraceError.

    The first line is not shown: it may be of any file.
    """
    if not any(header):
        raise TraceError(path, 1, f"no header; a first line with {', '.join(needed)} is needed")
    if header.count(name) != 1:
        problem = f"no column {brief(name)}{did_you_mean(name, header)}"
        if name in header:
            problem = f"more than one column {brief(name)}."
        raise TraceError(
            path,
            1,
            f"{problem} The first line has {in_words(len(header), 'column')}; needed are "
            f"{', '.join(needed)}{remedy}",
        )
    return header.index(name)


def tokens_from_text(text: str, path: str, line: int, column: str) -> int:
    """Return a token count written in decimal digits, or raise TraceError."""
    if text.isdecimal() and len(text) <= _MAX_DIGITS:
        count = int(text)
        if 0 < count <= COUNT:
            return count
    stripped = text.strip()
    if stripped != text:
        return tokens_from_text(stripped, path, line, column)
    raise bad_tokens(text, path, line, column)


def tokens_from_json(value: object, path: str, line: int, key: str) -> int:
    """Return a token count that was a JSON integer, or raise TraceError."""
    if type(value) is int and 0 < value <= COUNT:
        return value
    raise bad_tokens(value, path, line, key)


def json_lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, object) of a file of JSON lines; blank ones are skipped.

    Raises as `open_trace`, and TraceError for a line that is no JSON object.
    """
    with open_trace(path) as file:
        for line, text in enumerate(lines_of(file, path), 1):
            if text.strip():
                yield line, json_object(text, path, line)


def json_object(text: str, path: str, line: int) -> dict[str, Any]:
    """Return a JSON object, or raise TraceError."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(path, line, f"not valid JSON ({error}); correct or remove it") from error
    if type(record) is not dict:
        raise TraceError(
            path, line, f"a row must be a JSON object, got {brief(record)}; correct or remove it"
        )
    return record


def integers(record: Mapping[str, Any], key: str, path: str, line: int) -> list[int]:
    """Return the integers of a list of a JSON object, none where it has no such key."""
    value = record.get(key, [])
    if type(value) is list and set(map(type, value)) <= {int}:
        return value
    raise TraceError(
        path,
        line,
        f"{key} must be a list of integers, got {brief(value)}; write [] where they are not known",
    )


def time_from_json(value: Any, path: str, line: int, key: str, unit: str) -> float:
    """Return a time of a JSON object unchanged, a number of `unit`: s, ms or ns.

    Raises TraceError unless it is a number from 0 to the longest time.
    """
    most = TRACE_TIME * A_SECOND[unit]
    if type(value) in (int, float) and 0 <= value <= most:
        time: float = value
        return time
    raise TraceError(
        path,
        line,
        f"{key} must be {_IN_WORDS[unit]} from 0 to {most:g}, got {brief(value)}; correct it",
    )


class Clock:
    """Times of rows as seconds from the first of them, which never decrease.

    unit: of the times: s, ms or ns. Their differences are taken before they become seconds.
    """

    __slots__ = ("_column", "_last", "_path", "_size", "_start")

    def __init__(self, path: str, column: str, unit: str = "s") -> None:
        self._path, self._column, self._size = path, column, A_SECOND[unit]
        self._start: float | None = None
        self._last = 0.0

    def seconds(self, time: float, line: int) -> float:
        """Return the seconds of the next row, or raise TraceError if it is before the last."""
        if self._start is None:
            self._start = self._last = time
        if time < self._last:
            raise backwards(self._path, line, self._column, (self._last - time) / self._size)
        self._last = time
        return (time - self._start) / self._size


def bad_tokens(value: object, path: str, line: int, column: str) -> TraceError:
    """Return the error for a value that is not a number of tokens."""
    return TraceError(
        path,
        line,
        f"{column} must be a whole number of tokens from 1 to {COUNT}, got {brief(value)}; "
        "correct or remove the row",
    )


def backwards(path: str, line: int, column: str, seconds: float) -> TraceError:
    """Return the error for a row that is `seconds` earlier than the row before it."""
    return TraceError(
        path,
        line,
        f"{column} must not go backwards, got a time {seconds:.7g} s before the previous row; "
        f"sort the file by {column}",
    )


def first_rows(rows: Iterator[TraceRow], num_requests: int | None, path: str) -> Iterator[TraceRow]:
    """Yield the first `num_requests` rows (None: all).

    Raises TraceError when there is no row at all, ScenarioError when there are too few.
    """
    count = 0
    for count, row in enumerate(islice(rows, num_requests), 1):  # noqa: B007
        yield row
    if count == 0:
        raise TraceError(path, 1, "the file has no requests; give a trace with at least one")
    if num_requests is not None and count < num_requests:
        raise ScenarioError(
            f"trace {path}: has {count} requests, num_requests asks for {num_requests}; "
            "lower num_requests or leave it out"
        )
