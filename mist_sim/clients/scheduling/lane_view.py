"""The view that a scheduler of one's own has of its lane as a step is planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Request


@dataclass(frozen=True, slots=True)
class Inside:
    """A request in a lane, as the plan knows it."""

    _core: Any
    _sequence: SequenceState

    @property
    def slot(self) -> int:
        """Its place in the lane."""
        return self._sequence.slot

    @property
    def request(self) -> Request:
        """The request as it was sent: its priority, deadline, and so on."""
        return self._sequence.visit.request

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of its prompt."""
        return self._sequence.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of its prompt and of its answer so far, those on their way included."""
        return int(self._core.num_asked(self.slot))

    @property
    def num_computed_tokens(self) -> int:
        """Tokens with KV entries; of an answer, all but the last."""
        if self.is_decoding:
            return self.num_tokens - 1
        return int(self._core.story(self.slot)[4])

    @property
    def is_decoding(self) -> bool:
        """Whether its prompt is computed."""
        return bool(self._core.is_decoding(self.slot))

    @property
    def num_preemptions(self) -> int:
        """How often it gave way."""
        return int(self._core.story(self.slot)[6])

    @property
    def queued_at(self) -> float:
        """When it came to this client, in seconds of the run."""
        return self._sequence.visit.queued_at


class LaneView:
    """A lane, as the plan that is made knows it.

    notes: what the scheduler remembers from plan to plan; empty at first.
    """

    def __init__(self, core: Any) -> None:
        self._core = core
        self._sequences: dict[int, SequenceState] = {}  # by slot, the latest that had it
        self.notes: dict[str, Any] = {}

    @property
    def time(self) -> float:
        """When the plan is made: as its step begins, or planned ahead, the one before."""
        return float(min(self._core.known_until, self._core.time))

    @property
    def running(self) -> list[Inside]:
        """Those admitted, in this order; none that has ended, or has its next token on its way."""
        core = self._core
        return [self.inside(slot) for slot in core.running if not core.is_busy(slot)]

    @property
    def waiting(self) -> list[Inside]:
        """Those in the queue, by arrival; those that gave way come before."""
        return [self.inside(slot) for slot in self._core.known_waiting()]

    @property
    def head(self) -> Inside | None:
        """The next request to admit, in the `order` of the queue; None: none can be."""
        slot = self._core.first_waiting()
        return None if slot < 0 else self.inside(slot)

    @property
    def has_seat(self) -> bool:
        """Whether fewer than `max_num_seqs` hold a seat."""
        return len(self._core.running) < self.max_num_seqs

    @property
    def max_num_seqs(self) -> int:
        """Its seats: the scheduler's, or in several lanes, its share of them."""
        return int(self._core.max_num_seqs)

    @property
    def num_queries(self) -> int:
        """Tokens of an answer in a step: 1 and the drafts that it verifies."""
        return int(self._core.num_queries)

    @property
    def num_decodes(self) -> int:
        """Answers that get a token in the step."""
        return int(self._core.num_decodes)

    @property
    def num_free_blocks(self) -> int:
        """KV-cache blocks that are free."""
        return int(self._core.blocks.num_free)

    @property
    def block_size(self) -> int:
        """Tokens of a KV-cache block."""
        return int(self._core.blocks.size)

    def preempt(self, inside: Inside) -> None:
        """Let one that runs give way before the step; only in `begin`."""
        self._core.send_back(inside.slot)

    def inside(self, slot: int) -> Inside:
        """Return the request in a slot."""
        return Inside(self._core, self._sequences[slot])

    def come(self, sequence: SequenceState) -> None:
        """Know a sequence that has a slot."""
        self._sequences[sequence.slot] = sequence
