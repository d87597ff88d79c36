"""Code shared by all file readers: opening, CSV headers, checks of values, the first n rows."""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TextIO, TypeVar

import numpy as np

from mist_sim.bounds import COUNT, LINE_LENGTH, TRACE_TIME
from mist_sim.checks import Checked, Range
from mist_sim.core.request import Content
from mist_sim.errors import ScenarioError, TraceError, brief, cut, did_you_mean, in_words
from mist_sim.inputs import (
    blocks_of,
    check_ordinary,
    has_swallowed,
    is_there,
    lines_of,
    names_in,
    swallowed,
)
from mist_sim.traces.base import TRACE_READERS, TraceReader, TraceRow, rows_of
from mist_sim.traces.workload import block_content, conversation_content

Skip = Literal["none", "cancelled", "bad"]

R = TypeVar("R")
V = TypeVar("V")

_MOST_KINDS = 8  # with a line each
_LONGEST_RULE = 120  # characters
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d.e+-]*")  # in which rows of one fault differ
_NO_ANSWER = "without an answer"


class UnansweredError(TraceError):
    """A row of a request that got no answer: cancelled by its user, failed or refused."""


@dataclass(slots=True)
class _Kind:
    first: TraceError
    number: int = 0

    @property
    def rule(self) -> str:
        """The rule that rows of this kind break, without their values."""
        if isinstance(self.first, UnansweredError):
            return _NO_ANSWER
        return cut(self.first.problem.partition(", got ")[0], _LONGEST_RULE)

    @property
    def told(self) -> str:
        """The first of them, and how many there are."""
        also = "" if self.number == 1 else f" ({self.number:,} rows, this is the first)"
        return f"{self.first.problem}{also}"


class Faults:
    """What one reading of a file met beside the rows that it kept.

    skip: which rows are left out: `none`; `cancelled`, those without an answer; `bad`, all that
    cannot be read. num_kept: rows read so far.
    """

    def __init__(self, skip: Skip = "none") -> None:
        self._skip = skip
        self._kinds: dict[str, _Kind] = {}
        self._cut: dict[str, Counter[str]] = {}  # by ending, number of rows with each status
        self.num_kept = 0

    def take(self, error: TraceError, rows: int = 1) -> None:
        """Count rows that cannot be read, or raise their error if such rows are not left out."""
        if not _leaves_out(self._skip, error):
            raise error
        self.note(error, rows)

    def note(self, error: TraceError, rows: int = 1) -> None:
        """Count rows that are left out whatever the options say."""
        rule = _VALUES.sub("#", error.problem.partition(", got ")[0])
        self._kinds.setdefault(f"{type(error).__name__} {rule}", _Kind(error)).number += rows

    def parsed(self, records: Iterable[tuple[At, R]], parse: Callable[[R, At], V]) -> Iterator[V]:
        """Yield `parse(record, at)` of each record, but of those that it raises TraceError of."""
        for at, record in records:
            try:
                found = parse(record, at)
            except TraceError as error:
                self.take(error)
            else:
                yield found

    def note_status(self, status: str) -> None:
        """Count a row that is kept if its status says that the call was cancelled or failed."""
        if ending := _ending(status):
            self._cut.setdefault(ending, Counter())[status] += 1

    @property
    def num_left_out(self) -> int:
        """Rows that were left out."""
        return sum(kind.number for kind in self._kinds.values())

    @property
    def data(self) -> list[dict[str, Any]]:
        """The kinds as plain data: why, rows, and the first of them."""
        return [
            {"why": kind.rule, "rows": kind.number, "first_line": kind.first.line}
            for kind in self._kinds.values()
        ]

    def sentence(self, path: str) -> str:
        """Return in one line what was left out of a file, or cut short; empty if nothing was."""
        cut = self._cut and (
            f"{' and '.join(self._cut_short(path))} count as whole calls, with the tokens that "
            "they name: skip: cancelled leaves out calls without an answer alone; remove the rows "
            "to leave them out."
        )
        if not self._kinds:
            return cut or ""
        rows = in_words(self.num_kept + self.num_left_out, "row")
        kinds = "; ".join(
            f"{each['rows']:,} {'' if each['why'] == _NO_ANSWER else 'since '}{each['why']} (first "
            f"in line {each['first_line']})"
            for each in self.data
        )
        told = f"Left out of {path}: {self.num_left_out:,} of {rows}: {kinds}."
        return f"{told} {cut}" if cut else told

    def _cut_short(self, path: str) -> Iterator[str]:
        """Yield the rows of each ending, with the statuses that most of them have."""
        for ending, statuses in self._cut.items():
            known = [status for status, _ in statuses.most_common(_MOST_STATUSES)]
            more = ", ..." if len(statuses) > len(known) else ""
            rows = in_words(statuses.total(), "row")
            yield f"{rows} of {path} with status {', '.join(known)}{more} ({ending})"

    def refusal(self, skip: Skip, end: TraceError | None) -> TraceError | None:
        """Return the error of a file: a line for each kind of fault, and what to do.

        These are the faults of a reading that left out all of them. skip: what the reader is told
        to leave out. end: what ended the reading before the end of the file. Returns None where
        neither names a row.
        """
        found = [each for each in self._kinds.values() if not _leaves_out(skip, each.first)]
        if not self.num_kept:
            found = list(self._kinds.values())
        if not found:
            return end
        first, others = found[0].first, found[1:_MOST_KINDS]
        lines = [
            found[0].told,
            *(f"{each.first.path}:{each.first.line}: {each.told}" for each in others),
        ]
        if more := len(found) - len(lines):
            lines.append(f"and {in_words(more, 'kind')} of fault more")
        remedy = str(end) if end else self._remedy(found)
        text = "\n".join([*lines, remedy]) if len(lines) > 1 or end else f"{lines[0]}; {remedy}"
        return TraceError(first.path, first.line, text)

    def _remedy(self, found: Iterable[_Kind]) -> str:
        """Return which rows `skip` would leave out of a file with these faults."""
        number = self.num_left_out
        if not self.num_kept:
            return "no row of the file can be read: has it another form?"
        rows = f"{number:,} of {in_words(self.num_kept + number, 'row')}"
        unanswered = [e for e in self._kinds.values() if isinstance(e.first, UnansweredError)]
        without = sum(each.number for each in unanswered)
        if without == number:
            return f"skip: cancelled leaves out {rows}, which have no answer"
        if not without:
            return f"skip: bad leaves out {rows}"
        if any(each in found for each in unanswered):
            return f"skip: bad leaves out {rows}; skip: cancelled the {without:,} without an answer"
        return f"skip: bad leaves out {rows}, the {without:,} without an answer among them"


