"""Tables that grow row by row and are read column by column."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

_BLOCK = 2048  # rows kept as tuples before they are packed into arrays


class Table:
    """Typed columns; appending a row costs a tuple, memory is that of packed arrays.

    columns: name to numpy dtype, in the order of a row's values.
    """

    def __init__(self, **columns: str) -> None:
        self._dtypes = columns
        self._packed: dict[str, list[NDArray[np.generic]]] = {name: [] for name in columns}
        self._rows: list[tuple[object, ...]] = []

    def append(self, row: tuple[object, ...]) -> None:
        """Add a row, its values in the order of the columns."""
        self._rows.append(row)
        if len(self._rows) >= _BLOCK:
            self._pack()

    def _pack(self) -> None:
        count = len(self._rows)
        for (name, dtype), values in zip(
            self._dtypes.items(), zip(*self._rows, strict=True), strict=True
        ):
            packed = struct.pack(
                f"{count}{np.dtype(dtype).char}", *values
            )  # half of fromiter's time
            self._packed[name].append(np.frombuffer(packed, dtype))
        self._rows.clear()

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """Return all rows as one array a column."""
        if self._rows:
            self._pack()
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
