"""The releases of vLLM: their names in a scenario, and their rules, as `versions.toml` has them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mist_sim.clients.engine_rules import EngineRules
from mist_sim.clients.kv_cache.profile_run import BesideTorch, ProfileRun
from mist_sim.core import front_end
from mist_sim.errors import ScenarioError, brief
from mist_sim.models import attention_backends, moe_backends, speculative

GIB = 2**30

LIMITS = "scheduler.max_num_seqs, max_num_batched_tokens"
RESERVE = "scheduler.scheduler_reserve_full_isl"
INTERVAL = "scheduler.prefill_schedule_interval"
PARTIAL = "scheduler.max_num_partial_prefills"
LARGEST_GRAPH = "predictor.max_cudagraph_capture_size"
RULES = "rules."
MEMORY = "memory."
SERVER = "server."
HIDES = "server.hides"
PARSES, TEMPLATES = "server.parse", "server.template"
SAMPLER = "sampling.sampler"
KERNELS = "kernels."
EXPERTS = "kernels.experts."
ATTENTION = "kernels.attention"


@dataclass(frozen=True)
class Hidden:
    """Host time that async scheduling hides: of a step, and of each of its sequences, seconds."""

    step: float
    sequence: float

    def __str__(self) -> str:
        all_of_it = self.step == float("inf")
        return "all" if all_of_it else f"{1e3 * self.step:g} ms and {1e6 * self.sequence:g} us"


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


OLDEST, LATEST = 10, 33
"""Minor numbers of the first and the last release that is simulated: 0.10 and 0.33."""

FIRST_PATCH, LATER = 11, 11.1
"""Numbers of 0.11.0 and of its later patches, 0.11: the one release whose patches differ here."""

RELEASES = (10, FIRST_PATCH, LATER, *range(12, LATEST + 1))
"""Numbers of all releases."""

UNREAD = frozenset({15})
"""Of releases that are not on PyPI, so that their code was not read."""


@dataclass(frozen=True)
class Default:
    """A value that holds where a user says none, and where vLLM's package has it.

    since: minor number of the first release that has it. seen: of those that it was measured on,
    where it is no value of the package.
    """

    value: Any
    source: str
    since: float = OLDEST
    seen: tuple[float, ...] = ()


@dataclass(frozen=True)
class Lack:
    """An option that some releases do not have, although others do.

    neutral: the values that say nothing, besides None. reason: why it is not there; empty: it came
    later. instead: what to write. only: the values that it does not have, where it has the others.
    since, until: minor numbers of the first and the last release that lacks it.
    """

    neutral: tuple[Any, ...] = ()
    reason: str = ""
    instead: str = "leave it out"
    only: tuple[Any, ...] = ()
    since: int = OLDEST
    until: int = LATEST

    @property
    def why(self) -> str:
        """The reason, in words."""
        what = ", ".join(map(str, self.only)) or "it"
        return self.reason or f"{what} came in 0.{self.until + 1}"

    @property
    def otherwise(self) -> str:
        """The setting to write in its place, in words."""
        newer = "" if self.reason else f"engine: vllm-0.{self.until + 1} or newer, or "
        return f"{newer}{self.instead}"


class Note(NamedTuple):
    """A default of releases from `since` on that is not simulated."""

    text: str
    since: int


@dataclass(frozen=True)
class Releases:
    """The rules of all releases.

    defaults: by option, as `clients.N` has them, the oldest first; what a release decides without
    one, as `rules.` and the name in `EngineRules`; what it takes of the memory beside weights and
    cache, as `memory.` and the name in `ProfileRun`; whose kernels it takes, as `kernels.`. lacks:
    options of a scenario that some do not have. notes: by topic.
    """

    defaults: Mapping[str, tuple[Default, ...]]
    lacks: Mapping[str, tuple[Lack, ...]]
    notes: Mapping[str, Note]


@dataclass(frozen=True)
class EngineVersion:
    """A release of vLLM. minor: 19 of 0.19."""

    minor: float

    @property
    def name(self) -> str:
        """Its name in a scenario: "vllm-0.19"."""
        return f"vllm-0.{int(self.minor)}{'.0' * (self.minor == FIRST_PATCH)}"

    @property
    def title(self) -> str:
        """Its name in text: "vLLM 0.19"."""
        return f"vLLM {self.name.removeprefix('vllm-')}"

    @cached_property
    def defaults(self) -> Mapping[str, Default]:
        """Its defaults, by the keys of the table."""
        return {
            key: next(each for each in reversed(rows) if each.since <= self.minor)
            for key, rows in TABLE.defaults.items()
        }

    @cached_property
    def lacks(self) -> Mapping[str, Lack]:
        """The options that it lacks."""
        here = (
            (key, each)
            for key, rows in TABLE.lacks.items()
            for each in rows
            if each.since <= self.minor <= each.until
        )
        return dict(here)

    @property
    def notes(self) -> Mapping[str, str]:
        """Defaults of the release that are not simulated."""
        notes = TABLE.notes.items()
        return {topic: note.text for topic, note in notes if note.since <= self.minor}

    @cached_property
    def interpolated(self) -> tuple[str, ...]:
        """Keys of values that lie between those of two other releases, and were not looked up."""
        return tuple(key for key, rows in TABLE.defaults.items() if self._is_between(rows))

    def _is_between(self, rows: tuple[Default, ...]) -> bool:
        at = max(place for place, each in enumerate(rows) if each.since <= self.minor)
        ends = [each.since for each in rows[at + 1 :]]
        end = min(ends, default=LATEST + 1)
        read = (each for each in RELEASES if rows[at].since <= each < end and each not in UNREAD)
        known = rows[at].seen or tuple(read)
        return (bool(ends) and self.minor > max(known)) or (at > 0 and self.minor < min(known))

    @cached_property
    def rules(self) -> EngineRules:
        """Its behaviour for which there is no option."""
        return EngineRules(**self._named(RULES))

    @cached_property
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


# --- the table ----------------------------------------------------------------------------------

_CONSTANTS: Mapping[str, ModuleType] = {
    ATTENTION: attention_backends,
    PARSES: front_end,
    TEMPLATES: front_end,
    "rules.async_drafts": speculative,
}
"""Modules of values that are a constant's name."""


