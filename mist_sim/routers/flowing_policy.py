"""TaiChi's flowing decode: answers move to clients that are fast enough and have room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mist_sim.checks import Checked, Positive, Range, Share
from mist_sim.core.candidates import Candidates
from mist_sim.core.flowing import Backflow, Degradation, FlowRule
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.routers.hand_over_policies import HAND_OVER_POLICIES
from mist_sim.units import Seconds

P_HEAVY, D_HEAVY = "p_heavy", "d_heavy"


@HAND_OVER_POLICIES.register("flowing")
@dataclass(kw_only=True)
class FlowingPolicy(Checked):
    """TaiChi: answers begin on clients with role d_heavy, and flow to p_heavy clients and back.

    A prompt that a p_heavy client computed is decoded by a d_heavy one; a d_heavy client decodes
    its own prompts. While more than a `watermark` of its KV blocks is used, a d_heavy client sends
    its longest answers to p_heavy ones, which have large chunks and are slower. A p_heavy client
    sends those back that take more than `approach_factor` x `tpot` a token, where they count as
    new. They always go to the client with the smallest part of its KV blocks in use, the first of
    equals, leave at the end of a step, and keep their blocks until these are copied.

    Where all these clients have chunks of one size, a scenario has no flows: they serve prompts and
    answers as clients without a role do (the paper's S_D = S_P).

    tpot: seconds per token that users ask for (> 0). approach_factor: part of these (> 0, <= 1).
    watermark: part of the blocks (> 0, <= 1). counts_seats: whether the longest also leave while
        more than that part of `max_num_seqs` is taken. Small chunks have few seats: if these run
        out before the memory does, answers wait for a seat, and without this option none is freed
        for them.
    max_backflows: how often one answer flows back (>= 0); None: as often as it is too slow. One
        that is sent away again stays there. When more comes than all clients together can do in
        time, whatever flows back pushes another one out, and answers travel without end.

    Source: TaiChi (arXiv:2508.01989) §3.3 and Algorithm 1; its authors' factor and watermark. Seats
    are ours: the paper wants room for one more answer, and speaks of memory alone. So is the limit,
    the smallest that cost nothing below goodput on the paper's workloads
    (docs/background/taichi.md); the paper, which has none, calls backflows a safeguard, and
    frequent ones a sign of bad sliders.
    """

    tpot: Positive[Seconds]
    approach_factor: Share = 0.96
    watermark: Share = 0.95
    counts_seats: bool = False
    max_backflows: Annotated[int, Range("[0, inf)", "null is no limit")] | None = 2

    def lacks(self, roles: Sequence[str | None]) -> str | None:
        """Return which role, p_heavy or d_heavy, no client has, or None."""
        missing = (role for role in (P_HEAVY, D_HEAVY) if role not in roles)
        return next((f"a client with role {role}" for role in missing), None)

    def begin(self) -> None:
        """Do nothing: the policy keeps no state."""

    def among(self, request: Request, stage: Stage, candidates: Candidates) -> Candidates:
        """Return all candidates for a prompt; for an answer, the client with most free memory."""
        if not stage.continues:
            return candidates
        found = [view for view in candidates if view.role == D_HEAVY]
        source = request.kv.source if request.kv else None
        if source in [view.name for view in found]:
            found = [view for view in candidates if view.role == P_HEAVY]
        if found:
            return Candidates([min(found, key=_part_in_use)])
        # it has gone since, or had failed; a copy at home takes memory twice
        return Candidates(view for view in candidates if view.name != source) or candidates

    def hands_over(self, request: Request, here: ClientView, candidates: Candidates) -> bool:
        """Return whether a p_heavy client has the prompt and a d_heavy one can take the answer."""
        return here.role == P_HEAVY and any(view.role == D_HEAVY for view in candidates)

    def flow(self, role: str | None) -> FlowRule | None:
        """Return the rule for p_heavy (too slow) or d_heavy clients (too full); None: none."""
        if role == P_HEAVY:
            return Backflow(self.tpot * self.approach_factor, self.max_backflows)
        if role == D_HEAVY:
            return Degradation(self.watermark, self.counts_seats)
        return None


def _part_in_use(view: ClientView) -> float:
    return view.num_kv_blocks / (view.num_gpu_blocks or 1)
