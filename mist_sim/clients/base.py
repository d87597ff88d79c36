"""The base of every client: a named serving unit that takes visits and reports their outcomes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence

from simpy.events import Event

from mist_sim.clients.deadlines import Deadlines, given_up, limits_of
from mist_sim.clients.kv_cache.prefix_history import ContentHistory
from mist_sim.clients.shared_parts import SharedParts
from mist_sim.clients.stay import Stay
from mist_sim.clients.step_track import StepTrack
from mist_sim.clients.stores import Inbox, StoredKv
from mist_sim.clients.traits import ClientTraits, EngineGroup, KvForm, Role
from mist_sim.core.flowing import FlowRule
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import KeptEntries, Request, Stage
from mist_sim.core.views import OUT, RUNNING, ClientState
from mist_sim.core.visit import SERVED, Failure, HeldKv, Lost, Outcome, Visit
from mist_sim.environment import MOVE, Environment
from mist_sim.errors import InvariantError, ScenarioError, brief
from mist_sim.hardware.gpu_group import LayoutPeriod
from mist_sim.network import Network, Reach, Seat, Tenant
from mist_sim.rng import Streams
from mist_sim.stages import Prefill


class Client(ABC):
    """A serving unit: a scheduler on a cluster of hardware (MIST §III-D).

    Subclasses describe themselves (`traits`) and implement `accept` and `abort`. They call `begin`
    when work on a visit starts, and `finish` or `reject` when it ends. This class keeps the record
    of each visit and the counts that routers see, watches the time limits, and returns visits. A
    client belongs to one simulation.

    name: unique in the simulation. traits: the client's description; or only the kinds of stages
        that it serves, if these say all (`ClientTraits.serving`).
    streams: its random streams; set from the run when it starts.
    num_gpu_blocks: its KV-cache blocks; 0 without a cache.
    block_tokens: tokens whose entries a block holds; 0 without a cache. block_groups: groups of
        layers with blocks of their own, in one of which a block's entries are.
    kv_entries: how keys and values are stored, such as "in 16 bits"; empty without a cache.
    network: brings other clients' KV entries; set from the run when it starts.
    place: place of its GPUs in the network; None: the first place with room.
    history: content of the requests of all clients, to compute the hits of an unlimited prefix
        cache; None: not computed.
    collectives: how its ranks sum over several nodes, for the summary; empty: all are on one node.
    shared_parts: parts shared by clients, such as tiers; set from the run when it starts.
    flow: rule by which answers leave it for another client (TaiChi); set by the hand-over policy.
    has_taker: returns whether a client that would take these answers is up; None: one always is.
    layouts: the layouts of its model on the GPUs, in order; empty if the layout never changed.
    may_fail: whether clients may fail in this run.
    streamed: output tokens of its steps that are written down, over all its engines and runs.
    """

    streams: Streams = Streams(0)
    num_gpu_blocks: int = 0
    block_tokens: int = 0
    block_groups: int = 1
    kv_entries: str = ""
    network: Network | None = None
    place: str | None = None
    history: ContentHistory | None = None
    collectives: str = ""
    shared_parts: SharedParts | None = None
    flow: FlowRule | None = None
    has_taker: Callable[[], bool] | None = None
    layouts: tuple[LayoutPeriod, ...] = ()
    _first_engine: int = 0  # its number in the network
    _streams_in_steps: bool = False  # whether its steps count its tokens, and not its visits
    may_fail: bool = False
    streamed: int = 0

    name: str
    traits: ClientTraits

    def __init__(self, name: str, traits: ClientTraits | Collection[str]) -> None:
        self.name = name
        if not isinstance(traits, ClientTraits):
            traits = ClientTraits.serving(traits)
        self.traits = traits

    def join_network(self, network: Network | None) -> None:  # noqa: B027
        """Check the network before the run, such as the nodes of its GPUs.

        Raises ScenarioError if the network lacks a part that the client needs.
        """

    def tenants(self, *, sends: bool = False, takes: bool = False) -> list[Tenant]:
        """Return its groups of engines that need places in a network; empty for most clients.

        sends, takes: whether it hands KV entries over, and whether others' come to it. A client
        that does either is somewhere, also where its traits name no engines.
        """
        traits, found, first = self.traits, list[Tenant](), 0
        for group in traits.engines or ((EngineGroup(),) if sends or takes else ()):
            found.append(
                Tenant(
                    self.name,
                    group.number,
                    group.pipeline,
                    group.tensor,
                    group.place if first else self.place,
                    sends=sends and group.takes_entries,
                    takes=takes and group.takes_entries,
                    first=first,
                    what=group.what,
                    stores=tuple(traits.stores.items()) if not first else (),
                )
            )
            first += group.number
        return found

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation: begin empty, at its time zero."""
        self.env = env
        self.client_id = client_id
        self.recorder = recorder
        self.view = self.new_view(client_id)
        self.stays: dict[Visit, Stay] = {}
        self.view.visits = self.stays.keys()
        self.view.model = self.traits.model
        self.view.take_role(self.traits.role)
        self.view.take_memory(self.num_gpu_blocks)
        self.view.time_from = self.transfer_time
        self._inboxes: dict[int, Inbox] = {}  # by engine
        self._held_entries: dict[HeldKv, None] = {}  # for other clients
        self._step_track: StepTrack | None = None
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
        """Queue a request for consecutive stages; the event's value is the finished `Visit`.

        kv: entries from earlier stages that another client keeps; this client must release them.
            is_followed: whether the next stage continues from this visit's KV entries, so that they
            must be kept (`Visit.held_kv`). is_silent: whether the next client emits this visit's
            token again, so that this client emits none.
        """
        visit = Visit(request, stages, self.env.now, kv, is_followed, is_silent)
        self.stays[visit] = stay = self.new_stay(visit)
        stay.end = end = Event(self.env)
        stay.enter(self.view)
        self.accept(visit)
        if request.limits is not None and not visit.is_over:
            self._watch(visit)
        return end

    @property
    def serves_whole(self) -> bool:
        """Whether requests may come by `serve_whole`; not where a subclass has its own `serve`."""
        return self.traits.serves_whole and Client.serve is type(self).serve

    def serve_whole(
        self, request: Request, stages: tuple[Stage, ...], leaves: Callable[[int, Visit], None]
    ) -> None:
        """Queue a request for all its stages; `leaves` is called after the last (see `Stay`).

        The request has no time limits.
        """
        visit = Visit(request, stages, self.env.now)
        self.stays[visit] = stay = self.new_stay(visit)
        stay.leaves = leaves
        stay.enter(self.view)
        self.accept(visit)

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return how many of the next stages the client serves in one visit, from the first."""
        num_stages = 0
        for stage in stages:
            if stage.kind not in self.traits.serves:
                break
            num_stages += 1
        return num_stages

    def new_stay(self, visit: Visit) -> Stay:
        """Return the record of an entering visit; a subclass may use its own type."""
        return Stay(visit)

    def new_view(self, client_id: int) -> ClientState:
        """Return the counts that routers see, all 0; a subclass may use its own type."""
        return ClientState(client_id, self.name)

    def transfer_time(self, kv: KeptEntries) -> float:
        """Return the seconds in which KV entries come here on a network that is free.

        With several engines it is the nearest one; 0 where there is no network.
        """
        if isinstance(kv, StoredKv):
            return kv.store.time(kv.num_bytes)
        if self.network is None:
            return 0.0
        source = kv.source, kv.engine
        reaches = self._reaches.get(source)
        if reaches is None:
            first, here = self._first_engine, Seat(*source)
            own = [Seat(self.name, first + n) for n in range(self.traits.num_engines)]
            reaches = self._reaches[source] = [self.network.reach(here, seat) for seat in own]
        num_bytes = kv.num_bytes
        return min([reach.time(num_bytes) for reach in reaches])

    @abstractmethod
    def accept(self, visit: Visit) -> None:
        """Take a visit in; call `begin` when work on it starts, `finish` or `reject` at its end."""

    @abstractmethod
    def abort(self, visit: Visit) -> None:
        """Stop work on an abandoned visit; call `finish` once no step works on it any more."""

    def begin(self, visit: Visit) -> None:
        """Note that work on a visit starts now."""
        visit.started_at = self.env.now
        self.stays[visit].become(RUNNING)

    def finish(self, visit: Visit) -> None:
        """Return a finished visit; its request moves on at the present time.

        The outcome is the one that was set, by default that its stages are served.
        """
        if visit.outcome is None:
            visit.outcome = SERVED
        elif not isinstance(visit.outcome, Outcome):
            raise ScenarioError(
                f"{self.name}: visit.outcome of request {visit.request.request_id} must be Served, "
                f"Moved or None, got {brief(visit.outcome)}; reject(visit, reason) refuses one"
            )
        visit.finished_at = now = self.env.now
        if not self._streams_in_steps:
            self.streamed += visit.num_output_tokens
        if visit.first_token_at == visit.first_token_at:
            visit.request.has_token = True
            if visit.last_token_at != visit.last_token_at:
                visit.last_token_at = now
        if visit.kv is not None:
            self._drop_entries(visit, visit.kv)
        if visit.request.content:
            if self.view.kv is not None:
                self.view.kv.finish(visit.request)
            if visit.request.keeper is not None:
                visit.request.keeper(visit)
        try:
            stay = self.stays.pop(visit)
        except KeyError:
            raise ScenarioError(
                f"{self.name}: finish was called for request {visit.request.request_id} at "
                f"{now:.6g} s, whose visit has ended or never came: call it once a visit"
            ) from None
        stay.become(OUT)
        if stay.leaves is None:
            self.recorder.record_visit(self.client_id, visit)
            self.env.trigger(stay.end, now, MOVE, visit)
        else:
            stay.leaves(self.client_id, visit)

    def num_streamed(self) -> int:
        """Return the output tokens that it has emitted by now, in all runs.

        A client without engines counts them as visits end.
        """
        return self.streamed

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

    def emit_prompt(self, visit: Visit, let_go: Callable[[], None] | None = None) -> None:
        """Note that a prompt is computed now: its first token is out, and its entries are there.

        They are kept if the next stage continues from them. Call `finish` after it. let_go: called
        once when they are not needed any more; None: their memory does not matter.
        """
        now, stages = self.env.now, visit.stages
        num_prompt_tokens = sum([s.num_prompt_tokens for s in stages if isinstance(s, Prefill)])
        num_emitted = int(not visit.is_silent)
        if num_emitted:
            visit.first_token_at = visit.last_token_at = now
        visit.num_output_tokens = num_emitted
        if not visit.is_followed:
            return

        def release() -> None:
            del self._held_entries[kept]
            if let_go is not None:
                let_go()
            for watcher in self.view.watchers:
                watcher(self.view)

        form = self.traits.entries or KvForm()
        num_blocks = -(-num_prompt_tokens // (form.block_size or 1))
        visit.held_kv = kept = HeldKv(
            self.name,
            release,
            num_tokens=num_prompt_tokens - visit.is_silent,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_emitted,
            last_token_at=visit.last_token_at,
            compute_time=now - visit.started_at,
            num_bytes=num_blocks * (form.block_bytes or 0.0),
        )
        self._held_entries[kept] = None

    def fetch_entries(self, visit: Visit, engine: int = 0) -> Event:
        """Start to copy the KV entries that a visit continues from to an engine of the client.

        They come over the network, in the form named by the traits; the client that kept them may
        reuse its memory once they have arrived. Returns an event whose value is True when they can
        be used, and False if they, and the visit, were lost on the way. Raises ScenarioError for a
        visit without entries, and if their size or route is unknown.
        """
        if engine not in self._inboxes:
            seat, form = Seat(self.name, engine), self.traits.entries or KvForm()
            self._inboxes[engine] = Inbox(self.env, self.network, seat, form, self.track.move)
        return self._inboxes[engine].fetch(visit)

    @property
    def track(self) -> StepTrack:
        """Where a client without lanes writes its steps, for its GPU time and energy."""
        if self._step_track is None:
            self._step_track = StepTrack(self.recorder, self.client_id)
        return self._step_track

    # --- failures -------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Lose all visits, in order of arrival, and the work in flight.

        Routers do not choose the client until it comes back, empty (`restart`).
        """
        self.halt()
        for kv in list(self.held_kv):
            kv.lose()
        for visit in list(self.stays):
            self.lose(visit, reason)

    def halt(self) -> None:  # noqa: B027
        """Discard work in flight; visits stay. Not needed if `abort` does not wait for a step."""

    def lose(self, visit: Visit, reason: str) -> None:
        """Give up a visit that cannot go on without the client, or without its KV entries."""
        if visit.outcome is None:
            visit.outcome = Lost(reason)
            self.abort(visit)

    def lose_entries(self, visit: Visit, reason: str) -> None:
        """Note that a visit lost the KV entries with which it began; it has no copy."""
        self.lose(visit, reason)

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
        return self._held_entries

    @property
    def num_reserved(self) -> int:
        """Visits that have memory reserved for KV entries not computed yet."""
        return 0

    def turn(self, role: Role, chunk: int, flow: FlowRule | None) -> None:
        """Change role and chunk at the end of the step in flight.

        Called only if the client's traits have a `slider`. chunk: tokens, at least `max_num_seqs`.
        flow: rule by which answers leave it from then on.
        """
        raise InvariantError(f"{self.name} has no slider, so that it cannot become {role}")

    @property
    def is_empty(self) -> bool:
        """True if it has no visit, and keeps no entries for other clients."""
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
