"""Autoscaling: policies, and the controller that starts and drains clients for them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Literal, Protocol, runtime_checkable

from simpy.events import Event

from mist_sim.checks import Checked, NotNegative, Positive, Share, check_fields
from mist_sim.core.recorder import Recorder
from mist_sim.core.views import ClientState, State
from mist_sim.durations import require_plan
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError, brief
from mist_sim.lifecycle.fleet import Endless, Fleet, Member
from mist_sim.registry import Registry
from mist_sim.units import Seconds

__all__ = [
    "AUTOSCALERS",
    "Autoscaler",
    "Autoscaling",
    "GroupView",
    "QueueLength",
    "Schedule",
    "SloAttainment",
    "Utilisation",
]


AUTOSCALERS = Registry("autoscalers")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """An autoscaler's view of its group.

    now: seconds. num_up, num_starting: clients that take requests, and that will soon.
    num_waiting, num_running: requests waiting in these clients or for one to come, and requests in
        work.
    busy: share of the time since the last look in which a client had a request, mean over clients
        that are up; NaN without any.
    kv_usage: share of the KV blocks that requests hold, over clients that are up; NaN without any.
    attainment: share of the requests which ended since the last look that kept the limits of the
    scenario's slo; NaN without any.
    """

    now: float
    num_up: int
    num_starting: int
    num_waiting: int
    num_running: int
    busy: float
    kv_usage: float
    attainment: float

    @property
    def num_clients(self) -> int:
        """Clients that are up or will soon be."""
        return self.num_up + self.num_starting


@runtime_checkable
class Autoscaler(Protocol):
    """Decides how many clients should be up.

    It is called at every look; its answer is clamped to the group's `min` and `max`. It changes no
    state, and decides only by the view.
    """

    def wanted(self, group: GroupView) -> int:
        """Return how many clients should be up (>= 0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaling:
    """A group of clients whose number a policy controls.

    clients: their names, or that of a group of copies; the first ones start first.
    policy: decides the number.
    min: least number of clients; with 0 the group may shrink to none, and the next request starts
        one.
    max: largest number; None: all.
    initial: number at the start of the run; None: `min`.
    interval: time between two looks.
    cool_down: time after any change in which no client is removed.

    Raises ValueError for an empty group, and for numbers and times out of range.
    """

    clients: tuple[str, ...]
    policy: Autoscaler
    min: NotNegative[int] = 1
    max: Positive[int] | None = None
    initial: int | None = None
    interval: Positive[Seconds] = 10.0
    cool_down: NotNegative[Seconds] = 60.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.clients:
            raise ValueError("clients must have at least one entry, got none")
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min must be <= max ({self.max}), got {self.min}")
        if self.initial is not None:
            most = math.inf if self.max is None else self.max
            if not self.min <= self.initial <= most:
                raise ValueError(
                    f"initial must be in [min, max] ([{self.min}, {most}]), got {self.initial}"
                )

    def problem(self, num_clients: int) -> str | None:
        """Return a problem of the numbers for a group of so many clients, or None."""
        for name in ("min", "max", "initial"):
            number = getattr(self, name)
            if number is not None and number > num_clients:
                return f"{name} must be <= {num_clients}, the clients of the group, got {number}"
        return None

    @property
    def num_at_first(self) -> int:
        """Clients that are up at the start of the run."""
        return self.min if self.initial is None else self.initial


@dataclass(eq=False)
class Controller:
    """Keeps a policy's number of clients of a group up.

    num_at_gateway: returns the number of requests that wait for such a client. attainment: returns
        the share of requests within the limits since its last call; NaN: none ended.
    endless: schedules its looks, which never end by themselves.
    """

    _env: Environment
    _fleet: Fleet
    _members: Sequence[Member]
    _options: Autoscaling
    _recorder: Recorder
    _num_at_gateway: Callable[[], int]
    _attainment: Callable[[], float]
    _endless: Endless

    def __post_init__(self) -> None:
        self._wanted = self._options.num_at_first
        self._missing: dict[Member, None] = {}  # failed, and not made up for; a set with an order
        self._busy: dict[Member, BusyTime] = {}
        self._changed_at = -self._options.cool_down
        for member in self._members:
            member.is_scaled = True
            if member.state == "up":
                self._busy_time(member)
        self._look_later()

    def activate(self) -> None:
        """Start a client if requests wait for one, and none is up or starting."""
        if self._num_at_gateway() and not self._count("up", "starting"):
            self._wanted = max(self._wanted, 1)
            self._bring_to(1)

    def replace(self) -> None:
        """Look soon: clients have gone away, or may be started again."""
        self._missing |= dict.fromkeys(self._in("failed"))
        self._note_if_complete()
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
        self._wanted = min(max(wanted, options.min), most)
        self._note_if_complete()
        self._bring_to(self._wanted)
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
                self._note_if_complete()

    def _note_if_complete(self) -> None:
        """Record that failed clients are made up for, if as many are up as are wanted."""
        if self._missing and self._count("up") >= self._wanted:
            for member in self._missing:
                self._recorder.made_up.add((member.client.client_id, self._env.now))
            self._missing.clear()

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


_EPSILON = 1e-9  # of a client, so that rounding does not add one


@AUTOSCALERS.register("queue_length")
@dataclass(frozen=True, kw_only=True)
class QueueLength(Checked):
    """One client per `target` requests.

    target: requests per client (> 0).
    counts: all requests (outstanding), or only waiting ones.

    Source: the Kubernetes autoscaler with a target for an average value, ceil(requests / target);
    with all of them it is the concurrency target of Knative and KServe.
    """

    target: Positive[float]
    counts: Literal["outstanding", "waiting"] = "outstanding"

    def wanted(self, group: GroupView) -> int:
        """Return the number at which each client has the target number of requests."""
        running = group.num_running if self.counts == "outstanding" else 0
        return _ceil((group.num_waiting + running) / self.target)


@AUTOSCALERS.register("utilisation")
@dataclass(frozen=True, kw_only=True)
class Utilisation(Checked):
    """As many clients as bring their mean utilisation to a target.

    target: share of it, in (0, 1].
    of: time, the share of the time since the last look in which a client had a request; or
        kv_cache, the share of the KV blocks that requests hold.

    Source: the Kubernetes autoscaler: ceil(clients x utilisation / target); it keeps the number
    where the ratio is within 0.1 of 1.
    """

    target: Share = 0.7
    of: Literal["time", "kv_cache"] = "time"

    def wanted(self, group: GroupView) -> int:
        """Return the number at which utilisation would meet the target; unchanged near it."""
        used = group.busy if self.of == "time" else group.kv_usage
        ratio = used / self.target
        if ratio != ratio or abs(ratio - 1) <= _TOLERANCE:
            return group.num_clients
        return _ceil(group.num_up * ratio)


_TOLERANCE = 0.1  # kube-controller-manager's --horizontal-pod-autoscaler-tolerance


@AUTOSCALERS.register("slo_attainment")
@dataclass(frozen=True, kw_only=True)
class SloAttainment:
    """More clients while too few requests keep the limits of the slo, fewer while nearly all do.

    below: attainment under which `step` clients are added, in (0, 1].
    above: attainment from which one is removed, in [below, 1], unless requests wait.
    step: clients that are added at a time (>= 1).
    """

    below: Share = 0.95
    above: float = 0.995
    step: Positive[int] = 1

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.below <= self.above <= 1:
            raise ValueError(f"above must be in [{self.below}, 1], got {self.above}")

    def wanted(self, group: GroupView) -> int:
        """Return more clients below the lower attainment, one fewer above the upper one."""
        if group.attainment < self.below:
            return group.num_clients if group.num_starting else group.num_clients + self.step
        if group.attainment >= self.above and not group.num_waiting:
            return max(group.num_clients - 1, 0)
        return group.num_clients


@AUTOSCALERS.register("schedule")
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """As many clients as a plan says.

    at: when the number changes, ascending from 0 s on.
    clients: how many there are from each of these times on.
    period: after which the plan begins again; None: never.
    """

    at: tuple[Seconds, ...]
    clients: tuple[NotNegative[int], ...]
    period: Seconds | None = None

    def __post_init__(self) -> None:
        require_plan("clients", self.at, self.clients, self.period)
        check_fields(self)

    def wanted(self, group: GroupView) -> int:
        """Return the number that the schedule gives for this time."""
        time = group.now if self.period is None else group.now % self.period
        return self.clients[bisect_right(self.at, time) - 1]


def _ceil(number: float) -> int:
    return math.ceil(number - _EPSILON)
