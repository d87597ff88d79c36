"""Rows of the flags of load generators, and a reader of command lines by them."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mist_sim.errors import cut
from mist_sim.scenario.from_vllm.account import Account
from mist_sim.scenario.from_vllm.flags import Arity, Flag, flags_of

Fate = Literal["set", "no effect", "assumed", "refused"]


@dataclass(frozen=True, slots=True)
class Row:
    """A flag of a load generator, and what becomes of it.

    key: that it sets, of `Load`. read: reads its text. aliases: other names. fate: of a flag that
    sets no key, with `why`; a flag with a key and a reason is refused unless it has `neutral`.
    arity: how many values it takes. adds: whether values add up where the flag is given again.
    """

    flag: str
    key: str = ""
    read: Callable[[str], Any] = str
    aliases: tuple[str, ...] = ()
    fate: Fate = "set"
    why: str = ""
    neutral: tuple[str, ...] = ()
    arity: Arity = "one"
    adds: bool = False


def sets(
    flag: str,
    key: str,
    read: Callable[[str], Any] = int,
    *aliases: str,
    arity: Arity = "one",
    adds: bool = False,
) -> Row:
    """Return the row of a flag that sets a key."""
    return Row(f"--{flag}", key, read, aliases, arity=arity, adds=adds)


def others(
    why: str, names: str, *, fate: Fate = "no effect", arity: Arity = "one", neutral: str = ""
) -> tuple[Row, ...]:
    """Return the rows of flags that set nothing, for one reason. names: name or name|alias."""
    found = []
    for each in names.split():
        name, *aliases = each.split("|")
        spelt = tuple(alias if alias.startswith("-") else f"--{alias}" for alias in aliases)
        found.append(
            Row(
                f"--{name}",
                aliases=spelt,
                fate=fate,
                why=why,
                neutral=tuple(neutral.split()),
                arity=arity,
            )
        )
    return tuple(found)


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


@dataclass
class Load:
    """What a command line says of a load, by key, and the account of its flags.

    said: values. written: their flags, as written, and those of values that are refused.
    """

    said: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    account: Account = field(default_factory=Account)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value that is said, or the default."""
        return self.said.get(key, default)

    def applied(self, keys: str | Sequence[str], place: str) -> None:
        """Note the flags of keys that are said as applied. place: in the scenario."""
        for key in [keys] if isinstance(keys, str) else keys:
            if key in self.written:
                self.account.applied(self.written[key], place)

    def unused(self, keys: Sequence[str], why: str) -> None:
        """Note the flags of keys that are said as without effect."""
        for key in keys:
            if key in self.written:
                self.account.no_effect(self.written[key].partition(" ")[0], why)

    def starting(self, start: str) -> Iterator[str]:
        """Yield the keys that are said and begin so."""
        yield from (key for key in self.said if key.startswith(start))


def read_load(
    words: Sequence[str],
    rows: Sequence[Row],
    more: Mapping[str, Arity],
    more_short: Mapping[str, str],
) -> tuple[Load, list[Flag]]:
    """Return what a command line says by a table, and the flags that it has beside.

    more: these, and how many values each takes. more_short: their other spellings.
    """
    by_name = {row.flag: row for row in rows}
    short = {**more_short, **{alias: row.flag for row in rows for alias in row.aliases}}
    arities = {**more, **{row.flag: row.arity for row in rows}}
    flags = flags_of(words, arities, short)
    last = {flag.name: flag for flag in flags if not flag.fault}
    load, rest = Load(), list[Flag]()
    for flag in flags:
        if flag.fault:
            load.account.refused(flag.name, flag.fault)
        elif flag.name not in by_name and flag.name:
            rest.append(flag)
        elif flag.name and last[flag.name] is not flag and not by_name[flag.name].adds:
            load.account.no_effect(flag.written, f"{flag.name} is given again behind it")
        elif not flag.name:
            loose = cut(" ".join(flag.values))
            load.account.refused(loose, "follows no flag that takes it; leave it out")
        else:
            _read(flag, by_name[flag.name], load)
    return load, rest


def _read(flag: Flag, row: Row, load: Load) -> None:
    account = load.account
    if row.fate == "refused" and (flag.value in row.neutral or not flag.is_on):
        account.no_effect(flag.written, "it asks for what is simulated")
    elif row.fate == "refused":
        account.refused(flag.written, row.why)
    elif row.fate == "assumed":
        account.assumed(flag.written, row.why)
    elif row.fate == "no effect":
        account.no_effect(flag.name, row.why)
    else:
        load.written[row.key] = flag.written
        try:
            before = load.said.get(row.key, []) if row.adds else []
            value = _value(flag, row)
            load.said[row.key] = [*before, *value] if before else value
        except (ArgumentTypeError, RecursionError) as error:
            account.refused(flag.written, str(error))
        except ValueError:
            account.refused(flag.written, f"must be a number, got {cut(flag.value)!r}")


def _value(flag: Flag, row: Row) -> Any:
    if row.arity == "switch":
        return flag.is_on
    return list(flag.values) if row.arity == "many" else row.read(flag.value)
