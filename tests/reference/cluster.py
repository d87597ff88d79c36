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

Where `transfer` is "push", a job is queued where it decodes before it goes to its prefill client,
which is chosen before. Its decode visit takes memory as ever, and then waits. When it has, the job
is told to move to its prefill client, and when the prompt is done, to send its blocks. One of the
two visits may fail first: when that of the prompt does, the other fails with it; when the other
does, that of the prompt goes on, and what it leaves is free at once. What waits for blocks that
will not come is told to move, too.

Clients with role p_heavy or d_heavy serve prompts and answers. Answers flow between them, as
`flowing.py` says; the router has one client to choose from then. One that moves on is a new visit,
whose blocks are always pulled.

What a connector takes is `Costs`: seconds before blocks are there, for each and once, beside the
latency, and seconds for each from then on, when those held are free.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from math import inf

from mist_sim.rng import Streams
from tests.reference import flowing
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
    leaving: (what `got` is then, number, latency, what happens when it is there) of each; they are
    numbered as they were sent.
    """

    def __init__(self, bandwidth: float = inf, latency: float = 0.0) -> None:
        self.bandwidth = bandwidth
        self.latency = latency
        self.got = 0.0
        self.since = 0.0
        self.rate = 0.0
        self.num_sent = 0
        self.leaving: list[tuple[float, int, float, Callable[[], None]]] = []
        self.begun: list[tuple[float, int, float, Callable[[], None]]] = []
        self.is_shared = True  # as it has to be
        self.version = 0

    def end(self, target: float) -> float:
        return self.since + max(target - self.got, 0.0) / self.rate

    def send(
        self, cluster: StepwiseCluster, num_bytes: float, act: Callable[[], None], more: float = 0.0
    ) -> None:
        """more: seconds beside the latency."""
        latency = self.latency + more
        self.num_sent += 1
        if cluster.now + num_bytes / self.bandwidth > cluster.now:
            self.begun.append((num_bytes, self.num_sent, latency, act))
            self.is_shared = False
        else:
            cluster.at(cluster.now + latency, act, self.num_sent)

    def share(self, cluster: StepwiseCluster) -> None:
        now = cluster.now
        self.got = self.got + self.rate * (now - self.since) if self.leaving else 0.0
        self.since = now
        self.leaving += [(self.got + num_bytes, *rest) for num_bytes, *rest in self.begun]
        self.begun.clear()
        self.is_shared = True
        self.version += 1
        if self.leaving:
            self.rate = self.bandwidth / len(self.leaving)
            first = min(self.leaving)[0]
            cluster.at(self.end(first), partial(self.leave, cluster, self.version), 0)

    def leave(self, cluster: StepwiseCluster, version: int) -> None:
        """Let those leave who do now, unless parts have changed since this was said."""
        if version != self.version:
            return
        done = [one for one in self.leaving if self.end(one[0]) <= cluster.now]
        self.leaving = [one for one in self.leaving if one not in done]
        self.is_shared = False
        for _, number, latency, act in done:
            cluster.at(cluster.now + latency, act, number)


@dataclass(frozen=True)
class Costs:
    """What a move takes beside its bytes: seconds once, for each block, and for each afterwards."""

    start: float = 0.0
    block: float = 0.0
    block_afterwards: float = 0.0

    def before(self, num_blocks: int) -> float:
        return self.start + self.block * num_blocks

    def afterwards(self, num_blocks: int) -> float:
        return self.block_afterwards * num_blocks


NO_COSTS = Costs()


class Awaited:
    """What will be held of a job, whose decode visit is there before.

    live: of that visit. prompt: the outcome of the other, which may not have begun.
    """

    def __init__(self, cluster: StepwiseCluster, number: int, source: int) -> None:
        self.cluster = cluster
        self.number = number
        self.source = source
        self.live: Live
        self.prompt = Outcome()
        self.held: Held | None = None
        self.has_begun = False
        self.is_over = False  # the visit of the prompt
        self.is_dropped = False
        self.act: Callable[[], None] | None = None

    def reserved(self, act: Callable[[], None]) -> None:
        """There is memory; `act` comes when the blocks can, or will not."""
        self.act = act
        self.has_begun = True
        self.cluster.at(self.cluster.now, self.begin)

    def begin(self) -> None:
        """Visit the prefill client, unless the user gave up as the memory came free."""
        if self.is_dropped:
            self.is_over = True
            self.cluster.follow(self.number, self.live.outcome)
        else:
            self.cluster.visit(self.number, self.source, self)

    def fill(self, held: Held) -> None:
        self.is_over = True
        if self.is_dropped:
            held.drop()
            self.cluster.follow(self.number, self.live.outcome)
            return
        self.held = held
        self.live.counts_from = held.live.counts_from
        self.live.outcome.chunk_times = self.prompt.token_times[-1:]
        assert self.act
        self.cluster.at(self.cluster.now, self.act)

    def fail(self) -> None:
        """The visit of the prompt ended without any."""
        self.is_over = True
        if self.is_dropped:
            self.cluster.follow(self.number, self.prompt)
            return
        if not self.live.has_given_up:  # else it leaves when its lane knows
            self.cluster.cancel(self.live, self.prompt)

    def drop(self) -> None:
        if self.held:
            self.held.drop()
        elif not self.is_dropped:
            self.is_dropped = True
            if self.act:
                self.cluster.at(self.cluster.now, self.act)


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
    flows: who leaves clients of a role.
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
        transfer: str = "pull",
        costs: Costs | None = None,
        flows: Mapping[str | None, flowing.Flow] | None = None,
    ) -> None:
        self.link = link or Link()
        self.first_token = first_token
        self.transfer = transfer
        self.costs = costs or Costs()
        self.awaited: dict[int, Awaited] = {}  # by job number
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
        self._moves: list[tuple[float, float, int, Callable[[], None]]] = []
        self._num_moves = 0
        self._gone: list[Live] = []
        self._num_noted = 0  # of those
        for client in clients:
            client.report_to(self._gone)
            for lane in client.tracks:
                lane.fetch = self.fetch
                lane.flow = (flows or {}).get(client.role)

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
            self.reach_limits()
            while group := next((g for g in self.groups if g.can_plan(now)), None):
                group.plan(now)
                self.note_who_left()
                self.move()
                self.reach_limits()  # of requests that came when their time was up

    def reach_limits(self) -> None:
        """Let all give up whose time is up."""
        for client in self.clients:
            while client.reach_limit(self.now):
                self.note_who_left()
                self.move()

    def next_time(self) -> float:
        times = [client.next_time() for client in self.clients]
        return min(times + [time for time, *_ in self._moves[:1]])

    def at(self, time: float, act: Callable[[], None], number: float = inf) -> None:
        """Let something move at a time, behind what was told to move then.

        number: of what was sent and is there then, which goes before; 0: when bytes have left.
        """
        self._num_moves += 1
        heappush(self._moves, (time, number, self._num_moves, act))

    def move(self) -> None:
        """Let everything move that moves now."""
        while self._moves and self._moves[0][0] <= self.now:
            heappop(self._moves)[-1]()
        for client in self.clients:
            client.end_loads(self.now)

    def send(self, job: Job) -> None:
        """Let a job arrive now."""
        self.jobs.append(job)
        self.visits.append([])
        number = len(self.visits) - 1
        client = self.place("prefill")
        has_rest = self.first_token == "decode" or job.num_output_tokens > 1
        if self.transfer == "push" and self.hands_over(client) and has_rest:
            self.reserve(number, client)
        else:
            self.visit(number, client)

    def hands_over(self, client: int) -> bool:
        """Tell whether a client leaves the answers to its prompts to others."""
        return self.clients[client].role in ("prefill", "p_heavy")

    def place(self, kind: str, source: int | None = None) -> int:
        """Return the client that the router chooses; `source`: who keeps the blocks."""
        roles = (None, kind, *flowing.ROLES)
        places = [k for k, client in enumerate(self.clients) if client.role in roles]
        if kind == "decode":
            goes_down = source is not None and self.clients[source].role == "d_heavy"
            taker = "p_heavy" if goes_down else "d_heavy"
            takers = [k for k in places if self.clients[k].role == taker]
            if takers:
                places = [min(takers, key=lambda k: self.clients[k].part_in_use)]
        return places[self.router(kind, [self.clients[place] for place in places])]

    def reserve(self, number: int, source: int) -> None:
        """Let a job arrive where it will decode; its prompt is for another client."""
        self.awaited[number] = awaited = Awaited(self, number, source)
        client = self.place("decode")
        awaited.live = live = self.taken_over(number, client, awaited)
        live.elsewhere = awaited.prompt
        self.visits[number].append(live.outcome)
        self.arrive(live, client, number)

    def visit(self, number: int, client: int, awaited: Awaited | None = None) -> None:
        """Let a job arrive at a client for its prompt; `awaited`: another one waits for that."""
        job = self.prepare(client, self.jobs[number], number)
        live = Live(job, awaited.prompt if awaited else Outcome())
        live.num_elsewhere = job.num_elsewhere
        is_cut = awaited is None and number in self.awaited
        if self.hands_over(client):
            has_rest = self.first_token == "decode" or job.num_output_tokens > 1
            live.is_followed = has_rest and not is_cut
            live.is_silent = live.is_followed and self.first_token == "decode"
            live.job = replace(job, num_output_tokens=1, path=(), whole_answer=job.predicted)
        self.visits[number].insert(0 if awaited else len(self.visits[number]), live.outcome)
        self.arrive(live, client, number)

    def go_on(self, number: int, held: Held) -> None:
        """Let a job arrive for its decode after what is held."""
        client = self.place("decode", held.client)
        live = self.taken_over(number, client, held)
        before = held.live
        live.outcome.chunk_times = before.outcome.token_times[-1:]
        live.num_emitted = before.num_emitted - before.is_silent
        live.counts_from = before.counts_from
        came_back = before.outcome.status == "moved" and self.clients[held.client].role == "p_heavy"
        live.num_backflows = before.num_backflows + came_back
        if self.clients[client].role == "d_heavy" and live.num_emitted:
            live.counts_from = before.outcome.token_times[-1], live.num_emitted
        self.visits[number].append(live.outcome)
        self.arrive(live, client, number)

    def taken_over(self, number: int, client: int, held: Held | Awaited) -> Live:
        live = Live(self.prepare(client, self.jobs[number], number), Outcome())
        live.incoming, live.was_held = held, True
        live.num_emitted = int(self.first_token == "prefill")
        return live

    def arrive(self, live: Live, client: int, number: int) -> None:
        self._places[live] = client, number
        self.sent.append((client, number))
        self.clients[client].arrive(live, self.now)
        self.note_who_left()

    def fetch(self, lane: StepwiseEngine, live: Live, num_blocks: int) -> None:
        """Begin to move blocks of what is held of a job to a lane, when they are there."""
        if isinstance(live.incoming, Awaited):
            live.incoming.reserved(partial(self.fetch_awaited, lane, live, num_blocks))
        else:
            assert isinstance(live.incoming, Held)
            self.copy(lane, live, num_blocks, live.incoming)

    def fetch_awaited(self, lane: StepwiseEngine, live: Live, num_blocks: int) -> None:
        assert isinstance(live.incoming, Awaited)
        if live.incoming.held:
            self.copy(lane, live, num_blocks, live.incoming.held)
        else:
            self.group_of(lane, live).end_move(lane, live, self.now)

    def copy(self, lane: StepwiseEngine, live: Live, num_blocks: int, held: Held) -> None:
        (client, number), start = self._places[live], self.now
        held.is_moving = True
        group = self.group_of(lane, live)
        num_here = (lane.blocks_of(live.num_known - 1) - num_blocks) * lane.block_size
        num_tokens = max(0, live.num_known - 1 - num_here)

        def end() -> None:
            held.release()
            if seconds := self.costs.afterwards(num_blocks):
                self.at(self.now + seconds, use)
            else:
                use()

        def use() -> None:
            self.moves.append(Move(number, held.client, client, num_tokens, start, self.now))
            group.end_move(lane, live, self.now)

        num_bytes = num_blocks * self.clients[client].block_bytes
        self.link.send(self, num_bytes, end, self.costs.before(num_blocks))

    def group_of(self, lane: StepwiseEngine, live: Live) -> StepwiseGroup:
        groups = self.clients[self._places[live][0]].groups
        return next(group for group in groups if any(each is lane for each in group.lanes))

    def cancel(self, live: Live, failed: Outcome) -> None:
        """End the visit of a job that failed elsewhere."""
        client = self.clients[self._places[live][0]]
        group, lane = next((g, e) for g, e, each in client.places() if each is live)
        live.outcome.status, live.outcome.finished_at = failed.status, failed.finished_at
        group.cancel(lane, live, self.now)
        self.note_who_left()

    def follow(self, number: int, outcome: Outcome) -> None:
        """A job has left."""
        self.sender.what_follows(self, number, outcome)()

    def note_who_left(self) -> None:
        for live in self._gone[self._num_noted :]:
            self._num_noted += 1
            place = self._places[live]
            self.left.append(place)
            if act := self.what_is_next(live, place):
                self.at(self.now, act)

    def what_is_next(self, live: Live, place: tuple[int, int]) -> Callable[[], None] | None:
        """Return what is done when a visit has ended; None while the job's other one goes on."""
        number, outcome = place[1], live.outcome
        if outcome.status == "moved":
            return partial(self.go_on, number, Held(self, place[0], live))
        awaited = self.awaited.get(number)
        if live.is_followed and outcome.status == "finished":
            held = Held(self, place[0], live)
            return partial(awaited.fill if awaited else partial(self.go_on, number), held)
        if awaited and outcome is awaited.prompt:
            return awaited.fail
        if awaited and not awaited.is_over:
            if awaited.has_begun:
                return None
            if live is awaited.live and outcome.status == "finished":
                return partial(self.visit, number, awaited.source)  # nothing to decode
        return self.sender.what_follows(self, number, outcome)


