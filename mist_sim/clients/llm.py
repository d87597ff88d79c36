"""A client that runs a language model: prefill and decode in engine steps."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Stages
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from mist_sim.clients.base import Client
from mist_sim.clients.kv_cache import BlockPool
from mist_sim.clients.scheduling import Scheduler, StepPlan
from mist_sim.clients.sequence import Sequence
from mist_sim.core.batch import StepBatch, StepGrowth
from mist_sim.core.events import Recorder, Visit
from mist_sim.core.request import Stage
from mist_sim.environment import PLAN, STEP_END, Environment
from mist_sim.errors import InvariantError
from mist_sim.hardware.predictors.base import Predictor
from mist_sim.stages import Decode, Prefill

_FIRST_RUN = 512  # steps computed ahead; doubles while nothing changes (DESIGN §5)
_LONGEST_RUN = 65536


@dataclass(slots=True)
class _Run:
    """Steps in flight: the plan, its batch, when they began, and when each ends (seconds)."""

    plan: StepPlan
    batch: StepBatch
    start: float
    ends: NDArray[np.float64] | float
    num_steps: int
    end: float


class LlmClient(Client):
    """An LLM engine: a batching policy on paged memory, timed by a predictor.

    The loop is MIST's CLIENT-STEP: plan, sleep while the steps run, hand back what finished.
    Steps that cannot change are one run and one event; an arrival that could be admitted cuts
    the run at the end of the step in flight.

    scheduler: the batching policy; one object for each client.
    predictor: times the steps; may be shared.
    num_gpu_blocks, block_size, watermark: KV-cache memory (see `KvCacheConfig`).
    max_model_len: most tokens of a prompt and its answer; a longer prompt is refused, a longer
        answer ends there (vLLM's name and meaning). None: no limit.
    request_overhead: seconds from arrival until a request can be scheduled.
    """

    def __init__(
        self,
        name: str,
        *,
        scheduler: Scheduler,
        predictor: Predictor,
        num_gpu_blocks: int,
        block_size: int = 16,
        watermark: float = 0.0,
        max_model_len: int | None = None,
        request_overhead: float = 0.0,
    ) -> None:
        super().__init__(name, frozenset({Prefill.kind, Decode.kind}))
        self.scheduler = scheduler
        self.predictor = predictor
        self.num_gpu_blocks = num_gpu_blocks
        self.block_size = block_size
        self.num_reserved_blocks = int(watermark * num_gpu_blocks)
        self.max_model_len = max_model_len
        self.request_overhead = request_overhead
        self.estimate = getattr(predictor, "estimate", "custom")

    def start(self, env: Environment, client_id: int, recorder: Recorder) -> None:
        super().start(env, client_id, recorder)
        self.scheduler.start(
            BlockPool(self.num_gpu_blocks, self.block_size, self.num_reserved_blocks)
        )
        self._run: _Run | None = None
        self._run_limit = _FIRST_RUN
        self._num_steps_done = 0
        self._last_decode_end = 0.0
        self._newly_decoding: list[Sequence] = []  # joined since the last decode step
        self._idle = False
        self._wake = env.event()
        env.process(self._serve())

    # --- the loop -------------------------------------------------------------------------

    def _serve(self) -> Generator[Event, object, None]:
        env = self.env
        while True:
            plan = self.scheduler.schedule(self._run_limit)
            if plan is None:
                self._sleep_check()
                self._idle = True
                self._wake = env.event()
                yield self._wake
                continue
            self._begin(plan)
            if self._run is None:  # nothing but dropped sequences: plan again
                continue
            yield self._wake
            self._end(self._run)
            if not env.phase_is_last:  # let requests that move at this time enter the queues
                yield env.at(env.now, PLAN)

    def _begin(self, plan: StepPlan) -> None:
        """Start the steps of a plan."""
        now = self.env.now
        for sequence in plan.admitted:
            if not sequence.visit.num_preemptions:
                sequence.visit.started_at = now
        if plan.preempted or plan.dropped:
            self._evict(plan)
        self.view.num_waiting += len(plan.preempted) - len(plan.admitted)
        self.view.num_running = len(self.scheduler.running)
        if not plan.prefills and not plan.decodes:
            if not plan.dropped:
                raise InvariantError(
                    f"{type(self.scheduler).__name__} planned a step of nothing at {now} s"
                )
            return
        batch = self.scheduler.batch(plan)
        ends = self._time(batch, plan, now)
        end = ends if isinstance(ends, float) else ends.item(-1)
        self._run = _Run(plan, batch, now, ends, plan.num_steps, end)
        self._wake = self.env.at(end, STEP_END)

    def _evict(self, plan: StepPlan) -> None:
        """Note what lost its memory, and hand back what can never have enough."""
        for sequence in plan.preempted:
            self._leave_decoding(sequence)
            sequence.visit.num_preemptions += 1
        for sequence in plan.dropped:
            self._leave_decoding(sequence)
            sequence.visit.num_output_tokens = sequence.num_output_tokens
            self._reject(sequence.visit, self.scheduler.outgrown(sequence) or "dropped")

    def _time(self, batch: StepBatch, plan: StepPlan, now: float) -> NDArray[np.float64] | float:
        """Return when each step of a plan ends."""
        if plan.num_steps == 1:
            return now + self.predictor.step_time(batch)
        growth = StepGrowth(batch.num_decodes)
        times = self.predictor.run(batch, growth, plan.num_steps)
        times[0] += now
        return np.add.accumulate(times, out=times)

    def _end(self, run: _Run) -> None:
        """Account for the executed steps and hand back what finished."""
        self._run = None
        emitted, finished = self.scheduler.update(run.plan, run.num_steps)
        self._record(run)
        self._num_steps_done += run.num_steps
        for sequence in emitted:
            self._emit(sequence, run.end)
        for sequence in finished:
            self._record_tokens(sequence)
            sequence.visit.num_output_tokens = sequence.num_output_tokens
            self._finish(sequence.visit)
        unchanged = not emitted and not finished and run.num_steps == self._run_limit
        self._run_limit = min(2 * self._run_limit, _LONGEST_RUN) if unchanged else _FIRST_RUN
        self.view.num_running = len(self.scheduler.running)

    def _sleep_check(self) -> None:
        if self.scheduler.waiting:
            raise InvariantError(
                f"{self.name} sleeps at {self.env.now} s with {len(self.scheduler.waiting)} "
                f"requests waiting, the first is {self.scheduler.waiting.head().visit.request}"
            )

    def takes(self, stages: Stages[Stage]) -> int:
        """A visit is one prompt and its tokens; the next turn's prompt is a visit of its own."""
        if stages[0].kind != Prefill.kind:
            return 0  # the KV entries of a bare decode are not here
        followers = stages[1:]
        num_decodes = next(
            (i for i, stage in enumerate(followers) if stage.kind != Decode.kind), len(followers)
        )
        return 1 + num_decodes

    # --- arrivals -------------------------------------------------------------------------

    def _accept(self, visit: Visit) -> None:
        sequence = _sequence(visit)
        reason = self._limit_length(sequence) or self.scheduler.refusal(sequence)
        if reason is not None:
            self._reject(visit, reason)
            return
        self.view.num_waiting += 1
        if self.request_overhead:
            self.env.process(self._enqueue_later(sequence))
        else:
            self._enqueue(sequence)

    def _limit_length(self, sequence: Sequence) -> str | None:
        """Cut an answer at the longest context; return why a prompt is too long, or None."""
        if self.max_model_len is None:
            return None
        room = self.max_model_len - sequence.num_prompt_tokens
        sequence.num_target_tokens = min(sequence.num_target_tokens, room)
        if room > 0:
            return None
        return (
            f"a prompt of {sequence.num_prompt_tokens} tokens leaves no room for an answer in "
            f"max_model_len={self.max_model_len}"
        )

    def _enqueue_later(self, sequence: Sequence) -> Generator[Event, object, None]:
        yield self.env.timeout(self.request_overhead)
        self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        """Queue a sequence; wake the engine, or cut the run that it could join."""
        self.scheduler.add_request(sequence)
        if self._idle:
            self._idle = False
            self.env.trigger(self._wake, self.env.now, PLAN)
        elif self._run is not None:
            self._cut(self._run, sequence)

    def _cut(self, run: _Run, sequence: Sequence) -> None:
        """End a run with the step in flight if the new sequence could be admitted then."""
        if isinstance(run.ends, float):
            return  # a single step is never preempted
        num_steps = int(run.ends.searchsorted(self.env.now)) + 1
        if num_steps < run.num_steps and self.scheduler.would_admit(sequence, num_steps):
            run.num_steps = num_steps
            run.end = run.ends.item(num_steps - 1)
            self._wake = self.env.move(self._wake, run.end, STEP_END)

    # --- records --------------------------------------------------------------------------

    def _record(self, run: _Run) -> None:
        """Write a run of steps, and the time between tokens where it is not a step's time."""
        batch = run.batch
        num_gaps = batch.num_decodes
        ends = run.ends if isinstance(run.ends, float) else run.ends[: run.num_steps]
        if batch.num_decodes:
            if self._last_decode_end != run.start:
                first_end = ends if isinstance(ends, float) else ends.item(0)
                num_gaps = self._record_stalls(run.start, first_end, num_gaps)
            self._last_decode_end = run.end
            self._newly_decoding.clear()
        self.recorder.record_steps(
            self.client_id,
            run.start,
            ends,
            batch,
            self.view.num_waiting,
            self.scheduler.num_peak_blocks,
            num_gaps,
        )

    def _record_stalls(self, start: float, first_end: float, num_decodes: int) -> int:
        """Record the gaps of decodes that waited for prefill steps; return how many did not."""
        num_fresh = 0
        for sequence in self._newly_decoding:
            if sequence.last_token_at == start:
                num_fresh += 1
            else:
                gap = first_end - sequence.last_token_at
                self.recorder.record_gap(self.client_id, first_end, gap, 1)
        num_stalled = num_decodes - len(self._newly_decoding)
        if num_stalled:
            gap = first_end - self._last_decode_end
            self.recorder.record_gap(self.client_id, first_end, gap, num_stalled)
        return num_fresh

    def _emit(self, sequence: Sequence, now: float) -> None:
        """A prefill ended: note the token that it emitted."""
        if sequence.num_output_tokens == 1:
            sequence.visit.first_token_at = now
        else:
            self.recorder.record_gap(self.client_id, now, now - sequence.last_token_at, 1)
        sequence.last_token_at = now
        sequence.first_step = self._num_steps_done
        if sequence.num_output_tokens < sequence.num_target_tokens:
            self._newly_decoding.append(sequence)

    def _leave_decoding(self, sequence: Sequence) -> None:
        """A sequence lost its memory: close its stay in the decode batch, if it was there."""
        if sequence in self._newly_decoding:
            self._newly_decoding.remove(sequence)
        if sequence.first_step is not None:
            sequence.last_token_at = max(sequence.last_token_at, self._last_decode_end)
            self._record_tokens(sequence)

    def _record_tokens(self, sequence: Sequence) -> None:
        """Write which steps gave a sequence its tokens since its last prefill."""
        if sequence.first_step is not None:
            request_id = sequence.visit.request.request_id
            self.recorder.record_tokens(
                self.client_id, request_id, sequence.first_step, self._num_steps_done
            )
            sequence.first_step = None


def _sequence(visit: Visit) -> Sequence:
    """Return the engine's view of a visit: one prompt, and the tokens to generate."""
    num_prompt_tokens = 0
    num_output_tokens = 0
    for stage in visit.stages:
        if isinstance(stage, Prefill):
            num_prompt_tokens += stage.num_prompt_tokens
            num_output_tokens += 1
        elif isinstance(stage, Decode):
            num_output_tokens += stage.num_tokens
    return Sequence(visit, num_prompt_tokens, num_output_tokens)
