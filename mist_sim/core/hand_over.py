"""Hand-overs: a request's way from the client of its prompt to the client of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView
from mist_sim.errors import brief

FirstToken = Literal["prefill", "decode"]
Transfer = Literal["pull", "push"]
Pools = Literal["global", "local"]


@runtime_checkable
class HandOverPolicy(Protocol):
    """Decides who may serve a stage, and where an answer goes on.

    `candidates` is never empty and holds only clients that serve the stage. A policy reads what a
    gateway could see, changes no client, and does not read the request's output length.
    """

    def lacks(self, roles: Sequence[str | None]) -> str | None:
        """Return which clients it lacks to change anything, given the roles of all; or None."""

    def begin(self) -> None:
        """Begin a run: forget earlier ones."""

    def among(self, request: Request, stage: Stage, candidates: Candidates) -> Candidates:
        """Return those of the candidates that the router may choose from, one at least."""

    def hands_over(self, request: Request, here: ClientView, candidates: Candidates) -> bool:
        """Tell whether a client without a role serves the prompt alone.

        here: that client, which the router chose. candidates: who could go on, it included.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Options of all hand-overs of a simulation.

    first_token: whose first token the user gets. `prefill`: it is out when the prompt is computed;
        queue and transfer lie between it and the next. `decode`: the first token of the prefill
        client is dropped, as by vLLM's proxies, and the decode client computes it again, from the
        entries of all tokens of the prompt but the last; queue and transfer are in TTFT.
    transfer: who begins it. `pull`: the decode client, which reserves memory when the prompt is
        computed and fetches the entries when it has some (vLLM's `NixlConnector`); prompts wait
        for one another's memory at the prefill client. `push`: the prefill client, as soon as the
        prompt is computed, since the decode client has reserved memory before the request goes to
        the prefill client's queue (SGLang's `DecodePreallocQueue`); prompts wait there until it
        has.
    pools: who may take over. `global`: any client; `local`: those of the node of the client that
        prefilled, which takes a network with a topology (MIST, Table IV).
    policy: which requests are handed over, and between which clients; None: as roles say.
    Raises ValueError for values that are not among these.
    """

    first_token: FirstToken = "prefill"
    transfer: Transfer = "pull"
    pools: Pools = "global"
    policy: HandOverPolicy | None = None

    def __post_init__(self) -> None:
        if self.first_token not in get_args(FirstToken):
            raise ValueError(
                f"first_token must be prefill or decode, got {brief(self.first_token)}"
            )
        if self.transfer not in get_args(Transfer):
            raise ValueError(f"transfer must be pull or push, got {brief(self.transfer)}")
        if self.pools not in get_args(Pools):
            raise ValueError(f"pools must be global or local, got {brief(self.pools)}")

    @property
    def drops_first(self) -> bool:
        """Whether what a prefill client emits before a hand-over is emitted again."""
        return self.first_token == "decode"
