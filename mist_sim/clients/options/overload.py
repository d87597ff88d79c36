"""Which requests an engine rejects because it is too busy to serve them in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from mist_sim.checks import Checked, Positive
from mist_sim.clients.kv_cache import PrefixHistory
from mist_sim.clients.sequence_state import SequenceState
from mist_sim.core.batch import StepBatch
from mist_sim.hardware.predictors.ranks import PipelinePredictor


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionControl(Checked):
    """Refusals under overload; a refused request may be sent again. By default none is refused.

    max_num_waiting: largest number of waiting requests; a request that finds as many is refused
        when it arrives (>= 1; SGLang's `max_queued_requests`, which vLLM lacks). None: no limit.
    drop_expired: a request still waiting without a token when its first one is due is dropped, so
        that no prompt is computed too late (no counterpart in vLLM).
    early_rejection: a request is refused when it arrives if its first token is not expected in
        time: if the prompts without a first token, spread evenly over the engines, and its own,
        less their shared prefixes, take longer than its deadline allows (no counterpart in vLLM;
        Mooncake, FAST 2025, early rejection). It counts compute time, not memory: if prompts wait
        for blocks, `drop_expired` complements it.
    """

    max_num_waiting: Positive[int] | None = None
    drop_expired: bool = False
    early_rejection: bool = False


class PromptBacklog:
    """Seconds that engines need for the prompts that have no first token yet.

    Each prompt is timed as a step of its own, whole and without decodes, when it arrives. With a
    history, its tokens known from earlier accepted requests count as cached, as if the cache were
    unlimited and present on every engine: the best case. Tokens already computed count until the
    first token. In a pipeline prompts follow one another, so each delays the next by its time on
    its slowest rank. Several engines are assumed to have equal shares.

    num_engines: engines to spread prompts over. history: empty at first; None without prefix
        caching.
    """

    def __init__(
        self,
        predictor: PipelinePredictor,
        num_engines: int = 1,
        history: PrefixHistory | None = None,
    ) -> None:
        self._ranks, self._rank_delay = predictor.ranks, predictor.rank_delay
        self._num_engines = num_engines
        self._history = history
        self._seconds: dict[SequenceState, float] = {}
        self._total = 0.0

    def add_if_in_time(self, sequence: SequenceState, time_left: float) -> bool:
        """Count a sequence that arrives, unless its first token would come after `time_left` s."""
        history = self._history
        num_cached = history.num_known_tokens(sequence) if history else 0
        num_cached = max(num_cached, sequence.num_brought)
        num_tokens = sequence.num_prompt_tokens - num_cached
        batch = StepBatch(((num_tokens, num_cached),))
        seconds = [rank.step_time(batch) for rank in self._ranks]
        alone = sum(seconds) + (len(seconds) - 1) * self._rank_delay(num_tokens)
        if self._total / self._num_engines + alone > time_left:
            return False
        self._seconds[sequence] = slowest = max(seconds)
        self._total += slowest
        if history:
            history.add(sequence)
        return True

    def remove(self, sequence: SequenceState) -> None:
        """Forget a sequence that has its first token or is given up; maybe it was before."""
        self._total -= self._seconds.pop(sequence, 0.0)
        if not self._seconds:
            self._total = 0.0  # and with it the rounding of the sums


class Gate:
    """The admission control of one client.

    max_num_waiting: as in `AdmissionControl`. backlog: for early rejection; None: without it.
    time_to_enter: returns the seconds from arrival until a sequence can be scheduled.
    """

    def __init__(
        self,
        max_num_waiting: int | None,
        backlog: PromptBacklog | None,
        time_to_enter: Callable[[SequenceState], float],
    ) -> None:
        self._max_num_waiting = inf if max_num_waiting is None else max_num_waiting
        self._backlog = backlog
        self._time_to_enter = time_to_enter

    def refusal(self, sequence: SequenceState, num_waiting: int, now: float) -> str | None:
        """Return why a sequence that arrives is turned away; None, and it counts as accepted."""
        if num_waiting >= self._max_num_waiting:
            return f"busy, max_num_waiting={self._max_num_waiting} requests wait"
        if self._backlog is not None and not sequence.visit.stages[0].continues:
            time_left = sequence.visit.request.deadline - now - self._time_to_enter(sequence)
            if not self._backlog.add_if_in_time(sequence, time_left):
                return "busy, the first token cannot be expected in time (early_rejection)"
        return None

    def prompt_is_done(self, sequence: SequenceState) -> None:
        """A sequence has its first token, or is given up."""
        if self._backlog is not None:
            self._backlog.remove(sequence)
