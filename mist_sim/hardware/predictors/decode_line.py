"""Seconds of steps of decodes alone, where they are a line of the keys that the decodes read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import add, arange, multiply
from numpy.typing import NDArray


class DecodeLine(NamedTuple):
    """What steps of so many decodes, without drafts and prompts, take in seconds.

    That is max(keys x per_key + fixed + more, least) + beyond, in this order of operations, so
    that the bits are those of `step_time` and `run`. keys: tokens that the cache holds for
    the decodes before the step, and their newest ones. per_key: >= 0.

    A predictor may have a method `decode_line(num_decodes)` that returns one, or None where its
    times are no such line.
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
        """Return the seconds of consecutive steps; each adds a key for every decode."""
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

    def with_more(self, seconds: float) -> DecodeLine | None:
        """Return it with an operator more, of so many seconds; None after a host was added."""
        return None if self.more or self.least or self.beyond else self._replace(more=seconds)

    def beside(self, host: float) -> DecodeLine | None:
        """Return it with a host that works meanwhile, so that the longer of the two counts."""
        return None if self.beyond else self._replace(least=max(self.least, host))

    def then(self, seconds: float) -> DecodeLine | None:
        """Return it with so many seconds more."""
        return None if self.beyond else self._replace(beyond=seconds)
