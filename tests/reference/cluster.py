"""Several plain clients behind a plain router, and who sends them jobs; at one time one thing.

Rules, at equal times, each over all clients before the next, and from the beginning again when
something of an earlier one comes up:

1. Steps end, client by client, and in a client engine by engine.
2. Requests move, who was told to move first first: they arrive, and whose request has left sends
   the next one. Then blocks that were loaded are there.
3. Users whose time is up give up, client by client, and at a client in order of arrival.
4. Engines plan, one after the other, in the order in which steps end.

A job that arrives goes where the router says, which sees how many jobs each client has. It is
told to move on when it leaves; jobs that are turned away leave when they arrive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf

from mist_sim.rng import Streams
from tests.reference.parallel import StepwiseClient, StepwiseGroup
from tests.reference.stepwise import Job, Live, Outcome

Router = Callable[[Sequence[StepwiseClient]], int]
"""Takes the clients, and returns the number of one."""


def in_turn() -> Router:
    turn = -1

    def choose(clients: Sequence[StepwiseClient]) -> int:
        nonlocal turn
        turn += 1
        return turn % len(clients)

    return choose


def with_fewest_jobs(clients: Sequence[StepwiseClient]) -> int:
    numbers = [client.num_outstanding for client in clients]
    return numbers.index(min(numbers))


def at_random(seed: int) -> Router:
    """Return a router that draws what a run with that seed draws."""
    rng = Streams(seed).generator("router")
    return lambda clients: int(rng.random() * len(clients))


PLAIN_ROUTERS = ("round_robin", "random", "least_outstanding")
"""Those that the reference has; others are held against themselves, with other run lengths."""


def router_named(name: str, seed: int) -> Router:
    routers = {"least_outstanding": with_fewest_jobs}
    return routers.get(name) or (in_turn() if name == "round_robin" else at_random(seed))


class StepwiseCluster:
    """Clients behind a router.

    prepare: says what a job is to a client, given both numbers; by default what it is anyway.
    sent: (client, job number) in the order of arrival. left: the same in the order of leaving.
    """

    def __init__(
        self,
        clients: Sequence[StepwiseClient],
        router: Router,
        prepare: Callable[[int, Job, int], Job] = lambda client, job, number: job,
    ) -> None:
        self.clients = clients
        self.router = router
        self.prepare = prepare
        self.now = 0.0
        self.sent: list[tuple[int, int]] = []
        self.left: list[tuple[int, int]] = []
        self.outcomes: list[Outcome] = []  # by job number
        self._places: dict[Live, tuple[int, int]] = {}
        self._moves: list[tuple[float, int, Callable[[], None]]] = []
        self._num_moves = 0
        self._gone: list[Live] = []
        self._num_noted = 0  # of those
        for client in clients:
            client.report_to(self._gone)

    @property
    def groups(self) -> list[StepwiseGroup]:
        return [group for client in self.clients for group in client.groups]

    def numbers(self, client: int) -> list[int]:
        """Return the numbers of a client's jobs, in order of arrival."""
        return [number for place, number in self.sent if place == client]

    def run(self, sender: Sender) -> None:
        self.sender = sender
        sender.start(self)
        while (now := self.next_time()) < inf:
            self.now = now
            for client in self.clients:
                client.end_steps(now)
                self.note_who_left()
            self.move()
            for client in self.clients:
                while client.reach_limit(now):
                    self.note_who_left()
                    self.move()
            while group := next((g for g in self.groups if g.can_plan(now)), None):
                group.plan(now)
                self.note_who_left()
                self.move()

    def next_time(self) -> float:
        times = [client.next_time() for client in self.clients]
        return min(times + [time for time, _, _ in self._moves[:1]])

    def at(self, time: float, act: Callable[[], None]) -> None:
        """Let something move at a time, behind what was told to move then."""
        self._num_moves += 1
        heappush(self._moves, (time, self._num_moves, act))

    def move(self) -> None:
        """Let everything move that moves now."""
        while self._moves and self._moves[0][0] <= self.now:
            heappop(self._moves)[2]()
        for client in self.clients:
            client.end_loads(self.now)

    def send(self, job: Job) -> None:
        """Let a job arrive now."""
        number = len(self.outcomes)
        client = self.router(self.clients)
        live = Live(self.prepare(client, job, number), Outcome())
        self.outcomes.append(live.outcome)
        self._places[live] = client, number
        self.sent.append((client, number))
        self.clients[client].arrive(live, self.now)
        self.note_who_left()

    def note_who_left(self) -> None:
        for live in self._gone[self._num_noted :]:
            self._num_noted += 1
            place = self._places[live]
            self.left.append(place)
            self.at(self.now, self.sender.what_follows(self, place[1], live.outcome))


class Sender(ABC):
    """Who sends jobs."""

    @abstractmethod
    def start(self, cluster: StepwiseCluster) -> None:
        """Send the first jobs, or say when they are sent."""

    def what_follows(
        self, cluster: StepwiseCluster, number: int, outcome: Outcome
    ) -> Callable[[], None]:
        """Return what is done when a job has left; here nothing."""
        return lambda: None


class AtGivenTimes(Sender):
    """Jobs come at their arrival times."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = jobs

    def start(self, cluster: StepwiseCluster) -> None:
        for job in self._jobs:
            cluster.at(job.arrival_time, lambda job=job: cluster.send(job))


class Users(Sender):
    """Each sends a job, waits until it has ended, thinks, and sends the next one that is left.

    starts: when each begins (s), in their order.
    """

    def __init__(self, jobs: Iterable[Job], starts: Sequence[float], think_time: float) -> None:
        self._jobs = iter(jobs)
        self._starts = starts
        self._think_time = think_time

    def start(self, cluster: StepwiseCluster, user: int = 0) -> None:
        """Begin with a user and those behind it; each is told when the one before has begun."""
        if user == len(self._starts):
            return
        if self._starts[user] > cluster.now:
            cluster.at(self._starts[user], lambda: self._begin(cluster, user))
        else:
            self._begin(cluster, user)

    def _begin(self, cluster: StepwiseCluster, user: int) -> None:
        self._send(cluster)
        self.start(cluster, user + 1)

    def _send(self, cluster: StepwiseCluster) -> None:
        job = next(self._jobs, None)
        if job is not None:
            cluster.send(replace(job, arrival_time=cluster.now))

    def what_follows(
        self, cluster: StepwiseCluster, number: int, outcome: Outcome
    ) -> Callable[[], None]:
        def go_on() -> None:
            sends_at = outcome.finished_at + self._think_time
            if sends_at > cluster.now:
                cluster.at(sends_at, lambda: self._send(cluster))
            else:
                self._send(cluster)

        return go_on
