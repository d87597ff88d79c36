"""Clients as a router sees them, made up for a test."""

from __future__ import annotations

from dataclasses import dataclass

from mist_sim.core.request import Request
from mist_sim.core.views import ClientView


@dataclass(frozen=True, slots=True)
class FakeView:
    """A `ClientView` with the numbers that a test gives it; writing to it raises.

    num_cached: tokens of any prompt with content that its prefix cache has, at most all but one.

    mean_answer: expected of any request. seconds_away: of the KV entries that a request brings.
    seconds_per_token: of prompts that are still to be computed.

    num_outstanding is the sum of the waiting and the running requests.
    """

    client_id: int
    num_waiting: int = 0
    num_running: int = 0
    num_waiting_tokens: int = 0
    num_kv_blocks: int = 0
    num_kv_tokens: int = 0
    num_cached: int = 0
    role: str | None = None
    pool: str | None = None
    num_prompt_tokens: int = 0
    num_gpu_blocks: int = 0
    block_size: int = 0
    num_remaining_tokens: float = 0
    mean_answer: float = 0
    seconds_away: float = 0
    num_prefill_tokens: int = 0
    seconds_per_token: float = 0

    @property
    def name(self) -> str:
        """The word "client" and its number."""
        return f"client{self.client_id}"

    @property
    def num_outstanding(self) -> int:
        """Requests that wait or run."""
        return self.num_waiting + self.num_running

    def num_answer_tokens(self, request: Request) -> float:
        """Return `mean_answer`."""
        return self.mean_answer

    def transfer_time(self, request: Request) -> float:
        """Return `seconds_away`, of a request that brings KV entries."""
        return self.seconds_away if request.kv else 0.0

    def transfer_time_from(self, source: ClientView, num_tokens: int) -> float:
        """Return `seconds_away`."""
        return self.seconds_away

    def prefill_time(self, request: Request) -> float:
        """Return the seconds of all prompts, at `seconds_per_token`."""
        num_tokens = self.num_prefill_tokens + request.num_prompt_tokens
        return num_tokens * self.seconds_per_token

    def prefix_tokens(self, request: Request) -> int:
        """Return `num_cached`, of a prompt that has content."""
        return min(self.num_cached, request.num_prompt_tokens - 1) if request.content else 0
