"""Progress over several batches of runs."""

from __future__ import annotations

from collections.abc import Callable


class Counted:
    """Tells how many runs are done over several batches of them."""

    def __init__(self, progress: Callable[[int], None] | None) -> None:
        self._progress = progress
        self._before = 0
        self._num = 0

    def more(self, num: int) -> None:
        """Note how many of the present batch are done."""
        self._num = num
        if self._progress is not None:
            self._progress(self._before + num)

    def done(self) -> None:
        """Begin another batch."""
        self._before += self._num
