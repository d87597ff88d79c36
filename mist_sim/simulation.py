"""One run: the clock, the seed, the clients, the workload; `run()` returns the records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from simpy.core import EmptySchedule, StopSimulation
from simpy.events import Event

from mist_sim.admission import Admission, check_admission
from mist_sim.clients import Client
from mist_sim.clients.roster import Roster
from mist_sim.clients.rules import check_not_stuck, let_flow, let_stay_alone
from mist_sim.clients.shared_parts import SharedParts
from mist_sim.clients.traits import TimesOrigin
from mist_sim.conservation import Conservation
from mist_sim.coordination.coordinator import Coordinator
from mist_sim.coordination.entrance import Entrance
from mist_sim.core import result_warnings as kinds
from mist_sim.core.batch import StepLimits
from mist_sim.core.events import NO_REQUEST, Decision, Events
from mist_sim.core.flowing import FlowPolicy
from mist_sim.core.front_end import FRONT_END, MEASURED, NONE, ApiServers, FrontEnd, Servers
from mist_sim.core.hand_over import HandOver
from mist_sim.core.recorder import Recorder, noting
from mist_sim.core.request import Request
from mist_sim.core.result_warnings import ResultWarning, merged
from mist_sim.core.views import ClientView
from mist_sim.environment import POLL, Environment, NothingLeftError
from mist_sim.errors import InvariantError, ScenarioError, brief
from mist_sim.garbage import rare_collections
from mist_sim.hardware.gpu_group import without_watts
from mist_sim.hardware.setting import Borrowed, Setting
from mist_sim.lifecycle import Lifecycle, Manager
from mist_sim.load_generation import (
    CappedOpenLoop,
    LoadGenerator,
    OpenLoop,
    SessionUsers,
    Users,
)
from mist_sim.metrics import CostOptions, PowerOptions, Result, Slo
from mist_sim.metrics.assumptions import assumption_warnings
from mist_sim.metrics.expected_errors import expected_errors
from mist_sim.metrics.goodput import SloWatch
from mist_sim.metrics.load import CLOSED, OPEN, Load
from mist_sim.metrics.run_warnings import distance_warnings
from mist_sim.network import Network
from mist_sim.reconfiguration import Reconfigure, Reconfigurer, Search
from mist_sim.registry import Known, require_kind
from mist_sim.report.presenters import RUN
from mist_sim.rng import Streams
from mist_sim.routers import RoundRobinRouter, Router, Seeded, StageRouters
from mist_sim.simulation_rules import (
    Members,
    blind_warnings,
    check_clients,
    check_lengths,
    check_lives,
    check_routers,
    check_search,
    common_start_warnings,
    cut_warnings,
    idle_warnings,
    named_router,
    too_small_warnings,
    waves_warnings,
    without_price,
)
from mist_sim.stages import Prefill
from mist_sim.traces import DailyArrivals, RowSampler, ScheduledArrivals, Workload
from mist_sim.traces.pipeline_templates import completion_pipeline
from mist_sim.units import is_number, is_whole, require_number

Progress = Callable[[int, float], None]
"""Called with (requests finished or failed, simulated seconds), ten times a second at most.

