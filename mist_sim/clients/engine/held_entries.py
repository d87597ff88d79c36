"""KV entries that a lane keeps for the clients that continue from them."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan, nan

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.views import ClientState
from mist_sim.core.visit import HeldKv


class HeldEntries:
    """The entries of sequences that have left a lane and continue at another client.

    load: of their client. free: frees the blocks of a sequence when no step reads
    them. engine_number: of the lane's engine in its client. block_bytes: of a block; NaN: unknown.
    kept: what other clients may ask for, by sequence.
    """

    def __init__(
        self,
        load: ClientState,
        free: Callable[[SequenceState], None],
        engine_number: int,
        block_bytes: float,
    ) -> None:
        self._load = load
        self._free = free
        self._engine_number = engine_number
        self._block_bytes = block_bytes
        self.kept: dict[SequenceState, HeldKv] = {}

    def hold(self, sequence: SequenceState, num_blocks: int, num_tokens: int) -> HeldKv:
        """Return the entries of a finished sequence that are kept for the client that continues it.

        num_blocks, num_tokens: that it holds, and whose entries are computed. If that client emits
        the first token, it computes the last token of the prompt again.
        """
        visit = sequence.visit
        is_silent = visit.is_silent
        self.kept[sequence] = kv = HeldKv(
            self._load.name,
            lambda: self._release(sequence),
            num_tokens=num_tokens - is_silent,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_output_tokens=sequence.num_output_tokens - is_silent,
            last_token_at=nan if is_silent else visit.last_token_at,
            engine=self._engine_number,
            compute_time=visit.last_token_at - visit.started_at,
            num_bytes=self._num_bytes(num_blocks),
        )
        return kv

    def take_over(self, sequence: SequenceState, kv: HeldKv, num_blocks: int) -> None:
        """Keep entries for another client that another lane has kept so far."""
        self.kept[sequence] = kv
        num_bytes = self._num_bytes(num_blocks)
        kv.change_hands(lambda: self._release(sequence), self._engine_number, num_bytes)

    def _num_bytes(self, num_blocks: int) -> float:
        return 0.0 if isnan(self._block_bytes) else num_blocks * self._block_bytes

    def _release(self, sequence: SequenceState) -> None:
        """Free entries that were held of a sequence, and note that the client may be empty now."""
        del self.kept[sequence]
        self._free(sequence)
        for watcher in self._load.watchers:
            watcher(self._load)
