"""Blocks that a step in flight may still write, where the next step is planned before it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from mist_sim.clients.kv_cache.reusable_decodes import Answers
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.errors import ScenarioError

MOST_STARTS = 1_000
"""Plans in a row that preempt all sequences, without a token, before a run is refused."""

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
        self._num_starts = 0
        self._num_left = 0  # sequences, at the latest of these starts
        self._tokens: dict[SequenceState, int] = {}  # then of each that was preempted

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

    def start_over(self, preempted: Iterable[SequenceState], num_left: int) -> None:
        """Note a plan that preempted all sequences, where `defers`.

        num_left: sequences of the lane that have left it so far.
        Raises ScenarioError if `MOST_STARTS` such plans followed each other and no sequence got a
        token or left in between: prompts in pieces need the same block, and neither gets that of
        the other before it has given its own back. vLLM 0.24 goes on so for ever (seen without
        drafts, and with drafts in some cases).
        """
        tokens = {sequence: sequence.num_tokens for sequence in preempted}
        before = self._tokens
        if num_left != self._num_left or any(before.get(s, n) != n for s, n in tokens.items()):
            before.clear()
            self._num_starts = 0
        before.update(tokens)
        self._num_left = num_left
        self._num_starts += 1
        if self._num_starts == MOST_STARTS:
            raise ScenarioError(
                f"{MOST_STARTS:,} plans in a row preempted all running requests and none got a "
                f"token in between, since their blocks are free only after the step in flight "
                f"(rules.defers_frees); have more KV-cache blocks, a lower max_num_seqs, or no "
                f"long_prefill_token_threshold"
            )

    def end_step(self) -> None:
        """Take back the deferred blocks: the step has ended."""
        for take_back in self.deferred:
            take_back()
        self.deferred.clear()
