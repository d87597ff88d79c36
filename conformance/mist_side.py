"""The workloads of `workloads` through mist-sim's engine, with the same law of step times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients import EngineConfig, LlmClient
from mist_sim.clients.engine import stepped
from mist_sim.clients.engine.stepped import SteppedLane
from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache import CacheTier, EngineMemory, KvCacheConfig
from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.recorder import Recorder
from mist_sim.core.request import Limits, Request
from mist_sim.environment import Environment
from mist_sim.hardware.predictors import PipelinePredictor
from mist_sim.models.kv_groups import KvGroups
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.rng import Streams
from mist_sim.scenario.engines.versions import version_of
from mist_sim.simulation import Simulation
from mist_sim.traces import Workload


@dataclass(frozen=True)
class StepLaw:
    """Seconds of a step, of each token in it and of each token of context that they see."""

    base: float
    per_token: float
    per_context: float

    def step_time(self, batch: StepBatch) -> float:
        """Return the seconds of one step."""
        tokens = batch.num_prefill_tokens + batch.num_decodes * (1 + batch.num_drafts)
        context = batch.context_sum + sum(before for _, before in batch.chunks)
        return self.base + self.per_token * tokens + self.per_context * context

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of several."""
        tokens = batch.num_prefill_tokens + batch.num_decodes * (1 + batch.num_drafts)
        ahead = np.arange(num_steps)
        context = batch.context_sum + growth.contexts(ahead.astype(float))
        context += sum(before for _, before in batch.chunks) + batch.num_prefill_tokens * ahead
        return np.asarray(self.base + self.per_token * tokens + self.per_context * context)


def law_of(spec: dict[str, Any]) -> PipelinePredictor:
    """Return what times the steps of a workload, on each rank."""
    laws = [StepLaw(*(factor * each for each in spec["step"])) for factor in spec["ranks"]]
    between, between_each = spec["hand_over"]
    return PipelinePredictor(tuple(laws), lambda number: between + between_each * number)


@dataclass(frozen=True, slots=True)
class OfJobs(Workload):
    """Requests with the priorities and contents of given jobs."""

    jobs: tuple[dict[str, Any], ...] = ()

    def requests(self, streams: Streams) -> Iterator[Request]:
        """Yield the requests."""
        for request, job in zip(Workload.requests(self, streams), self.jobs, strict=True):
            request.priority = job["priority"]
            request.content = tuple((key, number) for key, number in job["content"])
            if job.get("abort") is not None:
                request.limits = Limits(timeout=job["abort"])
            yield request


def _id(sequence: SequenceState) -> int:
    return sequence.visit.request.request_id


class Noted:
    """Notes the steps of a lane: [rows, preempted, blocks] of each, in the form of vLLM's side.

    Rows are [request, new tokens, tokens computed before]. Blocks are those taken when the step is
    planned. Preemptions of plans that compute nothing count with the next one that does.
    """

    def __init__(self, lane: SteppedLane) -> None:
        self.steps: list[list[Any]] = []
        self._lane, self._wait = lane, lane.wait
        self._num_preemptions: dict[int, int] = {}  # by request
        lane.wait = self._note  # type: ignore[method-assign]
        lane.core.waits_for_more = True

    def _note(self, seconds: float) -> float:
        """Note the step that was planned, which waits for so long."""
        lane = self._lane
        core = lane.core
        rows = [
            [_id(lane.inside(slot)), new, before] for slot, new, before in core.members() if new
        ]
        preempted = []
        for sequence in lane.sequences:
            number = core.story(sequence.slot)[6]
            if number != self._num_preemptions.get(_id(sequence), 0):
                self._num_preemptions[_id(sequence)] = number
                preempted.append(_id(sequence))
        self.steps.append([rows, preempted, core.blocks.num_blocks - core.blocks.num_free])
        return self._wait(seconds)


class DealtClient(LlmClient):
    """Deals requests to its engines by hand, and notes the steps of each.

    engine_of: the engine of each request, by its id.
    """

    engine_of: tuple[int, ...] = ()

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        """Begin, with no choice of the least loaded engine."""
        super().start(env, client_id, recorder)
        self.noted = [Noted(lane) for lane in self.lanes]

        def deal(sequence: SequenceState) -> None:
            self.lanes[self.engine_of[_id(sequence)]].add_request(sequence)

        self._engines.add_request = deal  # type: ignore[method-assign]


