"""Tables that grow row by row and are read column by column."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray


class Table:
    """Typed columns; appending a row costs a tuple, memory is that of packed arrays.

    columns: name to numpy dtype, in the order of a row's values.
    rows: those added since the latest `pack`, as tuples.
    append: adds a row, its values in the order of the columns.
    """

    def __init__(self, **columns: str) -> None:
        self._dtypes = columns
        self._packed: dict[str, list[NDArray[np.generic]]] = {name: [] for name in columns}
        self.rows: list[tuple[object, ...]] = []
        self.append = self.rows.append

    def pack(self) -> None:
        """Turn the latest rows into arrays."""
        if not self.rows:
            return
        count = len(self.rows)
        for (name, dtype), values in zip(
            self._dtypes.items(), zip(*self.rows, strict=True), strict=True
        ):
            packed = struct.pack(f"{count}{np.dtype(dtype).char}", *values)  # faster than fromiter
            self._packed[name].append(np.frombuffer(packed, dtype))
        self.rows.clear()

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return all rows as one array a column."""
        self.pack()
        result = {}
        for name, dtype in self._dtypes.items():
            blocks = self._packed[name]
            if len(blocks) != 1:
                blocks = [np.concatenate(blocks) if blocks else np.empty(0, dtype)]
                self._packed[name] = blocks
            result[name] = blocks[0]
        return result


class Categories:
    """Small integers for values that repeat, in the order of first sight."""

    def __init__(self) -> None:
        self._codes: dict[object, int] = {}

    def code(self, value: object) -> int:
        """Return the integer of a value, a new one when it is unknown."""
        return self._codes.setdefault(value, len(self._codes))

    @property
    def values(self) -> list[object]:
        """The values; position is code."""
        return list(self._codes)
