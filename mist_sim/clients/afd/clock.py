"""A bundle's clock: attention, transfer, wait, FFN, transfer, wait, for each batch in flight."""

from __future__ import annotations

from typing import NamedTuple


class Phases(NamedTuple):
    """How long the phases of a batch take: attention, one transfer of two, FFN."""

    attention: float
    transfer: float
    ffn: float


class Pass(NamedTuple):
    """One step of a batch.

    ready: when it had returned from the pass before. start, attention_end, ffn_start, ffn_end: of
    its phases. end: when it is back, and its tokens are there.
    """

    batch: int
    ready: float
    start: float
    attention_end: float
    ffn_start: float
    ffn_end: float
    end: float


class BundleClock:
    """When the workers are free, and when each batch is back from its last pass.

    Attention workers take one batch after the other, in the order in which these are ready; so do
    the FFN workers, who share a batch evenly. Batches do not overtake one another. So when the
    attention of a batch begins, it is known when its pass ends, whatever happens meanwhile.
    """

    def __init__(self, num_batches: int) -> None:
        self.attention_free = self.ffn_free = 0.0
        self.ready = [0.0] * num_batches

    def copy(self) -> BundleClock:
        """Return another one that is as far."""
        other = BundleClock(0)
        other.attention_free, other.ffn_free = self.attention_free, self.ffn_free
        other.ready = self.ready.copy()
        return other

    def start(self, batch: int, now: float) -> float:
        """Return when the attention of a batch can begin, now or later."""
        return max(self.ready[batch], self.attention_free, now)

    def next_pass(self, batch: int, phases: Phases, now: float) -> Pass:
        """Return the next pass of a batch, whose attention begins no earlier than now."""
        start = self.start(batch, now)
        attention_end = start + phases.attention
        ffn_start = max(attention_end + phases.transfer, self.ffn_free)
        ffn_end = ffn_start + phases.ffn
        end = ffn_end + phases.transfer
        return Pass(batch, self.ready[batch], start, attention_end, ffn_start, ffn_end, end)

    def begin(self, step: Pass) -> None:
        """Note that a pass begins."""
        self.attention_free, self.ffn_free = step.attention_end, step.ffn_end
        self.ready[step.batch] = step.end
