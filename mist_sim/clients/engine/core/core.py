"""The core: engines step in the order of time, up to the next event that others see."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mist_sim.clients.engine.core.lane import Lane
    from mist_sim.clients.engine.core.quiet import FastForward

inf = float("inf")


class Core:
    """All lanes of a run. Those that do not rest are a heap, by the time and phase of what is next.

    A lane lags behind the others as long as it surely has quiet steps alone. `due`, by which it
    stands in the heap, is a time before which it has no other steps. Readers of a lane call
    `catch_up` first.

    runs_ahead: whether a lane may take steps that others do not see before another lane takes
        earlier ones: only if the end of a request never makes anything begin.
    quiet: takes quiet steps many at a time (`FastForward`); None: each is taken in its turn.
    next_time: when the next of all lanes does something, seconds; inf: all rest.
    lane, now, phase: of the latest step that others see, and when.
    """

    lane: Lane

    def __init__(self, quiet: FastForward | None) -> None:
        self.runs_ahead, self.quiet = False, quiet
        self.next_time = inf
        self.now, self.phase = 0.0, 0
        self.heap: list[Lane] = []

    def advance(self, time: float, phase: int) -> bool:
        """Let lanes step before an event at a time and phase; return whether others see one.

        The lane is `lane`, then, and others have to be told before it goes on.
        """
        heap = self.heap
        while heap:
            lane = heap[0]
            if not lane.is_due_before(time, phase):
                break
            until, until_phase = time, phase
            if not self.runs_ahead and len(heap) > 1:
                second = heap[1]
                other = heap[2] if len(heap) > 2 else second
                if other.is_due_before(second.due, second.due_phase):
                    second = other
                if second.is_due_before(time, phase):
                    until, until_phase = second.due, second.due_phase
            if lane.lags() and self.quiet is not None and self.quiet.skip(lane, until):
                self.put(lane)
                continue
            is_seen = self.step(lane, until, until_phase)
            if lane.time == inf:
                self.drop()
            else:
                self.put(lane)
            if is_seen:
                self.next_time = heap[0].due if heap else inf
                return True
        self.next_time = heap[0].due if heap else inf
        return False

    def catch_up(self, lane: Lane, time: float, phase: int) -> None:
        """Let a lane take the steps that it lags behind, before a time and phase."""
        if lane.due > lane.time and lane.lags() and lane.is_before(time, phase):
            self.step(lane, time, phase)

    def step(self, lane: Lane, until: float, phase: int) -> bool:
        """Let a lane step before a time and phase, up to a step that others see.

        No other lane is earlier, so others may see its first step; it stops before any later one
        that they see. Returns whether they see the step that it took last.
        """
        is_first, quiet = True, self.quiet
        while lane.time < until or (lane.time == until and lane.phase < phase):
            is_quiet = lane.num_quiet and not lane.is_planning
            if is_quiet and quiet is not None and quiet.skip(lane, until):
                is_first = False
                continue
            if not is_first and lane.is_seen():
                return False
            self.now, self.phase = lane.time, lane.phase
            num_changes = lane.counts.num_changes
            if lane.is_planning:
                lane.plan()
            else:
                lane.end()
            if lane.notices or (lane.is_watched and lane.counts.num_changes != num_changes):
                self.lane = lane
                return True
            is_first = False
        return False

    # --- the heap -----------------------------------------------------------------------------

    def wake(self, lane: Lane) -> None:
        """Put a lane in its place that has something else to do than it had."""
        if lane.place < 0:
            lane.place = len(self.heap)
            self.heap.append(lane)
        self.put(lane)
        self.next_time = self.heap[0].due

    def put(self, lane: Lane) -> None:
        """Put a lane of the heap in its place."""
        lane.due, lane.due_phase = lane.time, lane.phase
        if self.quiet is not None and not lane.is_planning:
            lane.due = self.quiet.earliest(lane)
        self.rise(lane.place)
        self.sink(lane.place)

    def drop(self) -> None:
        """Let the first lane rest."""
        self.take_out(self.heap[0])

    def rest(self, lane: Lane) -> None:
        """Let a lane rest, wherever it stands."""
        if lane.place >= 0:
            self.take_out(lane)
            self.next_time = self.heap[0].due if self.heap else inf

    def take_out(self, lane: Lane) -> None:
        """Take a lane out of the heap."""
        heap, place = self.heap, lane.place
        lane.place = -1
        last = heap.pop()
        if last is not lane:
            heap[place], last.place = last, place
            self.rise(place)
            self.sink(last.place)

    def rise(self, place: int) -> None:
        """Move a lane towards the first as far as it comes before others."""
        heap = self.heap
        lane = heap[place]
        while place:
            above = (place - 1) // 2
            other = heap[above]
            if not lane.is_due_before(other.due, other.due_phase):
                break
            heap[place], other.place = other, place
            place = above
        heap[place], lane.place = lane, place

    def sink(self, place: int) -> None:
        """Move a lane away from the first as far as others come before it."""
        heap, size = self.heap, len(self.heap)
        lane = heap[place]
        while 2 * place + 1 < size:
            below = 2 * place + 1
            other = heap[below]
            if below + 1 < size:
                beside = heap[below + 1]
                if beside.due <= other.due and beside.is_due_before(other.due, other.due_phase):
                    below, other = below + 1, beside
            if other.due > lane.due or not other.is_due_before(lane.due, lane.due_phase):
                break
            heap[place], other.place = other, place
            place = below
        heap[place], lane.place = lane, place