def _leaves_out(skip: Skip, error: TraceError) -> bool:
    return skip == "bad" or (skip == "cancelled" and isinstance(error, UnansweredError))


_CANCELLED = ("499", "aborted", "canceled", "cancelled", "client_closed")  # 499: nginx's code
_FAILED = ("error", "failed", "failure", "timeout", *map(str, range(400, 600)))
_ENDINGS = dict.fromkeys(_FAILED, "the call failed")
_ENDINGS |= dict.fromkeys(_CANCELLED, "the client left")
_MOST_STATUSES = 4  # that are named of an ending


def _ending(status: str) -> str:
    """Return how a call with this status ended early, in words; empty if it did not."""
    return _ENDINGS.get(status.lower(), "")


_MAX_DIGITS = 15  # longer texts are garbage, not numbers

A_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""A second, in each unit of times."""

_IN_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


class At(NamedTuple):
    """A row of a file: where it is, and checks of its values, which raise TraceError.

    answer: whether a number of tokens is of an answer, of which there may be none: the error is an
    UnansweredError then.
    """

    path: str
    line: int

    def error(self, problem: str) -> TraceError:
        """Return the error to raise for a problem of the row."""
        return TraceError(self.path, self.line, problem)

    def digits(self, text: str, column: str, *, answer: bool = False) -> int:
        """Return a number of tokens written in decimal digits, such as 512 or 512.0."""
        if text.isdecimal() and len(text) <= _MAX_DIGITS:
            count = int(text)
            if 0 < count <= COUNT:
                return count
        plain = text.strip().removesuffix(".0")
        if plain != text and plain.isdecimal():
            return self.digits(plain, column, answer=answer)
        raise self.bad_tokens(text, column, answer=answer)

    def tokens(self, value: object, key: str, *, answer: bool = False) -> int:
        """Return a number of tokens, a whole JSON number."""
        if type(value) is int and 0 < value <= COUNT:
            return value
        if type(value) is float and 0 < value <= COUNT and value.is_integer():
            return int(value)
        raise self.bad_tokens(value, key, answer=answer)

    def integers(self, record: Mapping[str, Any], key: str) -> list[int]:
        """Return the integers of a list of a JSON object, none where it has no such key."""
        value = record.get(key, [])
        if type(value) is list and set(map(type, value)) <= {int}:
            return value
        raise self.error(
            f"{key} must be a list of integers, got {brief(value)}; write [] where they are not "
            "known"
        )

    def time(self, value: Any, key: str, unit: str) -> float:
        """Return a time of a JSON object unchanged, a number of `unit`: s, ms, us or ns."""
        most = TRACE_TIME * A_SECOND[unit]
        if type(value) in (int, float) and 0 <= value <= most:
            time: float = value
            return time
        raise self.error(
            f"{key} must be {_IN_WORDS[unit]} from 0 to {most:g}, got {brief(value)}; correct it"
        )

    def bad_tokens(self, value: object, column: str, *, answer: bool = False) -> TraceError:
        """Return the error for a value that is not a number of tokens."""
        kind = UnansweredError if answer and _is_nothing(value) else TraceError
        return kind(
            self.path,
            self.line,
            f"{column} must be a whole number of tokens from 1 to {COUNT}, got {brief(value)}; "
            "correct or remove the row",
        )

    def backwards(self, column: str, seconds: float) -> TraceError:
        """Return the error for a row that is `seconds` earlier than the row before it."""
        return self.error(
            f"{column} must not go backwards, got a time {seconds:.7g} s before the previous row; "
            f"sort the file by {column}"
        )


def _is_nothing(tokens: object) -> bool:
    """Tell whether a log says in this way that no answer came."""
    if isinstance(tokens, str):
        return tokens.strip() in ("", "0", "0.0")
    return tokens is None or (type(tokens) in (int, float) and tokens == 0)


class _Remembering:
    """Room for what the last whole reading left out, which is no parameter of a reader."""

    __slots__ = ("_faults",)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader(Checked, _Remembering):
    """A reader of one file, whose `_read` yields the rows of all of it.

    Where many rows are plain, `_plain` reads them together; the first that is not, and those after
    it, are read by `_read`.

    path: the file. num_requests: read the first so many rows; None reads all.
    skip: rows to leave out and count: none, cancelled (requests without an answer) or bad (these,
        and all rows that cannot be read); others end the reading with a list of all faults.
    """

    path: str
    num_requests: Annotated[int, Range("[1, inf)", "leave it out for all")] | None = None
    skip: Skip = "none"

    def rows(self) -> Iterator[TraceRow]:
        """Yield the rows that are not left out; raises as `TraceReader.rows` says.

        A TraceError tells every kind of fault that the file has. Raises ScenarioError for fewer
        rows than `num_requests`.
        """
        return chain.from_iterable(self._batches())

    def _batches(self) -> Iterator[Iterable[TraceRow]]:
        faults, plain, most = Faults(self.skip), self._plain(), self.num_requests
        try:
            while plain is not None and faults.num_kept != most and (rows := next(plain, None)):
                rows = rows if most is None else rows[: most - faults.num_kept]
                faults.num_kept += len(rows)
                yield rows
        except ScenarioError:  # which `_read` tells in full, or leaves out
            plain = None
        if plain is None:
            yield self._by_row(faults)
        if not faults.num_kept:
            problem = "the file has no requests; give a trace with at least one"
            raise self._refusal() or TraceError(self.path, 1, problem)
        object.__setattr__(self, "_faults", faults)
        if most is not None and faults.num_kept < most:
            raise ScenarioError(
                f"trace {self.path}: has {faults.num_kept} requests, num_requests asks for "
                f"{most}; lower num_requests or leave it out"
            )

    def _by_row(self, faults: Faults) -> Iterator[TraceRow]:
        """Yield the rows that come after those that are read."""
        first = faults.num_kept
        try:
            read = islice(self._read(faults), first, self.num_requests)
            for faults.num_kept, row in enumerate(read, first + 1):
                yield row
        except TraceError as error:
            raise self._refusal() or error from None

    @property
    def left_out(self) -> Faults:
        """What the last reading to the end left out; where rows may be, the file is read for it.

        Raises as `rows` does.
        """
        if self.skip != "none" and not hasattr(self, "_faults"):
            for _ in self.rows():
                pass
        return getattr(self, "_faults", Faults())

    def _read(self, faults: Faults) -> Iterator[TraceRow]:
        """Yield the rows of the whole file; those that cannot be read go to `faults`."""
        raise NotImplementedError

    def _plain(self) -> Iterator[list[TraceRow]] | None:
        """Return the rows of the whole file, many at a time; None where they are never plain.

        Raises ScenarioError at rows that are not, or whose texts `_read` has to look at.
        """
        return None

    def _refusal(self) -> TraceError | None:
        faults, end = Faults("bad"), None
        try:
            for _ in islice(self._read(faults), self.num_requests):
                faults.num_kept += 1
        except TraceError as error:
            end = error
        return faults.refusal(self.skip, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReader(FileReader):
    """A reader of one file, whose rows may have conversations without the content of prompts.

    session_history: what prompts of a conversation share. unknown: nothing is known, so that no
        prefix cache finds any of them. repeats: it is assumed that each begins with the prompt and
        the answer before it, if it is at least as long as these; a shorter one begins anew. Rows
        with content of their own keep that.
    """

    session_history: Literal["unknown", "repeats"] = "unknown"

    def rows(self) -> Iterator[TraceRow]:
        """Yield the rows, as `FileReader.rows`.

        Raises ScenarioError at the end if a history is asked for, and no row has a conversation.
        """
        rows = FileReader.rows(self)
        return rows if self.session_history == "unknown" else _repeating(rows, self.path)


def _repeating(rows: Iterable[TraceRow], path: str) -> Iterator[TraceRow]:
    """Yield rows whose prompts repeat the history of their conversation; as `SessionReader`."""
    numbers = count()
    histories: dict[int, tuple[int, int]] = {}  # number and tokens, by conversation
    is_met = False
    for row in rows:
        session = row.session_id
        if session is None:
            yield row
            continue
        is_met = True
        number, num_tokens = histories.get(session) or (next(numbers), 0)
        if row.num_prompt_tokens < num_tokens:
            number = next(numbers)
        num_tokens = row.num_prompt_tokens + row.num_output_tokens
        histories[session] = number, num_tokens
        content = row.content or conversation_content(number, num_tokens)
        yield row._replace(content=content)
    if not is_met:
        raise ScenarioError(
            f"trace {path}: session_history must be left out, since no row has a conversation"
        )


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
    file: TextIO,
    path: str,
    columns: Sequence[str],
    also: str = "",
    remedy: str = "",
    faults: Faults | None = None,
) -> Iterator[tuple[At, tuple[str, ...]]]:
    """Yield (place, values of `columns`, two or more) for every row of a CSV file with a header.

    also: a column whose value comes behind them where the header has it. remedy: what to do about
    a column that is missing. faults: takes rows that are no CSV or of another width; None: they
    end the reading.

    Commas, semicolons or tabs separate. Columns may stand in any order and beside others; blank
    lines are skipped. A row of several lines is told by its first one; where a line of it is a row
    by itself, a quote too many has swallowed it, and each line counts as a row that is no CSV.
    Raises TraceError for an empty file, a header without one of the columns, and such rows.
    """
    faults = faults or Faults()
    lines = lines_of(file, path)
    first = next(lines, "")
    between = separator(first)
    reader = csv.reader(chain([first], lines), strict=True, delimiter=between)
    header = _header(reader, path)
    asked = (*columns, also) if also in header else columns
    pick = itemgetter(*[_place(path, header, name, columns, remedy) for name in asked])
    width, is_open, last = len(header), True, reader.line_num
    if has_swallowed(header, width, pick, between):
        raise swallowed(path, 1, last)
    while is_open:
        try:
            for fields in reader:
                line, before, last = last + 1, last, reader.line_num
                if last > line and has_swallowed(fields, width, pick, between):
                    faults.take(swallowed(path, line, last), last - before)
                elif len(fields) == width:
                    if fields[0].strip() == header[0] and [f.strip() for f in fields] == header:
                        problem = f"must not be the header again, got {brief(fields[0])}; remove it"
                        faults.take(TraceError(path, line, f"the row {problem}"))
                    else:
                        yield At(path, line), pick(fields)
                elif fields:
                    problem = (
                        f"a row must have {width} columns like the header, got {len(fields)}; "
                        "complete or remove the row"
                    )
                    faults.take(TraceError(path, line, problem))
            is_open = False
        except csv.Error as error:
            line, before, last = last + 1, last, reader.line_num
            if last > line:
                faults.take(swallowed(path, line, last), last - before)
            else:
                faults.take(TraceError(path, line, f"not valid CSV: {error}"))


def separator(header: str) -> str:
    """Return what stands between the names of a first line: a comma, semicolon or tab."""
    return max(",;\t", key=header.count)


class NotPlainError(ScenarioError):
    """The next rows of a file have to be read one by one."""


TOKENS, SECONDS = r"[1-9]\d{0,8}", r"\d{1,10}(?:\.\d{1,20})?"
"""How numbers of tokens and times look in plain rows of CSV."""


def plain_csv(
    path: str, looks: Mapping[str, str], unlike: Collection[str] = ()
) -> Iterator[tuple[Sequence[str], ...]]:
    """Yield the columns of many rows of CSV at a time, as texts: those named in `looks`.

    looks: pattern of the texts of each column. unlike: names of columns that a plain file has not.
    Raises NotPlainError where a row does not look so, and as `open_trace`.
    """
    row, order = re.compile(""), itemgetter(0, 1)
    with open_trace(path) as file:
        for number, block in enumerate(blocks_of(file, path)):
            text = block.read()
            if not number:
                header, _, text = text.partition("\n")
                names = [name.strip() for name in header.split(",")]
                if any(names.count(name) != 1 for name in looks) or set(names) & set(unlike):
                    raise NotPlainError
                fields = [f"({looks[name]})" if name in looks else '[^,"\r\n]*' for name in names]
                row = re.compile(f"^{','.join(fields)}\r?\n", re.ASCII | re.MULTILINE)
                order = itemgetter(*map([n for n in names if n in looks].index, looks))
                if row.match(f"{header}\n"):
                    raise NotPlainError
            text = text if text.endswith("\n") or not text else f"{text}\n"
            rows = row.findall(text)
            if len(rows) != text.count("\n"):
                raise NotPlainError
            if rows:
                yield order(list(zip(*rows, strict=True)))


def timed_rows(
    columns: Iterable[tuple[Sequence[str], ...]], clock: Clock
) -> Iterator[list[TraceRow]]:
    """Yield the rows of columns of texts: seconds, and tokens of prompt and answer."""
    for times, prompts, outputs in columns:
        seconds = clock.plain(list(map(float, times)))
        yield rows_of(map(int, prompts), map(int, outputs), seconds)


def _header(reader: Any, path: str) -> list[str]:
    try:
        return [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise TraceError(path, reader.line_num, f"not valid CSV: {error}") from error


def _place(path: str, header: list[str], name: str, needed: Sequence[str], remedy: str) -> int:
    """Return the position of a column in the header, or raise TraceError.

    The first line is not shown: it may be of any file.
    """
    if not any(header):
        raise TraceError(path, 1, f"no header; a first line with {', '.join(needed)} is needed")
    if header.count(name) != 1:
        others = [each for each in header if each not in needed]
        problem = f"no column {brief(name)}{did_you_mean(name, others)}"
        if name in header:
            problem = f"more than one column {brief(name)}."
        raise TraceError(
            path,
            1,
            f"{problem} The first line has {in_words(len(header), 'column')}; needed are "
            f"{', '.join(needed)}{remedy}",
        )
    return header.index(name)


def json_lines(path: str, faults: Faults | None = None) -> Iterator[tuple[At, dict[str, Any]]]:
    """Yield (place, object) of a file of JSON lines; blank ones are skipped.

    faults: takes lines that are no JSON object; None: they end the reading. Raises as `open_trace`,
    and TraceError for such a line.
    """
    with open_trace(path) as file:
        lines = enumerate(lines_of(file, path), 1)
        texts = ((At(path, line), text) for line, text in lines if text.strip())
        yield from (faults or Faults()).parsed(texts, _json_object)


def _json_object(text: str, at: At) -> tuple[At, dict[str, Any]]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise at.error(f"not valid JSON ({error}); correct or remove it") from error
    if type(record) is not dict:
        raise at.error(f"a row must be a JSON object, got {brief(record)}; correct or remove it")
    return at, record


def json_records(
    objects: Iterable[tuple[At, dict[str, Any]]],
    columns: Sequence[str],
    also: str = "",
    remedy: str = "",
) -> Iterator[tuple[At, tuple[str, ...]]]:
    """Yield (place, values of `columns`) of JSON objects, as `csv_records` does of rows.

    A name that is no key may be a path to one: usage.prompt_tokens. Raises TraceError if the first
    object lacks a column; later ones may, as rows without a value there.
    """
    is_first = True
    for at, record in objects:
        found = [_inner(record, name) for name in columns]
        if is_first and _ABSENT in found:
            missing = columns[found.index(_ABSENT)]
            others = [key for key in record if key not in columns]
            raise at.error(
                f"no key {brief(missing)}{did_you_mean(missing, others)} The object has "
                f"{in_words(len(record), 'key')}; needed are {', '.join(columns)}{remedy}"
            )
        is_first = False
        values = [*found, *([record[also]] if also in record else [])]
        yield at, tuple("" if v is None or v is _ABSENT else str(v) for v in values)


_ABSENT = object()


def _inner(record: dict[str, Any], name: str) -> object:
    """Return the value of a key, or of a path of keys with dots between them."""
    if name in record:
        return record[name]
    found: Any = record
    for key in name.split("."):
        found = found.get(key, _ABSENT) if isinstance(found, dict) else _ABSENT
    return found


def blocks_in(
    record: Mapping[str, Any], at: At, num_prompt_tokens: int, num_output_tokens: int, size: int
) -> Content:
    """Return the content of Mooncake's `hash_ids` and `output_hash_ids`. size: of a block."""
    ids, of_output = (at.integers(record, key) for key in ("hash_ids", "output_hash_ids"))
    try:
        return block_content(ids, of_output, num_prompt_tokens, num_output_tokens, size)
    except ValueError as error:
        raise at.error(f"{error}; set hash_block_size, or correct the row") from error


