"""A bundle of attention and FFN workers, one pass and one slot at a time, in a plain event loop."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from mist_sim.clients.afd import BundleConfig
from tests.reference.cluster import Link

END, FAIL, ARRIVE, MOVE, PLAN, SHARE = range(6)


@dataclass
class Decoding:
    """A request that decodes: tokens that it holds, steps to go, and when its tokens came."""

    num_tokens: int
    num_steps: int
    batch: int = -1
    worker: int = -1
    token_times: list[float] = field(default_factory=list)


class ReferenceBundle:
    """Serves requests that come at given times; the emptiest worker by tokens takes each.

    Nothing is computed ahead: an event for each end of a pass, each arrival and each start.
    """

    def __init__(
        self, config: BundleConfig, bytes_per_token: int, bandwidth: float, latency: float
    ):
        self.config = config
        self.bytes_per_token = bytes_per_token
        self.link = Link(bandwidth, latency)
        self.events: list = []
        self.numbers = count()
        self.now = 0.0
        self.num_failures = 0
        self.begin_empty()

    def begin_empty(self):
        batches = self.config.batches
        self.attention_free = self.ffn_free = 0.0
        self.ready = [0.0] * batches
        self.layers_left = [0] * batches  # of the step under way
        self.in_step: list[int] = []  # batches of a joint step, until all are back
        self.not_begun: set[int] = set()  # those of them that have not been in attention
        self.members: list[list[Decoding]] = [[] for _ in range(batches)]
        self.arrived: list[list[Decoding]] = [[] for _ in range(batches)]
        self.seated: list[Decoding] = []  # whoever has a slot
        self.waiting: list[Decoding] = []
        self.planned: set[float] = set()  # times at which `start` comes

    def fail(self):
        """Forget all that is inside, and what is in flight; what travels goes on, to nobody."""
        self.num_failures += 1
        self.begin_empty()

    def of_this_life(self, action):
        """Return what happens unless the bundle fails before."""
        life = self.num_failures
        return lambda: self.num_failures == life and action()

    def serve(
        self, arrivals: list[tuple[float, int, int]], failures: Sequence[float] = ()
    ) -> list[list[float]]:
        """Return the token times of requests that come as (time, tokens held, steps).

        failures: when it fails; it comes back before the next request does.
        """
        requests = [Decoding(held, steps) for _, held, steps in arrivals]
        for time in failures:
            self.at(time, FAIL, self.fail)
        for (time, *_), request in zip(arrivals, requests, strict=True):
            self.at(time, MOVE, lambda request=request: self.come(request))
        while self.events:
            self.now, _, _, action = heappop(self.events)
            action()
        return [request.token_times for request in requests]

    def at(self, time, phase, action):
        phases = phase if isinstance(phase, tuple) else (phase, 0)
        heappush(self.events, (time, phases, next(self.numbers), action))

    def plan(self, time):
        """Let `start` come once at a time: else a busy bundle gathers one more with every pass."""
        if time not in self.planned:
            self.planned.add(time)
            self.at(time, PLAN, self.of_this_life(self.start))

    def come(self, request):
        self.waiting.append(request)
        self.give_slots()

    def give_slots(self):
        config, coming = self.config, []
        while self.waiting and len(self.seated) < config.num_slots:
            request = self.waiting.pop(0)
            sizes = [sum(r.batch == k for r in self.seated) for k in range(config.batches)]
            request.batch, request.worker = sizes.index(min(sizes)), -1
            self.seated.append(request)
            coming.append(request)
        for request in sorted(coming, key=lambda r: -r.num_tokens):
            mates = [r for r in self.seated if r.batch == request.batch]
            loads = []
            for worker in range(config.attention_workers):
                there = [r for r in mates if r.worker == worker]
                if len(there) < config.slots:
                    loads.append((sum(self.held(r) for r in there), worker))
            request.worker = min(loads)[1]
        for request in coming:
            size = request.num_tokens * self.bytes_per_token
            arrives = self.of_this_life(lambda request=request: self.arrive(request))
            self.link.send(Moves(self), size, arrives)
        if coming:
            self.share_later()

    def share_later(self):
        """When all is done that happens now."""
        self.at(self.now, SHARE, lambda: self.link.is_shared or self.link.share(Moves(self)))

    def held(self, request):
        """Tokens in the cache, those of a pass under way included."""
        return request.num_tokens + len(request.token_times) + (request in self.in_flight)

    @property
    def in_flight(self):
        """Who is in a step that has begun and not ended; with joint steps, those whose end is not
        known count where attention chooses, as for the bundle."""
        return [r for k, batch in enumerate(self.members) if self.is_counted(k) for r in batch]

    def is_counted(self, batch):
        """A step is counted from when its end is known: when its last layer begins."""
        if self.config.joint_steps:
            return (
                bool(self.in_step)
                and not any(self.layers_left[k] or k in self.not_begun for k in self.in_step)
                and batch in self.in_step
            )
        return self.ready[batch] > self.now and not self.layers_left[batch]

    def arrive(self, request):
        self.arrived[request.batch].append(request)
        self.plan(max(self.now, self.ready[request.batch]))

    def may_begin(self, batch):
        """Tell whether a batch is back and has something to do."""
        if self.ready[batch] > self.now:
            return False
        if self.layers_left[batch] or batch in self.not_begun:
            return True
        return not self.in_step and bool(self.members[batch] + self.arrived[batch])

    def start(self):
        """Begin the pass of the batch that has been ready longest, if attention is free."""
        self.planned.discard(self.now)
        if self.attention_free > self.now:
            self.plan(self.attention_free)
            return
        config, batches = self.config, range(self.config.batches)
        able = [k for k in batches if self.may_begin(k)]
        if not able:
            return
        batch = min(able, key=self.ready.__getitem__)
        if not self.layers_left[batch]:
            self.layers_left[batch] = config.layers or 1
            self.let_in(batch)
        c, members = config.coefficients, self.members[batch]
        loads = [0] * config.attention_workers
        for request in members:
            loads[request.worker] += request.num_tokens + len(request.token_times)
        layers = config.layers or 1
        self.attention_free = self.now + (c.alpha_a * max(loads) + c.beta_a) / layers
        per_ffn = config.slots * config.attention_workers if config.static_graph else len(members)
        leg = c.communication_time(per_ffn / config.ffn_workers) / 2 / layers
        ffn_start = max(self.attention_free + leg, self.ffn_free)
        self.ffn_free = ffn_start + c.ffn_time(per_ffn / config.ffn_workers) / layers
        self.ready[batch] = self.ffn_free + leg
        self.layers_left[batch] -= 1
        self.at(self.ready[batch], END, self.of_this_life(lambda: self.back(batch)))
        self.plan(self.attention_free)

    def let_in(self, batch):
        """Let those who have arrived join a batch whose step begins; all, of a joint one."""
        together = range(self.config.batches) if self.config.joint_steps else [batch]
        if self.config.joint_steps:
            if self.in_step:
                self.not_begun.discard(batch)
                return
            self.in_step = [k for k in together if self.members[k] + self.arrived[k]]
            self.not_begun = set(self.in_step) - {batch}
        for k in together:
            self.members[k] += self.arrived[k]
            self.arrived[k].clear()

    def back(self, batch):
        """A batch is back from the FFN: its step ends, or the next layer begins."""
        if self.layers_left[batch]:
            self.plan(self.now)
            return
        if not self.config.joint_steps:
            self.end([batch])
            return
        self.ready[batch] = float("inf")
        if all(self.ready[k] == float("inf") for k in self.in_step):
            ended, self.in_step = self.in_step, []
            for k in range(self.config.batches):
                self.ready[k] = self.now
            self.end(ended)

    def end(self, batches):
        for batch in batches:
            for request in list(self.members[batch]):
                request.token_times.append(self.now)
                if len(request.token_times) == request.num_steps:
                    self.members[batch].remove(request)
                    self.seated.remove(request)
        self.give_slots()
        self.plan(self.now)


@dataclass
class Moves:
    """What a link asks for: the time, and that something moves at a time."""

    bundle: ReferenceBundle

    @property
    def now(self):
        return self.bundle.now

    def at(self, time, act, number):
        def move():
            act()
            self.bundle.share_later()

        self.bundle.at(time, (ARRIVE, number), move)
