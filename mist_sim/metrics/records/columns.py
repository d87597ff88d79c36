"""Tables that grow row by row and are read column by column."""

from __future__ import annotations

import struct
from itertools import starmap

import numpy as np
from numpy.typing import NDArray


class Table:
    """Typed columns; adding a row costs one tuple, and each value is held in memory once.

    columns: name to numpy dtype, in the order of a row's values.
    rows: rows added since the latest `pack`, as tuples of values in the order of the columns.
    """

    def __init__(self, **columns: str) -> None:
        self._row = np.dtype(list(columns.items()))
        self._pack_row = struct.Struct(_layout(self._row)).pack
        self._values = {name: bytearray() for name in columns}
        self._columns: dict[str, NDArray[np.generic]] | None = None  # views of the values
        self.rows: list[tuple[object, ...]] = []

    def pack(self) -> None:
        """Move the latest rows into the columns."""
        if not self.rows:
            return
        rows = np.frombuffer(b"".join(starmap(self._pack_row, self.rows)), self._row)
        self.rows.clear()
        if self._columns is not None:  # arrays that were handed out stay as they are
            self._columns = None
            self._values = {name: bytearray(old) for name, old in self._values.items()}
        for name, values in self._values.items():
            values.extend(rows[name].tobytes())

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return all rows as one array a column."""
        self.pack()
        if self._columns is None:
            self._columns = {
                name: np.frombuffer(values, self._row[name])
                for name, values in self._values.items()
            }
        return dict(self._columns)


def _layout(row: np.dtype[np.void]) -> str:
    """Return the format in which `struct` packs the values of a row without gaps."""
    chars = [row[name].char for name in row.names or ()]
    return "=" + "".join("q" if char == "l" else char for char in chars)


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