class Clock:
    """Times of rows as seconds from the first of them, which never decrease.

    unit: of the times, of `A_SECOND`. Their differences are taken before they become seconds.
    """

    __slots__ = ("_column", "_last", "_most", "_size", "_start")

    def __init__(self, column: str, unit: str = "s") -> None:
        self._column, self._size = column, A_SECOND[unit]
        self._most = TRACE_TIME * A_SECOND[unit]
        self._start: float | None = None
        self._last = 0.0

    def seconds(self, time: float, at: At) -> float:
        """Return the seconds of the next row, or raise TraceError if it is before the last."""
        if self._start is None:
            self._start = self._last = time
        if time < self._last:
            raise at.backwards(self._column, (self._last - time) / self._size)
        self._last = time
        return (time - self._start) / self._size

    def plain(self, times: Sequence[float]) -> list[float]:
        """Return the seconds of the next rows.

        Raises NotPlainError if they go backwards or are out of bounds (see `At.time`).
        """
        if not (min(times) >= 0 and max(times) <= self._most):
            raise NotPlainError
        stamps = np.array(times, dtype=float)
        if self._start is None:
            self._start = self._last = times[0]
        if not (np.concatenate(([self._last], stamps[:-1])) <= stamps).all():
            raise NotPlainError
        self._last = times[-1]
        found: list[float] = ((stamps - self._start) / self._size).tolist()
        return found


