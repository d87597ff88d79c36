"""The clients that a router may choose from, with fast queries over many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mist_sim.core.views import ClientView, Number, reader_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mist_sim.core.request import Request


class Candidates(tuple[ClientView, ...]):  # noqa: SLOT001 - one object a set of clients
    """Views of the clients that serve a stage now, ordered by number; never empty.

    Code for a sequence of views works here too, at a cost that grows with their number. The
    methods give the same answers, and in a simulation at a cost that hardly does. A test makes
    candidates of any views: `Candidates([FakeView(0), FakeView(1, num_waiting=3)])`.
    """

    def least(self, number: Number = "num_outstanding") -> ClientView:
        """Return the candidate with the smallest number, the first of equals."""
        return min(self, key=reader_of(number))

    def get(self, client_id: int) -> ClientView | None:
        """Return the candidate with a client id; None if it is not among the candidates."""
        return next((view for view in self if view.client_id == client_id), None)

    def numbers(self, number: Number) -> NDArray[Any]:
        """Return a number of every candidate, in their order, as an array of the caller's own.

        It holds whole numbers, except for the estimate `num_remaining_tokens`.
        """
        kind = np.float64 if number == "num_remaining_tokens" else np.int64
        return np.fromiter(map(reader_of(number), self), kind, len(self))

    def part(self, first: int, end: int) -> Candidates:
        """Return the candidates from one position up to another, at least one."""
        return Candidates(self[first:end])

    def polled(self, interval: float, *, counts_sent: bool) -> Candidates:
        """Return the candidates as seen by a gateway that polls them at regular intervals.

        interval: seconds between two polls, the first one at time zero (> 0).
        counts_sent: whether `note_sent` adds requests to the load of the latest poll.
        Views made up by a test are returned unchanged.
        """
        return self

    def note_sent(self, client_id: int, request: Request) -> None:
        """Note that a request goes to a candidate, if loads are those of the latest poll."""

    def transfer_times(self, request: Request) -> NDArray[np.float64]:
        """Return `transfer_time` of every candidate, in their order, with a look at each."""
        return np.array([view.transfer_time(request) for view in self])

    def longest_prefix(
        self, request: Request, most_outstanding: float
    ) -> tuple[ClientView | None, int]:
        """Return the candidate with the longest cached prefix of a prompt, and its tokens.

        Only candidates with at most `most_outstanding` outstanding requests count. Ties go to the
        one with the fewest outstanding requests, then to the first. (None, 0) if no such candidate
        has cached any.
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
