"""Tables that grow row by row and are read column by column."""

from __future__ import annotations

import struct
from itertools import starmap

import numpy as np
from numpy.typing import NDArray


class Table:
    """Typed columns; a row that is added costs a tuple, memory is that of packed arrays.

    columns: name to numpy dtype, in the order of a row's values.
    rows: those added since the latest `pack`, as tuples of values in the order of the columns.
    """

    def __init__(self, **columns: str) -> None:
        self._row = np.dtype(list(columns.items()))
        self._pack_row = struct.Struct(_layout(self._row)).pack
        self._packed = bytearray()  # rows that are in no column yet
        self._columns: dict[str, NDArray[np.generic]] = {
            name: np.empty(0, dtype) for name, dtype in columns.items()
        }
        self.rows: list[tuple[object, ...]] = []

    def pack(self) -> None:
        """Turn the latest rows into bytes."""
        self._packed += b"".join(starmap(self._pack_row, self.rows))
        self.rows.clear()

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return all rows as one array a column."""
        self.pack()
        if self._packed:
            rows = np.frombuffer(self._packed, self._row)
            self._packed = bytearray()
            for name, before in self._columns.items():
                self._columns[name] = np.concatenate((before, rows[name]))
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
