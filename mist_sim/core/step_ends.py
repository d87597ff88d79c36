"""The ends of a track's steps, of which a request has dozens, in as few bytes as they take.

In a run of decodes each step takes a little longer than the one before by nearly the same time.
So the third differences of the ends, as whole numbers of their bits, are a few units but where a
run begins; nothing is lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

Ends = NDArray[np.float64]

_PIECE = 8_192  # steps that are put together: so many that what a piece has beside them is little
_TOGETHER = 65_536  # of those that are not packed, how many are read at a time
_MOST = 2**22  # steps of a run that are kept as they are, 32 MiB: reading packed ones takes longer
_ORDER = 3  # of the differences
_TYPES = tuple(np.dtype(name) for name in ("i1", "i2", "i4", "i8"))
_WIDE = 10  # bytes of a difference that its type has no room for: place and value


class _Packed(NamedTuple):
    """The differences of a piece; those at `places` are `wide`, and not what is in `narrow`."""

    narrow: NDArray[np.signedinteger]
    places: NDArray[np.uint16]
    wide: NDArray[np.int64]

    def ends(self) -> Ends:
        """Return the ends of the piece's steps, seconds."""
        bits = self.narrow.astype(np.int64)
        bits[self.places] = self.wide
        for _ in range(_ORDER):
            bits.cumsum(out=bits)
        return bits.view(np.float64)


def _pack(ends: Ends) -> _Packed:
    """Return the differences of a piece in the type that takes the fewest bytes in all."""
    bits = ends.view(np.int64)
    for _ in range(_ORDER):
        bits = np.diff(bits, prepend=np.int64(0))  # whole numbers that wrap around, as sums do
    found = [bits.astype(held) for held in _TYPES]
    is_wide = [narrow != bits for narrow in found]
    sizes = [
        len(bits) * narrow.itemsize + _WIDE * int(np.count_nonzero(wide))
        for narrow, wide in zip(found, is_wide, strict=True)
    ]
    best = sizes.index(min(sizes))
    places = np.flatnonzero(is_wide[best])
    return _Packed(found[best], places.astype(np.uint16), bits[places])


class StepEnds:
    """When each step of a track ended, seconds; they never decrease.

    latest: those that are not packed, in order; more are appended there.
    """

    def __init__(self) -> None:
        self.latest = array("d")
        self._packed: list[_Packed] = []

    def pack(self) -> None:
        """Pack the latest ends, but for less than a piece of them."""
        while len(self.latest) >= _PIECE:
            self._packed.append(_pack(np.array(self.latest[:_PIECE])))
            del self.latest[:_PIECE]

    def __len__(self) -> int:
        return len(self._packed) * _PIECE + len(self.latest)

    def __iter__(self) -> Iterator[float]:
        for _, ends in self.pieces():
            yield from ends.tolist()

    @overload
    def __getitem__(self, place: int) -> float: ...
    @overload
    def __getitem__(self, place: slice) -> Ends: ...
    def __getitem__(self, place: int | slice) -> float | Ends:
        """Return the end of one step, or those of successive ones."""
        if isinstance(place, slice):
            first, last, _ = place.indices(len(self))
            return self._between(first, max(first, last))
        step = range(len(self))[place]
        return float(self._between(step, step + 1)[0])

    def all(self) -> Ends:
        """Return the ends of all steps."""
        return self[:] if self._packed else np.array(self.latest)

    @property
    def nbytes(self) -> int:
        """Bytes that the ends take."""
        packed = sum(sum(part.nbytes for part in each) for each in self._packed)
        return packed + len(self.latest) * self.latest.itemsize

    def pieces(self) -> Iterator[tuple[int, Ends]]:
        """Yield some successive ends at a time, each time with the number of the first step."""
        for number, packed in enumerate(self._packed):
            yield number * _PIECE, packed.ends()
        num_packed = len(self._packed) * _PIECE
        for first in range(0, len(self.latest), _TOGETHER):
            yield num_packed + first, np.array(self.latest[first : first + _TOGETHER])

    def of(self, steps: NDArray[np.integer]) -> Ends:
        """Return the ends of some steps, which are in order."""
        found = np.empty(len(steps))
        for first, ends in self.pieces():
            here = slice(*np.searchsorted(steps, (first, first + len(ends))).tolist())
            found[here] = ends[steps[here] - first]
        return found

    def number_until(self, times: Ends) -> NDArray[np.int64]:
        """Return how many steps have ended at each of some times."""
        order = np.argsort(times)
        in_order = times[order]
        numbers, known = np.full(len(times), len(self)), 0
        for first, ends in self.pieces():
            until = int(np.searchsorted(in_order, ends[-1]))
            here = slice(known, until)
            numbers[here] = first + np.searchsorted(ends, in_order[here], "right")
            known = until
        found = np.empty_like(numbers)
        found[order] = numbers
        return found

    def _between(self, first: int, last: int) -> Ends:
        """Return the ends of the steps from `first` to the one before `last`."""
        num_packed = len(self._packed) * _PIECE
        latest = np.array(self.latest[max(first - num_packed, 0) : max(last - num_packed, 0)])
        if first >= min(last, num_packed):
            return latest
        begin = first // _PIECE
        pieces = [packed.ends() for packed in self._packed[begin : -(-last // _PIECE)]]
        packed = np.concatenate(pieces)
        shift = begin * _PIECE
        return np.concatenate([packed[first - shift : last - shift], latest])


def pack_many(tracks: Sequence[StepEnds]) -> None:
    """Pack the ends of a run's tracks when they have become many."""
    if sum([len(ends.latest) for ends in tracks]) > _MOST:
        for ends in tracks:
            ends.pack()
