"""How long engines need for their queued prompts, as a gateway would estimate it."""

from __future__ import annotations

from typing import NamedTuple

from mist_sim.clients.engine.lane import Lane
from mist_sim.clients.engine.replicas import Engines
from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.ranks import PipelinePredictor

# Decodes and their contexts are rounded to these, so that few steps have to be timed.
_DECODES, _CONTEXT = 4, 4096
_FAR = 4096  # tokens before a chunk, for what each of them costs


class Prompts(NamedTuple):
    """The state, after its last step, of the engine that would get the next request.

    prompts: (tokens to compute, tokens before them) of each that waits or runs. num_queries: tokens
    that the decodes bring into a step. context_sum: tokens that the cache holds for them.
    """

    scheduler: Scheduler
    prompts: list[tuple[int, int]]
    num_decodes: int
    num_queries: int
    context_sum: int


class PrefillEstimate:
    """The `PrefillView` of a client with engines: of the engine that would get the next request.

    Prompts are taken to be computed one after the other, in chunks that fill a step beside the
    present decodes. A chunk takes a s, and b s for each token before it: n chunks of c tokens,
    whose prompt has m before, n a + b (n m + c n (n - 1) / 2), where n need not be whole. Cached
    tokens of waiting prompts are not known.

    Source: TaiChi (arXiv:2508.01989) §3.4, which takes Vidur's predictor; here it is the client's.
    """

    def __init__(self, engines: Engines, predictor: PipelinePredictor) -> None:
        self._engines = engines
        self._lane = engines.lanes[0] if len(engines.lanes) == 1 else None
        self._ranks = predictor.ranks
        self._times: dict[tuple[int, int, int], tuple[float, float]] = {}

    def num_tokens(self) -> int:
        """Tokens of all its prompts that are still to be computed."""
        lane = self._lane or self._engines.next_lane()
        state, ahead = lane.state, lane.ahead
        if not (state.waiting or state.prefilling or (ahead is not None and ahead.arrived)):
            return 0  # as most often, and routers ask for every request and client
        return sum([num_left for num_left, _ in _prompts(lane)])

    def seconds(self, num_tokens: int) -> float:
        """Return the seconds from now until a prompt with so many tokens to compute is done."""
        known = self._look()
        prompts = [*known.prompts, (num_tokens, 0)]
        chunk = _chunk(known) or max(num_left for num_left, _ in prompts)
        step, each_before = self._step_times(chunk, known.num_decodes, known.context_sum)
        seconds = 0.0
        for num_left, num_before in prompts:
            num_chunks = num_left / chunk
            before = num_chunks * num_before + chunk * max(num_chunks * (num_chunks - 1), 0) / 2
            seconds += num_chunks * step + each_before * before
        return seconds

    def _look(self) -> Prompts:
        """Return the state of the engine that would get the next request."""
        lane = self._engines.next_lane()
        clock = lane.state.clock
        return Prompts(
            lane.scheduler, _prompts(lane), clock.num_decodes, clock.num_queries, _context(lane)
        )

    def _step_times(self, chunk: int, num_decodes: int, context_sum: int) -> tuple[float, float]:
        """Return the seconds of a step with a chunk, and those for each token before it."""
        decodes = -(-num_decodes // _DECODES) * _DECODES
        contexts = -(-context_sum // _CONTEXT) * _CONTEXT
        key = chunk - chunk % -_DECODES, decodes, contexts
        if key not in self._times:
            near, far = (
                max(
                    rank.step_time(StepBatch(((key[0], num_before),), decodes, contexts))
                    for rank in self._ranks
                )
                for num_before in (0, _FAR)
            )
            self._times[key] = near, (far - near) / _FAR
        return self._times[key]


def _chunk(known: Prompts) -> int:
    """Return the prompt tokens that fit in a step; 0: any number."""
    scheduler = known.scheduler
    if not isinstance(scheduler, ChunkedScheduler):
        return 0
    num_left = max(scheduler.max_num_batched_tokens - known.num_queries, 1)
    return min(num_left, scheduler.long_prefill_token_threshold or num_left)


def _prompts(lane: Lane) -> list[tuple[int, int]]:
    """Return (tokens to compute, tokens before them) of each prompt that waits or runs.

    As of the last step that ended.
    """
    state, ahead = lane.state, lane.ahead
    found = []
    if state.waiting:
        found = [_prompt(each) for each in state.waiting if each.has_rest or not each.is_brought]
    if ahead is not None:
        arrived = [sequence for _, sequence in ahead.arrived]
        found += [_prompt(each) for each in arrived if each.has_rest or not each.is_brought]
    if state.prefilling:
        plan, num_over = lane.engine.steps_over(lane)
        done = dict(plan.prefills) if plan is not None and num_over else {}
        for each in state.prefilling:
            num_computed = each.num_computed_tokens + num_over * done.get(each, 0)
            found.append((each.num_tokens - num_computed, num_computed))
    return found


def _prompt(sequence: SequenceState) -> tuple[int, int]:
    return sequence.num_tokens - sequence.num_brought, sequence.num_brought


def _context(lane: Lane) -> int:
    """Return the tokens that the cache holds for decodes, as of the last step that ended."""
    plan, num_over = lane.engine.steps_over(lane)
    return lane.state.clock.context_after(num_over if plan is not None and plan.decodes else 0)
