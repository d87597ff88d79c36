"""Client traits: the record that all code outside `clients` reads, and the roles.

A client's traits: one frozen record that all code outside `clients` reads.

Rules of scenarios and simulations, hand-overs, networks, lifecycles and results ask a client's
`traits`, never for its type. So a user's client with the traits of an engine is treated like an
engine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, NamedTuple

from mist_sim.core.batch import StepLimits
from mist_sim.core.result_warnings import ResultWarning
from mist_sim.hardware.gpu_group import GpuMachine
from mist_sim.hardware.setting import ACROSS_NODES, ACROSS_TRAYS, Borrowed, Setting
from mist_sim.network import Store
from mist_sim.stages import Decode, Prefill
from mist_sim.units import Seconds

__all__ = [
    "FLOWING_ROLES",
    "ROLES",
    "SENDING_ROLES",
    "ClientTraits",
    "EngineGroup",
    "KvForm",
    "Role",
    "Slider",
    "TimesOrigin",
]


Role = Literal["prefill", "decode", "p_heavy", "d_heavy"]

ROLES: Mapping[Role | None, frozenset[str]] = {
    None: frozenset({Prefill.kind, Decode.kind}),
    "prefill": frozenset({Prefill.kind}),
    "decode": frozenset({Decode.kind}),
    "p_heavy": frozenset({Prefill.kind, Decode.kind}),
    "d_heavy": frozenset({Prefill.kind, Decode.kind}),
}
"""The stages that a client of each role serves."""

FLOWING_ROLES: frozenset[Role | None] = frozenset({"p_heavy", "d_heavy"})
"""Roles of clients between which answers flow (TaiChi)."""

SENDING_ROLES: frozenset[Role | None] = FLOWING_ROLES | {"prefill"}
"""Roles of clients that hand KV entries over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvForm:
    """How a client stores KV entries.

    block_size: tokens of a block; None: it takes blocks of any size, or does not know its own.
    dtype: of the entries, as vLLM calls it; `auto`: bf16 or fp16; None: not known.
    block_bytes: of a block on all GPUs of an engine; None: not known, so that entries of other
        clients cannot come here.
    num_layers: that are computed, and may be sent, one after the other.
    """

    block_size: int | None = None
    dtype: str | None = None
    block_bytes: float | None = None
    num_layers: int = 1


