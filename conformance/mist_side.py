"""The workloads of `workloads` through mist-sim's engine, with the same law of step times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mist_sim.clients import EngineConfig, LlmClient
from mist_sim.clients.kv_cache import EngineMemory, KvCacheConfig
from mist_sim.clients.kv_cache.capacity import NULL_BLOCKS
from mist_sim.clients.scheduling import ChunkedScheduler
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.request import Request
from mist_sim.rng import Streams
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
        tokens = batch.num_prefill_tokens + batch.num_decodes
        context = batch.context_sum + sum(before for _, before in batch.chunks)
        return self.base + self.per_token * tokens + self.per_context * context

    def run(self, batch: StepBatch, growth: StepGrowth, num_steps: int) -> NDArray[np.float64]:
        """Return the seconds of several."""
        tokens = batch.num_prefill_tokens + batch.num_decodes
        ahead = np.arange(num_steps)
        context = batch.context_sum + growth.contexts(ahead.astype(float))
        context += sum(before for _, before in batch.chunks) + batch.num_prefill_tokens * ahead
        return np.asarray(self.base + self.per_token * tokens + self.per_context * context)


@dataclass(frozen=True, slots=True)
class OfJobs(Workload):
    """Requests with the priorities and contents of given jobs."""

    jobs: tuple[dict[str, Any], ...] = ()

    def requests(self, streams: Streams) -> Iterator[Request]:
        """Yield the requests."""
        for request, job in zip(Workload.requests(self, streams), self.jobs, strict=True):
            request.priority = job["priority"]
            request.content = tuple((key, number) for key, number in job["content"])
            yield request


def run(
    spec: dict[str, Any],
    arrivals: list[float],
    *,
    asynchronous: bool,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Serve a workload's jobs, which arrive at given times.

    The times at which vLLM's next turns came are as good as to wait for the turns before: if all
    tokens come at the same times here, so would these turns.
    options: of the scheduler, beside those of the workload.
    Returns the token times of each job, their preemptions and their cached tokens.
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
        order=spec["policy"],
        **(options or {}),
    )
    config = EngineConfig(
        scheduler=scheduler,
        kv_cache=KvCacheConfig(
            block_size=spec["block_size"], enable_prefix_caching=spec["enable_prefix_caching"]
        ),
        async_scheduling=asynchronous,
    )
    memory = EngineMemory(num_gpu_blocks=spec["num_gpu_blocks"] - NULL_BLOCKS)
    client = LlmClient("engine", config, predictor=StepLaw(*spec["step"]), memory=memory)
    workload = OfJobs(plain.source, plain.arrivals, jobs=tuple(jobs))
    result = Simulation(clients=[client], workload=workload).run()
    rows = result.requests.set_index("request_id")
    place = {number: position for position, number in enumerate(order)}
    return {
        "token_times": [result.token_times(place[n]).tolist() for n in range(len(jobs))],
        "preemptions": [int(rows["num_preemptions"][place[n]]) for n in range(len(jobs))],
        "cached": [int(rows["num_cached_tokens"][place[n]]) for n in range(len(jobs))],
    }
