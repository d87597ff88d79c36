"""Doubles of parts of a simulation, and watchers of them, for checks of plugins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from mist_sim.clients import Client, EngineConfig, LlmClient
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import (
    CacheTier,
    ContentHistory,
    EngineMemory,
    KvCacheConfig,
    SwapSpace,
)
from mist_sim.clients.roster import Roster
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.coordination.coordinator import Coordinator
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Limits, Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.core.visit import HeldKv, Moved, Visit
from mist_sim.environment import Environment
from mist_sim.errors import InvariantError, ScenarioError
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.load_generation import OpenLoop
from mist_sim.network import Link
from mist_sim.rng import Streams
from mist_sim.routers import RoundRobinRouter
from mist_sim.simulation import Simulation
from mist_sim.testing.rules import name_of, require, stream_of
from mist_sim.traces import Workload

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class FakeView:
    """A `ClientView` with the numbers that a test gives it; writing to it raises.

    num_cached: tokens of any prompt with content that its prefix cache has, at most all but one.

    mean_answer: expected of any request. seconds_away: of the KV entries that a request brings.
    seconds_per_token: of prompts that are still to be computed.

    num_outstanding is the sum of the waiting and the running requests.
    """

    client_id: int
    num_waiting: int = 0
    num_running: int = 0
    num_waiting_tokens: int = 0
    num_kv_blocks: int = 0
    num_kv_tokens: int = 0
    num_cached: int = 0
    role: str | None = None
    pool: str | None = None
    num_prompt_tokens: int = 0
    num_gpu_blocks: int = 0
    block_size: int = 0
    num_remaining_tokens: float = 0
    mean_answer: float = 0
    seconds_away: float = 0
    num_prefill_tokens: int = 0
    seconds_per_token: float = 0

    @property
    def name(self) -> str:
        """The word "client" and its number."""
        return f"client{self.client_id}"

    @property
    def num_outstanding(self) -> int:
        """Requests that wait or run."""
        return self.num_waiting + self.num_running

    def num_answer_tokens(self, request: Request) -> float:
        """Return `mean_answer`."""
        return self.mean_answer

    def transfer_time(self, request: Request) -> float:
        """Return `seconds_away`, of a request that brings KV entries."""
        return self.seconds_away if request.kv else 0.0

    def transfer_time_from(self, source: ClientView, num_tokens: int) -> float:
        """Return `seconds_away`."""
        return self.seconds_away

    def prefill_time(self, request: Request) -> float:
        """Return the seconds of all prompts, at `seconds_per_token`."""
        num_tokens = self.num_prefill_tokens + request.num_prompt_tokens
        return num_tokens * self.seconds_per_token

    def prefix_tokens(self, request: Request) -> int:
        """Return `num_cached`, of a prompt that has content."""
        return min(self.num_cached, request.num_prompt_tokens - 1) if request.content else 0


_TIER = CacheTier("lower tier", 1_000, 3.0, 0.25)  # a load takes 3 steps and one for four blocks


@dataclass(frozen=True, slots=True)
class Arrival:
    """A sequence: the step at which it arrives, its tokens, and the prefix that others share.

    prefix: (id, tokens); None: its prompt is its own.
    """

    step: int
    num_prompt: int
    num_output: int
    prefix: tuple[int, int] | None = None


class Load(NamedTuple):
    """Sequences in the order in which they arrive, and the memory for them."""

    arrivals: list[Arrival]
    num_blocks: int
    block_size: int


class Setting(NamedTuple):
    """How an engine runs: steps planned ahead, ranks of a pipeline, seats of a lane, and a tier."""

    ahead: bool = False
    num_ranks: int = 1
    num_seats: int | None = None
    has_tier: bool = False

    def __str__(self) -> str:
        return (
            f"async_scheduling {str(self.ahead).lower()}, pipeline_parallel_size {self.num_ranks}"
            + (f", {self.num_seats} seats" if self.num_seats else "")
            + (", a tier" if self.has_tier else "")
        )


class Row(NamedTuple):
    """What became of a request, with times in seconds."""

    status: str
    first_token_at: float | None
    finished_at: float | None
    num_preemptions: int


class _Seated(LlmClient):
    """Gives its lanes few seats, by `num_seats`; None: as its scheduler says."""

    num_seats: ClassVar[int | None] = None

    def start(self, *arguments: Any) -> None:
        """Begin with so few seats."""
        self._shares = [min(share, self.num_seats or share) for share in self._shares]
        super().start(*arguments)

    def num_taken(self) -> int:
        """Return the blocks that requests hold."""
        return sum([lane.core.num_in_use() for lane in self.lanes])


_RULES = EngineRules(
    batch_queue=True,
    async_pipelines=True,
    staggers_decodes=True,
    fills_queue=True,
    drains_preempted=True,
)
"""Those by which vLLM 0.33 runs a pipeline."""


class Steps:
    """A second a step, and a little for each token in it."""

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of one step."""
        return float(self.run(batch, StepGrowth(), 1)[0])

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of so many steps, shape (num_steps,)."""
        ahead = np.arange(float(num_steps))
        context = batch.context_sum + growth.contexts(ahead)
        num_tokens = batch.num_prefill_tokens + batch.num_decodes
        return np.asarray(1.0 + 2.0**-8 * num_tokens + 2.0**-16 * context)


@dataclass(frozen=True, slots=True)
class _WithPrefixes(Workload):
    """Requests with the prefixes of a load."""

    sent: tuple[Arrival, ...] = ()

    def requests(self, streams: Streams, in_runs: bool = True) -> Iterator[Request]:
        """Yield the requests."""
        for request, each in zip(Workload.requests(self, streams, in_runs), self.sent, strict=True):
            request.content = (each.prefix,) if each.prefix else ()
            yield request


def served(scheduler: Scheduler, load: Load, setting: Setting) -> list[Row]:
    """Serve a load in an engine; return what became of each request, in order of arrival.

    Raises AssertionError where a law of the simulation breaks, with the scheduler's name.
    """
    kind = type("", (_Seated,), {"num_seats": setting.num_seats})
    num_blocks = load.num_blocks * setting.num_ranks
    config = EngineConfig(
        scheduler=scheduler,
        pipeline_parallel_size=setting.num_ranks,
        async_scheduling=setting.ahead,
        kv_cache=KvCacheConfig(
            block_size=load.block_size,
            enable_prefix_caching=any(each.prefix for each in load.arrivals),
        ),
    )
    client = kind(
        "engine",
        config,
        predictor=PipelinePredictor((Steps(),) * setting.num_ranks, lambda num_tokens: 2.0**-6),
        memory=EngineMemory(
            num_gpu_blocks=num_blocks,
            swap_space=SwapSpace(num_blocks, 2.0**-8) if scheduler.swaps else None,
            kv_block_bytes=2.0**10,
            cache_tiers=(_TIER,) if setting.has_tier else (),
        ),
        rules=_RULES,
    )
    plain = Workload.from_lists(
        [each.num_prompt for each in load.arrivals],
        [each.num_output for each in load.arrivals],
        [each.step + 0.5 for each in load.arrivals],
    )
    workload = _WithPrefixes(plain.source, plain.arrivals, sent=tuple(load.arrivals))
    try:
        table = Simulation(clients=[client], workload=workload).run().requests
    except (InvariantError, ScenarioError) as error:
        raise AssertionError(f"{name_of(scheduler)}: {error} ({setting})") from error
    if number := client.num_taken():
        raise AssertionError(f"{name_of(scheduler)}: {number} blocks stay taken ({setting})")
    columns = (table[name].tolist() for name in Row._fields)
    return [Row(*map(_comparable, row)) for row in zip(*columns, strict=True)]


def short_run(
    plugin: object, *, num_clients: int, num_requests: int, gap: float, **parts: Any
) -> pd.DataFrame:
    """Return the requests of a run with a plugin, which come to equal engines every `gap` s.

    Raises AssertionError with the plugin's name where it does not end.
    """
    config, memory = EngineConfig(scheduler=ChunkedScheduler()), EngineMemory(num_gpu_blocks=100)
    clients = [
        LlmClient(f"client{k}", config, predictor=Steps(), memory=memory)
        for k in range(num_clients)
    ]
    outputs = [(1, 9, 30)[k % 3] for k in range(num_requests)]
    times = [gap * k for k in range(num_requests)]
    workload = Workload.from_lists([40] * num_requests, outputs, times)
    try:
        return Simulation(clients=clients, workload=workload, **parts).run().requests
    except Exception as error:
        raise AssertionError(f"{name_of(plugin)} raised {error!r} in a run") from error


def _comparable(value: Any) -> Any:
    """Return a value of a column that equals itself: None where there is no time."""
    return value if value == value else None


_BANDWIDTH = 1e10  # bytes/s, of the network over which KV entries come
_COPY_TIME = 0.05  # s in which others copy KV entries of the client


@dataclass(frozen=True, slots=True)
class ReturnedVisit:
    """A visit as it was when the client handed it back."""

    request_id: int
    num_stages: int
    queued_at: float
    started_at: str  # as text: NaN where work never began, and NaN is not equal to itself
    returned_at: float
    status: str
    gave_up_at: float
    limit_at: float


class Others(Client):
    """Serves all other stages at once, and keeps or copies KV entries by the rules.

    num_kept: entries kept for the client and not released yet.
    """

    def start(self, *args: Any) -> None:
        """Start with no entries kept."""
        super().start(*args)
        self.num_kept = 0

    def accept(self, visit: Visit) -> None:
        """Serve a visit at once, or after copying the KV entries it continues from."""
        self.begin(visit)
        kv = visit.kv
        num_prompt_tokens = kv.num_prompt_tokens if kv else 0
        num_prompt_tokens += sum(getattr(stage, "num_prompt_tokens", 0) for stage in visit.stages)
        if kv is not None:
            kv.begin_copy()
            copied = self.env.at(self.env.now + _COPY_TIME)
            copied.callbacks.append(lambda _: kv.release())
        if visit.is_followed:
            self.num_kept += 1
            visit.held_kv = HeldKv(
                self.name,
                self._let_go,
                num_tokens=num_prompt_tokens,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=1,
                last_token_at=self.env.now,
            )
        self.finish(visit)

    def abort(self, visit: Visit) -> None:
        """No time passes in which a visit could be given up."""

    def _let_go(self) -> None:
        self.num_kept -= 1


@dataclass
class WatchedRun:
    """One run of a client, which checks everything that the client returns.

    It is the object that the coordinator asks for a client's stages and sends visits to.
    """

    client: Client
    env: Environment
    history: ContentHistory | None = None
    stays: list[ReturnedVisit] = field(default_factory=list)
    num_open: int = 0

    def __getattr__(self, name: str) -> Any:
        """Return the client's own attribute."""
        return getattr(self.client, name)

    def rule(self, holds: object, rule: str) -> None:
        """Raise AssertionError unless a rule about the client holds."""
        require(holds, f"{name_of(self.client)} {rule}, at {self.env.now} s")

    def takes(self, stages: Sequence[Stage]) -> int:
        """Return the client's answer, after checking that it takes the first stages."""
        num_stages = self.client.takes(stages)
        self.rule(
            0 < num_stages <= len(stages),
            f"must take at least the first of the stages that it serves, {stages}, "
            f"got {num_stages}",
        )
        return num_stages

    def serve(
        self,
        request: Request,
        stages: tuple[Stage, ...],
        kv: HeldKv | None = None,
        is_followed: bool = False,
        is_silent: bool = False,
    ) -> Event:
        """Send a visit to the client, and check what it returns."""
        self.num_open += 1
        end = self.client.serve(request, stages, kv, is_followed, is_silent)
        end.callbacks.append(partial(self._returned, request, self.env.now))
        return end

    def _returned(self, request: Request, sent_at: float, end: Event) -> None:
        self.num_open -= 1
        visit = cast(Visit, end.value)
        now, begun = self.env.now, visit.started_at == visit.started_at
        self.rule(visit.request is request, "must hand back the visit of the request it was sent")
        self.rule(
            visit.queued_at == sent_at <= now and visit.finished_at == now,
            f"must hand a visit back when it ends and not before it was sent; sent at {sent_at} s, "
            f"finished_at {visit.finished_at}",
        )
        self.rule(
            sent_at <= visit.started_at <= now if begun else visit.failure,
            f"must begin a visit that it serves between the sending ({sent_at} s) and the end, "
            f"got started_at {visit.started_at}",
        )
        self._check_outcome(visit)
        status, gave_up_at = "served", inf
        if visit.failure is not None:
            status, gave_up_at = visit.failure.status, visit.failure.time
        self.stays.append(
            ReturnedVisit(
                request.request_id,
                len(visit.stages),
                sent_at,
                repr(visit.started_at),
                now,
                status,
                gave_up_at,
                _limit_at(request),
            )
        )

    def _check_outcome(self, visit: Visit) -> None:
        """Check the outcome, which the coordinator uses next."""
        outcome, goes_on = visit.outcome, visit.is_followed
        if isinstance(outcome, Moved):
            last = visit.stages[-1]
            most = getattr(last, "num_tokens", inf)
            self.rule(
                1 <= outcome.num_tokens <= most,
                f"must leave 1 to {most} tokens of {last} to others, got {outcome}",
            )
            goes_on = last.with_rest(outcome.num_tokens).continues
        self.rule(
            not goes_on or visit.failure or visit.held_kv,
            "must leave its KV entries in visit.held_kv when the next stage goes on from them",
        )


def start(run: WatchedRun, others: Others, requests: list[Request]) -> None:
    """Put a simulation together and let it send the requests."""
    env, recorder, roster = run.env, Recorder(), Roster()
    client = run.client
    client.network = Link(bandwidth=_BANDWIDTH)
    client.network.start(env)
    client.streams = Streams(0)
    client.start(env, roster.next_id(), recorder)
    others.start(env, roster.next_id(), recorder)
    roster.join(cast(Client, run))
    roster.join(others)
    coordinator = Coordinator(env, roster, RoundRobinRouter())
    load = OpenLoop(env, coordinator, recorder, None, stream_of("check_client: retries"))
    coordinator.spawn = load.spawn
    load.start(iter(requests))


def _limit_at(request: Request) -> float:
    """Return when a request is given up, seconds."""
    limits = request.limits or Limits()
    return (request.arrival_time or 0.0) + min(limits.timeout, limits.patience)