class EngineGroup(NamedTuple):
    """Equal engines of a client that need GPUs in a network.

    number: number of engines. pipeline: ranks of each. tensor: GPUs per rank.
    place: place of the GPUs; None: the client's own `place`; without that, the first place with
        room.
    takes_entries: whether KV entries sent to the client go to these engines.
    what: their name in messages, if the client has several groups.
    """

    number: int = 1
    pipeline: int = 1
    tensor: int = 1
    place: str | None = None
    takes_entries: bool = True
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesOrigin:
    """The origin of a client's step times, for the summary.

    estimate: `measured`, `fitted`, `analytic` and so on, as in predictors.
    assumed: options that were not set and whose default is an assumption: fitted on another GPU, a
        `max_model_len` for which it has too little memory, or the `host` of its GPUs.
    assumed_host: effect of the assumed host: milliseconds of communication between GPUs in a step
        of the most tokens, on that host and on another, and how many groups sum on it; empty if the
        host is named or has no effect.
    settings: the measured settings closest to its TTFT and TPOT, by metric, if their errors are
        known; None if nothing comparable was measured. A client that emits no first token has no
        `ttft`.
    imitates: the engine whose defaults it has; empty for none.
    kernels: back ends of the timed kernels of `experts` and `attention`, by vLLM's names.
    caches_prefixes: whether it looks prompts up in a prefix cache.
    parse: seconds of its HTTP server for a request, before any is tokenized (`FrontEnd.parse`).
    warnings: further warnings of its runs' results.
    """

    estimate: str
    assumed: tuple[str, ...] = ()
    assumed_host: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Setting | Borrowed | None] = field(
        default_factory=lambda: {"ttft": None, "tpot": None}
    )
    imitates: str = ""
    kernels: Mapping[str, str] = field(default_factory=dict)
    caches_prefixes: bool = False
    parse: Seconds = 0.0
    warnings: tuple[ResultWarning, ...] = ()

    def across(self, *, nodes: bool) -> TimesOrigin:
        """Return these origins for ranks on several nodes, or trays: no step was measured there."""
        setting = ACROSS_NODES if nodes else ACROSS_TRAYS
        found = {name: known and setting for name, known in self.settings.items()}
        return replace(self, settings=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """The options of a client that can change during a run: chunk and role (TaiChi).

    chunk: prompt and decode tokens per step; None: its scheduler does not cut prompts into chunks.
    max_num_seqs: requests that it runs at once, the smallest chunk.
    scheduler: name of its scheduler, for messages.
    obstacle: the option that keeps answers from flowing; empty if none does.
    """

    chunk: int | None
    max_num_seqs: int
    scheduler: str
    obstacle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTraits:
    """The description of a client.

    serves: kinds of stages that it serves.
    serves_whole: whether a visit of a prompt and its answer ends with both served, or in failure,
        unless the client itself fails.
    asks_ahead: whether the client of the next stage is chosen before a visit here begins.
    model: name of the model that it serves; None: any model that requests name.
    role: its part in disaggregation; None: it serves its requests alone, unless a hand-over policy
        decides otherwise.

    KV entries:
    entries: form of its stored KV entries; None: it stores none that can move to another client.
    sends_entries: whether it keeps the entries of a visit for the client of the next stage.
    takes_entries: whether it continues from entries that another client keeps.
    reserves: whether it can reserve memory for entries not computed yet (push).
    emits_first_token: whether it can begin an answer whose prompt another client computed.
    longest_prompt: tokens of the longest prompt that it can answer, and the option that sets this
        limit.
    slider: options that can change during a run; None: none.

    Hardware:
    engines: groups of engines with GPUs in a network; empty: it has none there.
    uses_links: whether it uses the links of a topology for more than hand-overs, such as tiers.
    stores: memory below the GPU that its engines read over a network with a topology, by name.
    shared_tiers: (blocks, tokens per block) of the KV-cache tiers that it shares with other
        clients, by name.
    shared_parts: other parts shared by all clients that name them, such as `device cpu0`; with the
        description on which these clients must agree.
    machine: the GPUs that draw power and cost money for it; None: none, or unknown.
    times: origin of its step times; None: it has no steps.
    step_limits: limits of its steps; None: it serves batch by batch, or they are unknown.

    Lifecycle:
    can_fail: whether its work in flight may be lost. can_drain: whether it may leave, and be
        scaled.

    Request fields that it uses, so that workload options without effect are reported:
    deadline_option: its option that uses deadlines of first tokens; empty: none.
    uses_priorities: whether priorities change its order. uses_predictions: whether predicted
        lengths do. turns_away: whether it rejects requests when busy.

    Raises ValueError for traits that contradict one another.
    """

    serves: tuple[str, ...]
    serves_whole: bool = False
    asks_ahead: bool = False
    model: str | None = None
    role: Role | None = None
    entries: KvForm | None = None
    sends_entries: bool = False
    takes_entries: bool = False
    reserves: bool = False
    emits_first_token: bool = False
    longest_prompt: tuple[float, str] = (inf, "nothing limits it")
    slider: Slider | None = None
    engines: tuple[EngineGroup, ...] = ()
    uses_links: bool = False
    stores: Mapping[str, Store] = field(default_factory=dict)
    shared_tiers: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    shared_parts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    machine: GpuMachine | None = None
    times: TimesOrigin | None = None
    step_limits: StepLimits | None = None
    can_fail: bool = True
    can_drain: bool = True
    deadline_option: str = ""
    uses_priorities: bool = False
    uses_predictions: bool = False
    turns_away: bool = False

    def __post_init__(self) -> None:
        if not self.serves or not all(isinstance(kind, str) for kind in self.serves):
            raise ValueError(f"serves must name kinds of stages, got {self.serves!r}")
        for problem in self._contradictions():
            raise ValueError(problem)

    @classmethod
    def serving(cls, kinds: Collection[str]) -> ClientTraits:
        """Return the traits of a client described only by its stages.

        A client that serves prefill keeps the entries for the next stage; one that serves only
        decode continues from other clients' entries.
        """
        prefills = Prefill.kind in kinds
        return cls(
            serves=tuple(kinds),
            sends_entries=prefills,
            takes_entries=Decode.kind in kinds and not prefills,
        )

    def _contradictions(self) -> list[str]:
        """Return the contradictions among them."""
        role, serves, found = self.role, set(self.serves), []
        if role is not None and serves & ROLES[None] != ROLES[role]:
            stages = " and ".join(sorted(ROLES[role]))
            found.append(f"serves must have {stages} with role {role}, got {self.serves!r}")
        if Decode.kind in serves and Prefill.kind not in serves and not self.takes_entries:
            found.append(
                "takes_entries must be True for a client that serves decode without prefill: it "
                "goes on from entries that others keep, got False"
            )
        if role in SENDING_ROLES and not self.sends_entries:
            found.append(f"sends_entries must be True with role {role}, got False")
        if role not in (None, "prefill") and not self.takes_entries:
            found.append(f"takes_entries must be True with role {role}, got False")
        if role in FLOWING_ROLES and self.slider is None:
            found.append(f"slider must be given with role {role}, got None")
        if self.reserves and self.entries is None:
            found.append("entries must be given with reserves, got None")
        return found

    @property
    def num_engines(self) -> int:
        """Engines to which KV entries may come; 1 for a client without any."""
        return sum(group.number for group in self.engines if group.takes_entries) or 1

    @property
    def num_gpus(self) -> int:
        """GPUs that its engines have in a network."""
        return sum(group.number * group.pipeline * group.tensor for group in self.engines)
