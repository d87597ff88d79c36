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
from mist_sim.scenario.from_vllm.flags import Arity, Entry, Flag

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
    the flag is given again. choices: all that the program takes; empty: any. by: the function that
    handles it. cases: values that are answered otherwise, as (values, fate, reason) or (values,
    "set", key, value); without values all others. since: the first minor version that has it.
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
    by: str = ""
    cases: Sequence[Sequence[Any]] = ()
    since: int = 0

    def asks(self, said: Flag | Entry) -> str:
        """Return the value that a flag or an entry asks for, as text."""
        if isinstance(said, Entry):
            return said.value if isinstance(said.value, str) else json.dumps(said.value)
        return str(said.is_on) if self.takes == "switch" else said.value

    def asks_for_nothing(self, said: Flag | Entry) -> bool:
        """Whether a flag that is refused has a value that asks for what is simulated."""
        neutral = self.neutral or (("False",) if self.takes == "switch" else ())
        return self.asks(said) in neutral

    def case(self, said: Flag | Entry) -> Sequence[Any] | None:
        """Return the case of a value; None where the row itself has the answer."""
        value = self.asks(said)
        return next((it for it in self.cases if not it[0] or value in it[0].split()), None)


@cache
def _data() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("flags.toml").read_text("utf-8"))


def table_of(program: str) -> Mapping[str, Any]:
    """Return the whole table of a program: its flags, data sets and defaults."""
    found: Mapping[str, Any] = _data()[program]
    return found


def rows_of(program: str, *readers: Callable[[str], Any]) -> tuple[Row, ...]:
    """Return the flags of a program. readers: that it has beside the usual ones."""
    return tuple(_rows(table_of(program), {each.__name__: each for each in (*_READERS, *readers)}))


def _rows(table: Mapping[str, Any], readers: Mapping[str, Callable[[str], Any]]) -> Iterator[Row]:
    for names, said in table.get("sets", {}).items():
        more = {**said, "reads": readers[said.get("reads", "str")]}
        yield _row(names, **{**more, "choices": tuple(said.get("choices", ()))})
    for group in table.get("others", ()):
        more = {"fate": "no effect", **group, "neutral": tuple(group.get("neutral", "").split())}
        names, instead = more.pop("flags"), more.pop("instead", "")
        more["why"] += f"; instead: {instead}" if instead else ""
        yield from (_row(each, **more) for each in names.split())
    for names, said in table.get("handled", {}).items():
        row = _row(names, **{"fate": "handled", **said})
        yield row if "by" in said else replace(row, by=row.flag[2:].replace("-", "_"))


def _row(names: str, **more: Any) -> Row:
    flag, *aliases = (name if name.startswith("-") else f"--{name}" for name in names.split("|"))
    return Row(flag=flag, aliases=tuple(aliases), **more)


@cache
def row_of_entry(flag: str, key: str) -> Row:
    """Return what becomes of a key of a flag's JSON."""
    rows = {row.flag: row for row in rows_of(flag)}
    return rows.get(f"--{key}") or Row(flag=key, **_data()[flag]["rest"])


SERVE: Mapping[str, Row] = {row.flag: row for row in rows_of("serve")}
"""Flags of `vllm serve`."""

SHORT: Mapping[str, str] = {alias: row.flag for row in SERVE.values() for alias in row.aliases}
"""Other spellings of its flags."""

HONOURED: Mapping[str, Row] = {flag: row for flag, row in SERVE.items() if row.fate == "set"}
"""Those that a key of a client stands for."""

OPTIONS: Mapping[str, str] = {
    **{row.key: flag for flag, row in HONOURED.items()},
    **{key: flag for flag, keys in _data()["options"].items() for key in keys.split()},
}
"""The flag of each option of an engine, or that it has none; a test holds it complete."""


def marked(flags: Sequence[Flag], engine: str | None) -> list[Flag]:
    """Return flags, with a fault where the version lacks them. engine: known, or anything else."""
    return [
        replace(flag, fault=f"{engine} does not have it; leave it out, or name a newer --engine")
        if not flag.fault and flag.name in SERVE and _is_before(engine, SERVE[flag.name].since)
        else flag
        for flag in flags
    ]


def _is_before(engine: str | None, minor: int) -> bool:
    version = VERSIONS.get(engine or "")
    return version is not None and version.minor < minor


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


ARITIES: Mapping[str, Arity] = {
    **{flag: row.takes for flag, row in SERVE.items()},
    **{flag: renamed.takes for flag, renamed in RENAMED.items()},
}
"""How many values each flag of `vllm serve` takes."""


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
