"""The view that a scheduler of one's own has of its lane as a step is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Request
from mist_sim.errors import ScenarioError, brief

_ALL = 1 << 62  # tokens of a prompt: as many as there are


@dataclass(frozen=True, slots=True)
class Inside:
    """A request in a lane, as the plan knows it; it raises ScenarioError once that has left."""

    _lane: LaneView
    _sequence: SequenceState

    @property
    def slot(self) -> int:
        """Its place in the lane."""
        return self._lane.place_of(self._sequence)

    @property
    def is_here(self) -> bool:
        """Whether it has not left the lane."""
        return self._lane.has(self._sequence)

    @property
    def _core(self) -> Any:
        return self._lane.core

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
        return bool(self._core.is_decoding(self.slot) or self._core.is_leaving(self.slot))

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
    finds_slot: whether one may come in whose adapter needs a slot; None: none has any.

    In `plan` it also decides: `run`, `admit` and `preempt` say who takes part in the step.
    """

    def __init__(self, core: Any) -> None:
        self.core = core
        self._sequences: dict[int, SequenceState] = {}  # by slot, the latest that had it
        self.notes: dict[str, Any] = {}
        self.finds_slot: Callable[[SequenceState], bool] | None = None
        self._planner = ""  # name of the scheduler whose plan is made; empty: none is
        self._begins = False  # whether a plan begins
        self._taking_part: set[int] = set()  # slots, in this plan
        self.sent_back: set[int] | None = None  # slots that gave way here, where events are kept

    @property
    def time(self) -> float:
        """When the plan is made: as its step begins, or planned ahead, the one before."""
        return float(min(self.core.known_until, self.core.time))

    @property
    def running(self) -> list[Inside]:
        """Those admitted, in this order; none that has ended, or has its next token on its way."""
        core = self.core
        if self._planner:
            return [self.inside(slot) for slot in core.running if core.may_run(slot)]
        return [self.inside(slot) for slot in core.running if not core.is_busy(slot)]

    @property
    def seated(self) -> list[Inside]:
        """All who hold a seat and blocks, in order of admission; some may get nothing now."""
        return [self.inside(slot) for slot in self.core.running]

    @property
    def waiting(self) -> list[Inside]:
        """Those in the queue, by arrival; those that gave way come before.

        In `plan` all who may be admitted: before them those whose entries are on the host, or have
        come from elsewhere.
        """
        core = self.core
        slots = core.may_come() if self._planner else core.known_waiting()
        return [self.inside(slot) for slot in slots]

    @property
    def head(self) -> Inside | None:
        """The next request to admit, in the `order` of the queue; None: none can be.

        In `plan` those come first whose entries are on the host, and answers that came.
        """
        core = self.core
        if self._planner and (core.swapped or core.moved):
            return self.inside(core.may_come()[0])
        slot = core.first_waiting()
        return None if slot < 0 else self.inside(slot)

    @property
    def has_seat(self) -> bool:
        """Whether fewer than `max_num_seqs` hold a seat."""
        return len(self.core.running) < self.max_num_seqs

    @property
    def max_num_seqs(self) -> int:
        """Its seats: the scheduler's, or in several lanes, its share of them."""
        return int(self.core.max_num_seqs)

    @property
    def num_queries(self) -> int:
        """Tokens of an answer in a step: 1 and the drafts that it verifies."""
        return int(self.core.num_queries)

    @property
    def num_decodes(self) -> int:
        """Answers that get a token in the step; in `plan`, those that do so far."""
        if self._planner:
            return sum(map(self.core.is_decoding, self._taking_part))
        return int(self.core.num_decodes)

    @property
    def num_free_blocks(self) -> int:
        """KV-cache blocks that are free; in `plan`, less those of requests that take part."""
        num_free = int(self.core.blocks.num_free)
        return max(0, num_free - int(self.core.decode_need)) if self._planner else num_free

    @property
    def num_blocks(self) -> int:
        """KV-cache blocks that it has in all."""
        return int(self.core.blocks.num_blocks)

    @property
    def block_size(self) -> int:
        """Tokens of a KV-cache block."""
        return int(self.core.blocks.size)

    @property
    def num_tokens_left(self) -> int:
        """Tokens of the step that are left, of `max_num_batched_tokens`; only in `plan`."""
        return int(self.core.num_tokens_left)

    # --- what a plan decides ------------------------------------------------------------------

    def lacks(self, inside: Inside, num_tokens: int | None = None) -> int:
        """Return how many free blocks a running request lacks to take part in the step.

        num_tokens: as of `run`. 0: it has room, takes part already, or nothing of it can be
        computed, also since the step has no tokens left.
        """
        most = self._most(inside, "lacks", num_tokens)
        if inside.slot in self._taking_part:
            return 0
        self._check_runs("lacks", inside)
        if not most or (inside.is_decoding and self.num_queries > self.num_tokens_left):
            return 0
        return int(self.core.lacks(inside.slot, most))

    def run(self, inside: Inside, num_tokens: int | None = None) -> int:
        """Let a running request take part in the step: with a token of answer or prompt.

        num_tokens: of the prompt at most; None: all that it lacks. Either way no more than are left
        of the step, and of `long_prefill_token_threshold`.
        Returns its tokens in the step, 0: blocks or tokens are short, or none can be computed.
        """
        most = self._most(inside, "run", num_tokens)
        if inside.slot in self._taking_part:
            self._refuse("run", inside, "takes part in the step already")
        self._check_runs("run", inside)
        if not (most or inside.is_decoding):
            return 0
        number = int(self.core.give_step(inside.slot, most))
        if number:
            self._taking_part.add(inside.slot)
        return number

    def admit(self, inside: Inside, num_tokens: int | None = None) -> int:
        """Let a waiting request come in, with a first piece of its prompt.

        num_tokens: as of `run`. Returns its tokens in the step. 0: seats, slots of adapters, blocks
        or tokens are short, and it waits, or its entries come from elsewhere first.
        """
        most = self._most(inside, "admit", num_tokens)
        if inside.slot in self._taking_part:
            self._refuse("admit", inside, "takes part in the step already")
        if not self.core.may_be_admitted(inside.slot):
            self._refuse("admit", inside, "is not in lane.waiting")
        if not most:
            return 0
        sequence = self._sequences[inside.slot]
        if self.finds_slot is not None and not self.finds_slot(sequence):
            return 0
        number = int(self.core.let_come(inside.slot, most))
        if number:
            self._taking_part.add(inside.slot)
        return number

    def preempt(self, inside: Inside) -> None:
        """Let one that runs give way before the step; in `begin`, or in `plan` before `admit`.

        In `plan` also one that takes part already: then it does not.
        """
        if self._begins and not self._planner:
            if inside not in self.seated:
                raise ScenarioError(
                    f"lane.preempt: request {inside.request.request_id} is not in lane.seated"
                )
            self._note_sent_back(inside)
            self.core.send_back(inside.slot)
            return
        self._most(inside, "preempt", None)
        if inside.slot not in self.core.running:
            self._refuse("preempt", inside, "is not in lane.seated")
        if self.core.is_given:
            self._refuse("preempt", inside, "can give way only before the first lane.admit")
        self._taking_part.discard(inside.slot)
        self._note_sent_back(inside)
        self.core.put_off(inside.slot)

    def _note_sent_back(self, inside: Inside) -> None:
        if self.sent_back is not None:
            self.sent_back.add(inside.slot)

    @contextmanager
    def deciding(self, planner: str) -> Iterator[None]:
        """Let a plan of one's own decide; `planner` names it in sentences."""
        self._planner = planner
        self._taking_part.clear()
        try:
            yield
        finally:
            self._planner = ""

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Let `begin` of a scheduler of one's own say which request gives way."""
        self._begins = True
        try:
            yield
        finally:
            self._begins = False

    def _most(self, inside: Inside, method: str, num_tokens: int | None) -> int:
        """Return the most tokens of a prompt; check that a request can be decided about."""
        if not self._planner:
            raise ScenarioError(
                f"lane.{method} decides about a step that is planned: call it in the scheduler's "
                f"{'`begin` or ' * (method == 'preempt')}`plan`, and nowhere else"
            )
        given: object = inside
        if not isinstance(given, Inside):
            raise ScenarioError(
                f"{self._planner} calls lane.{method} with {brief(given)}; it takes a request of "
                "lane.running or lane.waiting"
            )
        if not inside.is_here:
            self._refuse(method, inside, "has left the lane")
        if num_tokens is None:
            return _ALL
        number: object = num_tokens
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            self._refuse(method, inside, f"gets {brief(number)} tokens; whole numbers >= 0 will do")
        return num_tokens

    def _check_runs(self, method: str, inside: Inside) -> None:
        if not self.core.may_run(inside.slot):
            self._refuse(method, inside, "is not in lane.running")

    def _refuse(self, method: str, inside: Inside, why: str) -> NoReturn:
        raise ScenarioError(
            f"{self._planner} calls lane.{method} at {self.time:.6g} s, but request "
            f"{inside.request.request_id} {why}"
        )

    def inside(self, slot: int) -> Inside:
        """Return the request in a slot."""
        return Inside(self, self._sequences[slot])

    def has(self, sequence: SequenceState) -> bool:
        """Tell whether a sequence has not left."""
        return self._sequences.get(sequence.slot) is sequence

    def place_of(self, sequence: SequenceState) -> int:
        """Return the slot of a sequence. Raises ScenarioError for one that has left."""
        if not self.has(sequence):
            raise ScenarioError(
                f"{self._planner or 'a scheduler'} looks at request "
                f"{sequence.visit.request.request_id}, which has left the lane: keep "
                "request.request_id in lane.notes, and no request of lane.running or lane.waiting"
            )
        return sequence.slot

    def come(self, sequence: SequenceState) -> None:
        """Know a sequence that has a slot."""
        self._sequences[sequence.slot] = sequence
