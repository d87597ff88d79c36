"""The clients that a router may choose from, with what a good choice among many needs."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from mist_sim.core.views import ClientView, Count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mist_sim.core.request import Request


class Candidates(tuple[ClientView, ...]):  # noqa: SLOT001 - one object a set of clients
    """Views of the clients that serve a stage now, ordered by number; never empty.

    Whatever works on a sequence of views works here, at a cost that grows with their number. The
    methods give the same answers, and in a simulation at a cost that hardly does. A test makes
    candidates of any views: `Candidates([FakeView(0), FakeView(1, num_waiting=3)])`.
    """

    def least(self, count: Count = "num_outstanding") -> ClientView:
        """Return the candidate with the smallest count, the first of equals."""
        return min(self, key=attrgetter(count))

    def get(self, client_id: int) -> ClientView | None:
        """Return the candidate of a number; None when there is none."""
        return next((view for view in self if view.client_id == client_id), None)

    def numbers(self, count: Count) -> NDArray[np.int64]:
        """Return a count of every candidate, in their order, as an array of the caller's own."""
        return np.fromiter(map(attrgetter(count), self), np.int64, len(self))

    def part(self, first: int, end: int) -> Candidates:
        """Return those from one position up to another, at least one."""
        return Candidates(self[first:end])

    def polled(self, interval: float, *, counts_sent: bool) -> Candidates:
        """Return the candidates as a gateway sees them that asks them every so often.

        interval: seconds between two polls, the first one at time zero (> 0).
        counts_sent: whether `note_sent` adds to what the latest poll said.
        Views that a test made up stay as they are.
        """
        return self

    def note_sent(self, client_id: int, request: Request) -> None:
        """Note that a request goes to a candidate, where these are as of a poll."""

    def transfer_times(self, request: Request) -> NDArray[np.float64]:
        """Return `transfer_time` of every candidate, in their order, with a look at each."""
        return np.array([view.transfer_time(request) for view in self])

    def longest_prefix(
        self, request: Request, most_outstanding: float
    ) -> tuple[ClientView | None, int]:
        """Return who has most of a request's prompt in its prefix cache, and how many tokens.

        Only candidates with at most so many outstanding requests count; of equals it is the one
        with the fewest, and the first of these. (None, 0) when no such candidate has any.
        """
        best, most, least = None, 0, 0
        for view in self:
            num_outstanding = view.num_outstanding
            if num_outstanding > most_outstanding:
                continue
            num_tokens = view.prefix_tokens(request)
            if num_tokens > most or (num_tokens == most > 0 and num_outstanding < least):
                best, most, least = view, num_tokens, num_outstanding
        return best, most
