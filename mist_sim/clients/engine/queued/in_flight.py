"""Sequences in flight in a pipeline with one scheduler, and batches that give them tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mist_sim.clients.decode.clock import DecodeClock
from mist_sim.clients.decode.clock_of_lane import clock_of_lane
from mist_sim.clients.engine.queued.fresh import FreshQueue
from mist_sim.clients.engine.queued.groups import Early, Group, Pass
from mist_sim.clients.engine.step_records import StepRecords
from mist_sim.clients.kv_cache import KvCacheManager
from mist_sim.clients.scheduling import LaneState
from mist_sim.clients.sequence_state import SequenceState

_TICKETS = 1 << 40  # larger than any clock's key, so that no two sequences share one


class InFlight(LaneState):
    """A lane some of whose batches are on their way.

    group: the one that is planned. group_of: the group of each sequence on a clock. home: the group
    whose records have a sequence's latest tokens. awaiting: prompts whose first token is on its
    way; they decode when it has come. ends_with: the batch that gives a sequence's last token.
    taken: for a preempted sequence, the batches in flight that give it a token, and those that
    compute part of it.
    overshoots: whether a decode is planned while two of its tokens or more are on their way, even
    where the last is among them. beyond: for sequences in such steps, the batches that give the
    tokens, and those behind the last. longest: tokens behind which none is planned; None: no limit.
    stagger, readmits: of the `QueueForm`. early: those that come back before their tokens.
    """

    waiting: FreshQueue

    def __init__(self, kv_cache: KvCacheManager, waiting: FreshQueue, **options: Any) -> None:
        """options: of `LaneState`."""
        super().__init__(kv_cache, waiting, **options)
        self.ahead = False
        self.groups: list[Group] = []
        self.group: Group
        self.group_of: dict[SequenceState, Group] = {}
        self.awaiting: dict[SequenceState, Pass] = {}
        self.ends_with: dict[SequenceState, Pass] = {}
        self.home: dict[SequenceState, Group] = {}
        self.taken: dict[SequenceState, tuple[list[Pass], list[Pass]]] = {}
        self.overshoots = False
        self.beyond: dict[SequenceState, tuple[list[Pass], list[Pass]]] = {}
        self.longest: int | None = None
        self.stagger, self.readmits = 0, False
        self.early: Mapping[SequenceState, Early] = {}
        if self.pages is not None:
            self.pages.num_in_flight = self.num_in_flight

    def giving(self, sequence: SequenceState) -> list[Pass]:
        """Return the batches in flight that give a sequence a token."""
        noted = self.taken.get(sequence) or self.beyond.get(sequence)
        if noted is not None:
            return [each for each in noted[0] if each in each.group.in_flight]
        if sequence in self.early:
            first = self.early[sequence].in_flight
            return [*first, *(each for each in self._giving(sequence) if each not in first)]
        return self._giving(sequence)

    def _giving(self, sequence: SequenceState) -> list[Pass]:
        """Return these without those that were in flight when it was preempted."""
        last = self.ends_with.get(sequence) or self.awaiting.get(sequence)
        if last is not None:
            passes = [each for each in last.group.in_flight if each.number <= last.number]
            return [each for each in passes if each is last or each.gives(sequence)]
        group = self.group_of.get(sequence)
        return [each for each in group.in_flight if each.gives(sequence)] if group else []

    def is_busy(self, sequence: SequenceState) -> bool:
        """Tell whether a sequence decodes in a group other than the one that is planned."""
        if sequence in self.leaving or sequence in self.awaiting:
            return True
        group = self.group_of.get(sequence)
        return group is not None and group is not self.group

    def computing(self, sequence: SequenceState, giving: list[Pass]) -> list[Pass]:
        """Return the batches in flight that compute part of a sequence.

        giving: those that give it a token.
        """
        every = [each for group in self.groups for each in group.in_flight]
        tokens = [*giving, *self.behind_last(sequence)]
        found = [each for each in every if each in tokens or each.computes(sequence)]
        return sorted(found, key=lambda each: each.number)

    def num_due(self, sequence: SequenceState) -> int:
        """Return the tokens of a sequence on their way, with those behind its last one."""
        return len(self.giving(sequence)) + len(self.behind_last(sequence))

    def behind_last(self, sequence: SequenceState) -> list[Pass]:
        """Return the batches in flight that compute a sequence behind its last token."""
        return self.beyond[sequence][1] if sequence in self.beyond else []

    def contexts(self, group: Group) -> dict[SequenceState, int]:
        """Return the tokens that the cache holds for each answer of a group, as planned.

        Answers whose last token is on its way are among them.
        """
        clock, leaving = group.clock, self.leaving
        found = {each: clock.context(each) for each, its in self.group_of.items() if its is group}
        for sequence, last in self.ends_with.items():
            if last.group is group and sequence in leaving:
                found[sequence] = leaving[sequence][1]
        return found

    def num_in_flight(self, sequence: SequenceState) -> int:
        """Return the tokens of a sequence that batches in flight compute."""
        found = self.computing(sequence, self.giving(sequence))
        return sum(each.num_computed(sequence) for each in found)

    def in_turn(self, sequences: Sequence[SequenceState]) -> list[SequenceState]:
        """Return running sequences in the order of admission."""
        wanted = set(sequences)
        return [each for each in self.running if each in wanted]

    def records_of(self, sequence: SequenceState) -> StepRecords:
        """Return the track that has the latest tokens of a sequence."""
        return self.home.get(sequence, self.groups[0]).records

    def new_clock(self, number: int) -> DecodeClock:
        """Return a clock like that of the lane, with its own tickets."""
        clock = clock_of_lane(self.kv_cache, None, first_ticket=number * _TICKETS)
        if self.clock.tells_longest:
            clock.watch_longest()
        clock.watch_prefixes(self.clock.reads_again)
        return clock

    def has_ended(self, sequence: SequenceState) -> bool:
        """Tell whether the last token of a running sequence is on its way."""
        return sequence in self.ends_with
