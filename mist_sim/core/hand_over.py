"""How a request goes from the client of its prompt to the client of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

FirstToken = Literal["prefill", "decode"]
Transfer = Literal["pull", "push"]
Pools = Literal["global", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """What holds for all hand-overs of a simulation.

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
    Raises ValueError for values that are not among these.
    """

    first_token: FirstToken = "prefill"
    transfer: Transfer = "pull"
    pools: Pools = "global"

    def __post_init__(self) -> None:
        if self.first_token not in get_args(FirstToken):
            raise ValueError(f"first_token must be prefill or decode, got {self.first_token!r}")
        if self.transfer not in get_args(Transfer):
            raise ValueError(f"transfer must be pull or push, got {self.transfer!r}")
        if self.pools not in get_args(Pools):
            raise ValueError(f"pools must be global or local, got {self.pools!r}")

    @property
    def drops_first(self) -> bool:
        """Whether what a prefill client emits before a hand-over is emitted again."""
        return self.first_token == "decode"
