"""How long steps take: by a line where decodes alone have one, else as the predictor says."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Chunks = tuple[tuple[int, int], ...]

_UNKNOWN, _LINE, _NO_LINE = 0, 1, 2


class Times:
    """Seconds of the steps of all engines that one predictor times.

    ask_line: returns the `DecodeLine` of a number of decodes as a tuple, None without one.
    ask: returns the seconds of a step, given its chunks, its decodes, their context, the keys that
        are read again, the longest context (-1: not needed), whether it was planned on the spot,
        and the keys that decodes see through windows (-1: there are none). ask_run: returns the
        seconds of several such steps of decodes alone, as an array, given as well their number, the
        keys in windows, by how much these grow in each step, and perhaps the context and the
        longest one before each.
    num_seqs: most decodes. needs_longest: whether the longest context counts.
    """

    def __init__(
        self,
        ask_line: Callable[[int], Sequence[float] | None],
        ask: Callable[[Chunks, int, int, int, int, bool, int], float],
        ask_run: Callable[..., NDArray[np.float64]],
        num_seqs: int,
        needs_longest: bool,
    ) -> None:
        self.ask_line, self.ask, self.ask_run = ask_line, ask, ask_run
        self.needs_longest = needs_longest
        self.lines = array("d", bytes(8 * 5 * (num_seqs + 1)))
        self.kinds = array("b", bytes(num_seqs + 1))

    def has_line(self, num_decodes: int) -> bool:
        """Tell whether steps of so many decodes alone are timed by a line."""
        if self.kinds[num_decodes] == _UNKNOWN:
            line = self.ask_line(num_decodes)
            self.kinds[num_decodes] = _NO_LINE if line is None else _LINE
            if line is not None:
                for position in range(5):
                    self.lines[5 * num_decodes + position] = line[position]
        return self.kinds[num_decodes] == _LINE

    def of_decodes(self, num_decodes: int, num_keys: int) -> float:
        """Return the seconds of decodes alone that have a line, in the order of `DecodeLine`."""
        lines, at = self.lines, 5 * num_decodes
        seconds = num_keys * lines[at] + lines[at + 1] + lines[at + 4]
        if seconds < lines[at + 2]:  # max() would be a call  # noqa: PLR1730
            seconds = lines[at + 2]
        return seconds + lines[at + 3]
