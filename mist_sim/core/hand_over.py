"""Hand-overs: a request's way from the client of its prompt to the client of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from mist_sim.checks import Checked
from mist_sim.core.candidates import Candidates
from mist_sim.core.request import Request, Stage
from mist_sim.core.views import ClientView

FirstToken = Literal["prefill", "decode"]
Transfer = Literal["pull", "push"]
Pools = Literal["global", "local"]


@runtime_checkable
class HandOverPolicy(Protocol):
    """Decides which clients may serve a stage, and at which client an answer continues.

    `candidates` is never empty and holds only clients that serve the stage. A policy reads only
    what a gateway could see, changes no client, and does not read the request's output length.
    """

    def lacks(self, roles: Sequence[str | None]) -> str | None:
        """Return which clients it lacks to change anything, given the roles of all; or None."""

    def begin(self) -> None:
        """Begin a run: forget earlier ones."""

    def among(self, request: Request, stage: Stage, candidates: Candidates) -> Candidates:
        """Return the candidates that the router may choose from, at least one."""

    def hands_over(self, request: Request, here: ClientView, candidates: Candidates) -> bool:
        """Tell whether a client without a role serves only the prompt and hands the answer over.

        here: the client that the router chose. candidates: clients that could decode, `here`
            included.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver(Checked):
    """Options of all hand-overs of a simulation.

    first_token: the client that emits the first token to the user. `prefill`: the prefill client,
        as soon as the prompt is computed; queue and transfer delay the second token. `decode`: the
        first token of the prefill client is dropped, as by vLLM's proxies. The decode client
        computes it again from the entries of all prompt tokens but the last; TTFT includes queue
        and transfer.
    transfer: which client starts the transfer. `pull`: the decode client, which reserves memory
        after the prompt is computed and then fetches the entries (vLLM's `NixlConnector`); finished
        prompts keep their memory at the prefill client until then. `push`: the prefill client, as
        soon as the prompt is computed; the decode client reserves memory before the request enters
        the prefill client's queue (SGLang's `DecodePreallocQueue`), and prompts wait for that.
    pools: which clients may continue. `global`: any client; `local`: clients in the node of the
        prefill client, which needs a network with a topology (MIST, Table IV).
    policy: chooses which requests are handed over, and between which clients; None: roles decide.
    Raises ValueError for other values.
    """

    first_token: FirstToken = "prefill"
    transfer: Transfer = "pull"
    pools: Pools = "global"
    policy: HandOverPolicy | None = None

    @property
    def drops_first(self) -> bool:
        """Whether the decode client emits the prefill client's first token again."""
        return self.first_token == "decode"
