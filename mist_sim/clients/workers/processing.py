"""A client of identical workers that serve one stage each: MIST's sequential scheduler."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, replace

from mist_sim.checks import Positive, check_fields
from mist_sim.clients.registry import CLIENTS
from mist_sim.clients.traits import ClientTraits
from mist_sim.clients.workers.base import (
    Device,
    GivenServiceTime,
    Workers,
    check_function,
    check_time,
    linear,
    seeded,
)
from mist_sim.clients.workers.fetching import Fetch, check_fetch
from mist_sim.core.request import Stage
from mist_sim.durations import SecondsOrLaw
from mist_sim.network import Network
from mist_sim.stages import ToolCall


def worker_traits(
    serves: Collection[str], *, fetches: bool, device: Device | None = None
) -> ClientTraits:
    """Return the traits of workers of some stages. fetches: whether they bring bytes too."""
    shared = {} if device is None else device.shared
    return replace(ClientTraits.serving(tuple(serves)), uses_links=fetches, shared_parts=shared)


@CLIENTS.register("sequential")
@dataclass(eq=False)
class SequentialClient(Workers):
    """Workers that take one visit each: text processing, tools, retrieval.

    They take visits in order of arrival and serve their stages one after another. A visit that is
    given up leaves at once; its worker takes the next one.

    serves: the stages that it serves, such as [preprocess].
    num_workers: visits served at once.
    base_time: time of every stage, or a law of it; by default a tool_call takes its own duration.
    time_per_token: additional time for each of a stage's num_tokens, or a law of it; a law is drawn
        once per stage.
    service_time: seconds that a stage takes on one worker (finite, >= 0), in place of the other
        two: a function of the stage; its parameter `rng`, if it has one, gets a generator that is
        the client's own.
    fetch: bytes that each stage brings over a topology after these times.
    device: a card or processor shared with other clients; a visit takes one of its slots.
    Raises ValueError for values outside these ranges, and if no time is given.
    Source: MIST §III-E, scheduler "Sequential".
    """

    name: str
    _: KW_ONLY
    serves: Collection[str]
    num_workers: Positive[int] = 1
    base_time: SecondsOrLaw | None = None
    time_per_token: SecondsOrLaw | None = None
    service_time: GivenServiceTime | None = None
    fetch: Fetch | None = None
    device: Device | None = None

    def __post_init__(self) -> None:
        serves = [self.serves] if isinstance(self.serves, str) else self.serves
        traits = worker_traits(serves, fetches=self.fetch is not None, device=self.device)
        super().__init__(self.name, traits)
        check_fields(self)
        self._check_times()

    def _check_times(self) -> None:
        for name in ("base_time", "time_per_token"):
            check_time(name, getattr(self, name))
        if self.service_time is not None:
            check_function(self.service_time)
        has_times = (self.base_time, self.time_per_token) != (None, None)
        if self.service_time is not None and has_times:
            raise ValueError("service_time must be left out with base_time or time_per_token")
        timed = has_times or self.service_time is not None or set(self.serves) <= {ToolCall.kind}
        if not timed and self.fetch is None:
            raise ValueError("base_time or service_time is required to know how long it takes")

    def join_network(self, network: Network | None) -> None:
        """Check the route of the bytes it fetches. Raises ScenarioError."""
        if self.fetch is not None:
            check_fetch(self.name, self.fetch, network)

    def service_times(self) -> Callable[[Stage], float]:
        """Return the user's function, or the linear time."""
        if self.service_time is None:
            return linear(self.name, self.streams, self.base_time, self.time_per_token)
        return seeded(self.name, self.streams, self.service_time)
