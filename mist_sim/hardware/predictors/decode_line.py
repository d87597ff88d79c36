"""Step times of decodes alone, if they are a line in the number of keys that are read."""

from __future__ import annotations

from array import array
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy import add, arange, multiply
from numpy.typing import NDArray

Ends: TypeAlias = "list[float] | array[float]"
"""When steps end that follow one another, seconds."""

_SHORT = 32  # steps, for which Python takes less time than calls of NumPy


class DecodeLine(NamedTuple):
    """Seconds of steps of a number of decodes, without drafts and prompts.

    A step takes max(keys x per_key + fixed + more, least) + beyond, in this order of operations, so
    that the bits are those of the predictor's `step_time` and `run`. keys: tokens that the cache
    holds for the decodes before the step, plus their newest ones. per_key: >= 0.

    A predictor may have a method `decode_line(num_decodes)` that returns one, or None if its times
    are not such a line, and an attribute `decode_lines`, the known ones by number of decodes, which
    all engines that it times then fill and read.
    """

    per_key: float
    fixed: float
    least: float = 0.0
    beyond: float = 0.0
    more: float = 0.0

    def step(self, keys: int) -> float:
        """Return the seconds of one step."""
        seconds = keys * self.per_key + self.fixed + self.more
        if seconds < self.least:  # max() would be a call  # noqa: PLR1730
            seconds = self.least
        return seconds + self.beyond

    def run(self, keys: int, num_decodes: int, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of consecutive steps; each step adds a key for every decode."""
        per_key, fixed, least, beyond, more = self
        end = keys + num_steps * num_decodes
        # a dtype by name would double what a short array costs
        seconds: NDArray[np.float64] = arange(keys, end, num_decodes, float)  # type: ignore[call-overload]
        multiply(seconds, per_key, seconds)
        add(seconds, fixed, seconds)
        if more:
            add(seconds, more, seconds)
        if keys * per_key + fixed + more < least:  # otherwise no later step is below it, either
            np.maximum(seconds, least, out=seconds)
        if beyond:
            add(seconds, beyond, seconds)
        return seconds

    def ends(
        self, start: float, keys: int, num_decodes: int, num_steps: int, wait: float = 0.0
    ) -> Ends:
        """Return when consecutive steps end that begin at `start` (seconds); see `run`.

        wait: seconds that are part of the first. Most of many steps may never run, so that only
        those that are asked for become Python's numbers.
        """
        per_key, fixed, least, beyond, more = self
        if num_steps > _SHORT or keys * per_key + fixed + more < least:
            seconds = self.run(keys, num_decodes, num_steps)
            seconds[0] = start + (seconds.item(0) + wait)
            return array("d", add.accumulate(seconds, 0, None, seconds).tobytes())
        if wait:
            first = start + (self.step(keys) + wait)
            return [first, *self.ends(first, keys + num_decodes, num_decodes, num_steps - 1)]
        end, all_keys = start, range(keys, keys + num_steps * num_decodes, num_decodes)
        return [end := end + (key * per_key + fixed + more + beyond) for key in all_keys]

    def with_more(self, seconds: float) -> DecodeLine | None:
        """Return it with an operator more, of so many seconds; None after a host was added."""
        return None if self.more or self.least or self.beyond else self._replace(more=seconds)

    def beside(self, host: float) -> DecodeLine | None:
        """Return the line with a host that works at the same time: the longer of the two counts."""
        return None if self.beyond else self._replace(least=max(self.least, host))

    def then(self, seconds: float) -> DecodeLine | None:
        """Return the line with so many seconds added."""
        return None if self.beyond else self._replace(beyond=seconds)
