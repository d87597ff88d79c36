"""A bundle in a simulation: requests take slots, passes run, requests leave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from heapq import heappop, heappush
from itertools import chain
from math import inf
from typing import Any

from simpy.events import Event

from mist_sim.clients.afd.ahead import Ahead, look_ahead
from mist_sim.clients.afd.bundle import Bundle, StepEnd
from mist_sim.clients.afd.bundle_clock import Pass
from mist_sim.clients.afd.seats import Seat, Seats
from mist_sim.clients.afd.slots import Resident
from mist_sim.clients.afd.track import BatchTrack
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.visit import Visit
from mist_sim.environment import Environment, engine_phases

_FIRST_LIMIT, _LONGEST = 4, 4096  # passes computed ahead; any number gives the same results
_LOADS = 2**20  # of workers, in the passes ahead


class AfdStay(SequenceState):
    """The record of a visit to a bundle.

    num_held: tokens that have KV entries when it comes. num_steps: steps that it stays for.
    seat: its slot, once one is given to it. resident: it in the slot, once it sits there.
    is_leaving: whether it is given up and leaves at the end of the step under way.
    """

    __slots__ = ("is_leaving", "num_held", "num_steps", "resident", "seat")

    def __init__(self, visit: Visit, num_prompt_tokens: int, num_output_tokens: int) -> None:
        super().__init__(visit, num_prompt_tokens, num_output_tokens)
        self.num_held = self.num_steps = 0
        self.seat: Seat | None = None
        self.resident: Resident | None = None
        self.is_leaving = False


class BundleEngine:
    """Runs a bundle: one event per change, and arithmetic in between.

    A request takes a slot as soon as one is free, its KV entries move there, and it joins before
    the next step of its batch. Its slot is free again when its last step has ended. A halted engine
    stops for good; its client comes back with a new one.

    fetch: starts to bring a request's KV entries; `arrive` is called when they are there.
    leave: receives a request that has its last token, or that was given up.
    num_waiting: returns the number of requests waiting for a slot, for the records.
    """

    def __init__(
        self,
        env: Environment,
        client_id: int,
        bundle: Bundle,
        seats: Seats,
        tracks: list[BatchTrack],
        *,
        fetch: Callable[[AfdStay], None],
        leave: Callable[[AfdStay, int], None],
        num_waiting: Callable[[], int],
    ) -> None:
        self._env = env
        self._step_end, self._plan_phase = engine_phases(client_id, 0)
        self._bundle = bundle
        self._seats = seats
        self._tracks = tracks
        self._fetch = fetch
        self._leave = leave
        self._num_waiting = num_waiting
        self._waiting: deque[AfdStay] = deque()
        self._arrived: list[list[tuple[Seat, AfdStay]]] = [
            [] for _ in tracks
        ]  # by batch, to join it
        self._was_empty = [True for _ in tracks]
        self._leaving: list[list[AfdStay]] = [[] for _ in tracks]  # with the step under way
        self._ends: list[tuple[float, int, AfdStay]] = []  # departures by time, a heap
        self._num_ends = 0
        self._ahead = Ahead([], inf)
        self._num_begun = 0  # of the passes ahead
        self._planned_at = 0.0
        self._longest = max(1, min(_LONGEST, _LOADS // bundle.config.attention_workers))
        self._limit = self._first_limit = min(_FIRST_LIMIT, self._longest)
        self._due: Event | None = None
        self._is_halted = False
        env.start(self._work())

    def add_request(self, stay: AfdStay) -> None:
        """Queue a request for a slot."""
        self._waiting.append(stay)
        self._begin_passes()
        self._give_slots()

    def abort(self, stay: AfdStay) -> None:
        """Let a request go that is given up: at once, or at the end of the step under way."""
        if self._is_halted:
            self._let_go(stay)
            return
        self._begin_passes()
        if stay.seat is None:
            self._waiting.remove(stay)
        elif stay.resident is None:
            self._seats.arrive(stay.seat, stay.num_held)
            arrived = self._arrived[stay.seat.batch]
            if (stay.seat, stay) in arrived:
                arrived.remove((stay.seat, stay))
                self._seats.free(stay.seat)
                self._give_slots()
            else:
                stay.is_leaving = True  # the slot is free when the entries have come
        else:
            self._abort_resident(stay, stay.seat.batch)
            return
        self._leave(stay, 0)

    def _abort_resident(self, stay: AfdStay, batch: int) -> None:
        if stay.is_leaving:
            return  # it ends with the step under way anyway
        stay.is_leaving = True
        clock = self._bundle.clock
        if clock.is_under_way(batch):
            self._leaving[batch].append(stay)
        else:
            self._leave_at(max(clock.ready[batch], self._env.now), stay)
        self._cut()

    # --- failures ---------------------------------------------------------------------------

    def halt(self) -> None:
        """Stop: steps that have ended count; those in flight are lost, on all workers.

        Requests stay until they are aborted; requests given up during a step leave now.
        """
        if self._is_halted:
            return
        self._begin_passes()
        self._is_halted, now = True, self._env.now
        if self._due is not None:
            self._env.put_off(self._due)
            self._due = None
        for batch, track in enumerate(self._tracks):
            is_counted = track.lose_step(now)
            if is_counted is not None:
                self._bundle.lose_step(batch, now, is_counted=is_counted)
        leaving = [stay for _, _, stay in sorted(self._ends, key=lambda end: end[:2])]
        self._ends.clear()
        self._ahead = Ahead([], inf)
        for stay in (*leaving, *chain.from_iterable(self._leaving)):
            if stay.visit.outcome is not None:
                self._let_go(stay)

    def _let_go(self, stay: AfdStay) -> None:
        """Hand back a request of a halted engine, with the tokens of the steps that have ended."""
        seat, resident, num_tokens = stay.seat, stay.resident, 0
        if seat is None:
            self._waiting.remove(stay)
        elif resident is not None:
            num_tokens = self._bundle.batches[seat.batch].num_steps - resident.first_step
            self._tracks[seat.batch].finish(stay, self._num_waiting())
        self._leave(stay, num_tokens)

    # --- slots ------------------------------------------------------------------------------

    def _give_slots(self) -> None:
        """Give free slots to the waiting requests, in order."""
        num_coming = min(len(self._waiting), self._seats.num_free)
        if not num_coming:
            return
        coming = [self._waiting.popleft() for _ in range(num_coming)]
        seats = self._seats.take([stay.num_held for stay in coming])
        for stay, seat in zip(coming, seats, strict=True):
            stay.seat = seat
            self._fetch(stay)

    def arrive(self, stay: AfdStay) -> None:
        """A request's KV entries are there."""
        seat = stay.seat
        if seat is None or self._is_halted:
            return
        if stay.is_leaving:  # given up meanwhile
            self._begin_passes()
            self._seats.free(seat)
            self._give_slots()
            return
        self._arrived[seat.batch].append((seat, stay))
        self._cut()

    def _join(self) -> None:
        """Seat the requests whose entries have arrived, in batches that are not in a step."""
        clock = self._bundle.clock
        for batch, arrived in enumerate(self._arrived):
            if not arrived or clock.is_under_way(batch) or clock.ready[batch] > self._env.now:
                continue
            slots, track = self._bundle.batches[batch], self._tracks[batch]
            track.write(self._num_waiting())
            for seat, stay in arrived:
                stay.resident = Resident(seat.worker, stay.num_held, stay.num_steps, stay)
                slots.join(stay.resident)
                self._seats.arrive(seat, stay.num_held)
                track.records.resume(stay)
            arrived.clear()

    # --- passes -----------------------------------------------------------------------------

    def _work(self) -> Generator[Event, Any, None]:
        env = self._env
        while not self._is_halted:
            self._plan()
            if self._ahead.until < inf:
                self._due = env.at(self._ahead.until, self._step_end)
            else:
                self._due = Event(env)
            yield self._due
            self._due = None
            self._begin_passes()
            self._end_passes()
            self._give_slots()
            if not env.phase_is_last():
                yield env.at(env.now, self._plan_phase)

    def _plan(self) -> None:
        """Compute the passes until the next change."""
        self._join()
        if self._num_begun == self._limit:
            self._limit = min(2 * self._limit, self._longest)
        elif self._num_begun < self._limit // 4:
            self._limit = max(self._limit // 2, self._first_limit)
        self._planned_at = self._env.now
        self._num_begun = 0
        self._ahead = look_ahead(
            self._bundle,
            self._env.now,
            self._limit,
            until=self._ends[0][0] if self._ends else inf,
            closed=[batch for batch, arrived in enumerate(self._arrived) if arrived],
            leaving=[batch for batch, leaving in enumerate(self._leaving) if leaving],
        )

    def _cut(self) -> None:
        """Plan again now, since something has changed."""
        due = self._due
        if due is None:
            return
        self._due = None
        if due.triggered:
            self._env.move(due, self._env.now, self._step_end)
        else:
            self._env.trigger(due, self._env.now, self._step_end)

    def _begin_passes(self) -> None:
        """Let the passes ahead begin that have begun by now."""
        now, passes = self._env.now, self._ahead.passes
        while self._num_begun < len(passes):
            step = passes[self._num_begun]
            # a pass due now has begun if it was just planned; otherwise its turn is still to come
            if step.start > now or (step.start == now and self._planned_at < now):
                break
            self._num_begun += 1
            self._begin(step)

    def _begin(self, step: Pass) -> None:
        bundle, batch, track = self._bundle, step.batch, self._tracks[step.batch]
        if bundle.clock.is_first(batch):
            track.begin(step, bundle.batches[batch], self._was_empty[batch])
        work = bundle.attention_work + bundle.ffn_work
        ends = bundle.begin(step)
        track.work((bundle.attention_work + bundle.ffn_work - work) / bundle.config.num_workers)
        for end in ends:
            self._end_step(end)

    def _end_step(self, end: StepEnd) -> None:
        """Note when a step ends that is under way."""
        batch, time, leaving = end
        self._tracks[batch].end(time)
        self._was_empty[batch] = not self._bundle.batches[batch].num_filled
        stays = [resident.guest for resident in leaving]
        for stay in stays:
            self._seats.leave(stay.seat, stay.num_held + stay.num_steps)
        stays += [stay for stay in self._leaving[batch] if stay not in stays]
        self._leaving[batch].clear()
        for stay in stays:
            stay.is_leaving = True
            self._leave_at(time, stay)

    def _leave_at(self, time: float, stay: AfdStay) -> None:
        self._num_ends += 1
        heappush(self._ends, (time, self._num_ends, stay))

    def _end_passes(self) -> None:
        """Release the requests whose last step has ended."""
        while self._ends and self._ends[0][0] <= self._env.now:
            _, _, stay = heappop(self._ends)
            seat, resident = stay.seat, stay.resident
            if seat is None or resident is None:
                continue
            slots = self._bundle.batches[seat.batch]
            num_tokens = slots.num_steps - resident.first_step
            if num_tokens < stay.num_steps:  # given up before its end
                slots.leave(resident)
                self._was_empty[seat.batch] = not slots.num_filled
            else:
                self._seats.left(seat, stay.num_held + stay.num_steps)
            self._tracks[seat.batch].finish(stay, self._num_waiting())
            self._seats.free(seat)
            self._leave(stay, num_tokens)
