"""TaiChi's length-aware prefill: short prompts go where they are computed slowly, but in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, inf, log1p, sqrt
from typing import Literal, get_args

from numpy.random import Generator

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.errors import brief
from mist_sim.routers.base import ROUTERS, RefusalError
from mist_sim.routers.flowing_policy import D_HEAVY, P_HEAVY
from mist_sim.units import Seconds

IfNone = Literal["random", "soonest", "reject"]


@ROUTERS.register("length_aware")
@dataclass(kw_only=True)
class LengthAwareRouter:
    """Send a prompt to the candidate with the fewest tokens of prompts that has it ready in time.

    In time are those whose prompts and this one are computed within `ttft`, as far as a gateway can
    tell; where answers go from role p_heavy to d_heavy, KV entries have to be sent as well. Answers
    go to the candidate with the fewest unfinished visits. Equal candidates are drawn at random; of
    a p_heavy and a d_heavy one with as many tokens the first gets the prompt.

    ttft: seconds that the first token may take (> 0). if_none: what becomes of a prompt that nobody
    has ready in time: `random`, some candidate gets it; `soonest`, who has it ready first;
    `reject`, it is turned away. estimate_error: how far off the gateway is about when a prompt is
    computed, the standard deviation of (what it expects) / (what it would with the engine's own
    step times); each estimate is drawn for itself, lognormal with mean 1 (>= 0). 0: it knows the
    step times exactly, as no gateway does.

    Source: TaiChi (arXiv:2508.01989) §3.4 and Algorithm 2, whose authors send it to some instance
    in their runs; early rejection is Mooncake's, and `soonest` and errors are ours. The authors'
    predictor is Vidur's (arXiv:2405.05465), which says of itself that it is less than 9 % off. The
    paper does not say who is first of equals: at random is the max-score picker of the Gateway API
    Inference Extension, which llm-d has, too. That no prompt is made to wait on a d_heavy client
    while a p_heavy one has as little to do is our reading of its "degradation is unnecessary".
    """

    ttft: Seconds
    if_none: IfNone = "random"
    estimate_error: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.ttft < inf:
            raise ValueError(f"ttft must be finite and > 0 s, got {self.ttft}")
        if self.if_none not in get_args(IfNone):
            raise ValueError(
                f"if_none must be {', '.join(get_args(IfNone))}, got {brief(self.if_none)}"
            )
        if not 0 <= self.estimate_error < inf:
            raise ValueError(
                f"estimate_error must be finite and >= 0, got {self.estimate_error}; 0.2 is off "
                "by a fifth"
            )
        self._spread = sqrt(log1p(self.estimate_error**2))  # of the logarithm

    def seed(self, rng: Generator) -> None:
        self._rng = rng  # who gets prompts that are late
        self._ties, self._errors = rng.spawn(2)

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        if stage.continues:
            least = candidates.least("num_outstanding").num_outstanding
            return self._take([v for v in candidates if v.num_outstanding == least]).client_id
        d_heavy = [view for view in candidates if view.role == D_HEAVY]
        late: list[tuple[float, ClientView]] = []
        for view in self._by_queue(candidates):
            ready = self._prefill_time(view, request) + _transfer_time(request, view, d_heavy)
            if ready < self.ttft:
                return view.client_id
            late.append((ready, view))
        return self._choose_late(late, candidates).client_id

    def _by_queue(self, candidates: Candidates) -> Iterator[ClientView]:
        """Yield candidates by the tokens of their prompts, the fewest first; equals at random."""
        queues: dict[tuple[int, bool], list[ClientView]] = {}
        for view in candidates:
            key = view.num_prefill_tokens, view.role == D_HEAVY
            queues.setdefault(key, []).append(view)
        for key in sorted(queues):
            equals = queues[key]
            while equals:
                yield self._take(equals)

    def _take(self, equals: list[ClientView]) -> ClientView:
        """Take one of some candidates out; who is alone needs no draw."""
        return equals.pop(int(self._ties.random() * len(equals)) if len(equals) > 1 else 0)

    def _prefill_time(self, view: ClientView, request: Request) -> float:
        """Return what the gateway takes for `ClientView.prefill_time`, seconds."""
        seconds = view.prefill_time(request)
        if not self.estimate_error:
            return seconds
        spread = self._spread
        return seconds * exp(spread * self._errors.standard_normal() - spread * spread / 2)

    def _choose_late(
        self, late: list[tuple[float, ClientView]], candidates: Candidates
    ) -> ClientView:
        """Return who gets a prompt that nobody has in time. late: seconds at each candidate."""
        if self.if_none == "reject":
            raise RefusalError(f"no client has the first token ready within {self.ttft:g} s")
        if self.if_none == "soonest":
            first = min([ready for ready, _ in late])
            return self._take([view for ready, view in late if ready == first])
        return candidates[int(self._rng.random() * len(candidates))]


def _transfer_time(request: Request, view: ClientView, takers: list[ClientView]) -> float:
    """Algorithm 2, line 5: a p_heavy client sends the entries to the nearest taker."""
    if view.role != P_HEAVY or not takers:
        return 0.0
    num_tokens = request.num_prompt_tokens
    return min([taker.transfer_time_from(view, num_tokens) for taker in takers])
