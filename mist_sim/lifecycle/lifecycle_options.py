"""Options of the life of clients: failures, drains, starts, autoscaling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from numpy.random import Generator as Rng

from mist_sim.checks import NotNegative, Positive, check_fields
from mist_sim.clients import Client
from mist_sim.durations import not_reached
from mist_sim.errors import ScenarioError, brief, listed, require_known
from mist_sim.lifecycle.autoscaling import Autoscaling, Schedule, SloAttainment
from mist_sim.lifecycle.start_up import StartUp, loads_over, seats_of
from mist_sim.network import Cable, Network
from mist_sim.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Clients that fail, or links, at given times or repeatedly at random.

    clients: their names, or those of groups of copies. At a given time they fail together; at
        random each fails on its own.
    node: a node of the network's topology; all clients with GPUs on it fail.
    link: the two ends of a cable of that topology, which is down in both directions: transfers take
        the shortest route around it, or wait if there is none.
    at: when they fail, from the start of the run.
    repair: time after `at` until they start again; None: never.
    mtbf: mean time between a repair and the next failure, exponential.
    mttr: mean time to repair, exponential.

    Raises ValueError without clients, node or link, without a time, and for times that are not
    positive.
    """

    clients: tuple[str, ...] = ()
    node: str | None = None
    link: tuple[str, ...] | None = None
    at: tuple[NotNegative[Seconds], ...] = ()
    repair: Positive[Seconds] | None = None
    mtbf: Positive[Seconds] | None = None
    mttr: Positive[Seconds] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        said = [name for name in ("clients", "node", "link") if getattr(self, name)]
        if len(said) != 1:
            got = " and ".join(said) or "none of them: the failure would affect no client"
            raise ValueError(f"clients must be given, or node, or link, got {got}")
        if self.link is not None and len(self.link) != 2:
            raise ValueError(f"link must be the two ends of a cable, got {len(self.link)} places")
        if bool(self.at) == (self.mtbf is not None):
            raise ValueError(f"at must be given, or mtbf, got {'both' if self.at else 'neither'}")
        if (self.mtbf is None) != (self.mttr is None):
            raise ValueError("mttr must be given with mtbf, and only then")
        if self.repair is not None and not self.at:
            raise ValueError("repair must be left out with mtbf, which has mttr")

    @property
    def cable(self) -> Cable | None:
        """The ends of the link that fails, if one does."""
        return None if self.link is None else (self.link[0], self.link[1])

    @property
    def is_for_good(self) -> bool:
        """Whether the failure is never repaired."""
        return self.mtbf is None and self.repair is None

    def together(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        """Return which of some clients fail together. names: all that the failure is about."""
        if self.at or self.node is not None:
            return [tuple(names)]
        return [(name,) for name in names]

    def changes(self, rng: Rng) -> Iterator[Change]:
        """Yield failures and repairs of a group that fails together, in order of time."""
        if self.at:
            yield from self._at_given_times()
            return
        now = 0.0
        while self.mtbf is not None and self.mttr is not None:
            now += max(rng.exponential(self.mtbf), math.ulp(now))
            yield Change(now, "fail")
            now += max(rng.exponential(self.mttr), math.ulp(now))
            yield Change(now, "repair")

    def _at_given_times(self) -> Iterator[Change]:
        what: Literal["fail", "leave"] = "leave" if self.repair is None else "fail"
        found = [Change(time, what) for time in self.at]
        if self.repair is not None:
            found += [Change(time + self.repair, "repair") for time in self.at]
        yield from sorted(found, key=lambda change: change.time)


class Change(NamedTuple):
    """Changes of clients at a time (seconds); clients in `leave` fail for good."""

    time: float
    what: Literal["fail", "leave", "repair"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Clients that stop taking requests at a time, finish those they have, and leave.

    clients: their names, or those of groups of copies.
    at: when it begins, from the start of the run.
    back: time after `at` at which they start again; a client not empty by then takes requests again
        at once. None: never.

    Raises ValueError without clients, and for times out of range.
    """

    clients: tuple[str, ...]
    at: NotNegative[Seconds]
    back: Positive[Seconds] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.clients:
            raise ValueError("clients must have at least one entry, got none")


@dataclass(frozen=True, kw_only=True)
class OnFailure:
    """How requests inside a client that fails go on, or end.

    policy: retry sends each to another client, as a prompt with the tokens emitted so far, whose KV
        entries are computed again; the user keeps these tokens. resume does the same, but if a
        prefill client still keeps entries that the decode client had not begun to fetch, another
        decode client continues from them. fail ends the request as lost.
    max_retries: how often a request may be sent to another client; the next loss ends it.

    Source: the migration of requests in NVIDIA Dynamo (`--migration-limit`), which appends the
    tokens so far to the prompt.
    Raises ValueError for less than no retries.
    """

    policy: Literal["retry", "resume", "fail"] = "retry"
    max_retries: NotNegative[int] = 3

    def __post_init__(self) -> None:
        check_fields(self)
        if self.policy == "fail" and self.max_retries != OnFailure.max_retries:
            raise ValueError("max_retries must be left out with policy: fail, which has none")


RETRY = OnFailure()
"""The policy if none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """Clients that come and go during a run. By default all clients stay up.

    failures: clients that fail, and when.
    on_failure: what happens to the requests inside.
    drains: clients that finish their requests and leave, and when.
    autoscaling: groups whose number of clients a policy controls.
    start_up: time that a client takes to start after a repair, a drain or when added; None: none.
    """

    failures: tuple[Failures, ...] = ()
    on_failure: OnFailure = RETRY
    drains: tuple[Drain, ...] = ()
    autoscaling: tuple[Autoscaling, ...] = ()
    start_up: StartUp | None = None

    def check(self, clients: Sequence[Client], network: Network | None) -> None:
        """Raise ScenarioError for a lifecycle that contradicts a run's clients or network.

        Names are those of clients.
        """
        known = {client.name: client for client in clients}
        for position, failure in enumerate(self.failures):
            place = f"failures.{position}"
            if failure.cable is not None:
                self._check_link(failure.cable, network, place)
                continue
            for name in self.failing(failure, network, place):
                _check_name(name, known, f"{place}.clients")
                if not known[name].traits.can_fail:
                    raise ScenarioError(
                        f"{place}: {name} must not fail, since {type(known[name]).__name__} does "
                        "not lose what is in flight"
                    )
                self._check_comes_up(failure, known[name], place)
        for position, drain in enumerate(self.drains):
            for name in drain.clients:
                _check_name(name, known, f"drains.{position}.clients")
                _check_drains(known[name], f"drains.{position}")
        self._check_groups(known)
        self._check_weights(clients, network)

    def _check_weights(self, clients: Sequence[Client], network: Network | None) -> None:
        """Raise ScenarioError for weights that lie nowhere; name the links that loads take."""
        for client in clients:
            ways = loads_over(self.start_up, client, network)
            if ways is None or self.start_up is None:
                continue
            try:
                ways.check_stores(seats_of(client), self.start_up.store)
            except ScenarioError as error:
                raise ScenarioError(f"start_up.weights_{error}") from None

    def _check_link(self, cable: Cable, network: Network | None, place: str) -> None:
        """Raise ScenarioError for a missing link, or one without an alternative route."""
        ways = network.ways if network is not None else None
        if ways is None:
            raise ScenarioError(
                f"{place}.link must be left out without network.topology, which has links"
            )
        try:
            ways.check_link(cable)
        except ScenarioError as error:
            raise ScenarioError(f"{place}.link must be the ends of a link: {error}") from None
        gone = [one.cable for one in self.failures if one.cable and one.is_for_good]
        if cable in gone and (ends := ways.cut_off(gone)):
            raise ScenarioError(
                f"{place}.link must leave a route from {ends[0]} to {ends[1]}, where KV entries "
                f"go, got {' - '.join(cable)} for good; give the time of its return with repair, "
                f"or let the clients that it cuts off fail"
            )

    def failing(
        self, failure: Failures, network: Network | None, place: str = "failures"
    ) -> tuple[str, ...]:
        """Return the names of the clients of a failure, empty for that of a link.

        place: its place in the file, for messages.
        Raises ScenarioError for a node without clients.
        """
        if failure.node is None:
            return failure.clients
        ways = network.ways if network is not None else None
        if ways is None:
            raise ScenarioError(
                f"{place}.node must be left out without network.topology, which has nodes"
            )
        names = tuple(ways.clients_on(failure.node))
        if not names:
            raise ScenarioError(
                f"{place}.node must be one that a client has GPUs on, got {brief(failure.node)}: "
                "the failure would affect no client"
            )
        return names

    def not_by(self, end: float, struck: Collection[int]) -> Iterator[tuple[str, str]]:
        """Yield (place in the file, when) of what never came in a run that ended after `end` s.

        struck: positions of failures at random that came.
        """
        for position, failure in enumerate(self.failures):
            place = f"lifecycle.failures.{position}"
            yield from not_reached(place, failure.at, end)
            if failure.mtbf is not None and position not in struck:
                yield place, f"at random, after {failure.mtbf:g} s on average"
        for position, drain in enumerate(self.drains):
            yield from not_reached(f"lifecycle.drains.{position}", [drain.at], end)
        for position, group in enumerate(self.autoscaling):
            place, interval = f"lifecycle.autoscaling.{position}", group.interval
            if end < interval:
                yield place, f"at its first look, at {interval:g} s"
            elif isinstance(group.policy, Schedule):
                yield from not_reached(
                    f"{place}.policy", group.policy.at, end // interval * interval
                )

    def _check_comes_up(self, failure: Failures, client: Client, place: str) -> None:
        """Raise ScenarioError for a client that fails again before it can be up."""
        start = self.start_up
        if failure.mtbf is None or start is None:
            return
        if start.time is None:
            seconds = start.seconds(client.traits.machine, client.name)
        elif isinstance(start.time, float | int):
            seconds = start.time
        else:
            return
        if seconds > failure.mtbf:
            raise ScenarioError(
                f"{place}.mtbf must be >= the {seconds:.4g} s that {client.name} takes to start, "
                f"got {failure.mtbf} s; it would hardly ever be up"
            )

    def _check_groups(self, known: dict[str, Client]) -> None:
        for position, group in enumerate(self.autoscaling):
            for name in group.clients:
                _check_name(name, known, f"autoscaling.{position}.clients")
                _check_drains(known[name], f"autoscaling.{position}")
            first, *others = ((name, known[name].traits) for name in group.clients)
            for name, other in others:
                if {*other.serves, other.model} != {*first[1].serves, first[1].model}:
                    raise ScenarioError(
                        f"autoscaling.{position}.clients must serve the same stages and model, got "
                        f"{first[0]}: {', '.join(sorted(first[1].serves))}; "
                        f"{name}: {', '.join(sorted(other.serves))}"
                    )
            if problem := group.problem(len(group.clients)):
                raise ScenarioError(f"autoscaling.{position}.{problem}")
        members = Counter(name for group in self.autoscaling for name in group.clients)
        for name, count in members.items():
            if count > 1:
                raise ScenarioError(f"autoscaling: {name} must be in one group, got {count}")
            if any(name in drain.clients for drain in self.drains):
                raise ScenarioError(f"drains: {name} must not be in a group that is scaled")

    @property
    def asks_for_slo(self) -> bool:
        """Whether a policy looks at the limits of the slo."""
        return any(isinstance(group.policy, SloAttainment) for group in self.autoscaling)

    @property
    def starts_anybody(self) -> bool:
        """Whether a client starts during the run, so that `start_up` is used."""
        failing = [failure for failure in self.failures if failure.link is None]
        comes_back = any(not failure.is_for_good for failure in failing)
        return comes_back or bool(self.autoscaling) or any(d.back for d in self.drains)

    def assumed(self, network: Network | None) -> dict[str, tuple[str, ...]]:
        """Return the assumptions on the starts of clients, by name; {} if `start_up` sets all."""
        start = self.start_up
        options: tuple[str, ...] = ("lifecycle.start_up",)
        if start is not None:
            options = tuple(f"lifecycle.start_up.{name}" for name in start.assumed)
        if not options:
            return {}
        names = [name for group in self.autoscaling for name in group.clients]
        names += [name for drain in self.drains if drain.back for name in drain.clients]
        for failure in self.failures:
            if failure.link is None and not failure.is_for_good:
                names += self.failing(failure, network)
        return dict.fromkeys(names, options)


def _check_drains(client: Client, place: str) -> None:
    if not client.traits.can_drain:
        raise ScenarioError(
            f"{place}: {client.name} must stay, since {type(client).__name__} cannot be drained "
            "(can_drain is False)"
        )


def _check_name(name: str, known: dict[str, Client], place: str) -> None:
    require_known(name, known, f"{place} must name clients, got", f"Known: {listed(known)}")
