"""One count of many clients as an array, without a look at each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np

from mist_sim.core.views import ClientState, Count


class CountColumn:
    """A count of some clients.

    numbers: that of each client, in their order; live.
    """

    def __init__(self, states: Sequence[ClientState], count: Count) -> None:
        self._count: Callable[[ClientState], int] = attrgetter(count)
        self._places = {state.client_id: place for place, state in enumerate(states)}
        self.numbers = np.array([self._count(state) for state in states], np.int64)

    def note(self, state: ClientState) -> None:
        """Take over a client's count."""
        self.numbers[self._places[state.client_id]] = self._count(state)
