"""A growing column of whole numbers that takes as few bytes as its values allow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
