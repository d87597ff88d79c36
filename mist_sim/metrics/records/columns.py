"""Tables that grow row by row and are read column by column, in as few bytes as values allow."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_PACKED = 2**18  # bytes; more rows at a time cost fewer calls, and more memory a table


class Table:
    """Typed columns; adding a row costs one tuple, and each value is held in memory once.

    columns: name to numpy dtype, in the order of a row's values.
    rows: rows added since the latest `pack`, as tuples of values in the order of the columns.
    """

    def __init__(self, **columns: str) -> None:
        self._row, self._pack_row, kinds = _layout(tuple(columns.items()))
        self._packed = bytearray()  # rows that are packed and not yet in columns
        self._columns = {name: NarrowColumn(kind) for name, kind in kinds}
        self.rows: list[tuple[object, ...]] = []

    @property
    def nbytes(self) -> int:
        """Bytes that the packed rows take."""
        return len(self._packed) + sum(column.nbytes for column in self._columns.values())

    def pack(self) -> None:
        """Pack the latest rows, and move many packed ones into the columns."""
        if self.rows:
            self._packed += b"".join(starmap(self._pack_row, self.rows))
            self.rows.clear()
            if len(self._packed) >= _MOST_PACKED:
                self._split()

    def columns(self) -> TableColumns:
        """Return all rows as one array a column; an array is made when it is read."""
        self.pack()
        self._split()
        return TableColumns(self._columns)

    def _split(self) -> None:
        """Move the packed rows into the columns."""
        if self._packed:
            rows = np.frombuffer(self._packed, self._row)
            for name, column in self._columns.items():
                column.extend(rows[name])
            self._packed = bytearray()


class TableColumns(Mapping[str, Any]):
    """The columns of a table as it was; each array is made when it is read, and not kept.

    Readers take a few columns at a time: all of them at once, in 8 bytes a value, are more than
    the table itself.
    """

    def __init__(self, columns: Mapping[str, NarrowColumn]) -> None:
        self._columns = columns
        self._length = len(next(iter(columns.values()), ()))
        self._others: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._others:
            return self._others[name]
        return self._columns[name].array()[: self._length]

    def __iter__(self) -> Iterator[str]:
        yield from self._columns
        yield from self._others

    def __len__(self) -> int:
        return len(self._columns) + len(self._others)

    def __or__(self, others: dict[str, NDArray[Any]]) -> TableColumns:
        """Return these columns and others of other names."""
        found = TableColumns(self._columns)
        found._length, found._others = self._length, self._others | others
        return found


class _Layout(NamedTuple):
    """How the rows of a table lie: packed by `pack` without gaps, as `row`. kinds: by column."""

    row: np.dtype[np.void]
    pack: Callable[..., bytes]
    kinds: tuple[tuple[str, np.dtype[np.generic]], ...]


@cache
def _layout(columns: tuple[tuple[str, str], ...]) -> _Layout:
    """Return the layout of tables with such columns, of which there may be one a track."""
    row = np.dtype(list(columns))
    kinds = tuple((name, row[name]) for name, _ in columns)
    chars = ["q" if kind.char == "l" else kind.char for _, kind in kinds]
    return _Layout(row, struct.Struct("=" + "".join(chars)).pack, kinds)


class Categories:
    """Small integers for values that repeat, in the order of first sight."""

    def __init__(self) -> None:
        self._codes: dict[object, int] = {}

    def code(self, value: object) -> int:
        """Return the integer of a value, a new one when it is unknown."""
        codes = self._codes
        if value in codes:
            return codes[value]
        codes[value] = len(codes)
        return codes[value]

    @property
    def values(self) -> list[object]:
        """The values; position is code."""
        return list(self._codes)


_SIZES = tuple(np.dtype(name) for name in ("i1", "i2", "i4", "i8"))


class NarrowColumn:
    """The values of one column; whole numbers lie in the smallest type that holds all of them.

    Lengths of prompts, counts and codes are small, so that a column of 8 bytes a value often takes
    1 or 2. dtype: of the arrays that are handed out; other types than whole numbers are held so.
    """

    def __init__(self, dtype: np.dtype[np.generic]) -> None:
        self.dtype = dtype
        self._held = _SIZES[0] if dtype.kind == "i" else dtype
        self._values = bytearray()
        self._is_lent = False  # an array that was handed out is a view of the values

    def __len__(self) -> int:
        return len(self._values) // self._held.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes that the values take."""
        return len(self._values)

    def extend(self, values: NDArray[np.generic]) -> None:
        """Add values at the end; arrays that were handed out stay as they are."""
        if self.dtype.kind == "i" and self._held != self.dtype:
            self._widen(values)
        if self._is_lent:
            self._values, self._is_lent = bytearray(self._values), False
        self._values.extend(values.astype(self._held).tobytes())

    def array(self) -> NDArray[np.generic]:
        """Return all values: a view where they are held in their own type, else a new array."""
        held = np.frombuffer(self._values, self._held)
        if self._held != self.dtype:
            return held.astype(self.dtype)
        self._is_lent = True
        return held

    def _widen(self, values: NDArray[np.generic]) -> None:
        """Hold the values in a larger type if new ones do not fit into the present one."""
        low, high = values.min(), values.max()
        for held in _SIZES:
            limits = np.iinfo(held)
            if held.itemsize >= self._held.itemsize and limits.min <= low and high <= limits.max:
                break
        if held != self._held:
            wider = np.frombuffer(self._values, self._held).astype(held)
            self._held, self._values, self._is_lent = held, bytearray(wider), False
