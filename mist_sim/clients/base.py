"""What every client is: a named serving unit that takes visits and reports what came of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from simpy.events import Event

from mist_sim.clients.deadlines import Deadlines, given_up, limits_of
from mist_sim.clients.kv_cache.prefix_history import ContentHistory
from mist_sim.clients.stay import Stay
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import KeptEntries, Request, Stage
from mist_sim.core.views import OUT, RUNNING, WAITING, ClientState
from mist_sim.core.visit import SERVED, Failure, HeldKv, Lost, Outcome, Visit
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import InvariantError
from mist_sim.hardware.machine import Machine
from mist_sim.hardware.setting import Setting
from mist_sim.network import Network, Reach, Seat
from mist_sim.rng import Streams


class Client(ABC):
    """A serving unit: a scheduler on a cluster of hardware (MIST §III-D).

    Subclasses say which stages they serve and fill `accept` and `abort`, which call `begin` when
    work on a visit starts, and `finish` or `reject` when it ends. This class keeps the record of
    each visit and the counts that routers see, watches the time limits, and hands visits back. A
    client belongs to one simulation.

    name: unique in the simulation. serves: the stage kinds it can serve.
    streams: where it draws random numbers from; those of the run when it starts.
    num_gpu_blocks: its KV-cache blocks; 0 when it has no cache.
    network: over which other clients' KV entries come; that of the run when it starts.
    place: where its GPUs are in the network; None: wherever there is room.
    num_seats: engines in the network to which KV entries may come.
    reserves: whether it serves prompts and answers apart: keeps KV entries for others, and reserves
        memory for some that are not there yet.
    asks_ahead: whether the client of the next stage is chosen before a visit here begins.
    served_model: name of the model that it serves; None: whatever requests name.
    history: content of the requests of all clients, for what a prefix cache could have had; None:
        nobody asks.
    estimate: where its step times come from, for the summary; None for a client without GPUs.
    assumed: its options that were not set and whose default is an assumption: fitted on another
        GPU, a `max_model_len` for which it has too little memory, or the `host` of its GPUs.
    assumed_host: what that host is worth: the milliseconds that GPUs spend on one another in a step
        of the most tokens, there and on another host; empty where it is named or does not count.
    settings: what its TTFT and TPOT are like, by metric, as far as their errors are known; None for
        one that is like nothing. One that gives no token of that kind has no key.
    imitates: the engine whose defaults it has, for the summary; empty for none.
    machine: the GPUs that draw power for it; None for a client without any.
    can_fail: whether what is in flight in it may be lost. may_fail: whether it may be in this run.
    """

    streams: Streams = Streams(0)
    num_gpu_blocks: int = 0
    network: Network | None = None
    place: str | None = None
    num_seats: int = 1
    reserves: bool = False
    asks_ahead: bool = False
    served_model: str | None = None
    history: ContentHistory | None = None
    estimate: str | None = None
    assumed: tuple[str, ...] = ()
    assumed_host: Mapping[str, Any] = MappingProxyType({})
    settings: Mapping[str, Setting | None] = MappingProxyType({"ttft": None, "tpot": None})
    imitates: str = ""
    machine: Machine | None = None
    can_fail: bool = True
    may_fail: bool = False

    name: str
    serves: Collection[str]

    def __init__(self, name: str, serves: Collection[str]) -> None:
        self.name = name
        self.serves = serves

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation: begin empty, at its time zero."""
        self.env = env
        self.client_id = client_id
        self.recorder = recorder
        self.view = ClientState(client_id, self.name)
        self.stays: dict[Visit, Stay] = {}
        self.view.visits = self.stays.keys()
        self.view.model = self.served_model
        self.view.num_gpu_blocks = self.num_gpu_blocks
        self.view.time_from = self.transfer_time
        self._reaches: dict[tuple[str, int], list[Reach]] = {}  # from engines of others
        self._deadlines = Deadlines(env, client_id, self._limit_reached)

    def serve(
        self,
        request: Request,
        stages: tuple[Stage, ...],
        kv: HeldKv | None = None,
        is_followed: bool = False,
        is_silent: bool = False,
    ) -> Event:
        """Queue a request for consecutive stages; the event's value is the `Visit` when it is over.

        kv: entries of the stages before that another client keeps; they are this client's to
            release. is_followed: whether the stage after these continues from their KV entries, so
            that they have to be kept (`Visit.held_kv`). is_silent: whether the client of that one
            emits the token of these again, and nobody gets it from here.
        """
        visit = Visit(request, stages, self.env.now, kv, is_followed, is_silent)
        self.stays[visit] = stay = self.new_stay(visit)
        stay.load = self.view
        stay.end = end = Event(self.env)
        stay.become(WAITING)
        self.accept(visit)
        if request.limits is not None and not visit.is_over:
            self._watch(visit)
        return end

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return how many of the next stages the client serves in one visit, from the first."""
        num_stages = 0
        for stage in stages:
            if stage.kind not in self.serves:
                break
            num_stages += 1
        return num_stages

    def new_stay(self, visit: Visit) -> Stay:
        """Return the record of a visit that enters; a subclass may have one of its own."""
        return Stay(visit)

    def transfer_time(self, kv: KeptEntries) -> float:
        """Return the seconds in which KV entries come here on a network that is free.

        With several engines it is the nearest one; 0 where there is no network.
        """
        if self.network is None:
            return 0.0
        source = kv.source, kv.engine
        reaches = self._reaches.get(source)
        if reaches is None:
            reaches = self._reaches[source] = self._reaches_from(self.network, Seat(*source))
        num_bytes = kv.num_bytes
        return min([reach.time(num_bytes) for reach in reaches])

    def _reaches_from(self, network: Network, source: Seat) -> list[Reach]:
        """Return how far its engines are from another one."""
        seats = [Seat(self.name, engine) for engine in range(self.num_seats)]
        return [network.reach(source, seat) for seat in seats]

    @abstractmethod
    def accept(self, visit: Visit) -> None:
        """Take a visit in; call `begin` when work on it starts, `finish` or `reject` at its end."""

    @abstractmethod
    def abort(self, visit: Visit) -> None:
        """Let go of a visit that is given up; call `finish` when nothing works on it any more."""

    def begin(self, visit: Visit) -> None:
        """Note that work on a visit starts now."""
        visit.started_at = self.env.now
        self.stays[visit].become(RUNNING)

    def finish(self, visit: Visit) -> None:
        """Hand a visit back; its request moves on at the present time.

        Its outcome is what was set, by default that its stages are served.
        """
        if visit.outcome is None:
            visit.outcome = SERVED
        visit.finished_at = now = self.env.now
        if visit.first_token_at == visit.first_token_at:
            visit.request.has_token = True
            if visit.last_token_at != visit.last_token_at:
                visit.last_token_at = now
        if visit.kv is not None:
            self._drop_entries(visit, visit.kv)
        if visit.request.content and self.view.kv is not None:
            self.view.kv.finish(visit.request)
        stay = self.stays.pop(visit)
        stay.become(OUT)
        self.recorder.record_visit(self.client_id, visit)
        self.env.trigger(stay.end, now, MOVE, visit)

    def _drop_entries(self, visit: Visit, kv: HeldKv) -> None:
        """Let go of the entries with which a visit began, unless it is lost and they are there."""
        if isinstance(visit.outcome, Lost) and kv.is_waiting:
            visit.held_kv = kv
        else:
            kv.drop()

    def reject(self, visit: Visit, reason: str, *, is_busy: bool = False) -> None:
        """Hand back a visit that is not served; when the client `is_busy`, it might be later."""
        visit.outcome = Failure("rejected", self.env.now, f"{self.name}: {reason}", is_busy)
        self.finish(visit)

    def cancel(self, request: Request, outcome: Outcome) -> None:
        """End the visit of a request that failed elsewhere, or was lost there, if it is here."""
        for visit in self.stays:
            if visit.request is request and visit.outcome is None:
                visit.outcome = outcome
                self.abort(visit)
                return

    # --- failures -------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Lose all that is inside, in the order in which it came, and what is in flight.

        Nobody chooses the client meanwhile. When it comes back it begins empty (`restart`).
        """
        self.halt()
        for kv in list(self.held_kv):
            kv.lose()
        for visit in list(self.stays):
            self.lose(visit, reason)

    def halt(self) -> None:  # noqa: B027
        """Discard work in flight; visits stay. Nothing to do where `abort` does not wait for it."""

    def lose(self, visit: Visit, reason: str) -> None:
        """Give up a visit that cannot go on without the client, or without its KV entries."""
        if visit.outcome is None:
            visit.outcome = Lost(reason)
            self.abort(visit)

    def restart(self) -> None:
        """Come back, empty, in the same run.

        Raises InvariantError where visits of the time before are still there.
        """
        if self.stays:
            raise InvariantError(
                f"{self.name} comes back at {self.env.now} s with {len(self.stays)} visits that "
                "were lost when it failed; `abort` must let them go at once"
            )
        self.start(self.env, self.client_id, self.recorder)

    @property
    def held_kv(self) -> Iterable[HeldKv]:
        """KV entries that it keeps for other clients."""
        return ()

    @property
    def is_empty(self) -> bool:
        """True when it has no visit, and keeps nothing for other clients."""
        return not self.stays and not any(True for _ in self.held_kv)

    # --- time limits ----------------------------------------------------------------------

    def _watch(self, visit: Visit) -> None:
        """Note when the sender of a visit's request gives up.

        Of limits at the same instant the first one to be noted counts.
        """
        for time, limit in limits_of(visit.request):
            self._deadlines.add(time, visit, limit)

    def _limit_reached(self, visit: Visit, limit: str) -> None:
        """A time has come: the sender gives up, unless it has its first token or gave up before."""
        has_token = visit.has_token or visit.request.has_token
        if visit.outcome is not None or (limit == "ttft_timeout" and has_token):
            return
        visit.outcome = given_up(visit.request, limit, self.env.now)
        self.abort(visit)
