"""Notes the decisions of a lane: requests admitted, cut and preempted, and blocks evicted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.events import ADMITTED, CUT, EVICTED, NO_REQUEST, PREEMPTED, Events


class Diary:
    """Compares a lane with the latest look, which follows every plan that changes who runs.

    events: takes the notes. client_id: whose lane it is. now: returns the time, seconds. inside:
    the sequences by slot. rules: name of the scheduler. own_methods: those that are not vLLM's.
    """

    def __init__(
        self,
        events: Events,
        client_id: int,
        lane: Any,
        now: Callable[[], float],
        inside: dict[int, SequenceState],
        rules: str,
        own_methods: Collection[str],
    ) -> None:
        self._events, self._client_id, self._lane = events, client_id, lane
        self._now, self._inside, self._rules = now, inside, rules
        cuts = any(name in own_methods for name in ("plan", "budget", "piece"))
        self._cutter = rules if cuts else "tokens of the step"
        self._running: dict[SequenceState, int] = {}  # how often each had given way
        self.sent_back: set[int] = set()  # slots that a scheduler of one's own sent back
        cache = lane.blocks.cache if not lane.is_paged else None
        if cache is not None and lane.blocks.caches:
            self._size, self._below = lane.blocks.size, cache.on_evict
            self._order = type(cache.eviction).__name__
            cache.on_evict = self._evicted

    def look(self) -> None:
        """Note who gave way and who came in since the latest look."""
        lane, inside = self._lane, self._inside
        swapped = {*lane.swapped, *lane.going}
        for sequence, before in self._running.items():
            slot = sequence.slot
            if inside.get(slot) is sequence and lane.story(slot)[6] > before:
                why = self._rules if slot in self.sent_back else "no free KV blocks"
                where = ", copied to the host" if slot in swapped else ""
                self._note(PREEMPTED, sequence, why + where, int(lane.queued_tokens(slot)))
        self.sent_back.clear()
        running = {}
        for slot in filter(inside.__contains__, lane.running):
            sequence = inside[slot]
            running[sequence] = number = int(lane.story(slot)[6])
            if self._running.get(sequence) != number:
                again = "again" if number else "first"
                self._note(ADMITTED, sequence, again, int(lane.queued_tokens(slot)))
                self._note_cut(sequence)
        self._running = running

    def _note_cut(self, sequence: SequenceState) -> None:
        """Note that the first step of one that came in leaves some of its prompt for later ones."""
        lane, slot = self._lane, sequence.slot
        if lane.is_decoding(slot) or lane.is_leaving(slot):
            return
        piece = sum(number for other, number, _ in lane.members() if other == slot)
        lacks = int(lane.num_asked(slot)) - int(lane.story(slot)[4])
        lacks -= 0 if lane.is_pipeline else piece  # a pipeline counts them as they are planned
        if lacks > 0:
            limit = piece == lane.threshold
            why = "long_prefill_token_threshold" if limit else self._cutter
            self._note(CUT, sequence, why, lacks)

    def _note(self, kind: str, sequence: SequenceState, why: str, num_tokens: int) -> None:
        request_id = sequence.visit.request.request_id
        self._events.note(self._now(), kind, request_id, self._client_id, why, num_tokens)

    def _evicted(self, key: Hashable, start: int, end: int) -> None:
        """Note blocks that leave the prefix cache, and hand them to the tier below, if any."""
        number = (end - start) * self._size
        self._events.note(self._now(), EVICTED, NO_REQUEST, self._client_id, self._order, number)
        if self._below is not None:
            self._below(key, start, end)
