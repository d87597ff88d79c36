"""Flags of `flags.toml`, and what reads their values: of vLLM's server and of load generators."""

from __future__ import annotations

import json
import math
import re
import tomllib
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from mist_sim.errors import brief, cut
from mist_sim.scenario.engines.versions import VERSIONS
from mist_sim.scenario.from_vllm.flags import Arity, Flag

Fate = Literal["set", "no effect", "assumed", "refused", "handled"]

_POWERS = {letter: power for power, letter in enumerate("kmgt", start=1)}


def whole_number(text: str) -> int:
    """Return a number such as 8192, 8k (8,000) or 8K (8,192); vLLM's `human_readable_int`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text.strip())
    if not found:
        return int(text)
    number, letter = found.groups()
    if letter.islower():
        return round(float(number) * float(1000 ** _POWERS[letter]))
    if "." in number:
        raise ArgumentTypeError(f"decimals are not allowed with {letter}, got {brief(text)}")
    return int(number) * int(1024 ** _POWERS[letter.lower()])


def context_length(text: str) -> int | str:
    """Return a length in tokens; "auto" where vLLM looks for one that fits (`auto`, -1)."""
    return "auto" if text.strip().lower() in ("-1", "auto") else whole_number(text)


def mapping(text: str) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"must be a JSON object, got {cut(text)}")
    return found


def finite(text: str) -> float:
    """Return a finite number, or raise ArgumentTypeError."""
    value = float(text)
    if not math.isfinite(value):
        raise ArgumentTypeError("must be a finite number")
    return value


def positive(text: str) -> float:
    """Return a finite number above 0, or raise ArgumentTypeError."""
    value = finite(text)
    if value <= 0:
        raise ArgumentTypeError("must be a number above 0")
    return value


def not_negative(text: str) -> float:
    """Return a finite number from 0 on, or raise ArgumentTypeError."""
    value = finite(text)
    if value < 0:
        raise ArgumentTypeError("must be a number from 0 on")
    return value


def rate(text: str) -> float:
    """Return a rate: a number above 0, or inf for all requests at once."""
    return math.inf if float(text) == math.inf else positive(text)


_READERS: tuple[Callable[[str], Any], ...]
_READERS = (str, int, float, whole_number, context_length, mapping, positive, not_negative, rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A flag, and what becomes of it.

    key: that it sets, with what `reads` its text; of a refused one, a key that `--set` may say
    instead. aliases: other names. fate: of a flag that sets no key, with `why`. neutral: values of
    a refused one that ask for nothing. takes: how many values. adds: whether values add up where
    the flag is given again. choices: all that the program takes; empty: any.
    """

    flag: str
    aliases: tuple[str, ...] = ()
    key: str = ""
    reads: Callable[[str], Any] = str
    fate: Fate = "set"
    why: str = ""
    neutral: tuple[str, ...] = ()
    takes: Arity = "one"
    adds: bool = False
    choices: tuple[str, ...] = ()

    def asks_for_nothing(self, flag: Flag) -> bool:
        """Whether a flag that is refused has a value that asks for what is simulated."""
        if self.takes == "switch":
            return str(flag.is_on) in (self.neutral or ("False",))
        return flag.value in self.neutral


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("flags.toml").read_text("utf-8"))


def rows_of(program: str, *readers: Callable[[str], Any]) -> tuple[Row, ...]:
    """Return the flags of a program. readers: that it has beside the usual ones."""
    return tuple(_rows(_data()[program], {each.__name__: each for each in (*_READERS, *readers)}))


def _rows(table: Mapping[str, Any], readers: Mapping[str, Callable[[str], Any]]) -> Iterator[Row]:
    for names, said in table.get("sets", {}).items():
        more = {**said, "reads": readers[said.get("reads", "str")]}
        yield _row(names, **{**more, "choices": tuple(said.get("choices", ()))})
    for group in table.get("others", ()):
        more = {"fate": "no effect", **group, "neutral": tuple(group.get("neutral", "").split())}
        names, instead = more.pop("flags"), more.pop("instead", "")
        more["why"] += f"; instead: {instead}" if instead else ""
        yield from (_row(each, **more) for each in names.split())
    for takes, names in table.get("handled", {}).items():
        yield from (_row(each, fate="handled", takes=takes) for each in names.split())


def _row(names: str, **more: Any) -> Row:
    flag, *aliases = (name if name.startswith("-") else f"--{name}" for name in names.split("|"))
    return Row(flag=flag, aliases=tuple(aliases), **more)


SERVE: Mapping[str, Row] = {row.flag: row for row in rows_of("serve")}
"""Flags of `vllm serve`."""

HONOURED: Mapping[str, Row] = {flag: row for flag, row in SERVE.items() if row.fate == "set"}
"""Those that a key of a client stands for."""

OPTIONS: Mapping[str, str] = {
    **{row.key: flag for flag, row in HONOURED.items()},
    **{key: flag for flag, keys in _data()["options"].items() for key in keys.split()},
}
"""The flag of each option of an engine, or that it has none; a test holds it complete."""

_SINCE: Mapping[str, int] = {
    f"--{name}": minor for name, minor in _data()["serve"]["since"].items()
}


def marked(flags: Sequence[Flag], engine: str | None) -> list[Flag]:
    """Return flags, with a fault where the version lacks them. engine: known, or anything else."""
    return [
        replace(flag, fault=f"{engine} does not have it; leave it out, or name a newer --engine")
        if not flag.fault and _lacks(engine, flag.name)
        else flag
        for flag in flags
    ]


def _lacks(engine: str | None, flag: str) -> bool:
    version = VERSIONS.get(engine or "")
    return version is not None and version.minor < _SINCE.get(flag, 0)


@dataclass(frozen=True, slots=True)
class Renamed:
    """An older name.

    now: the flag in its place. until: the last version of vLLM that has the old one. takes: how
    many values. values: of the new flag, where the old one is a switch. alone: the new
    flag where one value is given.
    """

    now: str
    until: str
    takes: Arity = "one"
    values: Sequence[str] = ()
    alone: str = ""

    def flag(self, old: Flag) -> Flag:
        """Return the flag as newer versions write it."""
        name = self.alone if self.alone and len(old.values) == 1 else self.now
        return replace(old, name=name, values=tuple(self.values) or old.values)


RENAMED: Mapping[str, Renamed] = {
    f"--{name}": Renamed(**said) for name, said in _data()["serve"]["renamed"].items()
}


def _variables(fate: Fate) -> tuple[tuple[re.Pattern[str], str], ...]:
    groups = [it for it in _data()["variables"]["others"] if it.get("fate", "no effect") == fate]
    return tuple((re.compile("".join(it["names"].split())), it["why"]) for it in groups)


NO_EFFECT = _variables("no effect")
"""Variables without effect on times, by pattern of the whole name, with the reason."""

ASSUMED = _variables("assumed")
"""Variables that change times of a real server, which the simulation passes over."""

REFUSED_VARIABLES: Mapping[str, tuple[Sequence[str], str]] = {
    name: (it.get("neutral", "").split(), f"{it['why']}; instead: {it['instead']}")
    for name, it in _data()["variables"]["refused"].items()
}
"""Variables that ask for what is not simulated, with the values that do not, and what to do."""
