"""Estimated requests per second of an engine, to order the tries.

Estimates only order the tries and exclude no candidate. They assume that every request has the mean
lengths, and that an engine is as full as memory, seats and the limits allow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf

from mist_sim.core.batch import StepBatch
from mist_sim.search.planning.demand import Demand
from mist_sim.search.planning.engines import Engine
from mist_sim.search.planning.space import Candidate

_TAIL = 1.5  # waits that nine in ten are below, over the mean, about: prompts differ in length
_BETWEEN = 0.9  # estimated share of the better of together and apart that hybrids and bundles reach
_STEP = 1.15  # from one number of sequences to the next


@dataclass
class Estimates:
    """Estimates for one demand; each engine is asked once."""

    demand: Demand
    _known: dict[tuple[int, str, int | None], float] = field(default_factory=dict)

    def rate(self, candidate: Candidate) -> float:
        """Return about how many requests a second a candidate serves within the limits."""
        engine, first, second = candidate.engine, candidate.first, candidate.second
        if candidate.design == "together":
            chunk = candidate.chunks[0] if candidate.chunks else None
            return first * self._of(engine, "both", chunk)
        if candidate.design == "reshard":
            stages = self._of(engine, "prompts"), self._of(engine, "answers")
            return first / sum(1 / rate for rate in stages) if min(stages) else 0.0
        apart = min(first * self._of(engine, "prompts"), second * self._of(engine, "answers"))
        if candidate.design == "apart":
            return apart
        if candidate.design == "afd":
            return _BETWEEN * apart
        both = first * self._of(engine, "both", candidate.chunks[0])
        both += second * self._of(engine, "both", candidate.chunks[1])
        return _BETWEEN * max(both, apart)

    def _of(self, engine: Engine, what: str, chunk: int | None = None) -> float:
        key = id(engine), what, chunk
        if key not in self._known:
            if what == "both":
                found = self._fullest(engine, chunk or engine.client.max_model_len)
            elif what == "prompts":
                found = self._prompts(engine)
            else:
                found = self._fullest(engine, None)
            self._known[key] = found
        return self._known[key]

    def _prompts(self, engine: Engine) -> float:
        """Return the prompts per second at which waits stay below the limit on TTFT."""
        seconds = engine.step_time(StepBatch(chunks=((round(self.demand.mean_prompt) or 1, 0),)))
        limit = self.demand.limits.ttft
        if limit is None:
            return 1 / seconds
        spare = max(limit - seconds, 0.0)
        return spare / (spare + _TAIL * seconds) / seconds

    def _fullest(self, engine: Engine, chunk: int | None) -> float:
        """Return the requests a second of an engine with the best number of sequences.

        chunk: tokens of a step; None: prompts are computed by others.
        """
        tokens = self.demand.mean_prompt + self.demand.mean_answer
        most = min(engine.client.scheduler.max_num_seqs, engine.kv_tokens / tokens)
        if chunk is not None:
            most = min(most, chunk - 1)
        best, number = 0.0, 1.0
        while number <= most:
            best = max(best, self._with(engine, int(number), chunk))
            number = max(number * _STEP, number + 1)
        if chunk is not None:
            best = min(best, self._prompts(engine))
        return best

    def _with(self, engine: Engine, number: int, chunk: int | None) -> float:
        """Return the requests a second with so many sequences; 0 where a limit is not kept."""
        demand = self.demand
        answer = max(demand.mean_answer, 1.0)
        context = round(number * (demand.mean_prompt + answer / 2))
        seconds = engine.step_time(StepBatch(num_decodes=number, context_sum=context))
        if chunk is not None:
            pieces = ceil(demand.mean_prompt / max(chunk - number, 1))
            size = max(round(demand.mean_prompt / pieces), 1)
            mixed = engine.step_time(
                StepBatch(chunks=((size, 0),), num_decodes=number, context_sum=context)
            )
            often = number / answer * pieces  # steps with a prompt for each step
            if often > 1:  # prompts wait for one another
                seconds = mixed * often
            else:
                seconds += often * (mixed - seconds)
        whole = demand.limits.e2el
        limit = demand.limits.tpot if demand.limits.tpot is not None else inf
        if seconds > limit or (whole is not None and seconds * answer > whole):
            return 0.0
        return number / (answer * seconds)
