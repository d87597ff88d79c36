"""A version of vLLM: its defaults, the options that it lacks, and what a default may depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache.profile_run import ProfileRun

GIB = 2**30

LIMITS = "scheduler.max_num_seqs, max_num_batched_tokens"
RESERVE = "scheduler.scheduler_reserve_full_isl"
INTERVAL = "scheduler.prefill_schedule_interval"
PARTIAL = "scheduler.max_num_partial_prefills"
LARGEST_GRAPH = "predictor.max_cudagraph_capture_size"
RULES = "rules."
MEMORY = "memory."
SAMPLER = "sampling.sampler"
KERNELS = "kernels."
EXPERTS = "kernels.experts."
ATTENTION = "kernels.attention"


class ServerLimits(NamedTuple):
    """Sequences that run at once, and tokens of a step."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True)
class LimitsByMemory:
    """Limits of `vllm serve` by the memory of the GPU.

    tiers: (least bytes, whether A100s have it too, limits), the largest first; below all of them
    the limits are `small`, and on the GPUs with a name in `always_small`.
    """

    small: ServerLimits
    tiers: tuple[tuple[float, bool, ServerLimits], ...]
    always_small: tuple[str, ...] = ()

    def of(self, memory: float, name: str) -> ServerLimits:
        """Return the limits on a GPU with so many bytes and that name."""
        if any(each in name.lower() for each in self.always_small):
            return self.small
        is_a100 = "a100" in name.lower()
        for least, with_a100, limits in self.tiers:
            if memory >= least and (with_a100 or not is_a100):
                return limits
        return self.small

    def __str__(self) -> str:
        return ", ".join(
            [
                *(f"{_pair(limits)} from {least / GIB:g} GiB" for least, _, limits in self.tiers),
                f"else {_pair(self.small)}",
                *(f"{_pair(self.small)} on {each.upper()}" for each in self.always_small),
            ]
        )


def _pair(limits: ServerLimits) -> str:
    return f"{limits.max_num_seqs:,} and {limits.max_num_batched_tokens:,}"


@dataclass(frozen=True)
class LargestGraph:
    """Most tokens of a step that is replayed as a CUDA graph: twice a full step's decodes, or less.

    most: the limit. blackwell: that on GPUs of compute capability 10.x, known by their names.
    with_drafts: whether a decode counts the tokens that it verifies.
    """

    most: int
    blackwell: int
    with_drafts: bool = True

    def of(self, name: str, max_num_seqs: int, num_drafts: int = 0) -> int:
        """Return it for a GPU of that name, on which so many sequences verify so many drafts."""
        is_blackwell = any(chip in name.lower() for chip in ("b200", "b300"))
        each = 1 + num_drafts if self.with_drafts else 1
        return min(2 * max_num_seqs * each, self.blackwell if is_blackwell else self.most)

    def __str__(self) -> str:
        each = " × (1 + drafts)" if self.with_drafts else ""
        on_blackwell = f", {self.blackwell:,} on compute capability 10.x"
        limit = f"{self.most}{on_blackwell if self.blackwell != self.most else ''}"
        return f"2 × sequences{each}, at most {limit}"


@dataclass(frozen=True)
class Default:
    """A value that holds where a user says none, and where vLLM's package has it."""

    value: Any
    source: str


@dataclass(frozen=True)
class Lack:
    """An option that a version does not have, although others do.

    neutral: the values that say nothing. reason: why it is not there. instead: what to write.
    only: the values that it does not have, where it has the others.
    """

    neutral: tuple[Any, ...]
    reason: str
    instead: str
    only: tuple[Any, ...] = ()


@dataclass(frozen=True)
class EngineVersion:
    """A version of vLLM.

    name: as in a scenario. defaults: by option, as `clients.N` has them; what it decides without
    one, as `rules.` and the name in `EngineRules`; what it takes of the memory beside weights and
    cache, as `memory.` and the name in `ProfileRun`; whose kernels it takes, as `kernels.`. lacks:
    options of a scenario that it does not have. notes: what it does by default that is not
    simulated.
    """

    name: str
    defaults: Mapping[str, Default]
    lacks: Mapping[str, Lack] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name in text: "vLLM 0.19"."""
        return f"vLLM {self.name.removeprefix('vllm-')}"

    @property
    def rules(self) -> EngineRules:
        """Its behaviour for which there is no option."""
        return EngineRules(**self._named(RULES))

    @property
    def profile(self) -> ProfileRun:
        """Memory of a rank that it takes beside weights and cache."""
        return ProfileRun(**self._named(MEMORY))

    def _named(self, prefix: str) -> dict[str, Any]:
        """Return the values whose names begin with a prefix, by the rest of their names."""
        found = {key: each.value for key, each in self.defaults.items() if key.startswith(prefix)}
        return {key.removeprefix(prefix): value for key, value in found.items()}

    def default(self, key: str) -> Any:
        """Return the value of an option."""
        return self.defaults[key].value


def after(
    before: EngineVersion,
    name: str,
    defaults: Mapping[str, Default],
    *,
    gains: tuple[str, ...] = (),
    loses: Mapping[str, Lack] | None = None,
    notes: Mapping[str, str] | None = None,
) -> EngineVersion:
    """Return a version that differs from the one before it in so much."""
    lacks = {key: lack for key, lack in before.lacks.items() if key not in gains}
    return replace(
        before,
        name=name,
        defaults={**before.defaults, **defaults},
        lacks={**lacks, **(loses or {})},
        notes={**before.notes, **(notes or {})},
    )
