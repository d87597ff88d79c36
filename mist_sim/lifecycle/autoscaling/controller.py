"""Looks at a group at intervals, and starts or drains clients as its policy decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import Any

from simpy.events import Event

from mist_sim.core.states import State
from mist_sim.core.views import ClientState
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError, brief
from mist_sim.lifecycle.autoscaling.autoscaling_options import Autoscaling
from mist_sim.lifecycle.autoscaling.base import GroupView
from mist_sim.lifecycle.endless import Endless
from mist_sim.lifecycle.fleet import Fleet, Member


class Controller:
    """Keeps a policy's number of clients of a group up.

    num_at_gateway: returns the number of requests that wait for such a client. attainment: returns
        the share of requests within the limits since its last call; NaN: none ended.
    endless: schedules its looks, which never end by themselves.
    """

    def __init__(
        self,
        env: Environment,
        fleet: Fleet,
        members: Sequence[Member],
        options: Autoscaling,
        *,
        num_at_gateway: Callable[[], int],
        attainment: Callable[[], float],
        endless: Endless,
    ) -> None:
        self._endless = endless
        self._env = env
        self._fleet = fleet
        self._members = members
        self._options = options
        self._num_at_gateway = num_at_gateway
        self._attainment = attainment
        self._busy: dict[Member, BusyTime] = {}
        self._changed_at = -options.cool_down
        for member in members:
            member.is_scaled = True
            if member.state == "up":
                self._busy_time(member)
        self._look_later()

    def activate(self) -> None:
        """Start a client if requests wait for one, and none is up or starting."""
        if self._num_at_gateway() and not self._count("up", "starting"):
            self._bring_to(1)

    def replace(self) -> None:
        """Look soon: clients have gone away, or may be started again."""
        if self._count("up", "starting") < self._options.min:
            self._bring_to(self._options.min)
        self.activate()

    def _look(self, _: Event) -> None:
        options = self._options
        self._look_later()
        wanted: Any = options.policy.wanted(self._view())
        if not isinstance(wanted, int) or wanted < 0:
            raise ScenarioError(
                f"{type(options.policy).__name__}.wanted must return a whole number >= 0, "
                f"got {brief(wanted)} at {self._env.now} s"
            )
        most = len(self._members) if options.max is None else options.max
        self._bring_to(min(max(wanted, options.min), most))
        self.activate()

    def _look_later(self) -> None:
        self._endless.at(self._env.now + self._options.interval).callbacks.append(self._look)

    def _bring_to(self, wanted: int) -> None:
        """Start or drain clients until as many are up or starting as are wanted."""
        num_more = wanted - self._count("up", "starting")
        now = self._env.now
        if num_more < 0 and now - self._changed_at < self._options.cool_down:
            return
        chosen = self._to_start(num_more) if num_more > 0 else self._to_drain(-num_more)
        for member in chosen:
            (self._fleet.start if num_more > 0 else self._fleet.drain)(member)
            self._changed_at = now

    def _to_start(self, number: int) -> list[Member]:
        """Return the clients to start: draining ones first, then the first that are off."""
        ready = [*self._in("draining"), *self._in("off")]
        return [member for member in ready if not member.num_faults][:number]

    def _to_drain(self, number: int) -> list[Member]:
        """Return the clients to drain: the last that start, then those with the fewest requests."""
        up = self._in("up")[::-1]
        up.sort(key=lambda member: member.client.view.num_outstanding)
        return [*self._in("starting")[::-1], *up][:number]

    def _view(self) -> GroupView:
        up = self._in("up")
        views = [member.client.view for member in up]
        busy = [self._busy_time(member).share() for member in up]
        blocks = sum(member.client.num_gpu_blocks for member in up)
        held = sum(view.num_kv_blocks for view in views)
        return GroupView(
            now=self._env.now,
            num_up=len(up),
            num_starting=self._count("starting"),
            num_waiting=sum(view.num_waiting for view in views) + self._num_at_gateway(),
            num_running=sum(view.num_running for view in views),
            busy=sum(busy) / len(busy) if busy else nan,
            kv_usage=held / blocks if blocks else nan,
            attainment=self._attainment(),
        )

    def _busy_time(self, member: Member) -> BusyTime:
        """Return the clock of a client, a new one when it came up again."""
        clock, view = self._busy.get(member), member.client.view
        if clock is None or clock.view is not view:
            clock = self._busy[member] = BusyTime(self._env, view)
        return clock

    def came_up(self, name: str) -> None:
        """Begin to watch how busy a client is, if it is one of these."""
        for member in self._members:
            if member.client.name == name:
                self._busy_time(member)

    def _in(self, state: State) -> list[Member]:
        return [member for member in self._members if member.state == state]

    def _count(self, *states: State) -> int:
        return sum(member.state in states for member in self._members)


class BusyTime:
    """Seconds in which a client has had requests since the last look."""

    def __init__(self, env: Environment, view: ClientState) -> None:
        self.view = view
        self._env = env
        self._since = self._last = env.now
        self._was_busy = view.num_outstanding > 0
        self._seconds = 0.0
        view.watch(self._note, phases=False)

    def _note(self, view: ClientState) -> None:
        now = self._env.now
        if self._was_busy:
            self._seconds += now - self._last
        self._last = now
        self._was_busy = view.num_outstanding > 0

    def share(self) -> float:
        """Return the share of the time since the last call, and start anew."""
        self._note(self.view)
        period = self._env.now - self._since
        found = self._seconds / period if period > 0 else nan
        self._since, self._seconds = self._env.now, 0.0
        return found