_HEADERS = {
    "azure": {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
    "burstgpt": {"Timestamp", "Request tokens", "Response tokens"},
    "vidur": {"arrived_at", "num_prefill_tokens", "num_decode_tokens"},
    "splitwise": {"arrival_timestamp", "prompt_size", "token_size"},
    "servegen": {"workload", "client", "window_start_s", "rate_req_s"},
    "lengths_csv": {"num_prefill_tokens", "num_decode_tokens"},
    "csv": {"timestamp", "prompt_tokens", "output_tokens"},
}
_KEYS = {
    "llmservingsim": ({"input_toks", "output_toks"}, {"sub_requests"}),
    "agentic": ({"block_size", "requests"},),
    "otel": ({"resourceSpans"},),
    "dynamo": ({"schema", "event_type"}, {"event"}),
    "agentic_mooncake": (
        {"input_length", "output_length", "wait_for"},
        {"input_length", "output_length", "delay"},
        {"input_length", "output_length", "session_id", "request_id"},
    ),
    "mooncake": ({"timestamp", "input_length", "output_length", "hash_ids"},),
}
_COLUMNS = {
    "chat_parquet": {"conversation"},
    "mist": {"arrival_time", "num_prompt_tokens", "num_output_tokens"},
}
_TOLD_APART = 16  # tokens: shorter prompts are one block in both forms
_FIRST = 1 << 16  # characters of the first line that are enough to know a CSV file


def form_of(path: str) -> str:
    """Return the name of the reader for a file, by its first line or its columns.

    Raises ScenarioError for a file that is missing, and for one of no known form.
    """
    found = _of_parquet(path) if path.endswith(".parquet") else _of_text(path)
    if found is None:
        raise ScenarioError(
            f"trace {path}: has no form that is known by its first line; say which it is with "
            f"--format: {', '.join(TRACE_READERS)}. A log of your own, CSV or JSON lines: --format "
            "csv --set time_column=NAME --set prompt_column=NAME --set output_column=NAME; in a "
            "scenario, the same keys under trace: {type: csv, path: FILE}"
        )
    return found


def reader_of(path: str, form: str | None = None, num_requests: int | None = None) -> TraceReader:
    """Return the reader of a file. form: its name; None: by the file's first line.

    Raises ScenarioError as `form_of` does, and UnknownPluginError for an unknown form.
    """
    made: Any = TRACE_READERS[form or form_of(path)]
    reader: TraceReader = made(path=path, num_requests=num_requests)
    return reader


def first_line(file: TextIO) -> str:
    """Return the beginning of the first line that is not blank; empty if there is none."""
    line = file.readline(_FIRST)
    while line.isspace():
        line = file.readline(_FIRST)
    return line


def _of_parquet(path: str) -> str | None:
    from pyarrow import ArrowException, parquet

    if not Path(path).exists():
        raise ScenarioError(f"trace {path}: no such file")
    try:
        names = set(parquet.read_schema(path).names)
    except (OSError, ArrowException) as error:
        raise ScenarioError(f"trace {path}: cannot be read as Parquet: {error}") from None
    return next((form for form, needed in _COLUMNS.items() if needed <= names), None)


def _of_text(path: str) -> str | None:
    with open_trace(path) as file:
        first = first_line(file)
        if first.lstrip().startswith("["):
            return "sharegpt"
        if first.lstrip().startswith("{"):
            line = first if first.endswith("\n") else first + file.readline(LINE_LENGTH)
            return _of_object(line, line + file.read(_FIRST))
    try:
        names = next(csv.reader([first], delimiter=separator(first)), [])
    except csv.Error:
        return None
    header = {name.strip() for name in names}
    return next((form for form, needed in _HEADERS.items() if needed <= header), None)


def _of_object(line: str, text: str) -> str | None:
    """Return the form of a first object. line: the first line. text: that and more."""
    try:
        record: Any = json.JSONDecoder().raw_decode(line.lstrip())[0]
    except (ValueError, RecursionError):
        record = {}
    keys = set(record) if isinstance(record, dict) else set()
    if isinstance(record, dict) and isinstance(record.get("hash_ids"), dict):
        return "ragpulse"
    for form, either in _KEYS.items():
        if any(needed <= keys for needed in either):
            return "timed_trace" if form == "mooncake" and _has_blocks_of_16(record) else form
    return _of_cut_object(text)


def _has_blocks_of_16(record: dict[str, Any]) -> bool:
    """Tell whether a row of Mooncake's keys has as many ids as blocks of vLLM's timed_trace."""
    ids, tokens = record["hash_ids"], record["input_length"]
    is_count = type(ids) is list and type(tokens) is int and tokens > _TOLD_APART
    return is_count and len(ids) in (tokens // 16, -(-tokens // 16))


def _of_cut_object(text: str) -> str | None:
    """Return the form of an object over many lines, by the keys at its beginning."""
    for form in ("otel", "agentic"):
        if any(all(f'"{key}"' in text for key in needed) for needed in _KEYS[form]):
            return form
    return None
