"""Blocks that a step in flight may still write, where the next step is planned before it ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mist_sim.clients.kv_cache.reusable_decodes import Answers
from mist_sim.clients.sequence_state import SequenceState

TakeBack = Callable[..., None]
"""Takes the blocks of a sequence back: the sequence, then numbers of blocks and tokens."""


class InFlightBlocks:
    """Which blocks come back only with the end of the step in flight, and which sequences stay.

    defers: whether blocks that the step in flight may write are taken back when it ends (vLLM with
        tiers and plans made ahead). spares: whether a sequence that it computes is not preempted.
    deferred: what takes such blocks back.
    idle: running sequences that the latest planned step does not compute, where `defers`.
    """

    def __init__(self, answers: Answers, *, defers: bool, spares: bool) -> None:
        self._answers = answers
        self.defers = defers
        self._spares = defers and spares
        self.deferred: list[Callable[[], None]] = []
        self.idle: set[SequenceState] = set()

    @property
    def is_sparing(self) -> bool:
        """Whether no sequence can be preempted now that the step in flight computes."""
        return self._spares and self._answers.is_ahead

    def spares(self, sequence: SequenceState) -> bool:
        """Tell whether a running sequence cannot be preempted, since the step computes it."""
        return self.is_sparing and sequence not in self.idle

    def take_back(self, sequence: SequenceState, how: TakeBack, *numbers: int) -> None:
        """Take blocks back now, or, if a step in flight may write them, when it is over."""
        if self.defers and self._answers.is_ahead and sequence not in self.idle:
            self.deferred.append(partial(how, sequence, *numbers))
        else:
            how(sequence, *numbers)

    def end_step(self) -> None:
        """Take back the deferred blocks: the step has ended."""
        for take_back in self.deferred:
            take_back()
        self.deferred.clear()
