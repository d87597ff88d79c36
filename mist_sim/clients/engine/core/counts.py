"""What a client's requests do, in numbers: routers see them."""

from __future__ import annotations


class Counts:
    """Requests of all lanes of a client.

    num_waiting, num_running: requests. num_waiting_tokens: to be computed before the next token of
    those that wait. num_changes: how often lanes have changed these.
    """

    def __init__(self) -> None:
        self.num_waiting = self.num_running = self.num_waiting_tokens = self.num_changes = 0

    def begin(self, num_tokens: int) -> None:
        """Note that a request runs that waited with so many tokens to compute."""
        self.num_waiting -= 1
        self.num_waiting_tokens -= num_tokens
        self.num_running += 1
        self.num_changes += 1

    def go_back(self, num_tokens: int) -> None:
        """Note that a request waits again."""
        self.num_waiting += 1
        self.num_waiting_tokens += num_tokens
        self.num_running -= 1
        self.num_changes += 1
