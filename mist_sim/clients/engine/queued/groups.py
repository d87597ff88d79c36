"""Groups of decodes that go through a pipeline together, and batches on their way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.scheduling import StepPlan
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch

if TYPE_CHECKING:
    from mist_sim.clients.engine.step_records import StepRecords


NOBODY: tuple[SequenceState, ...] = ()


class Group:
    """Decodes that are in the same batches, and the track on which these are recorded.

    in_flight: its batches on their way, in order. last: the latest that was planned. newcomers:
    decodes that came from another group and have been in no batch of this one yet.
    """

    __slots__ = ("clock", "in_flight", "last", "newcomers", "number", "records")

    def __init__(self, number: int, clock: DecodeClock, records: StepRecords) -> None:
        self.number = number
        self.clock = clock
        self.records = records
        self.in_flight: list[Pass] = []
        self.last: Pass | None = None
        self.newcomers: list[SequenceState] = []

    def become_last(self, found: Pass) -> None:
        """Note that a batch in flight is the latest."""
        if self.last is not None and self.last not in self.in_flight:
            self.last.before = ()
        self.last = found


class Pass:
    """A batch on its way through the ranks.

    number: of the plan. step: steps of its group's clock before it. before: batches of the group
    that were in flight when it was planned; kept until it has returned and another is the latest.
    completed: prompts of which it computes the last token. ending: sequences that get the last
    token of their answer. joined: decodes that were in another group before. left: sequences that
    get no token after this batch, because they were preempted or go to another group. released:
    preempted sequences that wait for it. early: for sequences in it that came back early, the
    batches then in flight that give them tokens. vain: prompts of which it computes the last token
    behind the end of an answer.
    ready: when the first rank may begin it; end: when it returns (seconds). busy: seconds of work.
    num_used: blocks that are taken when it is planned. num_gone: its decodes that have left.
    """

    __slots__ = (
        "batch",
        "before",
        "busy",
        "completed",
        "early",
        "end",
        "ending",
        "group",
        "joined",
        "left",
        "num_gone",
        "num_used",
        "number",
        "plan",
        "ready",
        "released",
        "step",
        "vain",
    )
    completed: tuple[SequenceState, ...]
    ending: tuple[SequenceState, ...]
    joined: tuple[SequenceState, ...]
    left: tuple[SequenceState, ...]
    released: tuple[SequenceState, ...]

    def __init__(self, number: int, group: Group, plan: StepPlan, batch: StepBatch) -> None:
        self.number = number
        self.group = group
        self.plan = plan
        self.batch = batch
        self.step = group.clock.steps
        self.completed = self.ending = self.joined = self.left = self.released = NOBODY
        self.vain: tuple[SequenceState, ...] = NOBODY
        self.early: dict[SequenceState, list[Pass]] = {}
        self.before: tuple[Pass, ...] = tuple(group.in_flight)
        group.in_flight.append(self)
        group.become_last(self)
        self.ready = self.end = self.busy = 0.0
        self.num_used = self.num_gone = 0

    def gives(self, sequence: SequenceState) -> bool:
        """Tell whether a sequence that is in its group, or was when it left, gets a token."""
        is_decode = self.plan.decodes and sequence.join_step <= self.step
        return is_decode or sequence in self.completed

    def computes(self, sequence: SequenceState) -> bool:
        """Tell whether it computes part of a sequence's prompt."""
        return any(each is sequence for each, _ in self.plan.prefills)

    def num_computed(self, sequence: SequenceState) -> int:
        """Return the tokens that it computes of a sequence which it gives a token, or a piece."""
        return next((number for each, number in self.plan.prefills if each is sequence), 1)

    def has_returned(self) -> None:
        """Note that its tokens have come."""
        self.group.in_flight.remove(self)
        if self.group.last is not self:
            self.before = ()

    @property
    def gives_more(self) -> bool:
        """Whether any of its answers goes on after its tokens."""
        if self.plan.decodes:
            return True
        given = (*self.completed, *self.vain)
        return any(each.num_final_tokens > each.num_prompt_tokens + 1 for each in given)


@dataclass(slots=True)
class Early:
    """The tokens on their way for a sequence that comes back early.

    passes: the batches that give it tokens, in order. num_tokens: with all of these.
    num_named: of the computed ones, in blocks that others may find; while it is in prefill.
    """

    passes: list[Pass]
    num_tokens: int
    num_named: int = 0

    @property
    def in_flight(self) -> list[Pass]:
        """The batches that have not returned."""
        return [each for each in self.passes if each in each.group.in_flight]

    @property
    def num_known(self) -> int:
        """Its tokens that have come."""
        return self.num_tokens - len(self.in_flight)
