"""Tables in CSV files, with a limit on their size."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mist_sim.bounds import TABLE_BYTES, TABLE_CELLS
from mist_sim.errors import MistError, ScenarioError, TraceError, brief, did_you_mean, in_words
from mist_sim.inputs.files import content_of
from mist_sim.inputs.lines import has_swallowed, lines_of, swallowed

if TYPE_CHECKING:
    import pandas as pd

_ADVICE = "leave out columns and rows that are not needed"


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

    content = content_of(path, TABLE_BYTES, _ADVICE)
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
    for name in needed:
        if name not in header:
            raise ScenarioError(
                f"{where}: no column {brief(name)}{did_you_mean(name, header)} The file has "
                f"{in_words(len(header), 'column')}; needed are {', '.join(needed)}"
            )


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
                raise ScenarioError(f"{path}: must have <= {TABLE_CELLS} cells; {_ADVICE}")
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
