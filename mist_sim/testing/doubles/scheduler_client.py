"""Runs a scheduler in the engines of a client, and checks the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients import EngineConfig, LlmClient
from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import EngineMemory, KvCacheConfig, SwapSpace
from mist_sim.clients.scheduling import Scheduler, StepPlan
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.request import Request
from mist_sim.errors import InvariantError
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.rng import Streams
from mist_sim.simulation import Simulation
from mist_sim.testing.doubles.scheduler_engine import Arrival, Load
from mist_sim.testing.rules import name_of
from mist_sim.traces import Workload


class Setting(NamedTuple):
    """How an engine runs: steps planned ahead, ranks of a pipeline, and the seats of a lane."""

    ahead: bool = False
    num_ranks: int = 1
    num_seats: int | None = None

    def __str__(self) -> str:
        return (
            f"async_scheduling {str(self.ahead).lower()}, pipeline_parallel_size {self.num_ranks}"
            + (f", {self.num_seats} seats" if self.num_seats else "")
        )


class Row(NamedTuple):
    """What became of a request, with times in seconds."""

    status: str
    first_token_at: float | None
    finished_at: float | None
    num_preemptions: int


class _GeneralLane(Lane):
    """A lane that the general loop steps, so that its plans can be checked."""


class _SingleLane(Lane):
    """A lane whose plans are for one step."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.run_length.be_single()


class _Watched(LlmClient):
    """Gives its lanes few seats, and checks the memory of each plan.

    num_seats: of a lane; None: as its scheduler says.
    """

    num_seats: int | None = None
    lane_type: ClassVar[type[Lane]] = _GeneralLane

    def _lane(self, max_num_seqs: int, engine: int) -> Lane:
        lane = super()._lane(min(max_num_seqs, self.num_seats or max_num_seqs), engine)
        lane.plan = _checked(lane, lane.plan)  # type: ignore[method-assign]
        return lane


class _Single(_Watched):
    lane_type = _SingleLane


def _checked(lane: Lane, plan: Callable[..., StepPlan | None]) -> Callable[..., StepPlan | None]:
    state, name = lane.state, name_of(lane.scheduler)

    def checked(*arguments: Any, **options: Any) -> StepPlan | None:
        found = plan(*arguments, **options)
        pool, num_running = state.pool, len(state.running)
        if not 0 <= pool.num_free <= pool.num_blocks:
            raise AssertionError(f"{name}.schedule: {pool.num_free} blocks are free")
        if num_running > state.max_num_seqs:
            raise AssertionError(
                f"{name}.schedule: {num_running} run, max_num_seqs is {state.max_num_seqs}"
            )
        return found

    return checked


_RULES = EngineRules(
    batch_queue=True,
    async_pipelines=True,
    staggers_decodes=True,
    fills_queue=True,
    drains_preempted=True,
)
"""Those by which vLLM 0.33 runs a pipeline."""


class _Steps:
    """A second a step, and a little for each token in it."""

    def step_time(self, batch: StepBatch) -> float:
        return float(self.run(batch, StepGrowth(), 1)[0])

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        ahead = np.arange(float(num_steps))
        context = batch.context_sum + growth.contexts(ahead)
        num_tokens = batch.num_prefill_tokens + batch.num_decodes
        return np.asarray(1.0 + 2.0**-8 * num_tokens + 2.0**-16 * context)


@dataclass(frozen=True, slots=True)
class _WithPrefixes(Workload):
    """Requests with the prefixes of a load."""

    sent: tuple[Arrival, ...] = ()

    def requests(self, streams: Streams) -> Iterator[Request]:
        for request, each in zip(Workload.requests(self, streams), self.sent, strict=True):
            request.content = (each.prefix,) if each.prefix else ()
            yield request


def served(
    scheduler: Scheduler, load: Load, setting: Setting, *, singly: bool = False
) -> list[Row]:
    """Serve a load in an engine; return what became of each request, in order of arrival.

    singly: whether each plan is for one step, whatever the scheduler says.
    Raises AssertionError where a law of the simulation breaks, with the scheduler's name.
    """
    steps = PipelinePredictor((_Steps(),) * setting.num_ranks, lambda num_tokens: 2.0**-6)
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
    swap_space = SwapSpace(num_blocks, 2.0**-8) if scheduler.swaps else None
    client = (_Single if singly else _Watched)(
        "engine",
        config,
        predictor=steps,
        memory=EngineMemory(
            num_gpu_blocks=num_blocks, swap_space=swap_space, kv_block_bytes=2.0**10
        ),
        rules=_RULES,
    )
    client.num_seats = setting.num_seats
    plain = Workload.from_lists(
        [each.num_prompt for each in load.arrivals],
        [each.num_output for each in load.arrivals],
        [each.step + 0.5 for each in load.arrivals],
    )
    workload = _WithPrefixes(plain.source, plain.arrivals, sent=tuple(load.arrivals))
    try:
        table = Simulation(clients=[client], workload=workload).run().requests
    except InvariantError as error:
        raise AssertionError(f"{name_of(scheduler)}.schedule: {error} ({setting})") from error
    columns = (table[name].tolist() for name in Row._fields)
    return [Row(*map(_comparable, row)) for row in zip(*columns, strict=True)]


def _comparable(value: Any) -> Any:
    """Return a value of a column that equals itself: None where there is no time."""
    return value if value == value else None
