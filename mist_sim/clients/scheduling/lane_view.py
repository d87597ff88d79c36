"""The view that a scheduler of one's own has of its lane as a step is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.request import Request
from mist_sim.errors import InvariantError

_ALL = 1 << 62  # tokens of a prompt: as many as there are


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
        self._core = core
        self._sequences: dict[int, SequenceState] = {}  # by slot, the latest that had it
        self.notes: dict[str, Any] = {}
        self.finds_slot: Callable[[SequenceState], bool] | None = None
        self._planner = ""  # whose plan is made; empty: nobody's
        self._taking_part: set[int] = set()  # slots, in this plan

    @property
    def time(self) -> float:
        """When the plan is made: as its step begins, or planned ahead, the one before."""
        return float(min(self._core.known_until, self._core.time))

    @property
    def running(self) -> list[Inside]:
        """Those admitted, in this order; none that has ended, or has its next token on its way."""
        core = self._core
        if self._planner:
            return [self.inside(slot) for slot in core.running if core.may_run(slot)]
        return [self.inside(slot) for slot in core.running if not core.is_busy(slot)]

    @property
    def seated(self) -> list[Inside]:
        """All who hold a seat and blocks, in order of admission; some may get nothing now."""
        return [self.inside(slot) for slot in self._core.running]

    @property
    def waiting(self) -> list[Inside]:
        """Those in the queue, by arrival; those that gave way come before.

        In `plan` all who may be admitted: before them those whose entries are on the host, or have
        come from elsewhere.
        """
        core = self._core
        slots = core.may_come() if self._planner else core.known_waiting()
        return [self.inside(slot) for slot in slots]

    @property
    def head(self) -> Inside | None:
        """The next request to admit, in the `order` of the queue; None: none can be.

        In `plan` those come first whose entries are on the host, and answers that came.
        """
        core = self._core
        if self._planner and (core.swapped or core.moved):
            return self.inside(core.may_come()[0])
        slot = core.first_waiting()
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

    @property
    def num_tokens_left(self) -> int:
        """Tokens of the step that are left, of `max_num_batched_tokens`; only in `plan`."""
        return int(self._core.num_tokens_left)

    # --- what a plan decides ------------------------------------------------------------------

    def lacks(self, inside: Inside, num_tokens: int | None = None) -> int:
        """Return how many free blocks one who runs lacks to take part in the step.

        num_tokens: as of `run`. 0: it has room, or nothing of it can be computed.
        """
        most = self._most(inside, "lacks", num_tokens)
        self._check_runs("lacks", inside)
        return int(self._core.lacks(inside.slot, most))

    def run(self, inside: Inside, num_tokens: int | None = None) -> int:
        """Let one who runs take part in the step: with a token of its answer, or of its prompt.

        num_tokens: of the prompt at most; None: all that it lacks. Either way no more than are left
        of the step, and of `long_prefill_token_threshold`.
        Returns its tokens in the step, 0: blocks or tokens are short, or none can be computed.
        """
        most = self._most(inside, "run", num_tokens)
        if inside.slot in self._taking_part:
            self._refuse("run", inside, "takes part in the step already")
        self._check_runs("run", inside)
        number = int(self._core.give_step(inside.slot, most))
        if number:
            self._taking_part.add(inside.slot)
        return number

    def admit(self, inside: Inside, num_tokens: int | None = None) -> int:
        """Let one who waits come in, with a first piece of its prompt.

        num_tokens: as of `run`. Returns its tokens in the step. 0: seats, slots of adapters, blocks
        or tokens are short, and it waits, or its entries come from elsewhere first.
        """
        most = self._most(inside, "admit", num_tokens)
        if inside.slot in self._taking_part:
            self._refuse("admit", inside, "takes part in the step already")
        if not self._core.may_be_admitted(inside.slot):
            self._refuse("admit", inside, "is not in lane.waiting")
        sequence = self._sequences[inside.slot]
        if self.finds_slot is not None and not self.finds_slot(sequence):
            return 0
        number = int(self._core.let_come(inside.slot, most))
        if number:
            self._taking_part.add(inside.slot)
        return number

    def preempt(self, inside: Inside) -> None:
        """Let one that runs give way before the step; in `begin`, or in `plan` before `admit`.

        In `plan` also one that takes part already: then it does not.
        """
        if not self._planner:
            self._core.send_back(inside.slot)
            return
        self._most(inside, "preempt", None)
        if inside.slot not in self._core.running:
            self._refuse("preempt", inside, "is not in lane.seated")
        if self._core.is_given:
            self._refuse("preempt", inside, "can give way only before the first lane.admit")
        self._taking_part.discard(inside.slot)
        self._core.put_off(inside.slot)

    @contextmanager
    def deciding(self, planner: str) -> Iterator[None]:
        """Let a plan of one's own decide; `planner` names it in sentences."""
        self._planner = planner
        self._taking_part.clear()
        try:
            yield
        finally:
            self._planner = ""

    def _most(self, inside: Inside, method: str, num_tokens: int | None) -> int:
        """Return the most tokens of a prompt; check that a request can be decided about."""
        if not self._planner:
            raise InvariantError(
                f"lane.{method} decides about a step that is planned: call it in the scheduler's "
                "`plan`, and nowhere else"
            )
        if self.inside(inside.slot) != inside:
            self._refuse(method, inside, "has left the lane")
        if num_tokens is None:
            return _ALL
        if num_tokens < 1:
            self._refuse(method, inside, f"cannot get {num_tokens} tokens; it must be >= 1")
        return num_tokens

    def _check_runs(self, method: str, inside: Inside) -> None:
        if not self._core.may_run(inside.slot):
            self._refuse(method, inside, "is not in lane.running")

    def _refuse(self, method: str, inside: Inside, why: str) -> NoReturn:
        raise InvariantError(
            f"{self._planner} calls lane.{method} at {self.time:.6g} s, but request "
            f"{inside.request.request_id} {why}"
        )

    def inside(self, slot: int) -> Inside:
        """Return the request in a slot."""
        return Inside(self._core, self._sequences[slot])

    def come(self, sequence: SequenceState) -> None:
        """Know a sequence that has a slot."""
        self._sequences[sequence.slot] = sequence
