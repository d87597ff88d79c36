"""Tables that grow row by row and are read column by column, in as few bytes as values allow."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count, starmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_PACKED = 2**18  # bytes; more rows at a time cost fewer calls, and more memory a table


class Table:
    """Typed columns; adding a row costs one tuple, and each value is held in memory once.

    columns: name to numpy dtype, in the order of a row's values; `text` is kept as codes.
    rows: rows added since the latest `pack`, as tuples of values in the order of the columns.
    add: adds one. row: how packed rows lie. code: returns the code of a text, of all such columns.
    """

    def __init__(self, **columns: str) -> None:
        self.row, self._pack_row, self._kinds, self._texts = _layout(tuple(columns.items()))
        self._names = Categories()
        self.code = self._names.code
        self._packed = bytearray()  # rows that are packed and not yet in columns
        self._length = 0  # rows in columns
        self._columns: dict[str, NarrowColumn] = {}  # made for the first rows in them
        self.rows: list[tuple[Any, ...]] = []
        self.add = self.rows.append

    @property
    def names(self) -> list[Any]:
        """The texts of its columns; position is code."""
        self.pack()
        return self._names.values

    @property
    def nbytes(self) -> int:
        """Bytes that the packed rows take."""
        return len(self._packed) + sum(column.nbytes for column in self._columns.values())

    def pack(self) -> None:
        """Pack the latest rows, and move many packed ones into the columns."""
        if self.rows:
            rows = self._coded() if self._texts else self.rows
            self._packed += b"".join(starmap(self._pack_row, rows))
            self.rows.clear()
            if len(self._packed) >= _MOST_PACKED:
                self._split()

    def columns(self) -> TableColumns:
        """Return all rows as one array a column; an array is made when it is read."""
        self.pack()
        self._split()
        return TableColumns(self._columns, self._length)

    @property
    def packed(self) -> bytearray | None:
        """All rows, packed as `row`; None if some are in columns."""
        self.pack()
        return None if self._length else self._packed

    def _coded(self) -> Iterable[tuple[Any, ...]]:
        """Return the latest rows with the codes of their texts, in the order of first sight."""
        codes = list(map(self.code, [row[k] for row in self.rows for k in self._texts]))
        columns: list[Any] = list(zip(*self.rows, strict=True))
        for place, k in enumerate(self._texts):
            columns[k] = codes[place :: len(self._texts)]
        return zip(*columns, strict=True)

    def _split(self) -> None:
        """Move the packed rows into the columns."""
        if not self._columns:
            self._columns = {name: NarrowColumn(kind) for name, kind in self._kinds}
        if self._packed:
            rows = np.frombuffer(self._packed, self.row)
            self._length += len(rows)
            for name, column in self._columns.items():
                column.extend(rows[name])
            self._packed = bytearray()


class TableColumns(Mapping[str, Any]):
    """The columns of an uncompressed table; an array is made when it is read, and not kept.

    Readers take a few columns at a time: all of them at once, in 8 bytes a value, are more than
    the table itself.
    """

    def __init__(self, columns: Mapping[str, NarrowColumn], length: int) -> None:
        self._columns = columns
        self._length = length
        self._others: dict[str, NDArray[Any]] = {}

    @property
    def num_rows(self) -> int:
        """Rows of the uncompressed table."""
        return self._length

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._others:
            return self._others[name]
        return self._columns[name].array(self._length)

    def __iter__(self) -> Iterator[str]:
        yield from self._columns
        yield from self._others

    def __len__(self) -> int:
        return len(self._columns) + len(self._others)

    def __or__(self, others: dict[str, NDArray[Any]]) -> TableColumns:
        """Return these columns and others of other names."""
        found = TableColumns(self._columns, self._length)
        found._others = self._others | others
        return found


class JoinedColumns(Mapping[str, Any]):
    """The columns of tables of one kind, one table after the other; made as those of a table.

    tables: one at least. Short ones are read as they are packed, many at once.
    num_rows: of each table.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        packed = [rows for table in tables if (rows := table.packed) is not None]
        self._rows: NDArray[np.void] | None = None
        self._columns: list[TableColumns] = []
        if len(packed) == len(tables):
            kind = tables[0].row
            self._rows = np.frombuffer(b"".join(packed), kind)
            self.num_rows = [len(rows) // kind.itemsize for rows in packed]
        else:
            self._columns = [table.columns() for table in tables]
            self.num_rows = [columns.num_rows for columns in self._columns]
        self._names = tables[0].row.names or ()

    def __getitem__(self, name: str) -> NDArray[Any]:
        if self._rows is not None:
            return np.ascontiguousarray(self._rows[name])
        if len(self._columns) == 1:
            return self._columns[0][name]
        return np.concatenate([columns[name] for columns in self._columns])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Layout(NamedTuple):
    """How the rows of a table lie: packed by `pack` without gaps, as `row`. kinds: by column.

    texts: positions of columns that hold codes of texts.
    """

    row: np.dtype[np.void]
    pack: Callable[..., bytes]
    kinds: tuple[tuple[str, np.dtype[np.generic]], ...]
    texts: tuple[int, ...]


@cache
def _layout(columns: tuple[tuple[str, str], ...]) -> _Layout:
    """Return the layout of tables with such columns, of which there may be one a track."""
    texts = tuple(k for k, (_, kind) in enumerate(columns) if kind == "text")
    row = np.dtype([(name, "i4" if k in texts else kind) for k, (name, kind) in enumerate(columns)])
    kinds = tuple((name, row[name]) for name, _ in columns)
    chars = ["q" if kind.char == "l" else kind.char for _, kind in kinds]
    return _Layout(row, struct.Struct("=" + "".join(chars)).pack, kinds, texts)


class Categories:
    """Small integers for values that repeat, in the order of first sight."""

    def __init__(self) -> None:
        self._codes: dict[object, int] = defaultdict(count().__next__)
        self.code = self._codes.__getitem__
        """Returns the integer of a value, a new one when it is unknown."""

    @property
    def values(self) -> list[object]:
        """The values; position is code."""
        return list(self._codes)


_NARROW = tuple((2 ** (8 * size), np.dtype(f"u{size}")) for size in (1, 2, 4))
"""Types of differences from a smallest value, each with the first difference that is too large."""


class _Part(NamedTuple):
    """Some successive values, as whole numbers of their bits: `least` and what each has more.

    number: of the values. more: None where all are alike.
    """

    number: int
    least: int
    more: NDArray[np.integer] | None


class NarrowColumn:
    """The values of one column, a part for each time that some were added.

    Each part takes as few bytes a value as the differences of its bits from the smallest need, none
    where all are alike. Lengths of prompts, counts and codes are small, ids of a part are near one
    another, and much is the same for all. dtype: of the arrays that are handed out.
    """

    def __init__(self, dtype: np.dtype[np.generic]) -> None:
        self.dtype = dtype
        self._bits = np.dtype(f"i{dtype.itemsize}")
        self._parts: list[_Part] = []

    @property
    def nbytes(self) -> int:
        """Bytes that the values take."""
        return sum(part.more.nbytes for part in self._parts if part.more is not None)

    def extend(self, values: NDArray[np.generic]) -> None:
        """Add values at the end, one at least."""
        bits: NDArray[np.integer] = np.ascontiguousarray(values).view(self._bits)
        low = np.minimum.reduce(bits)
        least, more = int(low), bits
        span = int(np.maximum.reduce(bits)) - least
        if not span:
            self._parts.append(_Part(len(bits), least, None))
            return
        for too_much, held in _NARROW:
            if span < too_much and held.itemsize < bits.itemsize:
                more = (bits - low).astype(held)
                break
        else:
            least = 0
        self._parts.append(_Part(len(bits), least, more))

    def array(self, length: int) -> NDArray[np.generic]:
        """Return a new array of values from a first one on, at most to the end of a part."""
        found, first = np.empty(length, self._bits), 0
        for number, least, more in self._parts:
            if first == length:
                break
            last = first + number
            if more is None:
                found[first:last] = least
            else:
                found[first:last] = more
                if least:
                    found[first:last] += least
            first = last
        return found.view(self.dtype)
