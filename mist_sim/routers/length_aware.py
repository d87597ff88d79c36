"""TaiChi's length-aware prefill: short prompts go to slow clients if these still meet the limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, inf, log1p, sqrt
from typing import Annotated, Literal

from numpy.random import Generator

from mist_sim.checks import Positive, Range, check_fields
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.routers.base import ROUTERS, RefusalError
from mist_sim.routers.flowing_policy import D_HEAVY, P_HEAVY
from mist_sim.units import Seconds

IfNone = Literal["random", "soonest", "reject"]


@ROUTERS.register("length_aware")
@dataclass(kw_only=True)
class LengthAwareRouter:
    """Send a prompt to the candidate with the fewest prompt tokens that computes it in time.

    A candidate is in time if it computes its present prompts and this one within `ttft`, as far as
    a gateway can tell; if answers move from role p_heavy to d_heavy, this includes the transfer of
    KV entries. Answers go to the candidate with the fewest unfinished visits. Ties are broken at
    random, but of a p_heavy and a d_heavy client with equally many tokens the p_heavy one gets the
    prompt.

    ttft: limit on TTFT, seconds (> 0). if_none: where a prompt goes if no candidate
    has it in time: `random`, any candidate; `soonest`, the one that has it first; `reject`, it is
    rejected. estimate_error: relative error of the gateway's estimate of when a prompt is computed:
    the standard deviation of (its estimate) / (the estimate with the engine's own step times).
    Errors are independent and lognormal with mean 1 (>= 0). 0: the gateway knows the step times
    exactly, as no real gateway does.

    Source: TaiChi (arXiv:2508.01989) §3.4 and Algorithm 2; the authors send such a prompt to some
        instance in their runs. Early rejection is Mooncake's; `soonest` and errors are ours. The
        authors' predictor is Vidur's (arXiv:2405.05465), which reports errors below 9 %. The paper
        does not say how to break ties: we choose at random, like the max-score picker of the
        Gateway API Inference Extension, which llm-d uses too. We read its "degradation is
        unnecessary" so that no prompt waits on a d_heavy client while a p_heavy one has as little
        to do.
    """

    ttft: Positive[Seconds]
    if_none: IfNone = "random"
    estimate_error: Annotated[float, Range("[0, inf)", "0.2 is off by a fifth")] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        self._spread = sqrt(log1p(self.estimate_error**2))  # of the logarithm

    def seed(self, rng: Generator) -> None:
        """Draw late prompts, ties and errors of estimates from streams of their own."""
        self._rng = rng  # where late prompts go
        self._ties, self._errors = rng.spawn(2)

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        """Return the candidate with the fewest prompt tokens that is in time."""
        if stage.continues:
            least = candidates.least("num_outstanding").num_outstanding
            return self._take([v for v in candidates if v.num_outstanding == least]).client_id
        d_heavy = [view for view in candidates if view.role == D_HEAVY]
        late: list[tuple[float, ClientView]] = []
        for view in self._by_queue(candidates):
            ready = self._ready(request, view, d_heavy)
            if ready < self.ttft:
                return view.client_id
            late.append((ready, view))
        return self._choose_late(late, candidates).client_id

    def _by_queue(self, candidates: Candidates) -> Iterator[ClientView]:
        """Yield candidates by the tokens of their prompts, the fewest first; equals at random."""
        queues = [(view.num_prefill_tokens, view.role == D_HEAVY) for view in candidates]
        for queue in sorted(set(queues)):
            equals = [view for view, its in zip(candidates, queues, strict=True) if its == queue]
            while equals:
                yield self._take(equals)

    def _take(self, equals: list[ClientView]) -> ClientView:
        """Remove and return one of the candidates; a single one needs no draw."""
        return equals.pop(int(self._ties.random() * len(equals)) if len(equals) > 1 else 0)

    def _ready(self, request: Request, view: ClientView, takers: list[ClientView]) -> float:
        """Return in how many seconds a prompt is computed, and its entries are where it decodes.

        Algorithm 2, line 5: a p_heavy client sends the entries to the nearest taker; those behind
        the first that has them in time are not asked.
        """
        seconds = self._prefill_time(view, request)
        if view.role != P_HEAVY or not takers:
            return seconds
        soonest, num_tokens = inf, request.num_prompt_tokens
        for taker in takers:
            soonest = min(soonest, seconds + taker.transfer_time_from(view, num_tokens))
            if soonest < self.ttft:
                break
        return soonest

    def _prefill_time(self, view: ClientView, request: Request) -> float:
        """Return the gateway's estimate of `ClientView.prefill_time`, seconds."""
        seconds = view.prefill_time(request)
        if not self.estimate_error:
            return seconds
        spread = self._spread
        return seconds * exp(spread * self._errors.standard_normal() - spread * spread / 2)

    def _choose_late(
        self, late: list[tuple[float, ClientView]], candidates: Candidates
    ) -> ClientView:
        """Return the candidate for a prompt that none computes in time. late: seconds at each."""
        if self.if_none == "reject":
            raise RefusalError(f"no client has the first token ready within {self.ttft:g} s")
        if self.if_none == "soonest":
            first = min([ready for ready, _ in late])
            return self._take([view for ready, view in late if ready == first])
        return candidates[int(self._rng.random() * len(candidates))]