Requests are those of the workload; children that they wait for are not counted.
"""

_PROGRESS_EVERY = 0.1  # seconds of the user's time


class Simulation:
    """Clients, a router and a workload, put together for one run.

    clients: at least one, with unique names. router: chooses among them (default: in turn).
    routers: by kind of stage, for stages with a router of their own. seed: of all random streams
        (>= 0).
    slo: limits for goodput. warmup: seconds at the start whose arrivals do not count in the
        summary. network: carries KV entries between clients; None if no entries move.
    power: power draw beside the GPUs; None: there is none, and tables show no joules.
    cost: prices to use; None: no cost is computed, nor where a GPU has no price, which results
        warn of.
    hand_over: how requests go from prefill to decode; None: the defaults of `HandOver()`.
    lifecycle: clients that fail, start, drain or are scaled; None: all clients stay up.
    reconfigure: how clients with roles p_heavy and d_heavy change during the run; None: they do
    not. search: finds the changes, if `reconfigure` asks for a search.
    remarks: warnings of its results, in addition to those of its clients.
    front_end: times between users and engines; None: assumed ones where a client's step times need
        them (`TimesOrigin.assumed`), else none.
    gateway: which requests wait there or are refused; None: all go in.
    Raises ScenarioError for clients without unique names, for a cost of GPUs without a price, for
    clients with a role where there is no network, or that do not know the size of the blocks that
    come to them, for places that the network does not have, and for a router of a stage that no
    client serves.
    """

    def __init__(
        self,
        *,
        clients: Client | Sequence[Client],
        workload: Workload,
        router: Router | str | None = None,
        routers: Mapping[str, Router | str] | None = None,
        seed: int = 0,
        slo: Slo | None = None,
        warmup: float = 0.0,
        network: Network | None = None,
        power: PowerOptions | None = None,
        cost: CostOptions | None = None,
        hand_over: HandOver | None = None,
        lifecycle: Lifecycle | None = None,
        reconfigure: Reconfigure | None = None,
        search: Search | None = None,
        front_end: FrontEnd | None = None,
        gateway: Admission | None = None,
        remarks: Sequence[ResultWarning] = (),
    ) -> None:
        if isinstance(clients, str):
            raise ScenarioError(
                "clients must be a client, such as llm_client(...), or several, got "
                f"{brief(clients)}"
            )
        clients = list(clients) if isinstance(clients, Iterable) else [clients]
        if not callable(getattr(workload, "requests", None)):
            raise ScenarioError(f"workload must be a Workload, got {brief(workload)}")
        for name, said, kind, example in (
            ("slo", slo, Slo, "Slo(ttft=0.5)"),
            ("power", power, PowerOptions, "PowerOptions(pue=1.2)"),
            ("cost", cost, CostOptions, "CostOptions()"),
            ("hand_over", hand_over, HandOver, "HandOver(transfer='push')"),
            ("lifecycle", lifecycle, Lifecycle, "Lifecycle(failures=(...,))"),
            ("front_end", front_end, FrontEnd, "FrontEnd(response=1e-3)"),
            ("routers", routers, Mapping, "{'decode': 'least_outstanding'}"),
        ):
            if said is not None:
                require_kind(name, said, kind, example)
        if network is not None and not callable(getattr(network, "admit", None)):
            raise ScenarioError(
                f"network must be one, such as a Link or Fabric, got {brief(network)}"
            )
        self.hand_over = hand_over or HandOver()
        check_clients(clients, network, self.hand_over)
        check_lengths(clients, getattr(workload, "source", None))
        members = Members(clients, any_splits=self.hand_over.policy is not None)
        if network is not None:
            network.admit(members.tenants)
        for client in clients:
            client.join_network(network)
        self._pools = {}
        if self.hand_over.pools == "local":
            self._pools = members.local_pools(network)
        self.seed = seed
        require_number("warmup", warmup)
        if not 0 <= warmup < math.inf:
            raise ScenarioError(f"warmup must be finite and >= 0 s, got {warmup}")
        self.routers = {
            kind: named_router(f"routers[{kind!r}]", said) for kind, said in (routers or {}).items()
        }
        check_routers(clients, self.routers)
        unpriced = without_price(clients, cost) if cost is not None else ()
        check_search(reconfigure, search, clients)
        self.clients = clients
        self.workload = workload
        self.router = RoundRobinRouter() if router is None else named_router("router", router)
        self.slo = slo or Slo()
        self.warmup = warmup
        self.network = network
        self.power = power
        self.cost, self._is_unpriced = (None if unpriced else cost), bool(unpriced)
        self.reconfigure, self.search = reconfigure, search
        self.front_end = front_end or FrontEnd()
        check_admission(gateway)
        self.gateway = gateway
        self.remarks = (*remarks, *unpriced)
        self.lifecycle = lifecycle
        if lifecycle is not None:
            check_lives(lifecycle, clients, network, self.slo)

    @property
    def seed(self) -> int:
        """The seed of all random streams; one that is set holds for the runs that begin later."""
        return self.streams.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        """Seed the runs that begin later; raises ScenarioError for a negative seed."""
        if not is_whole(seed):
            raise ScenarioError(f"seed must be a whole number, got {brief(seed)}")
        if seed < 0:
            raise ScenarioError(f"seed must be >= 0, got {seed}")
        self.streams = Streams(int(seed))

    def run(
        self,
        progress: Progress | None = None,
        *,
        recorder: Recorder | None = None,
        events: bool = False,
    ) -> Result:
        """Simulate until every request has finished or failed.

        recorder: a new recorder in place of the default one, for example one that ends the run by
            raising an exception. events: whether `Result.events` lists the decisions.
        Raises ScenarioError for input found to be bad during the run (a trace row), and
        InvariantError if the simulation breaks a law of its own.
        """
        return self.start(progress, recorder=recorder, events=events).run().result()

    def start(
        self,
        progress: Progress | None = None,
        *,
        recorder: Recorder | None = None,
        events: bool = False,
        told: Mapping[str, Any] | None = None,
    ) -> Run:
        """Return a run that has not gone on yet, to be looked at on its way.

        progress, recorder, events: as in `run`. told: fields of its results that others know, such
            as their title.

        Its clients are those of the simulation: a run that was started before cannot go on. Raises
        ScenarioError for input found to be bad (a trace row).
        """
        env, recorder = Environment(), recorder or self._recorder()
        recorder.keep_events(events)
        router = StageRouters(self.router, self.routers) if self.routers else self.router
        roster = self._start_clients(env, recorder)
        coordinator = Coordinator(env, roster, router, hand_over=self.hand_over)
        coordinator.dispatch.events = recorder.events
        entrance = None
        if self.gateway is not None:
            entrance = Entrance(env, self.gateway, coordinator.dispatch)
        coordinator.servers = servers = self._servers(recorder)
        if servers is not None:
            recorder.response, recorder.output_token = servers.response, servers.output_token
            recorder.turn = servers.turn
        lives = self._begin_lives(env, coordinator, recorder, entrance)
        load = self._load_generator(env, coordinator, recorder)
        load.servers, load.entrance = servers, entrance
        sliders = self._reconfigurer(env)
        if sliders is not None:
            load.watch = sliders.watch
        if env.stepper is not None and load.ends_begin_nothing:
            env.stepper.let_run_ahead()
        if progress is not None:
            load.on_end = _now_and_then(progress)
        conservation = Conservation(self._requests(recorder))

        def spawn(child: Request) -> Event:
            conservation.enter(child)
            return load.spawn(child)

        coordinator.spawn = spawn
        load.start(conservation.entering())

        def result() -> Result:
            never_came = tuple(self._never_came(env.now, lives))
            return replace(self._result(recorder, sliders, never_came), **(told or {}))

        def check(came_to_its_end: bool) -> None:
            broken = conservation.broken_law(load, recorder, self.clients)
            if not came_to_its_end:
                check_not_stuck(self.clients, self.hand_over.policy, env.now)
                broken = f"nothing left to happen: {broken or 'load generation does not stop'}"
            if broken:
                raise InvariantError(f"at {env.now} s: {broken}")

        return Run(env, load, self.clients, check, result, recorder.events)

    def _result(
        self,
        recorder: Recorder,
        sliders: Reconfigurer | None,
        never_came: Sequence[ResultWarning],
    ) -> Result:
        """Return the records of a run, with the data needed to read them."""
        times = self._times
        assumed = self._assumed_after(recorder)
        return Result(
            recorder=recorder,
            client_names=[client.name for client in self.clients],
            num_gpu_blocks=[_most_blocks(client) for client in self.clients],
            block_tokens=[client.block_tokens for client in self.clients],
            block_groups=[client.block_groups for client in self.clients],
            kv_entries=[client.kv_entries for client in self.clients],
            estimates={name: origin.estimate for name, origin in times.items()},
            assumed=assumed,
            assumed_hosts=self._assumed_hosts,
            collectives=self._over_nodes,
            settings={c.name: _settings(c) for c in self.clients if c.traits.times is not None},
            engines={name: origin.imitates for name, origin in times.items() if origin.imitates},
            kernels={name: origin.kernels for name, origin in times.items() if origin.kernels},
            slo=self.slo,
            warmup=self.warmup,
            open_loop=self.workload.closed_loop is None,
            machines=[client.traits.machine for client in self.clients],
            layouts={c.name: c.layouts for c in self.clients if c.layouts},
            client_models=[client.traits.model or "" for client in self.clients],
            power=self.power,
            cost=self.cost,
            is_unpriced=self._is_unpriced,
            sliders=None if sliders is None else tuple(sliders.moved),
            step_limits=[self._step_limits(client) for client in self.clients],
            known_warnings=(
                *too_small_warnings(recorder, self.clients),
                *self._idle(recorder),
                *blind_warnings(recorder, self.clients, {"": self.router, **self.routers}),
                *cut_warnings(self.clients),
                *waves_warnings(recorder, self.workload.closed_loop),
                *common_start_warnings(recorder, self.workload.closed_loop, self.warmup),
                *never_came,
                *self._warnings(assumed),
            ),
            is_of_rows=not isinstance(getattr(self.workload, "source", None), RowSampler | None),
            presenter=RUN,
        )

    def _idle(self, recorder: Recorder) -> Iterator[ResultWarning]:
        """Yield a warning for each group of clients that its router leaves idle."""
        if self.lifecycle is None:  # clients that are away have no visits
            yield from idle_warnings(recorder, self.clients, {"": self.router, **self.routers})

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Warnings of all results of these clients that are known before a run."""
        found = self._assumed()
        if untold := self.workload.untold:
            caching = [name for name, origin in self._times.items() if origin.caches_prefixes]
            found = _joined([found, dict.fromkeys(caching, (untold,))])
        return (*distance_warnings(self.expected_errors), *self._warnings(found))

    @property
    def expected_errors(self) -> dict[str, Any]:
        """Expected errors of the clients' TTFT and TPOT against a real engine, before a run."""
        load = Load("", OPEN if self.workload.closed_loop is None else CLOSED)
        settings = {c.name: _settings(c) for c in self.clients if c.traits.times is not None}
        return expected_errors(settings, load)

    def _warnings(self, assumed: Mapping[str, Sequence[str]]) -> tuple[ResultWarning, ...]:
        estimates = {name: origin.estimate for name, origin in self._times.items()}
        of_clients = [each for origin in self._times.values() for each in origin.warnings]
        found = assumption_warnings(estimates, assumed, self._assumed_hosts, self._over_nodes)
        left_out = getattr(self.workload, "left_out", "")  # workloads of one's own have none
        of_trace = [ResultWarning(kinds.LEFT_OUT, left_out)] if left_out else []
        known = (*of_trace, *self.remarks, *of_clients)
        return merged((*known, *found, *self._no_energy()))

    @property
    def asks_for_spending(self) -> bool:
        """Whether power or cost was set."""
        return self.cost is not None or self.power is not None

    def _no_energy(self) -> Iterator[ResultWarning]:
        """Yield a warning where power or cost was set, and GPUs or their power are not known."""
        unknown = [c.name for c in self.clients if c.traits.times and c.traits.machine is None]
        if unknown and self.asks_for_spending:
            yield ResultWarning(
                kinds.NO_ENERGY,
                f"Neither energy nor cost is known, since the GPUs of {', '.join(unknown)} are "
                "not: name them (gpu).",
            )
        gpus = without_watts(client.traits.machine for client in self.clients)
        if gpus and self.asks_for_spending:
            yield ResultWarning(
                kinds.NO_ENERGY,
                f"No joules are known, since the power of {', '.join(gpus)} is not: say it with "
                "the GPU's figures (power).",
            )

    @property
    def _times(self) -> dict[str, TimesOrigin]:
        return {c.name: origin for c in self.clients if (origin := c.traits.times) is not None}

    @property
    def _assumed_hosts(self) -> dict[str, Mapping[str, Any]]:
        return {n: it.assumed_host for n, it in self._times.items() if it.assumed_host}

    @property
    def _over_nodes(self) -> dict[str, str]:
        return {c.name: text for c in self.clients if (text := _collectives(c))}

    def _servers(self, recorder: Recorder) -> ApiServers | None:
        """Return a run's front end, and tell the recorder; None: requests take no time there."""
        assumed = any(FRONT_END in options for options in self._assumed().values())
        default = MEASURED if assumed else NONE
        parse = max((each.parse for each in self._times.values()), default=0.0)
        if assumed and parse and self.front_end.request is None:
            default = default.parses_first(parse)
        options = self.front_end.or_else(default)
        if not any(options.times):
            return None
        engines = {
            client_id: sum(group.number for group in client.traits.engines) or 1
            for client_id, client in enumerate(self.clients)
            if Prefill.kind in client.traits.serves
        }
        said = options.api_server_count
        numbers = {client_id: said or number for client_id, number in engines.items()}
        streams = [(self.clients[each].num_streamed, number) for each, number in numbers.items()]
        recorder.servers = Servers(options, numbers)
        return ApiServers(options, streams or [(None, 1)], sum(engines.values()))

    def _assumed(self) -> dict[str, tuple[str, ...]]:
        """Return the unset options whose default is an assumption, by client."""
        said = (FRONT_END,) if self.front_end.is_complete else ()
        found = {}
        for client in self.clients:
            options = client.traits.times.assumed if client.traits.times else ()
            if unsaid := tuple(name for name in options if name not in said):
                found[client.name] = unsaid
        lives = self.lifecycle.assumed(self.network) if self.lifecycle is not None else {}
        return _joined([found, lives])

    def _assumed_after(self, recorder: Recorder) -> dict[str, tuple[str, ...]]:
        """Return the assumptions by client, with those of the trace."""
        found = self._assumed()
        requests = recorder.requests.columns()
        if requests["num_queried_tokens"].any() and not requests["num_known_tokens"].any():
            engines = [client.name for client in self.clients if client.traits.times is not None]
            if untold := self.workload.untold:
                found = _joined([found, dict.fromkeys(engines, (untold,))])
        return found

    def _step_limits(self, client: Client) -> StepLimits | None:
        """Return the limits of a client's steps; None if these, or the client, may change."""
        changes = client.layouts or self.lifecycle is not None or self.reconfigure is not None
        return None if changes else client.traits.step_limits

    def _start_clients(self, env: Environment, recorder: Recorder) -> Roster:
        """Let the clients join the run, and seed the router."""
        if self.network is not None:
            self.network.start(env)
        if self.hand_over.policy is not None:
            self.hand_over.policy.begin()
        let_flow(self.clients, self.hand_over.policy)
        roster = Roster()
        roster.pools = self._pools
        if self.lifecycle is not None:
            let_stay_alone(self.clients, roster)
        parts = SharedParts()
        for client in self.clients:
            client.streams = self.streams
            client.network = self.network
            client.shared_parts = parts
            client.may_fail = self.lifecycle is not None
            client.start(env, roster.next_id(), recorder)
            roster.join(client)
        recorder.all_started()
        streams = {"router": self.router}
        streams |= {f"router of {kind}": router for kind, router in self.routers.items()}
        for stream, router in streams.items():
            if isinstance(router, Seeded):
                router.seed(self.streams.generator(stream))
        return roster

    def _recorder(self) -> Recorder:
        """Return the recorder; for some policies it counts the requests within limits."""
        asks = self.lifecycle is not None and self.lifecycle.asks_for_slo
        return SloWatch(self.slo) if asks else Recorder()

    def _requests(self, recorder: Recorder) -> Iterator[Request]:
        """Return the requests of users; note classes of limits and workload, and adapters."""
        requests = self.workload.requests(self.streams)
        if self.slo.classes:
            requests = noting(requests, self.slo.group_of, recorder.groups)
        source = getattr(self.workload, "source", None)  # workloads of one's own have none
        if getattr(source, "classes", None):
            labels = recorder.label_names.code
            requests = noting(requests, lambda request: labels(request.label), recorder.labels)
        if getattr(self.workload, "adapters", None):
            adapters = recorder.adapter_names.code
            requests = noting(requests, lambda each: adapters(each.adapter), recorder.adapters)
        return requests

    def _begin_lives(
        self,
        env: Environment,
        coordinator: Coordinator,
        recorder: Recorder,
        entrance: Entrance | None,
    ) -> Manager | None:
        """Start the processes that let clients fail, start and leave, if the scenario has any."""
        if self.lifecycle is None:
            return None
        never = lambda: math.nan  # noqa: E731
        attainment = recorder.reader if isinstance(recorder, SloWatch) else lambda: never
        return Manager(
            self.lifecycle,
            env,
            coordinator,
            recorder,
            self.streams,
            self.network,
            attainment,
            entrance,
        )

    def _never_came(self, end: float, lives: Manager | None) -> Iterator[ResultWarning]:
        """Yield a warning for each event that was asked for later than the run went, seconds."""
        found: list[tuple[str, str]] = []
        if self.warmup and self.warmup >= end:
            found.append(("the end of the warmup", f"{self.warmup:g} s"))
        if self.lifecycle is not None and lives is not None:
            found += self.lifecycle.not_by(end, lives.struck)
        if self.reconfigure is not None:
            found += self.reconfigure.not_by(end)
        arrivals = getattr(self.workload, "arrivals", None)
        if isinstance(arrivals, ScheduledArrivals | DailyArrivals):
            found += arrivals.not_by(end)
        for place, when in found:
            yield ResultWarning(
                kinds.NEVER_CAME,
                f"{place} {when}: the run ended at {end:.4g} s, so it never came; use more "
                "requests or an earlier time.",
            )

    def _reconfigurer(self, env: Environment) -> Reconfigurer | None:
        """Return the process that moves the sliders, if the scenario has one."""
        policy = self.hand_over.policy
        if self.reconfigure is None or not isinstance(policy, FlowPolicy):
            return None
        return Reconfigurer(self.reconfigure, env, self.clients, policy, self.search)

    def _load_generator(
        self, env: Environment, coordinator: Coordinator, recorder: Recorder
    ) -> LoadGenerator:
        """Return the load generator of the workload: an open loop, capped or not, or users."""
        retries, rng = self.workload.retries, self.streams.generator("retries")
        loop = self.workload.closed_loop
        most = self.workload.max_concurrency
        if most is not None:
            return CappedOpenLoop(env, coordinator, recorder, retries, rng, most)
        if loop is None:
            load = OpenLoop(env, coordinator, recorder, retries, rng)
            if self._walks_are_plain:
                load.walk_plainly(at_once=type(recorder) is Recorder)
            return load
        users = SessionUsers if loop.sessions else Users
        pauses = loop.think_times(self.streams.generator("think_time"))
        return users(env, coordinator, recorder, retries, rng, loop, pauses)

    @property
    def _walks_are_plain(self) -> bool:
        """Whether one client serves each request whole, without limits on time and retries."""
        workload = self.workload
        return (
            type(workload) is Workload
            and workload.pipeline is completion_pipeline
            and workload.time_limits is None
            and workload.retries is None
            and self.gateway is None
            and self.lifecycle is None
            and self.reconfigure is None
            and self.hand_over.policy is None
            and all(client.serves_whole for client in self.clients)
        )


