"""Clients of identical workers: a queue in order of arrival, and one visit per worker.

Service times of workers: numbers, laws that are drawn, or a user's function.

Each client that draws has a stream named after it, so that clients do not shift one another's
draws.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from math import inf
from typing import Any, Protocol

import numpy as np
import simpy
from simpy.events import Event, Process

from mist_sim.checks import Positive, check_fields
from mist_sim.clients.base import Client
from mist_sim.clients.shared_parts import SharedParts
from mist_sim.clients.workers.fetching import Fetch
from mist_sim.clients.workers.growing import let_grow, num_until_growth
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Stage
from mist_sim.core.visit import Visit
from mist_sim.durations import DurationDistribution, SecondsOrLaw, draws
from mist_sim.environment import Environment
from mist_sim.errors import ScenarioError
from mist_sim.rng import Streams
from mist_sim.stages import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A card or processor by name: clients that name the same one have its slots together.

    Each service, or batch, takes one slot from its beginning to its end, in order of arrival
    whichever client asks. So a card runs one batch at a time, and a processor one service a core.

    name: of the device. slots: services at once: 1 for a card, the cores of a processor (>= 1).
    Raises ValueError for values outside these ranges.
    Source: MIST Fig. 1 (b) and footnote 3: one processor serves clusters of several clients.
    """

    name: str
    slots: Positive[int] = 1

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        check_fields(self)

    @property
    def shared(self) -> dict[str, dict[str, object]]:
        """The description on which its clients must agree (`ClientTraits.shared_parts`)."""
        return {f"device {self.name}": {"slots": self.slots}}

    def shared_by(self, parts: SharedParts | None, env: Environment) -> simpy.Resource:
        """Return its slots in a simulation; all clients that name it get the same ones."""

        def make() -> simpy.Resource:
            return simpy.Resource(env, self.slots)

        return (parts or SharedParts()).part("device", self.name, make)


_BLOCK = 64  # draws at once; there may be thousands of clients
_NUMBER = (int, float, np.integer, np.floating)


class SeededServiceTime(Protocol):
    """A service time that draws: its seconds come from the stage and `rng` alone."""

    def __call__(self, stage: Any, *, rng: np.random.Generator) -> float:
        """Return the seconds that a stage takes on one worker (finite, >= 0)."""


GivenServiceTime = Callable[[Any], float] | SeededServiceTime
"""What a user may give: a function of the stage, with a parameter `rng` if it draws.

The stages that come are those of `serves`, by name, so the function may ask for that very class.
"""


class LinearTime:
    """Seconds of a stage: a base plus a time per token; each a number, or drawn anew.

    By default the base is a tool call's own duration, and 0 for other stages. A stage without
    `num_tokens` has 0 tokens. The mean is the mean base plus the mean time per token times
    `num_tokens`.
    """

    def __init__(self, base: Iterator[float] | None, per_token: Iterator[float]) -> None:
        self._base = base
        self._per_token = per_token

    def __call__(self, stage: Stage) -> float:
        """Return the duration of a stage in seconds."""
        if self._base is not None:
            base = next(self._base)
        else:
            base = stage.duration if isinstance(stage, ToolCall) else 0.0
        return base + next(self._per_token) * int(getattr(stage, "num_tokens", 0))


def linear(
    client: str, streams: Streams, base: SecondsOrLaw | None, per_token: SecondsOrLaw | None
) -> LinearTime:
    """Return the time of a client's stages, from the beginning of its streams."""
    return LinearTime(
        None if base is None else drawn(f"{client}: base_time", streams, base),
        drawn(f"{client}: time_per_token", streams, per_token or 0.0),
    )


def drawn(name: str, streams: Streams, time: SecondsOrLaw) -> Iterator[float]:
    """Yield a time again and again; a law of it draws from the stream with a name."""
    if not isinstance(time, DurationDistribution):
        return repeat(time)
    return draws(time, streams.generator(name), name, _BLOCK)


def seeded(client: str, streams: Streams, given: GivenServiceTime) -> Callable[[Stage], float]:
    """Return a user's function of the stage; one with a parameter `rng` has the client's there."""
    function: Callable[..., float] = given
    if _draws(_signature(given)):
        return partial(function, rng=streams.generator(f"{client}: service_time"))
    return function


def check_time(name: str, time: SecondsOrLaw | None) -> None:
    """Raise ValueError unless a time is left out, a number of seconds, or a law."""
    if not (time is None or isinstance(time, (DurationDistribution, *_NUMBER))):
        raise ValueError(f"{name} must be a number of seconds or a law of times, got {time!r}")


def check_function(given: GivenServiceTime) -> None:
    """Raise ValueError unless a service time can be called with a stage, and `rng` if it draws."""
    rule = "service_time must be a function of a stage, and of `rng` if it draws"
    if not callable(given):
        raise ValueError(f"{rule}, got {given!r}")
    signature = _signature(given)
    try:
        if signature is not None:
            signature.bind("stage", **({"rng": None} if _draws(signature) else {}))
    except TypeError as error:
        raise ValueError(f"{rule}, got one with {signature}: {error}") from None


