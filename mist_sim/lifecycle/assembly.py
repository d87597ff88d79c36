"""Puts the life of the clients of one run together, and lets it begin."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from simpy.events import Event

from mist_sim.clients import Client
from mist_sim.clients.roster import Roster
from mist_sim.coordination.coordinator import Coordinator
from mist_sim.core.recorder import Recorder
from mist_sim.environment import CHANGE, Environment
from mist_sim.lifecycle.absences import Policy
from mist_sim.lifecycle.autoscaling import Autoscaling
from mist_sim.lifecycle.autoscaling.controller import Controller
from mist_sim.lifecycle.endless import Endless
from mist_sim.lifecycle.failures import Drain, Failures
from mist_sim.lifecycle.fleet import Fleet
from mist_sim.lifecycle.gateway import Gateway
from mist_sim.lifecycle.lifecycle_options import Lifecycle
from mist_sim.lifecycle.start_up import StartTimes
from mist_sim.lifecycle.starts import Starts
from mist_sim.network import Cable, Network, Ways
from mist_sim.rng import Streams


class Manager:
    """Lets clients fail, drain and start, and notifies the gateway and autoscalers.

    attainment: returns, for each autoscaler, a function for the share of requests within the limits
        since its last call.
    struck: positions of the failures that came.
    """

    def __init__(
        self,
        options: Lifecycle,
        env: Environment,
        coordinator: Coordinator,
        recorder: Recorder,
        streams: Streams,
        network: Network | None,
        attainment: Callable[[], Callable[[], float]],
    ) -> None:
        self.struck: set[int] = set()
        self._options = options
        self._env = env
        self._streams = streams
        roster: Roster = coordinator.roster
        starts = Starts(env, options.start_up, StartTimes(options.start_up, streams), network)
        self._fleet = fleet = Fleet(env, roster, recorder, starts.begin)
        self._gateway = gateway = Gateway(env, fleet.why_nobody, self._activate)
        numbers = {client.name: client.client_id for client in roster}
        coordinator.absences = Policy(env, recorder, gateway, options.on_failure, numbers)
        self._controllers: list[Controller] = []
        fleet.listener = self
        self._endless = Endless(env, lambda: gateway.anybody_waits)
        fleet.begin([name for group in options.autoscaling for name in _off_at_first(group)])
        for group in options.autoscaling:
            self._controllers.append(self._controller(group, attainment()))
        for position, failure in enumerate(options.failures):
            if failure.cable is not None and network is not None and network.ways is not None:
                env.start(self._fail_link(position, failure.cable, network.ways))
                continue
            names = options.failing(failure, network)
            if failure.mtbf is not None:
                self._endless.failing += [fleet.members[name].client for name in names]
            for number, together in enumerate(failure.together(names)):
                env.start(self._fail(position, together, number))
        for drain in options.drains:
            env.start(self._drain(drain))

    def _controller(self, group: Autoscaling, attainment: Callable[[], float]) -> Controller:
        members = [self._fleet.members[name] for name in group.clients]
        at_gateway = partial(self._gateway.num_waiting, [member.client for member in members])
        return Controller(
            self._env,
            self._fleet,
            members,
            group,
            num_at_gateway=at_gateway,
            attainment=attainment,
            endless=self._endless,
        )

    def _fail(
        self, position: int, names: Sequence[str], number: int
    ) -> Generator[Event, Any, None]:
        """Let clients fail together, and be repaired."""
        failure = self._options.failures[position]
        rng = self._streams.generator(f"failures {position}: {number}")
        for time, what in failure.changes(rng):
            yield self._change(failure, time, what)
            self.struck.add(position)
            if what == "repair":
                self._fleet.repair(names)
            else:
                self._fleet.fail(names, for_good=what == "leave")

    def _fail_link(self, position: int, cable: Cable, ways: Ways) -> Generator[Event, Any, None]:
        """Let a cable be down, and be repaired."""
        failure = self._options.failures[position]
        rng = self._streams.generator(f"failures {position}: link")
        for time, what in failure.changes(rng):
            yield self._change(failure, time, what)
            self.struck.add(position)
            if what == "repair":
                ways.repair_link(cable)
            else:
                ways.fail_link(cable)

    def _change(self, failure: Failures, time: float, what: str) -> Event:
        """Return the event of a failure or a repair; random ones always recur."""
        if failure.mtbf is None or what == "repair":
            return self._env.at(max(time, self._env.now), CHANGE)
        return self._endless.at(time)

    def _drain(self, drain: Drain) -> Generator[Event, Any, None]:
        members = [self._fleet.members[name] for name in drain.clients]
        yield self._env.at(drain.at, CHANGE)
        for member in members:
            member.will_return = drain.back is not None
            self._fleet.drain(member)
        if drain.back is not None:
            yield self._env.at(drain.at + drain.back, CHANGE)
            for member in members:
                self._fleet.start(member)

    # --- notifications from the fleet and the gateway ------------------------------------------

    def came_up(self, client: Client) -> None:
        """Let requests go on that wait for a client."""
        self._gateway.came_up(client)
        for controller in self._controllers:
            controller.came_up(client.name)

    def went_away(self) -> None:
        """Let autoscalers replace clients, and reject requests that no client will serve."""
        for controller in self._controllers:
            controller.replace()
        self._gateway.went_away()

    def _activate(self) -> None:
        for controller in self._controllers:
            controller.activate()


def _off_at_first(group: Autoscaling) -> Sequence[str]:
    return group.clients[group.num_at_first :]
