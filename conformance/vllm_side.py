"""Workloads through the scheduler and the KV manager of an installed vLLM, with a virtual clock.

Nothing is computed, so no GPU is needed: a step lasts what the workload's law says, and each
request gets the tokens that its workload names. It needs vLLM and the standard library alone:
`python vllm_side.py [--async] < workloads.json > results.json`.

Source: vLLM's `EngineCore.step` and `step_with_batch_queue` in `vllm/v1/engine/core.py`.
"""

from __future__ import annotations

import contextlib
import heapq
import inspect
import json
import os
import sys
from collections import deque
from types import SimpleNamespace
from typing import Any

_BESIDE = 1e-7  # seconds between an answer's end and the next turn, so that no two things meet
_COUNTS = ("preemptions", "cached")  # of each job
_RESERVE = "scheduler_reserve_full_isl"  # since 0.19; before, prompts go by their first chunk
_INTERVAL = "prefill_schedule_interval"  # since 0.24; in engines of their own since 0.33
_MOST_EMPTY = 3  # passes that schedule nothing before the clock goes to the next arrival


class NoImages:
    """A registry of a model that reads text alone."""

    def supports_multimodal_inputs(self, model: Any) -> bool:
        """Return False."""
        return False


class NoGrammar:
    """A manager of structured output that nobody asks."""

    def should_advance(self, request: Any) -> bool:
        """Return False."""
        return False

    def accept_tokens(self, request: Any, tokens: Any) -> bool:
        """Return True (0.33)."""
        return True


def scheduler_of(spec: dict[str, Any], asynchronous: bool, options: dict[str, Any]) -> Any:
    """Return vLLM's scheduler for a workload."""
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    size, num_blocks = spec["block_size"], spec["num_gpu_blocks"]
    layer = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)],
    )
    config = config_of(spec, asynchronous, options)
    kind = AsyncScheduler if asynchronous else Scheduler
    return kind(config, kv_cache, NoGrammar(), size, mm_registry=NoImages(), log_stats=False)


