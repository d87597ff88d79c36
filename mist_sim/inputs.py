"""Files that an input names: read as far as they may be long, and never shown in messages."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import math
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO, StringIO, TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

from mist_sim.bounds import LINE_LENGTH, SPEC_BYTES, TABLE_BYTES, TABLE_CELLS
from mist_sim.errors import (
    MistError,
    ScenarioError,
    TraceError,
    brief,
    cut,
    in_words,
    require_known,
)

if TYPE_CHECKING:
    import pandas as pd


_PACKED: Mapping[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
_MOST_ENTRIES = 2_000  # files of a folder to consider for a suggestion
_LONGEST = 1_000  # characters of a path that is no file
_OTHER_FILE = "is it another file?"


def is_there(path: Path) -> bool:
    """Tell whether a path exists; an impossible path does not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder; empty if it is not a readable folder."""
    try:
        return [entry.name for entry in islice(folder.iterdir(), _MOST_ENTRIES)]
    except OSError:
        return []


def content_of(path: Path, most_bytes: int, advice: str = _OTHER_FILE) -> bytes:
    """Return the bytes of a file, unpacked if its name ends in .gz, .bz2 or .xz.

    most_bytes: limit of its length. advice: remedy for a longer file.
    Raises ScenarioError unless it is an ordinary, readable file within the limit.
    """
    with opened(path) as file:
        content: bytes = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ScenarioError(f"{path}: must have <= {most_bytes} bytes; {advice}")
    return content


def text_of(path: Path, most_bytes: int = SPEC_BYTES, advice: str = _OTHER_FILE) -> str:
    """Return the text of a file; see `content_of`. Raises ScenarioError unless it is UTF-8."""
    try:
        return content_of(path, most_bytes, advice).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: not a UTF-8 text file: {error.reason}") from None


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open an ordinary file to read its bytes.

    Raises ScenarioError where it is missing, is something else (a pipe would be waited for, a
    device has no end), or cannot be read or unpacked.
    """
    try:
        check_ordinary(path)
        with _PACKED.get(path.suffix, open)(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise ScenarioError(f"{cut(str(path), _LONGEST)}: no such file") from None
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        if isinstance(error, ScenarioError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{cut(str(path), _LONGEST)}: cannot be read: {reason}") from None


def check_ordinary(path: Path) -> None:
    """Raise ScenarioError for a path that is no file, OSError for a missing one."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise ScenarioError(f"{path}: is a folder, and must be a file")
    if not stat.S_ISREG(mode):
        raise ScenarioError(f"{path}: must be an ordinary file, not a pipe or a device")


def object_in(path: Path, most_bytes: int = SPEC_BYTES, name: str = "") -> dict[str, Any]:
    """Return the object of a JSON file; see `object_of` and `files.text_of`.

    name: of the file in messages; by default its path.
    """
    return object_of(text_of(path, most_bytes), name or str(path))


def object_of(text: str, where: str) -> dict[str, Any]:
    """Return the object of a JSON text. where: the file, in messages.

    Raises ScenarioError for text that is no JSON, nests deeper than Python's parser goes, gives a
    key twice, or holds something else.
    """
    try:
        found = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ScenarioError(f"{where}: must hold a JSON object, got {type(found).__name__}")
    return found


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in pairs:
        if key in keys:
            raise ValueError(f"key {brief(key)} is given twice")
        keys[key] = value
    return keys


_CHUNK = 1 << 16  # characters read at once


def lines_of(file: TextIO, path: object) -> Iterator[str]:
    """Yield the lines of a text with their ends, as iterating over the file would.

    file: opened with newline="". path: name in messages.
    Raises TraceError for a line longer than `LINE_LENGTH`.
    """
    return chain.from_iterable(blocks_of(file, path))


def has_swallowed(
    fields: Sequence[str],
    width: int,
    pick: Callable[[list[str]], Sequence[str]] = list[Any],
    between: str = ",",
) -> bool:
    """Whether a quote too many hides rows in a record of CSV.

    It does where a line within the record has as many columns as the header (`width`), with
    numbers in two of those that are read (`pick`). between: what separates columns.
    """
    lines = between.join(fields).replace("\r", "\n").split("\n")[1:]
    rows = (row for line in lines for row in csv.reader([line], delimiter=between))
    return any(sum(map(_is_number, pick(row))) > 1 for row in rows if len(row) == width)


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


def blocks_of(file: TextIO, path: object) -> Iterator[StringIO]:
    """Yield blocks of whole lines (see `lines_of`), so that the caller is resumed once for many."""
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


def read_parquet(
    path: Path,
    columns: Collection[str] | None = None,
    *,
    most_bytes: int = TABLE_BYTES,
    most_cells: int = TABLE_CELLS,
    advice: str = _OTHER_FILE,
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return columns of a Parquet file, and the notes in its schema.

    columns: columns to keep, if the file has them; None: all. most_bytes, most_cells: limits of its
    size. advice: remedy for a larger one.
    Raises ScenarioError for a file that is unreadable, too large or not Parquet.
    """
    from pyarrow import ArrowException, BufferReader, parquet

    content = content_of(path, most_bytes, advice)
    try:
        file = parquet.ParquetFile(BufferReader(content))
        schema = file.schema_arrow
        kept = [name for name in schema.names if columns is None or name in columns]
        if file.metadata.num_rows * max(len(kept), 1) > most_cells:
            raise ScenarioError(f"{path}: must have <= {most_cells} cells; {advice}")
        frame: pd.DataFrame = file.read(kept).to_pandas()
    except (OSError, ArrowException) as error:
        problem = brief(str(error), 300)
        raise ScenarioError(f"{path}: cannot be read as Parquet: {problem}") from None
    pairs = (schema.metadata or {}).items()
    return frame, {_text(key): _text(value) for key, value in pairs}


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


_LEAVE_OUT = "leave out columns and rows that are not needed"


def read_csv(
    path: Path,
    columns: Collection[str] | None = None,
    *,
    needed: Sequence[str] = (),
    words: Collection[str] = (),
    num_notes: int = 0,
) -> pd.DataFrame:
    """Return columns of a CSV file with a header; the index is the line of each row.

    columns: columns to keep, if the file has them; None: all. needed: required columns.
    words: text columns, even if they look like numbers. num_notes: lines before the header.
    Raises ScenarioError for a file that is unreadable, too large or not CSV, lacks a column or has
    it twice, and TraceError for a row that is longer than the header.
    """
    import pandas as pd

    content = content_of(path, TABLE_BYTES, _LEAVE_OUT)
    header, num_rows = _form_of(content, path, needed, num_notes)
    wanted = header if columns is None else columns
    places = {name: place for place, name in enumerate(header) if name in wanted}
    for name in places:
        if header.count(name) > 1:
            raise ScenarioError(f"{path}: has more than one column {brief(name)}; rename one")
    if not num_rows:
        return pd.DataFrame(columns=list(places))
    try:
        frame = pd.read_csv(
            BytesIO(content),
            header=None,
            names=range(len(header)),
            usecols=list(places.values()),
            dtype={place: str for name, place in places.items() if name in words},
            index_col=False,
            skip_blank_lines=False,
            skiprows=num_notes + 1,
            low_memory=False,
        )
    except (ValueError, pd.errors.ParserError) as error:
        if "out of memory" in str(error):
            raise MemoryError from None
        raise ScenarioError(f"{path}: not a CSV table: {error}") from None
    frame.columns = pd.Index(list(places))
    frame.index = pd.RangeIndex(num_notes + 2, num_notes + len(frame) + 2)
    return frame


def check_columns(header: Sequence[str], needed: Sequence[str], where: str) -> None:
    """Raise ScenarioError for a column that is missing; other columns of a file are not shown."""
    number = in_words(len(header), "column")
    for name in needed:
        more = f"The file has {number}; needed are {', '.join(needed)}"
        require_known(name, header, f"{where}: no column", more)


def _form_of(
    content: bytes, path: Path, needed: Sequence[str], num_notes: int
) -> tuple[list[str], int]:
    """Return the header of a table, and how many rows are not blank.

    Raises ScenarioError where it is broken or too large.
    """
    lines = lines_of(TextIOWrapper(BytesIO(content), "utf-8-sig", newline=""), path)
    rows = csv.reader(lines)
    num_filled = 0
    try:
        header = [name.strip() for name in next(islice(rows, num_notes, None), [])]
        width = len(header)
        if not any(header):
            raise ScenarioError(f"{path}: has no header")
        check_columns(header, needed, str(path))
        last = rows.line_num
        if has_swallowed(header, width):
            raise swallowed(path, num_notes + 1, last)
        for number, row in enumerate(rows, 1):
            line, last = last + 1, rows.line_num
            if last > line and has_swallowed(row, width):
                raise swallowed(path, line, last)
            if len(row) > width:
                problem = f"a row must have {in_words(width, 'column')}, got {len(row)}"
                raise TraceError(path, rows.line_num, problem)
            if number * width > TABLE_CELLS:
                raise ScenarioError(f"{path}: must have <= {TABLE_CELLS} cells; {_LEAVE_OUT}")
            num_filled += bool(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: not a CSV table: {error}") from None
    return header, num_filled


def as_numbers(column: pd.Series[Any]) -> pd.Series[float]:
    """Return a column as floats; NaN for text, infinity for numbers out of range."""
    import pandas as pd

    try:
        return pd.to_numeric(column, errors="coerce").astype(float)
    except OverflowError:  # whole numbers of hundreds of digits
        return column.map(_as_number).astype(float)


def _as_number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan


@contextmanager
def of_a_form(path: Path, what: str) -> Iterator[None]:
    """Turn errors inside into ScenarioError: the table has other columns or types than expected.

    what: kind of the expected table.
    """
    try:
        yield
    except MistError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__} {brief(str(error))}"
        raise ScenarioError(f"{path}: not a table of {what}: {problem}") from error


Place = tuple[str | int, ...]

PLAIN = "must be printable and on one line"


def unprintable_in(data: object) -> tuple[Place, str] | None:
    """Return the place of a text that is not plain, with the problem; None if all are.

    Plain is what `str.isprintable` says: no ends of lines, controls of terminals or of the
    direction of writing, or marks that are not seen. Such a text can end a comment, fake a line of
    a message, or look like another.

    data: mappings and lists, perhaps with circular references.
    """
    seen: set[int] = set()
    left: list[tuple[Place, object]] = [((), data)]
    while left:
        place, value = left.pop()
        if isinstance(value, str) and not value.isprintable():
            return place, f"{PLAIN}, got {brief(value)}"
        if not isinstance(value, dict | list) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list):
            left += [((*place, position), item) for position, item in enumerate(value)]
            continue
        for key, item in value.items():
            if isinstance(key, str) and not key.isprintable():
                return place, f"keys {PLAIN}, got {brief(key)}"
            left.append(((*place, str(key)), item))
    return None


def check_plain(data: object, where: str) -> None:
    """Raise ScenarioError for parsed data with a text that is not plain. where: the file."""
    if found := unprintable_in(data):
        place, problem = found
        raise ScenarioError(": ".join(filter(None, (where, ".".join(map(str, place)), problem))))