class Run:
    """A run under way (`Simulation.start`): to its end, to a time, or event by event.

    What it computes does not depend on where it is stopped.

    check: raises InvariantError for a law that is broken at the end, given whether the run came
        there. result: returns the records. events: takes decisions; None: they are not kept.
    """

    def __init__(
        self,
        env: Environment,
        load: LoadGenerator,
        clients: Sequence[Client],
        check: Callable[[bool], None],
        result: Callable[[], Result],
        events: Events | None = None,
    ) -> None:
        self._env, self._load, self._clients = env, load, clients
        self._check, self._result, self._events = check, result, events

    @property
    def now(self) -> float:
        """The present time, seconds since the start."""
        return self._env.now

    @property
    def has_ended(self) -> bool:
        """Whether every request has finished or failed."""
        return self._is_over()

    @property
    def num_sent(self) -> int:
        """Requests sent so far."""
        return self._load.num_sent

    @property
    def num_ended(self) -> int:
        """Requests that have finished or failed."""
        return self._load.num_ended

    @property
    def views(self) -> dict[str, ClientView]:
        """What routers see of each client, by name, at the time when it is read."""
        return Known(
            {client.name: client.view for client in self._clients}, "the run has no client"
        )

    @property
    def decisions(self) -> list[Decision]:
        """What the latest `step` decided, in that order; ends and moves are in the result alone.

        Empty after `run`. Raises ScenarioError for a run that was started without events=True.
        """
        if self._events is None:
            raise ScenarioError("this run keeps no events; give events=True to start")
        found = []
        for time, kind, number, at, reason, num_tokens in self._events.latest or ():
            who = None if number == NO_REQUEST else number
            found.append(Decision(time, kind, who, self._clients[at].name, reason, num_tokens))
        return found

    def _note_anew(self, latest: list[Any] | None) -> None:
        """Let the decisions that follow be the latest ones; None: keep them in the result alone."""
        if self._events is not None:
            self._events.latest = latest

    def step(self) -> bool:
        """Go on to the next event, or the next step of an engine that others see.

        Returns whether the run goes on, so that `while run.step(): ...` goes to its end. Raises
        ScenarioError and InvariantError as `Simulation.run` does.
        """
        self._check_latest()
        self._note_anew([])
        if self._is_over():
            return False
        try:
            self._env.step()
        except EmptySchedule:
            self._end(came_to_its_end=False)
        except StopSimulation:  # where `run` would stop, or once wanted to
            pass
        if self._is_over():
            self._end(came_to_its_end=True)
            return False
        return True

    def run(self, until: float | None = None) -> Run:
        """Go on to a time, seconds since the start, or to the end; return this run.

        It stops before what happens at that time, and at its end if that comes first. Raises
        ScenarioError for a time that has passed and for bad input (a trace row), and InvariantError
        if the simulation breaks a law of its own.
        """
        self._check_latest()
        self._note_anew(None)
        if self._is_over():
            return self
        if until is not None:
            if not is_number(until):
                raise ScenarioError(f"until must be a number of seconds, got {brief(until)}")
            if not self.now <= until < math.inf:
                raise ScenarioError(f"until must be finite and >= {self.now} s (now), got {until}")
            self._env.at(until, POLL).callbacks.append(StopSimulation.callback)
        with rare_collections():
            try:
                came_to_its_end = _run_until(self._env, self._load.all_ended)
            except BaseException:  # of a recorder that has seen enough, and then reads all of it
                self._write()
                raise
        if self._is_over() or not came_to_its_end:
            self._end(came_to_its_end)
        return self

    def result(self) -> Result:
        """Return the records; raises ScenarioError before the end of the run."""
        self._check_latest()
        if not self._is_over():
            raise ScenarioError(
                f"a result is that of a whole run, and this one stands at {self.now:.6g} s with "
                f"{self.num_sent - self.num_ended} requests under way: call run() before"
            )
        return self._result()

    def _end(self, came_to_its_end: bool) -> None:
        self._write()
        self._check(came_to_its_end)

    def _write(self) -> None:
        """Write the steps that the core has not written yet: in one go, for rows as of one run."""
        if self._env.stepper is not None:
            self._env.stepper.flush()

    def _is_over(self) -> bool:
        return self._load.all_ended.processed

    def _check_latest(self) -> None:
        if self._clients[0].env is not self._env:
            raise ScenarioError(
                "the clients of this run are in a later one: read its result before the next run "
                "starts, or start that from a simulation of its own"
            )