class Sender(ABC):
    """Who sends jobs.

    done_at: when the last of them found no job any more, after its last one and a think time (s).
        A run ends then, or with its last job.
    """

    done_at = 0.0

    @abstractmethod
    def start(self, cluster: StepwiseCluster) -> None:
        """Send the first jobs, or say when they are sent."""

    def what_follows(
        self, cluster: StepwiseCluster, number: int, outcome: Outcome
    ) -> Callable[[], None]:
        """Return what is done when a job has left; here nothing."""
        return lambda: None


class AtGivenTimes(Sender):
    """Jobs come at their arrival times; each is told to when the one before has come."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = iter(jobs)

    def start(self, cluster: StepwiseCluster) -> None:
        job = next(self._jobs, None)
        if job is not None:
            cluster.at(job.arrival_time, partial(self._send, cluster, job))

    def _send(self, cluster: StepwiseCluster, job: Job) -> None:
        cluster.send(job)
        self.start(cluster)


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
        if self._send(cluster):
            self.start(cluster, user + 1)

    def _send(self, cluster: StepwiseCluster) -> bool:
        """Send the next job; return whether there was one."""
        job = next(self._jobs, None)
        if job is None:
            self.done_at = cluster.now
            return False
        cluster.send(replace(job, arrival_time=cluster.now))
        return True

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
