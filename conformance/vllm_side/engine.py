"""One workload on its way through vLLM's scheduler and KV manager, with a virtual clock.

Nothing is computed, so no GPU is needed: a step lasts what the workload's law says, and each
request gets the tokens that its workload names.

Source: vLLM's `EngineCore.step` and `step_with_batch_queue` in `vllm/v1/engine/core.py`.
"""

from __future__ import annotations

import heapq
import inspect
from collections import deque
from typing import Any

from conformance.vllm_side.connector import Store
from conformance.vllm_side.scheduler import batches_in_flight, fills_queue, scheduler_of

_BESIDE = 1e-7  # seconds between an answer's end and the next turn, so that no two things meet
_COVERED = "num_hash_lookahead_tokens"  # behind a block, of its hash, with EAGLE since 0.33
_MOST_EMPTY = 3  # passes that schedule nothing before the clock goes to the next arrival


def name_of(number: int) -> str:
    """Return the id of a job's request; of equal arrivals the smallest id goes first in vLLM."""
    return f"{number:06}"


class Engine:
    """One workload on its way through vLLM's scheduler."""

    def __init__(self, spec: dict[str, Any], asynchronous: bool, options: dict[str, Any]) -> None:
        self.spec = spec
        self.jobs = spec["jobs"]
        loads = spec.get("loads")
        in_step = spec["loads_in_step"]
        self.store = Store(spec["block_size"], *loads, in_step=in_step) if loads else None
        self.scheduler = scheduler_of(spec, asynchronous, options, self.store)
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
        self.num_drafts = spec["drafts"][1]
        self.num_verified = [0] * len(self.jobs)  # steps with drafts
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
        number_covered = self.scheduler.vllm_config.num_hash_lookahead_tokens
        can_cover = _COVERED in inspect.signature(get_request_block_hasher).parameters
        covers = {_COVERED: number_covered} if can_cover else {}
        return Request(
            name_of(number),
            [self._token(number, position) for position in range(job["prompt"])],
            SamplingParams(max_tokens=job["answer"], ignore_eos=True),
            None,
            **({"eos_token_id": None} if "eos_token_id" in needs else {}),
            arrival_time=job["arrival"] or 0.0,
            priority=job["priority"],
            block_hasher=get_request_block_hasher(self.spec["block_size"], sha256, **covers)
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
                if self._waits_for_news() and not step["preempted"]:
                    num_empty += 1
            self._finish(self.queue.pop())
            if num_empty > _MOST_EMPTY:
                if (time := self._next_news()) is None:
                    return {"stuck": True}
                self.now, num_empty = max(self.now, time), 0
        return {
            "stuck": False,
            "arrivals": self.arrivals,
            "ends": [step["end"] for step in self.steps],
            "token_steps": self.token_steps,
            "steps": [[step["rows"], step["preempted"], step["used"]] for step in self.steps],
            "preemptions": self.num_preemptions,
            "cached": self.cached,
        }

    def _waits_for_news(self) -> bool:
        """Tell whether no step is in flight that may change what can be scheduled."""
        if len(self.queue) > 1 and self.store is None:
            return False
        return not any(step["tokens"] for step in self.queue)

    def _next_news(self) -> float | None:
        """Return when the next request arrives or the next load ends; None if nothing comes."""
        times = [time for time, _ in self.coming[:1]]
        times += self.store.coming.values() if self.store is not None else ()
        return min(times, default=None)

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
        self._abort()

    def _abort(self) -> None:
        """Let those go whose senders have gone (`EngineCore._process_aborts_queue`)."""
        from vllm.v1.request import RequestStatus

        for number, job in enumerate(self.jobs):
            begin, after = self.arrivals[number], job.get("abort")
            if after is None or begin is None or begin + after > self.now:
                continue
            if name_of(number) in self.scheduler.requests:
                self.scheduler.finish_requests(name_of(number), RequestStatus.FINISHED_ABORTED)

    def _schedule(self) -> dict[str, Any]:
        """Schedule a step, and say when it will end."""
        scheduler = self.scheduler
        promised = {n: each.num_output_placeholders for n, each in scheduler.requests.items()}
        running = {each.request_id for each in scheduler.running}
        output = scheduler.schedule()
        tokens = output.num_scheduled_tokens
        context = sum(_computed_before(scheduler, n, tokens) for n in tokens)
        context -= sum(self._num_refused(name, self.queue) for name in tokens)
        step = {
            "output": output,
            "padded": set(output.scheduled_spec_decode_tokens) - running,
            "tokens": output.total_num_scheduled_tokens,
            "rows": [[int(n), tokens[n], _computed_before(scheduler, n, tokens)] for n in tokens],
            "emits": {n: _emits(scheduler.requests[n], promised[n]) for n in tokens},
            "preempted": sorted(int(name) for name in output.preempted_req_ids or ()),
            "used": self.num_blocks - self.pool.get_num_free_blocks(),
            "end": self.queue[0]["end"] if self.queue else self.now,
        }
        step["begin"] = max(self.now, step["end"])
        for number in step["preempted"]:
            self.num_preemptions[number] += 1
        self.preempted += step["preempted"]
        if step["tokens"]:
            step["preempted"], self.preempted = self.preempted, []
            step["end"] = self._pass(step, context)
            step["number"] = len(self.steps)
            self.steps.append(step)
        if self.store is not None:
            self.store.begin(step["begin"])
        step["gives"] = not fills_queue() or any(
            self._gives_on(int(name), first) for name, first in step["emits"].items() if first
        )
        self.scheduled.append(step)
        return step

    def _num_refused(self, name: str, queue: deque[Any]) -> int:
        """Return how many drafts that are in flight, and count as computed, will be refused."""
        num_refused, place = 0, self.num_verified[int(name)]
        for step in reversed(queue):
            if name in step["padded"]:
                num_refused += self.num_drafts
            elif name in step["output"].scheduled_spec_decode_tokens:
                num_refused += 1 + self.num_drafts - self.jobs[int(name)]["path"][place]
                place += 1
        return num_refused

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
            if self.store is not None and not rank:
                seconds += self.store.begin_in_step()
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
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        self.now = max(self.now, step["end"])
        self._abort()
        names = list(step["emits"])
        drafted = step["output"].scheduled_spec_decode_tokens.keys() - step["padded"]
        sampled, waiting = [], []
        for name in names:
            request = self.scheduler.requests.get(name)
            emits = step["emits"][name] and request is not None
            if emits and request.status.name == "PREEMPTED":
                waiting.append(int(name))
            number = self._num_given(int(name), drafts=name in drafted) if emits else 0
            begin = request.num_tokens if emits else 0
            sampled.append([self._token(int(name), begin + each) for each in range(number)])
        arrived = self.store.take_arrived(self.now) if self.store is not None else set()
        result = ModelRunnerOutput(
            kv_connector_output=KVConnectorOutput(finished_recving=arrived) if arrived else None,
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
        if self.num_drafts and not self.asynchronous:
            self._draft([name for name, emits in step["emits"].items() if emits])

    def _num_given(self, number: int, *, drafts: bool) -> int:
        """Return the tokens that a step gives, as many as its job's path says if it has drafts."""
        if not drafts:
            return 1
        self.num_verified[number] += 1
        return int(self.jobs[number]["path"][self.num_verified[number] - 1])

    def _draft(self, names: list[str]) -> None:
        """Hand the drafts of a step to the scheduler (`EngineCore.post_step`)."""
        from vllm.v1.outputs import DraftTokenIds

        drafts = [[0] * self.num_drafts for _ in names]
        self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))

    def _forget_preemption(self, number: int) -> None:
        """Count no preemption of a request whose last token was on its way: it does not come back.

        Only steps that were scheduled meanwhile did not know that.
        """
        self.num_preemptions[number] -= 1
        found = [self.preempted, *(step["preempted"] for step in reversed(self.steps))]
        next(names for names in found if number in names).remove(number)


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