def _joined(parts: Iterable[Mapping[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    """Return assumed options by client of several parts."""
    found: dict[str, tuple[str, ...]] = {}
    for each in parts:
        found |= {name: found.get(name, ()) + options for name, options in each.items()}
    return found


def _most_blocks(client: Client) -> int:
    """Return the KV blocks of a client, in the layout that had most."""
    return max([client.num_gpu_blocks, *(period.num_gpu_blocks for period in client.layouts)])


def _collectives(client: Client) -> str:
    """Return how the collectives of a client over nodes are timed, in all its layouts."""
    if not client.layouts:
        return client.collectives
    return "; then ".join(dict.fromkeys(p.collectives for p in client.layouts if p.collectives))


def _settings(client: Client) -> Mapping[str, Setting | Borrowed | None]:
    """Return the measured settings closest to a client's; None if its layout changed."""
    settings = client.traits.times.settings if client.traits.times else {}
    return dict.fromkeys(settings) if client.layouts else settings


def _run_until(env: Environment, end: Event) -> bool:
    """Run until an event has happened; return False if the agenda is empty before."""
    try:
        env.run(until=end)
    except NothingLeftError:
        return False
    return True


def _now_and_then(progress: Progress) -> Progress:
    """Return a function that forwards to `progress` at most ten times per second of real time.

    Raises ScenarioError for what is no function.
    """
    if not callable(progress):
        raise ScenarioError(f"progress must be a function (ended, now), got {brief(progress)}")
    next_call = 0.0

    def tell(num_ended: int, now: float) -> None:
        nonlocal next_call
        if (time := monotonic()) >= next_call:
            progress(num_ended, now)
            next_call = time + _PROGRESS_EVERY

    return tell