def config_of(spec: dict[str, Any], asynchronous: bool, options: dict[str, Any]) -> Any:
    """Return what the schedulers of vLLM 0.12 to 0.33 read of a `VllmConfig`."""
    from vllm.config import SchedulerConfig

    longest, interval = 10**7, spec[_INTERVAL]
    has_interval = _INTERVAL in inspect.signature(SchedulerConfig).parameters
    scheduler_config = SchedulerConfig(
        max_num_seqs=spec["max_num_seqs"],
        max_num_batched_tokens=spec["max_num_batched_tokens"],
        max_model_len=longest,
        is_encoder_decoder=False,
        long_prefill_token_threshold=spec["long_prefill_token_threshold"],
        enable_chunked_prefill=True,
        async_scheduling=asynchronous,
        policy=spec["policy"],
        **({_INTERVAL: interval} if has_interval else {}),
        **options,
    )
    return SimpleNamespace(
        scheduler_config=scheduler_config,
        cache_config=SimpleNamespace(
            num_gpu_blocks=spec["num_gpu_blocks"],
            enable_prefix_caching=spec["enable_prefix_caching"],
            block_size=spec["block_size"],
            mamba_cache_mode="none",
            enable_mamba_shared_prefix_checkpoint=False,
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=0,
            data_parallel_rank=0,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=len(spec["ranks"]),
        ),
        observability_config=SimpleNamespace(
            kv_cache_metrics=False, enable_mfu_metrics=False, per_request_spec_decode_metrics=None
        ),
        model_config=SimpleNamespace(
            is_encoder_decoder=False,
            is_diffusion=False,
            max_model_len=longest,
            enable_return_routed_experts=False,
            return_sampling_mask=False,
            runner_type="generate",
            supports_multimodal_inputs=False,
            uses_mrope=False,
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        is_mm_encoder_only=False,
        max_concurrent_batches=batches_in_flight(spec, asynchronous),
        max_in_flight_tokens=spec["max_num_batched_tokens"] * batches_in_flight(spec, asynchronous),
        num_hash_lookahead_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_speculative_tokens=0,
        use_v2_model_runner=True,
        lora_config=None,
        kv_events_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        speculative_config=None,
    )


def batches_in_flight(spec: dict[str, Any], asynchronous: bool) -> int:
    """Return `max_concurrent_batches` of the multiprocess executor, or of the config since 0.24."""
    size = len(spec["ranks"])
    if asynchronous and (size == 1 or fills_queue()):
        return size + 1
    return size


def fills_queue() -> bool:
    """Tell whether empty batches fill the queue, and a decode is planned every so many steps.

    That came by 0.24, with model runner V2.
    """
    import vllm

    return tuple(int(part) for part in vllm.__version__.split(".")[:2]) >= (0, 24)


class Engine:
    """One workload on its way through vLLM's scheduler."""

    def __init__(self, spec: dict[str, Any], asynchronous: bool, options: dict[str, Any]) -> None:
        self.spec = spec
        self.jobs = spec["jobs"]
        self.scheduler = scheduler_of(spec, asynchronous, options)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.num_blocks = self.pool.get_num_free_blocks()
        self.asynchronous = asynchronous
        self.most_ahead = batches_in_flight(spec, asynchronous)
        self.now = 0.0
        self.free_at = [0.0 for _ in spec["ranks"]]
        self.scheduled: list[dict[str, Any]] = []  # all steps, empty ones too
        self.queue: deque[Any] = deque()  # scheduled steps, the latest first
        self.steps: list[dict[str, Any]] = []
        self.token_steps: list[list[int]] = [[] for _ in self.jobs]
        self.arrivals: list[float | None] = [job["arrival"] for job in self.jobs]
        self.cached = [0] * len(self.jobs)
        self.preempted: list[int] = []  # since the last step that computed something
        self.num_preemptions = [0] * len(self.jobs)
        self.coming = [(t, n) for n, t in enumerate(self.arrivals) if t is not None]
        heapq.heapify(self.coming)
        self.next_turn = {
            job["after"]: n for n, job in enumerate(self.jobs) if job.get("after") is not None
        }
        self.requests = [self._request(n) for n in range(len(self.jobs))]

    def _request(self, number: int) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        job, caches = self.jobs[number], self.spec["enable_prefix_caching"]
        needs = inspect.signature(Request).parameters
        return Request(
            str(number),
            [self._token(number, position) for position in range(job["prompt"])],
            SamplingParams(max_tokens=job["answer"], ignore_eos=True),
            None,
            **({"eos_token_id": None} if "eos_token_id" in needs else {}),
            arrival_time=job["arrival"] or 0.0,
            priority=job["priority"],
            block_hasher=get_request_block_hasher(self.spec["block_size"], sha256)
            if caches
            else None,
        )

    def _token(self, number: int, position: int) -> int:
        """Return a token that is equal where the content is."""
        end = 0
        for key, length in self.jobs[number]["content"]:
            end += length
            if position < end:
                return (key << 24) + position
        return ((10**6 + number) << 24) + position

    def run(self) -> dict[str, Any]:
        """Serve all jobs and return what became of them."""
        num_empty = 0
        while self.coming or self.queue or self.scheduler.has_requests():
            self._arrive()
            if not self.queue and not self.scheduler.has_requests():
                self.now = max(self.now, self.coming[0][0])
                continue
            if self.scheduler.has_requests():
                step = self._schedule()
                self.queue.appendleft(step)
                if step["tokens"]:
                    num_empty = 0
                if self._goes_on(step):
                    continue
                if not step["tokens"] and len(self.queue) == 1 and not step["preempted"]:
                    num_empty += 1
            self._finish(self.queue.pop())
            if num_empty > _MOST_EMPTY:
                if not self.coming:
                    return {"stuck": True}
                self.now, num_empty = max(self.now, self.coming[0][0]), 0
        return {
            "stuck": False,
            "arrivals": self.arrivals,
            "ends": [step["end"] for step in self.steps],
            "token_steps": self.token_steps,
            "steps": [[step["rows"], step["preempted"], step["used"]] for step in self.steps],
            "preemptions": self.num_preemptions,
            "cached": self.cached,
        }

    def _goes_on(self, step: dict[str, Any]) -> bool:
        """Tell whether another step is scheduled before the oldest in the queue is awaited."""
        if len(self.queue) >= self.most_ahead:
            return False
        if len(self.spec["ranks"]) > 1 and fills_queue():
            return bool(step["tokens"]) or self.scheduler.has_requests()
        return bool(step["tokens"]) and self.queue[-1]["end"] > self.now

    def _arrive(self) -> None:
        while self.coming and self.coming[0][0] <= self.now:
            time, number = heapq.heappop(self.coming)
            self.arrivals[number] = self.requests[number].arrival_time = time
            self.scheduler.add_request(self.requests[number])

    def _schedule(self) -> dict[str, Any]:
        """Schedule a step, and say when it will end."""
        scheduler = self.scheduler
        promised = {n: each.num_output_placeholders for n, each in scheduler.requests.items()}
        output = scheduler.schedule()
        tokens = output.num_scheduled_tokens
        context = sum(_computed_before(scheduler, n, tokens) for n in tokens)
        step = {
            "output": output,
            "tokens": output.total_num_scheduled_tokens,
            "rows": [[int(n), tokens[n], _computed_before(scheduler, n, tokens)] for n in tokens],
            "emits": {n: _emits(scheduler.requests[n], promised[n]) for n in tokens},
            "preempted": sorted(int(name) for name in output.preempted_req_ids or ()),
            "used": self.num_blocks - self.pool.get_num_free_blocks(),
            "end": self.queue[0]["end"] if self.queue else self.now,
        }
        for number in step["preempted"]:
            self.num_preemptions[number] += 1
        self.preempted += step["preempted"]
        if step["tokens"]:
            step["preempted"], self.preempted = self.preempted, []
            step["end"] = self._pass(step, context)
            step["number"] = len(self.steps)
            self.steps.append(step)
        step["gives"] = not fills_queue() or any(
            self._gives_on(int(name), first) for name, first in step["emits"].items() if first
        )
        self.scheduled.append(step)
        return step

    def _gives_on(self, number: int, emits: bool) -> bool:
        """Tell whether later steps may need the token that a request gets: all but an only one."""
        return emits and self.jobs[number]["answer"] > 1

    def _pass(self, step: dict[str, Any], context: int) -> float:
        """Return when a step has gone through all ranks, none of which it overtakes another on.

        Where a step is scheduled ahead, the first rank waits for the tokens of another: V1's for
        those of the step before (`_pp_receive_prev_sampled_token_ids_to_input_batch` in
        `gpu_model_runner.py`), V2's for those of as many steps before as there are ranks, if it
        gave any (`PPHandler` in `vllm/v1/worker/gpu/pp_utils.py`).
        """
        base, per_token, per_context = self.spec["step"]
        between, between_each = self.spec["hand_over"]
        num_ranks, time = len(self.free_at), self.now
        if self.asynchronous and num_ranks > 1:
            time = max(time, self._tokens_at(num_ranks) if fills_queue() else self.free_at[-1])
        for rank, factor in enumerate(self.spec["ranks"]):
            if rank:
                time += between + between_each * step["tokens"]
            seconds = factor * base + factor * per_token * step["tokens"]
            seconds += factor * per_context * context
            time = self.free_at[rank] = max(time, self.free_at[rank]) + seconds
        return time

    def _tokens_at(self, num_before: int) -> float:
        """Return when the tokens of so many steps before are there, 0 where it gave none."""
        if len(self.scheduled) < num_before:
            return 0.0
        step = self.scheduled[-num_before]
        return float(step["end"]) if step["tokens"] and step["gives"] else 0.0

    def _finish(self, step: dict[str, Any]) -> None:
        """Hand a step's tokens to the scheduler when it is over."""
        from vllm.v1.outputs import ModelRunnerOutput

        self.now = max(self.now, step["end"])
        names = list(step["emits"])
        sampled, waiting = [], []
        for name in names:
            request = self.scheduler.requests.get(name)
            emits = step["emits"][name] and request is not None
            if emits and request.status.name == "PREEMPTED":
                waiting.append(int(name))
            sampled.append([self._token(int(name), request.num_tokens)] if emits else [])
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=None,
        )
        for outputs in self.scheduler.update_from_output(step["output"], result).values():
            for output in outputs.outputs:
                number = int(output.request_id)
                self.token_steps[number] += [step["number"]] * len(output.new_token_ids)
                cached = _found_tokens(output)
                self.cached[number] = self.cached[number] if cached is None else cached
                if output.finish_reason is not None and number in waiting:
                    self._forget_preemption(number)
                if output.finish_reason is not None and number in self.next_turn:
                    turn = self.next_turn[number]
                    time = self.now + self.jobs[turn]["think"] + _BESIDE
                    heapq.heappush(self.coming, (time, turn))

    def _forget_preemption(self, number: int) -> None:
        """Count no preemption of a request whose last token was on its way: it does not come back.

        Only steps that were scheduled meanwhile did not know that.
        """
        self.num_preemptions[number] -= 1
        found = [self.preempted, *(step["preempted"] for step in reversed(self.steps))]
        next(names for names in found if number in names).remove(number)


