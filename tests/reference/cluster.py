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

Prefill and decode may be apart. A client with role prefill takes a job's prompt, of which it emits
the first token. If more are due, it holds the blocks, and the job moves on when that visit ends:
the router chooses among the clients that decode, which are those with role decode and those without
a role, where the job is a new visit (`stepwise.py`). Its blocks go over one link for all clients,
as large as they are where they go to, and are there a latency after the last byte has left. Those
under way have equal parts of the link. When all is done that happens at a time, the parts are made
anew for who has begun and ended, and the next end is told to move. When blocks are there, first
those held are free, and the lane hears of its own afterwards. Who gives up while they move leaves
everything as it is until they are there; who does before frees what is held. The visits of a job
have the limits of the job; only its end counts when its first token is there. A client whose
longest context the job has reached with its first token has nothing to do for it.

Where `first_token` is "decode", the first token of the prefill is silent, also of an answer of one
token: nobody gets it, and no limit ends with it. What moves are the entries of all tokens of the
prompt but the last, and the first decode step gives the first token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from math import inf

from mist_sim.rng import Streams
from tests.reference.parallel import StepwiseClient, StepwiseGroup
from tests.reference.stepwise import Job, Live, Outcome, StepwiseEngine

Router = Callable[[str, Sequence[StepwiseClient]], int]
"""Takes what is to be done and the clients that do it, and returns the position of one."""


def in_turn() -> Router:
    turns = {"prefill": -1, "decode": -1}

    def choose(kind: str, clients: Sequence[StepwiseClient]) -> int:
        turns[kind] += 1
        return turns[kind] % len(clients)

    return choose


def with_fewest_jobs(kind: str, clients: Sequence[StepwiseClient]) -> int:
    numbers = [client.num_outstanding for client in clients]
    return numbers.index(min(numbers))


def at_random(seed: int) -> Router:
    """Return a router that draws what a run with that seed draws."""
    rng = Streams(seed).generator("router")
    return lambda kind, clients: int(rng.random() * len(clients))


PLAIN_ROUTERS = ("round_robin", "random", "least_outstanding")
"""Those that the reference has; others are held against themselves, with other run lengths."""


def router_named(name: str, seed: int) -> Router:
    routers = {"least_outstanding": with_fewest_jobs}
    return routers.get(name) or (in_turn() if name == "round_robin" else at_random(seed))


class Link:
    """The way of blocks between clients: bytes a second, and seconds from leaving to arriving.

    got: bytes that each of those under way got since somebody was there, at `since`.
    leaving: (what `got` is then, number, what happens when it is there) of each.
    """

    def __init__(self, bandwidth: float = inf, latency: float = 0.0) -> None:
        self.bandwidth = bandwidth
        self.latency = latency
        self.got = 0.0
        self.since = 0.0
        self.rate = 0.0
        self.num_sent = 0
        self.leaving: list[tuple[float, int, Callable[[], None]]] = []
        self.begun: list[tuple[float, Callable[[], None]]] = []
        self.is_shared = True  # as it has to be
        self.version = 0

    def end(self, target: float) -> float:
        return self.since + max(target - self.got, 0.0) / self.rate

    def send(self, cluster: StepwiseCluster, num_bytes: float, act: Callable[[], None]) -> None:
        if cluster.now + num_bytes / self.bandwidth > cluster.now:
            self.begun.append((num_bytes, act))
            self.is_shared = False
        else:
            cluster.at(cluster.now + self.latency, act)

    def share(self, cluster: StepwiseCluster) -> None:
        now = cluster.now
        self.got = self.got + self.rate * (now - self.since) if self.leaving else 0.0
        self.since = now
        for num_bytes, act in sorted(self.begun, key=lambda begun: begun[0]):
            self.num_sent += 1
            self.leaving.append((self.got + num_bytes, self.num_sent, act))
        self.begun.clear()
        self.is_shared = True
        self.version += 1
        if self.leaving:
            self.rate = self.bandwidth / len(self.leaving)
            first = min(self.leaving)[0]
            cluster.at(self.end(first), partial(self.leave, cluster, self.version))

    def leave(self, cluster: StepwiseCluster, version: int) -> None:
        """Let those leave who do now, unless parts have changed since this was said."""
        if version != self.version:
            return
        done = [one for one in self.leaving if self.end(one[0]) <= cluster.now]
        self.leaving = [one for one in self.leaving if one not in done]
        self.is_shared = False
        for _, _, act in sorted(done, key=lambda one: one[1]):
            cluster.at(cluster.now + self.latency, act)


