"""Runs the same case through mist-sim and through the stepwise engine, and compares to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, isnan, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import reject

from mist_sim.clients import LlmClient, kv_cache
from mist_sim.clients.draft_paths import DraftPaths
from mist_sim.clients.kv_cache import CacheTier
from mist_sim.clients.options.overload import AdmissionControl
from mist_sim.clients.scheduling import (
    ChunkedScheduler,
    ContinuousScheduler,
    MixedScheduler,
    StaticScheduler,
)
from mist_sim.clients.scheduling.base import Preemption
from mist_sim.core.request import Limits, Request
from mist_sim.errors import ScenarioError
from mist_sim.hardware.drafter import drafter
from mist_sim.hardware.predictors import EngineOverhead, Predictor, RooflinePredictor, with_drafting
from mist_sim.hardware.predictors.ranks import PipelinePredictor, pipeline_predictor
from mist_sim.metrics import Result
from mist_sim.metrics.clients import pooled_gaps, run_periods
from mist_sim.models.adapters import AT_ONCE, AdapterMoves, LoraConfig
from mist_sim.models.kv_groups import KvGroups, StateCache
from mist_sim.models.speculative import SpeculativeConfig
from mist_sim.rng import Streams
from mist_sim.simulation import Simulation
from mist_sim.traces import Workload
from tests.reference.adapters import Adapters
from tests.reference.batch_queue import BatchQueue, QueuedLane
from tests.reference.cluster import AtGivenTimes, StepwiseCluster, in_turn
from tests.reference.engines import llm_engine
from tests.reference.host import Host
from tests.reference.kept_elsewhere import Elsewhere, ParkingClient
from tests.reference.memory import SwapSpace, Tier
from tests.reference.parallel import StepwiseClient, StepwisePipeline
from tests.reference.predictors import AffinePredictor
from tests.reference.state_memory import Kept
from tests.reference.stepwise import (
    EndlessError,
    Job,
    Outcome,
    StepwiseChunked,
    StepwiseContinuous,
    StepwiseEngine,
    StepwiseMixed,
    StepwiseStatic,
    Windows,
)

POLICIES = {
    "chunked": (ChunkedScheduler, StepwiseChunked),
    "continuous": (ContinuousScheduler, StepwiseContinuous),
    "mixed": (MixedScheduler, StepwiseMixed),
    "static": (StaticScheduler, StepwiseStatic),
}


SAME_NAMES = (  # options that mist-sim's engine takes as they are
    *("data_parallel_size", "block_size", "role", "watermark", "kv_groups", "uncached_first"),
    *("threshold_spares_one", "pass_goes_on", "local_cadence", "held_spares_hits"),
    *("caches_verified", "hashes_ahead", "admits_lookahead", "pads_prompts"),
    *("reserves_prefills", "loaded_first", "preempted_first", "defers_frees", "spares_in_flight"),
    *("caps_windows", "returns_unseen", "hybrid_drops"),
    *("batch_queue", "staggers_decodes", "fills_queue", "drains_preempted", "max_model_len"),
    *("lora", "adapter_moves", "async_scheduling"),
)

Reference = StepwiseEngine | StepwiseClient


@dataclass(frozen=True)
class EngineOptions:
    """One LLM engine, to be built in either form."""

    policy: str
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int | None
    order: str = "fcfs"
    watermark: float = 0.0
    max_model_len: int | None = None
    threshold: int | None = None
    threshold_spares_one: bool = False
    pass_goes_on: bool = False
    max_partial: int = 1
    whole_must_fit: bool = True
    prefill_schedule_interval: int = 1  # not in pipelines
    local_cadence: bool = False
    held_spares_hits: bool = False
    caches_verified: bool = False
    hashes_ahead: bool = False
    admits_lookahead: bool = False
    pads_prompts: bool = False
    reserves_prefills: bool = False
    loaded_first: bool = True
    preempted_first: bool = False
    defers_frees: bool = False
    spares_in_flight: bool = False
    caps_windows: bool = False
    returns_unseen: bool = False
    hybrid_drops: int | None = 1
    windows: Windows | None = None
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    lockstep: bool = False
    caching: bool = False
    uncached_first: bool = False
    drafting: SpeculativeConfig | None = None
    async_scheduling: bool = False
    max_num_waiting: int | None = None
    drop_expired: bool = False
    early_rejection: bool = False
    tiers: tuple[Tier, ...] = ()
    swap: SwapSpace | None = None
    elsewhere: tuple[float, float] | None = None  # seconds of a fetch, and of each block in it
    host: Host = field(default_factory=Host)
    role: str | None = None
    batch_queue: bool = False  # in pipelines, with what follows
    staggers_decodes: bool = False
    fills_queue: bool = False
    drains_preempted: bool = False
    lora: LoraConfig | None = None
    adapter_moves: AdapterMoves = AT_ONCE

    @property
    def kept(self) -> Kept:
        """How states are kept, if they are."""
        kept: Kept | None = self.windows.kept if self.windows else None
        return kept or Kept()

    @property
    def state_cache(self) -> StateCache:
        """vLLM's name of which are kept."""
        if self.windows is None or self.windows.kept is None:
            return "none"
        return "all" if self.kept.dense else "align"

    @property
    def has_queue(self) -> bool:
        """Whether each pipeline has one scheduler and a queue of batches."""
        return self.batch_queue and self.pipeline_parallel_size > 1

    @property
    def block_bytes(self) -> float:
        """Size of a block; 1 KiB a token."""
        return 1024.0 * self.block_size

    @property
    def interval(self) -> int:
        """Of how many steps one is for prompts."""
        in_lockstep = self.lockstep and self.data_parallel_size > 1
        holds = self.pipeline_parallel_size == 1 and (in_lockstep or self.local_cadence)
        return self.prefill_schedule_interval if holds else 1

    @property
    def kv_groups(self) -> KvGroups | None:
        if self.windows is None:
            return None
        return KvGroups(
            layers_per_group=1,
            num_full_groups=self.windows.num_full_groups,
            num_window_groups=self.windows.num_window_groups,
            num_state_groups=self.windows.num_state_groups,
            sliding_window=self.windows.size if self.windows.num_window_groups else None,
            state_cache=self.state_cache,
            saves_inside=self.kept.inside,
        )

    def client(self, predictor: Predictor, name: str = "engine") -> LlmClient:
        """Return the engine in mist-sim's form."""
        swap = self.swap
        return llm_engine(
            name,
            kind=LlmClient if self.elsewhere is None else ParkingClient,
            scheduler=self._scheduler(),
            predictor=self._with_host(self._times(predictor)),
            enable_expert_parallel=self.lockstep and self.data_parallel_size > 1,
            num_gpu_blocks=self.num_blocks,
            kv_block_bytes=self.block_bytes,
            enable_prefix_caching=self.caching,
            states_wait=self.kept.waits,
            states_stop_shared=self.kept.shared,
            states_go_on=self.kept.goes_on,
            async_pipelines=True,
            cache_tiers=[_tier(number, tier) for number, tier in enumerate(self.tiers)],
            swap_space=swap and kv_cache.SwapSpace(swap.num_blocks, swap.seconds_per_block),
            speculative_config=self.drafting,
            admission=AdmissionControl(
                max_num_waiting=self.max_num_waiting,
                drop_expired=self.drop_expired,
                early_rejection=self.early_rejection,
            ),
            **{name: getattr(self, name) for name in SAME_NAMES},
        )

    def _scheduler(self) -> Any:
        kind, _ = POLICIES[self.policy]
        more: dict[str, Any] = {}
        if self.policy == "chunked":
            more["long_prefill_token_threshold"] = self.threshold
            # without a threshold there is never a second one; as many as seats are no limit
            if self.threshold is not None and self.max_partial < self.max_num_seqs:
                more["max_num_partial_prefills"] = self.max_partial
            more["scheduler_reserve_full_isl"] = self.whole_must_fit
            if self.pipeline_parallel_size == 1:
                more["prefill_schedule_interval"] = self.prefill_schedule_interval
        return kind(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            order=self.order,
            preemption=self._preemption,
            **more,
        )

    def stepwise(
        self,
        predictor: Predictor,
        jobs: Iterable[Job],
        *,
        seed: int = 0,
        request_ids: Sequence[int] | None = None,
    ) -> Reference:
        """Return the reference after it served the jobs.

        seed, request_ids: what their draft paths depend on; positions without ids.
        """
        if self.drafting:
            jobs = list(jobs)
            jobs = with_paths(self.drafting, jobs, seed, request_ids or range(len(jobs)))
        if self.pipeline_parallel_size * self.data_parallel_size > 1 or self.lockstep:
            client = self.stepwise_client(predictor)
            StepwiseCluster([client], in_turn()).run(AtGivenTimes(jobs))
            return self.cut_short(client, last_exit(client.outcomes))
        lane = self._lane(self._times(predictor).ranks[0], 0, self._elsewhere())
        lane.run(jobs)
        return self.cut_short(lane, last_exit(lane.outcomes))

    def cut_short(self, engine: Reference, end: float) -> Reference:
        """Return an engine without the steps that end after the end of a run.

        Only a step that was planned ahead for who has ended can be one of them.
        """
        if self.has_queue or (self.drafting and self.async_scheduling):
            for lane in engine.tracks:
                lane.forget_after(end)
        return engine

    def stepwise_client(self, predictor: Predictor) -> StepwiseClient:
        """Return the reference as a client of a cluster, with nothing to do yet."""
        times = self._times(predictor)
        if self.has_queue:
            return self._queued_client(times)
        elsewhere, ranks = self._elsewhere(), range(self.pipeline_parallel_size)
        engines = [
            [self._lane(predictor, number, elsewhere) for number in ranks]
            for _ in range(self.data_parallel_size)
        ]
        together = [engines] if self.lockstep else [[engine] for engine in engines]
        groups = [StepwisePipeline(each, list(times.ranks), times.rank_delay) for each in together]
        return StepwiseClient(
            [*groups], self.data_parallel_size, self.max_num_waiting, self.role, self.block_bytes
        )

    def _queued_client(self, times: PipelinePredictor) -> StepwiseClient:
        """Return the reference of pipelines that have one scheduler each."""
        size, ahead = self.pipeline_parallel_size, self.async_scheduling
        staggers = ahead and self.staggers_decodes
        whole = replace(self, pipeline_parallel_size=1, async_scheduling=False)
        more = {
            "stagger": (size if staggers else 1) if ahead else 0,
            "drains": self.drains_preempted,
            "most_batches": size + staggers,
        }
        groups = [
            BatchQueue(
                whole._lane(times.ranks[0], 0, None, QueuedLane, **more),
                list(times.ranks),
                times.rank_delay,
                size + staggers,
                fills=self.fills_queue,
            )
            for _ in range(self.data_parallel_size)
        ]
        return StepwiseClient(
            [*groups], self.data_parallel_size, self.max_num_waiting, None, self.block_bytes
        )

    def _times(self, predictor: Predictor) -> PipelinePredictor:
        """Return what times an engine: its ranks, and who drafts where that can be computed."""
        size = self.pipeline_parallel_size
        times = pipeline_of(predictor, size)
        if self.drafting and isinstance(predictor, RooflinePredictor):
            cluster = replace(predictor.cluster, pipeline_parallel_size=size)
            model = drafter(self.drafting, predictor.model, cluster)
            return with_drafting(times, self.drafting, model)
        return times

    def _with_host(self, predictor: PipelinePredictor) -> PipelinePredictor:
        overhead = EngineOverhead(**asdict(self.host))
        first = overhead.around(predictor.ranks[0], overlapped=self.async_scheduling)
        return predictor.with_first(first)

    @property
    def _preemption(self) -> Preemption:
        if self.swap is None:
            return "recompute"
        return "async_swap" if self.swap.overlaps else "swap"

    def _elsewhere(self) -> Elsewhere | None:
        return None if self.elsewhere is None else Elsewhere(*self.elsewhere)

    def _lane(
        self,
        predictor: Predictor,
        number: int,
        elsewhere: Elsewhere | None,
        other_kind: type[StepwiseEngine] | None = None,
        **more: Any,
    ) -> Any:
        """Return the lane of that number with its part of memory and slots."""
        kind = other_kind or POLICIES[self.policy][1]
        size = self.pipeline_parallel_size
        num_blocks = self.num_blocks // size
        return kind(
            predictor=predictor,
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_num_seqs=len(range(number, self.max_num_seqs, size)),
            max_num_batched_tokens=self.max_num_batched_tokens,
            order=self.order,
            num_reserved=min(int(self.watermark * (num_blocks + 1)), num_blocks - 1),
            max_model_len=self.max_model_len,
            windows=self.windows,
            reserves_prefills=self.reserves_prefills,
            loaded_first=self.loaded_first,
            preempted_first=self.preempted_first,
            defers_frees=self.defers_frees,
            spares_in_flight=self.spares_in_flight,
            caps_windows=self.caps_windows,
            returns_unseen=self.returns_unseen,
            hybrid_drops=self.hybrid_drops,
            caching=self.caching,
            uncached_first=self.uncached_first,
            plans_ahead=self.async_scheduling,
            host=self.host,
            max_num_waiting=inf if self.max_num_waiting is None else self.max_num_waiting,
            drop_expired=self.drop_expired,
            early_rejection=self.early_rejection,
            swap_space=self.swap and replace(self.swap, num_blocks=self.swap.num_blocks // size),
            elsewhere=elsewhere,
            adapters=self.lora
            and Adapters(
                most=self.lora.max_loras,
                most_in_host=self.lora.num_in_host,
                copy=self.adapter_moves.copy,
                read=self.adapter_moves.read,
            ),
            tiers=tuple(replace(tier, num_blocks=tier.num_blocks // size) for tier in self.tiers),
            **self._of_drafts(),
            **self._of_chunks(),
            **more,
        )

    def _of_drafts(self) -> dict[str, Any]:
        """Return the options of a lane that only drafts have."""
        if not self.drafting:
            return {}
        in_kv = self.drafting.method in ("mtp", "eagle")
        covers_next = self.hashes_ahead and in_kv and not self.tiers
        return {
            "covers_next": covers_next,
            "num_drafts": self.drafting.num_speculative_tokens,
            "num_lookahead": self.drafting.num_lookahead_tokens,
            "caches_verified": self.caches_verified,
            "admits_lookahead": self.admits_lookahead,
            "pads_prompts": self.pads_prompts,
            "num_recomputed": int(in_kv and not covers_next),
        }

    def _of_chunks(self) -> dict[str, Any]:
        """Return the options of a lane that only chunked prompts have."""
        if self.policy != "chunked":
            return {}
        leaves_tokens = self.threshold is None and self.state_cache != "none"  # to other prompts
        return {
            "threshold": self.threshold,
            "max_partial": self.max_num_seqs if leaves_tokens else self.max_partial,
            "whole_must_fit": self.whole_must_fit,
            "threshold_spares_one": self.threshold_spares_one,
            "pass_goes_on": self.pass_goes_on,
            "interval": self.interval,
            "held_spares_hits": self.held_spares_hits,
        }


def _tier(number: int, tier: Tier) -> CacheTier:
    return CacheTier(
        f"tier{number}",
        tier.num_blocks,
        tier.latency,
        tier.seconds_per_block,
        tier.writes_back,
        in_step=tier.in_step,
    )


def pipeline_of(predictor: Predictor, size: int) -> PipelinePredictor:
    """Return ranks that a predictor has, or unequal ones made from one that has none."""
    if size == 1:
        return PipelinePredictor((predictor,), lambda num_tokens: 0.0)
    if isinstance(predictor, RooflinePredictor):
        cluster = replace(predictor.cluster, pipeline_parallel_size=size)
        return pipeline_predictor(
            lambda part: RooflinePredictor(part, cluster), predictor.model, cluster
        )
    if not isinstance(predictor, AffinePredictor):
        return PipelinePredictor((predictor,) * size, lambda num_tokens: 1e-7 * num_tokens)
    slower = replace(predictor, base=1.5 * predictor.base)
    ranks = [predictor, slower, predictor, predictor][:size]
    return PipelinePredictor(
        tuple(ranks), lambda num_tokens: predictor.base / 4 + num_tokens * predictor.per_decode
    )


@dataclass(frozen=True)
class Case:
    """One engine and its jobs, in order of arrival."""

    options: EngineOptions
    jobs: tuple[Job, ...]

    def stepwise(self, predictor: Predictor) -> Reference:
        """Return the reference; a drawn case is left out that never ends, which both refuse."""
        try:
            return self.options.stepwise(predictor, self.jobs)
        except EndlessError:
            self.assert_refused(predictor)
            reject()

    def assert_refused(self, predictor: Predictor) -> None:
        """Check that reference and engine end a run that makes no progress."""
        with pytest.raises(EndlessError):
            self.options.stepwise(predictor, self.jobs)
        with pytest.raises(
            ScenarioError, match="none got a token in between|wait for ever|lets no request compute"
        ):
            self.simulate(predictor)

    def client(self, predictor: Predictor) -> LlmClient:
        """Return the engine, which knows of which jobs entries are kept elsewhere."""
        client = self.options.client(predictor)
        if isinstance(client, ParkingClient):
            jobs = enumerate(self.jobs)
            client.kept = {number: job.num_elsewhere for number, job in jobs}
            client.seconds = self.options.elsewhere or (0.0, 0.0)
        return client

    def simulate(self, predictor: Predictor) -> Result:
        return Simulation(clients=[self.client(predictor)], workload=workload(self.jobs)).run()

    def with_job(self, job: Job) -> Case:
        """Return the case with one job more, behind those that arrive at the same time."""
        jobs = sorted((*self.jobs, job), key=lambda job: job.arrival_time)
        return replace(self, jobs=tuple(jobs))


def with_paths(
    drafting: SpeculativeConfig, jobs: Iterable[Job], seed: int, request_ids: Iterable[int]
) -> list[Job]:
    """Return jobs with the paths that a run with that seed draws for them."""
    paths = DraftPaths(Streams(seed), drafting.survival)
    return [
        replace(job, path=tuple(np.diff(paths.draw(number, job.num_output_tokens)).tolist()))
        for job, number in zip(jobs, request_ids, strict=True)
    ]


def workload(jobs: Sequence[Job]) -> Workload:
    plain = Workload.from_lists(
        [job.num_prompt_tokens for job in jobs],
        [job.num_output_tokens for job in jobs],
        [job.arrival_time for job in jobs],
    )
    return OfJobs(plain.source, plain.arrivals, jobs=tuple(jobs))


@dataclass(frozen=True, slots=True)
class OfJobs(Workload):
    """A workload whose requests have the priorities, contents and limits of given jobs."""

    jobs: tuple[Job, ...] = ()

    def requests(self, streams: Streams) -> Iterator[Request]:
        for request, job in zip(Workload.requests(self, streams), self.jobs, strict=True):
            request.priority = job.priority
            request.num_predicted_tokens = job.num_output_tokens
            request.content = job.content
            request.adapter = job.adapter
            request.limits = limits(job) or request.limits
            yield request


def limits(job: Job) -> Limits | None:
    """Return a job's limits; None when it has none."""
    found = Limits(
        timeout=job.timeout, ttft_timeout=job.ttft_timeout, ttft_deadline=job.ttft_deadline
    )
    return None if found == Limits() else found


def assert_exact(case: Case, predictor: Predictor) -> Reference:
    """Run a case both ways and compare all records; return the reference."""
    engine = case.stepwise(predictor)
    result = case.simulate(predictor)
    assert_same_records(result, engine, 0, range(len(case.jobs)))
    assert_same_gaps(result, [engine])
    if case.options.drafting:
        assert_same_drafts(result, engine, case.options.drafting.num_speculative_tokens)
    return engine


def assert_same_drafts(result: Result, engine: StepwiseEngine, num_drafts: int) -> None:
    """Compare what came of draft tokens."""
    drafts = {name: column.sum() for name, column in result.recorder.drafts.columns().items()}
    num_steps = sum(outcome.num_decode_steps for outcome in engine.outcomes)
    assert drafts["num_drafts"] == num_steps
    assert drafts["draft_tokens"] == num_steps * num_drafts
    assert drafts["accepted_tokens"] == sum(outcome.num_accepted for outcome in engine.outcomes)


def assert_same_records(
    result: Result, engine: Reference, client_id: int, request_ids: Sequence[int]
) -> None:
    """Compare one client's records, and those of its jobs, which are served nowhere else.

    request_ids: of the jobs.
    """
    assert_same_visits(result, engine, client_id, request_ids)
    visits = ([outcome] for outcome in engine.outcomes)
    assert_same_requests(result, dict(zip(request_ids, visits, strict=True)))


def assert_same_visits(
    result: Result, engine: Reference, client_id: int, request_ids: Sequence[int]
) -> None:
    """Compare one client's records with a reference; `request_ids` are those of its jobs."""
    assert_same_steps(result, engine, client_id)
    visits = visit_records(result, client_id)
    loaded = moved_tokens(result, client_id, "load")
    fetched = moved_tokens(result, client_id, "fetch")
    swapped = swapped_tokens(result, client_id)
    expected: dict[int, list[dict[str, Any]]] = {}
    last_left = last_exit(engine.outcomes)
    for request_id, outcome in zip(request_ids, engine.outcomes, strict=True):
        block_size = engine.tracks[0].block_size
        copies = swapped.get(request_id, [])
        assert copies == outcome.swapped_tokens[: len(copies)]
        later = outcome.swapped_at[len(copies) :]  # a run does not wait for those who gave up
        assert all(time >= outcome.left_at for time in later)
        num_fetched = outcome.num_fetched_tokens + outcome.num_fetched_in_vain
        came = loaded[request_id], fetched[request_id]
        if any(came) or not outcome.came_at >= last_left:  # nor for what comes after that
            assert came == (outcome.num_loaded_blocks * block_size, num_fetched)
        visit = {
            "started_at": bits(outcome.started_at),
            "first_token_at": bits(outcome.first_token_at),
            "finished_at": bits(outcome.left_at),
            "num_cached_tokens": outcome.num_cached_tokens,
        }
        expected.setdefault(request_id, []).append(visit)
    for request_id, those in expected.items():
        assert (request_id, visits[request_id]) == (request_id, those)
    assert requests_left(result, client_id) == [request_ids[position] for position in left(engine)]
    assert_same_totals(result, engine, client_id)


def assert_same_requests(result: Result, visits: Mapping[int, Sequence[Outcome]]) -> None:
    """Compare what became of requests with the outcomes of their visits, by id."""
    rows = result.requests.set_index("request_id").to_dict("index")
    for request_id, outcomes in visits.items():
        assert_same_request(result, request_id, rows[request_id], outcomes)


def assert_same_request(
    result: Result, request_id: int, row: dict[str, Any], visits: Sequence[Outcome]
) -> None:
    token_times = [time for visit in visits for time in visit.token_times]
    got = {
        "status": row["status"],
        "first_token_at": bits(row["first_token_at"]),
        "finished_at": bits(row["finished_at"]),
        "num_preemptions": row["num_preemptions"],
        "num_cached_tokens": row["num_cached_tokens"],
        "token_times": result.token_times(request_id).tolist(),
    }
    assert (request_id, got) == (
        request_id,
        {
            "status": visits[-1].status,
            "first_token_at": bits(first_token_at(token_times, visits[-1])),
            "finished_at": bits(visits[-1].finished_at),
            "num_preemptions": sum(len(visit.preempted_at) for visit in visits),
            "num_cached_tokens": sum(visit.num_cached_tokens for visit in visits),
            "token_times": token_times,
        },
    )
    if visits[-1].status == "finished":
        assert row["num_output_tokens"] == len(token_times)


def first_token_at(token_times: Sequence[float], last: Outcome) -> float:
    """Return when a request's sender got its first token; NaN: after it had given up, or never."""
    return token_times[0] if token_times and token_times[0] <= last.finished_at else nan


def left(engine: Reference) -> list[int]:
    """Return the positions of an engine's jobs in the order in which they left."""
    positions = {id(outcome): position for position, outcome in enumerate(engine.outcomes)}
    return [positions[id(live.outcome)] for live in engine.gone if id(live.outcome) in positions]


def last_exit(outcomes: Iterable[Outcome]) -> float:
    """Return when the last of those who came has left, in seconds."""
    return max((outcome.left_at for outcome in outcomes), default=0.0)


def assert_same_steps(result: Result, engine: Reference, client_id: int) -> None:
    """Compare every step of a client's lanes."""
    for tracks, lane in zip(tracks_of_lanes(result, engine, client_id), engine.tracks, strict=True):
        steps = [step for track in tracks for step in expanded_steps(result, track)]
        assert (sorted(steps, key=lambda step: step[1]) if len(tracks) > 1 else steps) == [
            (
                step.start,
                step.end,
                len(step.batch.chunks),
                step.batch.num_prefill_tokens,
                step.batch.num_decodes,
                step.batch.context_sum,
            )
            for step in lane.steps
        ]


def tracks_of_lanes(result: Result, engine: Reference, client_id: int) -> list[list[int]]:
    """Return the tracks of each lane; one with a queue of batches has several."""
    tracks = result.recorder.tracks_of(client_id)
    size = len(tracks) // len(engine.tracks)
    return [tracks[start : start + size] for start in range(0, len(tracks), size)]


def assert_same_totals(result: Result, engine: Reference, client_id: int) -> None:
    """Compare a client's row, and the blocks held when each run of steps began."""
    row = result.clients.iloc[client_id]
    batches = [step.batch for step in engine.steps]
    assert row["num_steps"] == len(batches)
    assert row["num_prefill_tokens"] == sum(batch.num_prefill_tokens for batch in batches)
    assert row["num_decode_tokens"] == sum(outcome.num_decode_tokens for outcome in engine.outcomes)
    busy = sum(step.busy for step in engine.steps)
    assert abs(row["busy"] - busy) <= 1e-12 * max(busy, 1.0) * max(len(batches), 1)
    for tracks, lane in zip(tracks_of_lanes(result, engine, client_id), engine.tracks, strict=True):
        if len(tracks) > 1:
            assert_same_blocks(result, tracks, lane)
            continue
        (track,) = tracks
        runs = result.recorder.steps[track].columns()
        lasts = (np.cumsum(runs["num_steps"]) - 1).tolist()
        for last, num_used_blocks in zip(lasts, runs["num_used_blocks"].tolist(), strict=True):
            num_less = lane.steps[last].num_peak_blocks - num_used_blocks
            assert 0 <= num_less <= given_back_after(lane, last)


def assert_same_blocks(result: Result, tracks: Sequence[int], lane: StepwiseEngine) -> None:
    """Compare the blocks that are taken when the last pass of each run of a queue is planned."""
    used = {step.end: step.num_used_blocks for step in lane.steps}
    for track in tracks:
        runs = result.recorder.steps[track].columns()
        lasts = (np.cumsum(runs["num_steps"]) - 1).tolist()
        ends = [result.recorder.step_ends[track][last] for last in lasts]
        assert runs["num_used_blocks"].tolist() == [used[end] for end in ends]


def given_back_after(lane: StepwiseEngine, step: int) -> int:
    """Return the blocks that came back after a step from who gave up, before the next one.

    A run that is cut when its last step is over counts what is free by then.
    """
    begin, rest = lane.steps[step].end, lane.steps[step + 1 :]
    end = rest[0].planned if rest else inf
    return sum(number for time, number in lane.given_back.items() if begin <= time <= end)


def assert_same_gaps(result: Result, engines: Iterable[Reference]) -> None:
    """Compare the pooled inter-token latencies, as multisets of bits."""
    expected = Counter(
        after - before
        for engine in engines
        for outcome in engine.outcomes
        for before, after in zip(outcome.chunk_times, outcome.chunk_times[1:], strict=False)
    )
    pooled: Counter[float] = Counter()
    for gaps, counts, _ in pooled_gaps(result.recorder):
        assert (counts >= 0).all()
        for gap, count in zip(gaps.tolist(), counts.tolist(), strict=True):
            pooled[gap] += count
    assert +pooled == expected


def expanded_steps(result: Result, track: int) -> list[tuple[float, float, int, int, int, int]]:
    """Return (start, end, chunks, prefill tokens, decodes, context sum) of every single step."""
    runs = dict(result.recorder.steps[track].columns())
    runs["end"] = run_periods(result.recorder, track)[1]
    ends = list(result.recorder.step_ends[track])
    tokens = result.recorder.decode_tokens(track).tolist()
    steps = []
    for start, end, num_steps, num_chunks, num_prefill_tokens, num_decodes, context_sum in zip(
        *(
            runs[name].tolist()
            for name in (
                "start",
                "end",
                "num_steps",
                "num_chunks",
                "num_prefill_tokens",
                "num_decodes",
                "context_sum",
            )
        ),
        strict=True,
    ):
        for _ in range(num_steps):
            step_end = ends[len(steps)]
            steps.append(
                (start, step_end, num_chunks, num_prefill_tokens, num_decodes, context_sum)
            )
            context_sum += tokens[len(steps) - 1]  # noqa: PLW2901
            start = step_end  # noqa: PLW2901
        assert end == step_end
    assert len(steps) == len(ends)
    return steps


def moves_at(result: Result, client_id: int) -> Any:
    """Return the transfers to and from the memory of a client."""
    moves = result.transfers
    return moves[moves["client"] == result.client_names[client_id]]


def moved_tokens(result: Result, client_id: int, kind: str) -> Counter[int]:
    """Return how many tokens' entries came for each request to a client, by one kind of move."""
    moves = moves_at(result, client_id)
    loads = moves[moves["kind"] == kind]
    total: Counter[int] = Counter()
    for request_id, number in zip(
        loads["request_id"].tolist(), loads["num_tokens"].tolist(), strict=True
    ):
        total[request_id] += number
    return total


def swapped_tokens(result: Result, client_id: int) -> dict[int, list[int]]:
    """Return the tokens of each request's copies in their order, negative for those out."""
    copies: dict[int, list[int]] = {}
    moves = moves_at(result, client_id)
    columns = (moves[name].tolist() for name in ("request_id", "kind", "num_tokens"))
    for request_id, kind, number in zip(*columns, strict=True):
        if kind in ("swap_out", "swap_in"):
            copies.setdefault(request_id, []).append(-number if kind == "swap_out" else number)
    return copies


def requests_left(result: Result, client_id: int) -> list[int]:
    """Return the requests of a client's visits in the order in which they left."""
    columns = result.recorder.visits.columns()
    ids: list[int] = columns["request_id"][columns["client_id"] == client_id].tolist()
    return ids


def visit_records(result: Result, client_id: int) -> dict[int, list[dict[str, Any]]]:
    """Return what a client noted of each request's visits, in the order in which they left."""
    columns = result.recorder.visits.columns()
    mine = columns["client_id"] == client_id
    times = ("started_at", "first_token_at", "finished_at")
    records: dict[int, list[dict[str, Any]]] = {}
    for request_id, num_cached, *row in zip(
        columns["request_id"][mine].tolist(),
        columns["num_cached_tokens"][mine].tolist(),
        *(columns[name][mine].tolist() for name in times),
        strict=True,
    ):
        record: dict[str, Any] = dict(zip(times, map(bits, row), strict=True))
        records.setdefault(request_id, []).append(record | {"num_cached_tokens": num_cached})
    return records


def bits(value: float) -> float | None:
    """Return a value that compares to the bit: NaN, which differs from itself, becomes None."""
    return None if isnan(value) else value