def serve(spec: dict[str, Any], asynchronous: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Return what became of a workload whose jobs are dealt to its engines in turn.

    The steps of the first engine come first.
    """
    num_engines, jobs = spec["num_engines"], spec["jobs"]
    found: dict[str, Any] = {"stuck": False, "ends": [], "steps": []}
    each = {name: [None] * len(jobs) for name in ("arrivals", "token_steps", *_COUNTS)}
    for engine in range(min(num_engines, len(jobs))):
        part = Engine(spec | {"jobs": jobs[engine::num_engines]}, asynchronous, options).run()
        if part["stuck"]:
            return part
        num_before = len(found["ends"])
        part["token_steps"] = [[num_before + step for step in s] for s in part["token_steps"]]
        for name, values in each.items():
            values[engine::num_engines] = part[name]
        for rows, preempted, used in part["steps"]:
            renamed = [[engine + num_engines * name, *row] for name, *row in rows]
            names = [engine + num_engines * name for name in preempted]
            found["steps"].append([renamed, names, used])
        found["ends"] += part["ends"]
    return found | each


def _computed_before(scheduler: Any, name: str, tokens: dict[str, int]) -> int:
    """Return how many tokens of a request were computed before the step just scheduled."""
    return int(scheduler.requests[name].num_computed_tokens - tokens[name])


def _emits(request: Any, num_promised: int) -> bool:
    """Tell whether the step that was scheduled gives a request a token.

    num_promised: tokens of steps in flight when it was scheduled. Newer versions note
    themselves whether a chunk is a prompt's last.
    """
    if hasattr(request, "is_prefill_chunk"):
        return not request.is_prefill_chunk
    return bool(request.num_computed_tokens >= request.num_tokens + num_promised)


def _found_tokens(output: Any) -> int | None:
    """Return how many tokens a request found in the prefix cache; None where nothing says so."""
    if hasattr(output, "num_cached_tokens"):
        return int(output.num_cached_tokens)
    stats = output.prefill_stats  # since 0.20, with the first token alone
    return None if stats is None else int(stats.num_cached_tokens)


def main() -> None:
    """Read workloads, write results."""
    os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
    specs, asynchronous = json.load(sys.stdin), "--async" in sys.argv
    with contextlib.redirect_stdout(sys.stderr):
        import vllm
        from vllm.config import SchedulerConfig
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import init_none_hash

        init_none_hash(sha256)
        has_reserve = _RESERVE in inspect.signature(SchedulerConfig).parameters
        reserves = has_reserve and "--first-chunk" not in sys.argv
        options = {_RESERVE: reserves} if has_reserve else {}
        results = [serve(spec, asynchronous, options) for spec in specs]
    found = {"version": vllm.__version__, "options": {_RESERVE: reserves}, "results": results}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