class Held:
    """What a lane holds of a job that has left its client."""

    def __init__(self, cluster: StepwiseCluster, client: int, live: Live) -> None:
        self.cluster = cluster
        self.client = client
        self.live = live
        self.group, self.lane = next(
            (group, lane)
            for group in cluster.clients[client].groups
            for lane in group.lanes
            if live in lane.held
        )
        self.is_held = True
        self.is_moving = False

    def drop(self) -> None:
        if not self.is_moving:
            self.release()

    def release(self) -> None:
        if self.is_held:
            self.is_held = False
            self.group.release(self.lane, self.live, self.cluster.now)


@dataclass(frozen=True)
class Move:
    """Blocks of a job that went from one client to another."""

    job: int
    source: int
    client: int
    num_tokens: int
    start: float
    end: float


class StepwiseCluster:
    """Clients behind a router.

    prepare: says what a job is to a client, given both numbers; by default what it is anyway.
    sent: (client, job number) in the order of arrival. left: the same in the order of leaving.
    visits: the outcomes of each job's visits. moves: in the order in which they ended.
    """

    def __init__(
        self,
        clients: Sequence[StepwiseClient],
        router: Router,
        prepare: Callable[[int, Job, int], Job] = lambda client, job, number: job,
        link: Link | None = None,
        first_token: str = "prefill",
    ) -> None:
        self.link = link or Link()
        self.first_token = first_token
        self.clients = clients
        self.router = router
        self.prepare = prepare
        self.now = 0.0
        self.sent: list[tuple[int, int]] = []
        self.left: list[tuple[int, int]] = []
        self.jobs: list[Job] = []
        self.visits: list[list[Outcome]] = []  # by job number
        self.moves: list[Move] = []
        self._places: dict[Live, tuple[int, int]] = {}
        self._moves: list[tuple[float, int, Callable[[], None]]] = []
        self._num_moves = 0
        self._gone: list[Live] = []
        self._num_noted = 0  # of those
        for client in clients:
            client.report_to(self._gone)
            for lane in client.tracks:
                lane.fetch = self.fetch

    @property
    def outcomes(self) -> list[Outcome]:
        """The last one of each job, by number."""
        return [outcomes[-1] for outcomes in self.visits]

    @property
    def groups(self) -> list[StepwiseGroup]:
        return [group for client in self.clients for group in client.groups]

    def numbers(self, client: int) -> list[int]:
        """Return the numbers of a client's jobs, in order of arrival."""
        return [number for place, number in self.sent if place == client]

    def run(self, sender: Sender) -> None:
        self.sender = sender
        sender.start(self)
        while True:
            now = self.next_time()
            if now > self.now and not self.link.is_shared:
                self.link.share(self)
                continue
            if now == inf:
                break
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
        self.jobs.append(job)
        self.visits.append([])
        self.visit(len(self.visits) - 1, "prefill")

    def visit(self, number: int, kind: str, held: Held | None = None) -> None:
        """Let a job arrive at a client for its prompt, or for its decode after what is held."""
        places = [k for k, client in enumerate(self.clients) if client.role in (None, kind)]
        client = places[self.router(kind, [self.clients[place] for place in places])]
        job = self.prepare(client, self.jobs[number], number)
        live = Live(job, Outcome())
        if held:
            live.incoming, live.was_held = held, True
            live.num_emitted = int(self.first_token == "prefill")
            live.outcome.chunk_times = self.visits[number][0].token_times[-1:]
        elif self.clients[client].role:
            live.is_silent = self.first_token == "decode"
            live.is_followed = live.is_silent or job.num_output_tokens > 1
            live.job = replace(job, num_output_tokens=1, path=())
        self.visits[number].append(live.outcome)
        self._places[live] = client, number
        self.sent.append((client, number))
        self.clients[client].arrive(live, self.now)
        self.note_who_left()

    def fetch(self, lane: StepwiseEngine, live: Live, num_blocks: int) -> None:
        """Begin to move blocks of what is held of a job to a lane."""
        held, (client, number), start = live.incoming, self._places[live], self.now
        assert isinstance(held, Held)
        held.is_moving = True
        group = next(g for g in self.clients[client].groups if any(e is lane for e in g.lanes))
        num_here = (lane.blocks_for(live.num_known - 1) - num_blocks) * lane.block_size
        num_tokens = max(0, live.num_known - 1 - num_here)

        def end() -> None:
            self.moves.append(Move(number, held.client, client, num_tokens, start, self.now))
            held.release()
            group.end_move(lane, live, self.now)

        self.link.send(self, num_blocks * self.clients[client].block_bytes, end)

    def note_who_left(self) -> None:
        for live in self._gone[self._num_noted :]:
            self._num_noted += 1
            place = self._places[live]
            self.left.append(place)
            if live.is_followed and live.outcome.status == "finished":
                held = Held(self, place[0], live)
                self.at(self.now, partial(self.visit, place[1], "decode", held))
            else:
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
