"""Finds requests that preempt one another for ever, which vLLM's scheduler does not notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mist_sim.errors import ScenarioError

MOST_ROUNDS = 1_000
"""Plans in a row that preempt and give no token before a run is refused, if their state repeats.

Nothing else is ended by so many: requests that give up, or come, may change what the plans do.
"""


class Standstill:
    """Watches the plans of a lane that preempt requests and let no decode take a step.

    Every token is progress, since answers end. Without tokens, arrivals and departures the next
    plan depends on the lane's sequences alone, so that plans whose state repeats go on for ever.
    Repeats are found by Brent's method, which keeps one state (BIT 20, 1980, section 2).
    """

    def __init__(self) -> None:
        self._progress: tuple[int, int] | None = None
        self._tokens: dict[Any, int] = {}  # of each that was preempted
        self._num_plans = 0
        self._kept: object = None
        self._keep_at = 1

    def note(
        self,
        progress: tuple[int, int],
        running: object,
        tokens: Mapping[Any, int],
        *,
        defers: bool,
    ) -> None:
        """Note a plan that preempted some, before it admits any.

        progress: changes with sequences that leave the lane, and with steps in which some decode.
        running: those left, with their computed tokens. tokens: of each preempted sequence, known
        ones. defers: whether blocks come back after the step in flight.

        Raises ScenarioError if `MOST_ROUNDS` of them gave no token, and their state repeats: two
        prompts in pieces take each other's blocks, for example, each before the other is complete
        (with priorities, in vLLM, too; with `defers_frees`, seen in vLLM 0.24).
        """
        before = self._tokens
        if progress != self._progress or any(before.get(s, n) != n for s, n in tokens.items()):
            before.clear()
            self._progress = progress
            self._num_plans, self._keep_at = 0, 1
        before.update(tokens)
        self._num_plans += 1
        state = running, list(tokens)
        if self._num_plans >= self._keep_at:
            self._kept, self._keep_at = state, 2 * self._num_plans
        elif self._num_plans >= MOST_ROUNDS and state == self._kept:
            raise ScenarioError(_refusal(defers=defers))


def _refusal(*, defers: bool) -> str:
    cause = "prompts in pieces take one another's blocks"
    remedy = "scheduler_reserve_full_isl: true or no long_prefill_token_threshold"
    if defers:
        cause = "their blocks are free only after the step in flight (rules.defers_frees)"
        remedy = "no long_prefill_token_threshold"
    return (
        f"{MOST_ROUNDS:,} plans in a row preempted running requests and none got a token in "
        f"between, and it would go on so for ever, since {cause}; have more KV-cache blocks, a "
        f"lower max_num_seqs, or {remedy}"
    )
