"""A bundle's clock: attention, transfer, wait, FFN, transfer, wait, for each batch in flight."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import NamedTuple, Self


class Phases(NamedTuple):
    """How long the phases of one pass take: attention, one transfer of two, FFN."""

    attention: float
    transfer: float
    ffn: float


class Pass(NamedTuple):
    """One way of a batch from attention to the FFN and back: a layer of a step, or all of them.

    ready: when it had returned from the pass before. start, attention_end, ffn_start, ffn_end: of
    its phases. end: when it is back; after the last layer, its tokens are there.
    """

    batch: int
    ready: float
    start: float
    attention_end: float
    ffn_start: float
    ffn_end: float
    end: float


class BundleClock:
    """When the workers are free, and when each batch returns from its last pass.

    Attention workers take one batch after the other, in the order in which these are ready; so do
    the FFN workers, which share a batch evenly. Batches do not overtake one another. So the end of
    a pass is known as soon as its attention begins. A step consists of one pass per layer, and its
    end is known when the last of them begins.

    layers: passes per step (>= 1). layer: next layer of each batch's step under way.
    """

    def __init__(self, num_batches: int, layers: int = 1) -> None:
        self.layers = layers
        self.attention_free = self.ffn_free = 0.0
        self.ready = [0.0] * num_batches
        self.layer = [0] * num_batches

    def copy(self) -> Self:
        """Return a copy with the same progress."""
        other = type(self)(0, self.layers)
        other.attention_free, other.ffn_free = self.attention_free, self.ffn_free
        other.ready, other.layer = self.ready.copy(), self.layer.copy()
        return other

    def start(self, batch: int, now: float) -> float:
        """Return when the attention of a batch can begin, now or later."""
        return max(self.ready[batch], self.attention_free, now)

    def next_pass(self, batch: int, phases: Phases, now: float) -> Pass:
        """Return the next pass of a batch, whose attention begins now or later."""
        start = self.start(batch, now)
        attention_end = start + phases.attention
        ffn_start = max(attention_end + phases.transfer, self.ffn_free)
        ffn_end = ffn_start + phases.ffn
        end = ffn_end + phases.transfer
        return Pass(batch, self.ready[batch], start, attention_end, ffn_start, ffn_end, end)

    def begin(self, step: Pass, batches: Collection[int]) -> Collection[int]:
        """Record the beginning of a pass; return the batches whose step's end, `ready`, is known.

        batches: batches with members.
        """
        self.attention_free, self.ffn_free = step.attention_end, step.ffn_end
        self.ready[step.batch] = step.end
        layer = self.layer[step.batch] = (self.layer[step.batch] + 1) % self.layers
        return () if layer else (step.batch,)

    def is_first(self, batch: int) -> bool:
        """Tell whether the next pass of a batch is the first of its step."""
        return not self.layer[batch]

    def is_under_way(self, batch: int) -> bool:
        """Tell whether a step is under way whose end is unknown, so that no request may join."""
        return self.layer[batch] > 0

    def together(self, batch: int, batches: Collection[int]) -> Collection[int]:
        """Return the batches whose next step begins together with this one's."""
        return (batch,)


class JointClock(BundleClock):
    """A clock of batches that begin every step together, as parts of one engine batch.

    All tokens are emitted when the last batch returns from its last layer.

    under_way: batches whose last layer of the step has not begun. last: when the other batches
        return.
    """

    def __init__(self, num_batches: int, layers: int = 1) -> None:
        super().__init__(num_batches, layers)
        self.under_way: set[int] = set()
        self.last: dict[int, float] = {}

    def copy(self) -> Self:
        """Return a copy with the same progress."""
        other = super().copy()
        other.under_way, other.last = self.under_way.copy(), self.last.copy()
        return other

    def begin(self, step: Pass, batches: Collection[int]) -> Collection[int]:
        """Note that a pass begins; return all batches of the step when its end is known."""
        if not self.under_way:
            self.under_way.update(batches)
            self.ready = [
                ready if k in self.under_way else inf for k, ready in enumerate(self.ready)
            ]
        if not super().begin(step, batches):
            return ()
        self.under_way.remove(step.batch)
        self.last[step.batch] = step.end
        self.ready[step.batch] = inf
        if self.under_way:
            return ()
        self.ready = [max(self.last.values())] * len(self.ready)
        done = tuple(self.last)
        self.last.clear()
        return done

    def is_first(self, batch: int) -> bool:
        """Tell whether the next pass of a batch is the first of its step."""
        return super().is_first(batch) and batch not in self.last

    def is_under_way(self, batch: int) -> bool:
        """Tell whether a step is under way whose end is unknown, so that no request may join."""
        return bool(self.under_way)

    def together(self, batch: int, batches: Collection[int]) -> Collection[int]:
        """Return the batches whose next step begins together with this one's: all."""
        return batches