def _value(key: str, value: Any) -> Any:
    """Return the value of a row: TOML's own, a constant's, or what a table describes."""
    if key.startswith(EXPERTS):
        return getattr(moe_backends, value)[key.removeprefix(EXPERTS)]
    if key in _CONSTANTS and isinstance(value, str):
        return getattr(_CONSTANTS[key], value)
    if key == LIMITS:
        tiers = ((gib * GIB, a100, ServerLimits(*limits)) for gib, a100, *limits in value["tiers"])
        small, always = ServerLimits(*value["small"]), tuple(value.get("always_small", ()))
        return LimitsByMemory(small, tuple(tiers), always)
    if key == LARGEST_GRAPH:
        return LargestGraph(**value)
    if key == HIDES:
        return Hidden(**value)
    if key == "memory.beside_torch":
        return BesideTorch(*(gib * GIB for gib in value))
    return tuple(value) if isinstance(value, list) else value


def _tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(it) if isinstance(it, list) else it for name, it in row.items()}


def _defaults(
    key: str, rows: Iterable[Mapping[str, Any]], places: Mapping[str, str]
) -> Iterator[Default]:
    for row in rows:
        more = {"value": _value(key, row.get("value")), "source": row["source"].format(**places)}
        yield Default(**{**_tuples(row), **more})


def _read() -> Releases:
    data = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return Releases(
        {key: (*_defaults(key, rows, data["places"]),) for key, rows in data["defaults"].items()},
        {key: tuple(Lack(**_tuples(row)) for row in rows) for key, rows in data["lacks"].items()},
        {topic: Note(**row) for topic, row in data["notes"].items()},
    )


TABLE = _read()
"""The rules of all releases."""

VERSIONS: Mapping[str, EngineVersion] = {
    version.name: version for version in map(EngineVersion, RELEASES)
}
"""By name, the oldest first."""

NEWEST = VERSIONS[f"vllm-0.{LATEST}"]
"""The engine that is imitated by default: what `pip install vllm` gives."""


# --- names --------------------------------------------------------------------------------------

NEWEST_NAME = "vllm"
NAMES = (*VERSIONS, NEWEST_NAME)
_NUMBER = re.compile(r"(?:vllm)?[-_ =:]*v?(\d{1,9})\.(\d{1,9})(?:\.\w+)*", re.IGNORECASE)


def version_of(name: str | None) -> EngineVersion:
    """Return the version of a name; without one, the newest, which is then assumed.

    Raises ScenarioError for a name that is not known, with what to write instead.
    """
    try:
        return NEWEST if name is None else VERSIONS[known_name(name)]
    except ScenarioError as error:
        raise ScenarioError(f"engine {error}") from None


def known_name(name: object) -> str:
    """Return the name of a version; `vllm` becomes that of the newest, `v0.16.0` `vllm-0.16`.

    Raises ScenarioError for a name that is not known, with what to write instead.
    """
    if name == NEWEST_NAME:
        return NEWEST.name
    if isinstance(name, str):
        if name in VERSIONS:
            return name
        if (known := spelt(name)) in VERSIONS:
            return known
    raise ScenarioError(
        f"must be {next(iter(VERSIONS))} to {NEWEST.name}, or {NEWEST_NAME} (the newest of them), "
        f"got {brief(name)}; {_instead(name)}"
    )


def number_of(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a release, `v0.16.0`; None for other texts."""
    found = _NUMBER.fullmatch(version.strip())
    return (int(found[1]), int(found[2])) if found else None


def spelt(version: str) -> str:
    """Return the name of a release, `v0.16.1` as vllm-0.16; other texts as they are."""
    number, bare = number_of(version), version.strip().lower().lstrip("vlm-_ =:")
    if number is None:
        return version
    first = f"vllm-{bare}"
    return first if first in VERSIONS else f"vllm-{number[0]}.{number[1]}"


def _instead(name: object) -> str:
    asked = number_of(str(name))
    if asked is None:
        return (
            "other engines are not known by name: leave engine out, and set their options one by "
            "one (mist list options)"
        )
    if isinstance(name, float):  # as YAML reads 0.20: 0.2
        return "write it as a text with vllm- before it: vllm-0.20, not 0.2"
    if asked > (0, NEWEST.minor):
        return f"it is newer than all of them: write {NEWEST.name}, and say what differs"
    return f"it is older than all of them: write {next(iter(VERSIONS))}, and say what differs"
