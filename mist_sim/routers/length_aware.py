"""TaiChi's length-aware prefill: short prompts go where they are computed slowly, but in time."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from operator import attrgetter
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
    go to the candidate with the fewest unfinished visits.

    ttft: seconds that the first token may take (> 0). if_none: what becomes of a prompt that nobody
    has ready in time: `random`, some candidate gets it; `soonest`, who has it ready first;
    `reject`, it is turned away.

    Source: TaiChi (arXiv:2508.01989) §3.4 and Algorithm 2, whose authors send it to some instance
    in their runs; early rejection is Mooncake's, and `soonest` ours.
    """

    ttft: Seconds
    if_none: IfNone = "random"

    def __post_init__(self) -> None:
        if not 0 < self.ttft < inf:
            raise ValueError(f"ttft must be finite and > 0 s, got {self.ttft}")
        if self.if_none not in get_args(IfNone):
            raise ValueError(
                f"if_none must be {', '.join(get_args(IfNone))}, got {brief(self.if_none)}"
            )

    def seed(self, rng: Generator) -> None:
        self._rng = rng

    def choose(self, request: Request, stage: Stage, candidates: Candidates) -> int:
        if stage.continues:
            return candidates.least("num_outstanding").client_id
        d_heavy = [view for view in candidates if view.role == D_HEAVY]
        late: list[tuple[float, int]] = []
        for view in sorted(candidates, key=_num_prefill_tokens):
            ready = view.prefill_time(request) + _transfer_time(request, view, d_heavy)
            if ready < self.ttft:
                return view.client_id
            late.append((ready, view.client_id))
        return self._choose_late(late, candidates)

    def _choose_late(self, late: list[tuple[float, int]], candidates: Candidates) -> int:
        """Return who gets a prompt that nobody has in time. late: (seconds, client) of each."""
        if self.if_none == "reject":
            raise RefusalError(f"no client has the first token ready within {self.ttft:g} s")
        if self.if_none == "soonest":
            return min(late)[1]
        return candidates[int(self._rng.random() * len(candidates))].client_id


_num_prefill_tokens = attrgetter("num_prefill_tokens")


def _transfer_time(request: Request, view: ClientView, takers: list[ClientView]) -> float:
    """Algorithm 2, line 5: a p_heavy client sends the entries to the nearest taker."""
    if view.role != P_HEAVY or not takers:
        return 0.0
    num_tokens = request.num_prompt_tokens
    return min([taker.transfer_time_from(view, num_tokens) for taker in takers])