def drafts_of(spec: dict[str, Any]) -> SpeculativeConfig | None:
    """Return how a workload drafts; its paths are drawn by the jobs, so no rate matters."""
    method, number = spec["drafts"]
    if not number:
        return None
    return SpeculativeConfig(
        method=method, num_speculative_tokens=number, acceptance_rate=spec["acceptance_rate"]
    )


def groups_of(spec: dict[str, Any]) -> KvGroups | None:
    """Return the groups of layers of a workload's model; None without windows or states."""
    (number, window), states = spec["windows"], spec["states"]
    if not (number or states):
        return None
    return KvGroups(
        layers_per_group=1,
        num_window_groups=number,
        num_state_groups=states,
        sliding_window=window if number else None,
        state_cache=spec["state_cache"],
        saves_inside=spec["states_inside"],
    )


def tiers_of(spec: dict[str, Any]) -> tuple[CacheTier, ...]:
    """Return the store below the GPU; it holds all that is ever computed."""
    loads = spec.get("loads")
    if not loads:
        return ()
    size = spec["block_size"]
    num_blocks = sum(-(-(job["prompt"] + job["answer"]) // size) for job in spec["jobs"])
    return (CacheTier("store", num_blocks + 1, *loads, in_step=spec["loads_in_step"]),)


def has_steps(spec: dict[str, Any]) -> bool:
    """Tell whether the steps of a workload are compared: without drafts, on one rank."""
    return not spec["drafts"][1] and len(spec["ranks"]) == 1


def rules_of(release: str) -> EngineRules:
    """Return the rules of a release of vLLM, such as 0.19.1."""
    return version_of(release).rules


def run(
    spec: dict[str, Any],
    arrivals: list[float],
    *,
    asynchronous: bool,
    rules: EngineRules,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Serve a workload's jobs, which arrive at given times.

    The times at which vLLM's next turns came are as good as to wait for the turns before: if all
    tokens come at the same times here, so would these turns.
    rules: of the version. options: of the scheduler, beside those of the workload.
    Returns the token times of each job, their preemptions and their cached tokens, and the steps.
    """
    order = sorted(range(len(arrivals)), key=lambda number: arrivals[number])
    jobs = [spec["jobs"][number] for number in order]
    plain = Workload.from_lists(
        [job["prompt"] for job in jobs],
        [job["answer"] for job in jobs],
        [arrivals[number] for number in order],
    )
    scheduler = ChunkedScheduler(
        max_num_seqs=spec["max_num_seqs"],
        max_num_batched_tokens=spec["max_num_batched_tokens"],
        long_prefill_token_threshold=spec["long_prefill_token_threshold"] or None,
        prefill_schedule_interval=spec["prefill_schedule_interval"],
        order=spec["policy"],
        **(options or {}),
    )
    config = EngineConfig(
        scheduler=scheduler,
        kv_cache=KvCacheConfig(
            block_size=spec["block_size"], enable_prefix_caching=spec["enable_prefix_caching"]
        ),
        async_scheduling=asynchronous,
        data_parallel_size=spec["num_engines"],
        pipeline_parallel_size=len(spec["ranks"]),
        speculative_config=drafts_of(spec),
    )
    memory = EngineMemory(
        num_gpu_blocks=spec["num_gpu_blocks"] - NULL_BLOCKS,
        kv_groups=groups_of(spec),
        cache_tiers=tiers_of(spec),
    )
    client = DealtClient("engine", config, predictor=law_of(spec), memory=memory, rules=rules)
    client.engine_of = tuple(number % spec["num_engines"] for number in order)
    workload = OfJobs(plain.source, plain.arrivals, jobs=tuple(jobs))
    with patch.object(stepped, "FAST_FORWARD", False):  # so that each step is seen
        result = Simulation(clients=[client], workload=workload).run()
    rows = result.requests.set_index("request_id")
    place = {number: position for position, number in enumerate(order)}
    # with drafts, and in a pipeline, they are not compared
    steps = [step for each in client.noted for step in each.steps if has_steps(spec)]
    for computed, preempted, _ in steps:
        for row in computed:
            row[0] = order[row[0]]
        preempted[:] = [order[number] for number in preempted]
    return {
        "steps": steps,
        "token_times": [result.token_times(place[n]).tolist() for n in range(len(jobs))],
        "preemptions": [int(rows["num_preemptions"][place[n]]) for n in range(len(jobs))],
        "cached": [int(rows["num_cached_tokens"][place[n]]) for n in range(len(jobs))],
    }
