"""How long engines need for their queued prompts, as a gateway would estimate it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mist_sim.clients.scheduling import ChunkedScheduler, Scheduler
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.ranks import PipelinePredictor

if TYPE_CHECKING:
    from mist_sim.clients.engine.stepped import SteppedEngines

# Decodes and their contexts are rounded to these, so that few steps have to be timed.
_DECODES, _CONTEXT = 4, 4096
_FAR = 4096  # tokens before a chunk, for what each of them costs


class PrefillEstimate:
    """The `PrefillView` of a client with engines: of the engine that would get the next request.

    Prompts are taken to be computed one after the other, in chunks that fill a step beside the
    present decodes. A chunk takes a s, and b s for each token before it: n chunks of c tokens,
    whose prompt has m before, n a + b (n m + c n (n - 1) / 2), where n need not be whole. Cached
    tokens of waiting prompts are not known.

    Source: TaiChi (arXiv:2508.01989) §3.4, which takes Vidur's predictor; here it is the client's.
    """

    def __init__(self, engines: SteppedEngines, predictor: PipelinePredictor) -> None:
        self._engines = engines
        self._ranks = predictor.ranks
        self._times: dict[tuple[int, int, int], tuple[float, float]] = {}

    def num_tokens(self) -> int:
        """Tokens of all its prompts that are still to be computed."""
        num_tokens = 0
        for num_left, _ in self._engines.next_lane().core.prompts():
            num_tokens += num_left
        return num_tokens

    def seconds(self, num_tokens: int) -> float:
        """Return the seconds from now until a prompt with so many tokens to compute is done.

        They are those at the engine that would get the next request, after its last step.
        """
        lane = self._engines.next_lane()
        core = lane.core
        prompts = [*core.prompts(), (num_tokens, 0)]
        chunk = _chunk(lane.scheduler, core.num_decodes * core.num_queries)
        chunk = chunk or max(num_left for num_left, _ in prompts)
        step, each_before = self._step_times(chunk, core.num_decodes, core.context_sum)
        seconds = 0.0
        for num_left, num_before in prompts:
            num_chunks = num_left / chunk
            before = num_chunks * num_before + chunk * max(num_chunks * (num_chunks - 1), 0) / 2
            seconds += num_chunks * step + each_before * before
        return seconds

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


def _chunk(scheduler: Scheduler, num_queries: int) -> int:
    """Return the prompt tokens that fit in a step; 0: any number.

    num_queries: tokens that the decodes bring into it.
    """
    if not isinstance(scheduler, ChunkedScheduler):
        return 0
    num_left = max(scheduler.max_num_batched_tokens - num_queries, 1)
    return min(num_left, scheduler.long_prefill_token_threshold or num_left)