def is_time(seconds: object) -> bool:
    """Tell whether a service time is a finite number >= 0."""
    return isinstance(seconds, _NUMBER) and bool(0 <= seconds < inf)


def _signature(given: GivenServiceTime) -> inspect.Signature | None:
    """Return the parameters of a function; None where Python cannot tell."""
    try:
        return inspect.signature(given)
    except ValueError:
        return None


def _draws(signature: inspect.Signature | None) -> bool:
    return signature is not None and "rng" in signature.parameters


class Workers(Client):
    """Workers that take one visit each, in order of arrival, and serve its stages in sequence.

    An abandoned visit leaves at once; its worker takes the next one. Subclasses compute the time of
    a stage.

    num_workers: visits served at once. fetch: bytes that each stage brings over a topology after
        its service time; None: none. device: a device whose slots they share with other clients;
        None: not shared.
    """

    num_workers: int = 1
    fetch: Fetch | None = None
    device: Device | None = None

    @abstractmethod
    def service_times(self) -> Callable[[Stage], float]:
        """Return the function for a stage's seconds, with its random streams at their start."""

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Join a simulation with all workers free."""
        super().start(env, client_id, recorder)
        self._workers = simpy.Resource(env, self.num_workers)
        self._slots = None if self.device is None else self.device.shared_by(self.shared_parts, env)
        self._services: dict[Visit, Process] = {}  # of visits that may be given up
        self._growth = self.streams.generator(f"{self.name}: growth")
        self._seconds = self.service_times()

    def accept(self, visit: Visit) -> None:
        """Start a process for the visit; remember it if it may have to be interrupted."""
        service = self.env.process(self._work(visit))
        if visit.request.limits is not None or self.may_fail:
            self._services[visit] = service

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return how many of the next stages it serves in a visit: up to one that grows."""
        return num_until_growth(stages[: super().takes(stages)])

    def abort(self, visit: Visit) -> None:
        """Remove a visit that is given up from the queue, or from its worker, at once."""
        self._services[visit].interrupt()

    def restart(self) -> None:
        """Come back with no visit; random draws continue."""
        seconds, growth = self._seconds, self._growth
        super().restart()
        self._seconds, self._growth = seconds, growth

    def _work(self, visit: Visit) -> Generator[Event, object, None]:
        with suppress(simpy.Interrupt):
            yield from self._serve(visit)
        self._services.pop(visit, None)
        self.finish(visit)

    def _serve(self, visit: Visit) -> Generator[Event, object, None]:
        with self._workers.request() as turn:
            yield turn
            if self._slots is None:
                yield from self._serve_stages(visit)
                return
            with self._slots.request() as slot:
                yield slot
                yield from self._serve_stages(visit)

    def _serve_stages(self, visit: Visit) -> Generator[Event, object, None]:
        self.begin(visit)
        for stage in visit.stages:
            seconds = self._seconds(stage)
            if not is_time(seconds):
                raise ScenarioError(
                    f"{self.name}: the service time of {stage} must be a finite number >= 0 s, "
                    f"got {seconds} at {self.env.now} s"
                )
            yield self.env.timeout(float(seconds))
            if self.fetch is not None:
                yield from self._bring(self.fetch, stage)
            if stage.grows:
                let_grow(self.name, visit, self._growth, self.env.now)

    def _bring(self, fetch: Fetch, stage: Stage) -> Generator[Event, object, None]:
        """Wait until a stage's bytes are there."""
        if self.network is not None and (ways := self.network.ways) is not None:
            num_bytes = fetch.num_bytes(stage)
            yield ways.carry(fetch.source, fetch.destinations, num_bytes)


class Waiting:
    """Visits that wait for the next batch, in order of arrival.

    max_batch_size: visits in a batch at most (>= 1); None: all that wait.
    """

    def __init__(self, max_batch_size: int | None = None) -> None:
        self._most = max_batch_size
        self._visits: OrderedDict[Visit, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._visits)

    @property
    def oldest(self) -> Visit:
        """The visit that has waited longest; only while requests wait."""
        return next(iter(self._visits))

    @property
    def is_full(self) -> bool:
        """Whether there are enough of them for a batch of the largest size."""
        return self._most is not None and len(self._visits) >= self._most

    def add(self, visit: Visit) -> None:
        """Queue a visit behind the others."""
        self._visits[visit] = None

    def discard(self, visit: Visit) -> bool:
        """Take a visit out that is given up; return whether it waited."""
        if visit not in self._visits:
            return False
        del self._visits[visit]
        return True

    def take(self) -> list[Visit]:
        """Remove and return the visits of the next batch; empty if none waits."""
        number = len(self._visits) if self._most is None else min(self._most, len(self._visits))
        return [self._visits.popitem(last=False)[0] for _ in range(number)]
