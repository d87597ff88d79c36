"""What a command line of a load generator says, read by the rows of its flags."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mist_sim.errors import cut
from mist_sim.scenario.from_vllm.account import Account
from mist_sim.scenario.from_vllm.flags import Arity, Flag, flags_of
from mist_sim.scenario.from_vllm.tables import Row


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
    arities = {**more, **{row.flag: row.takes for row in rows}}
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
    if row.fate == "refused" and row.asks_for_nothing(flag):
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
    if row.takes == "switch":
        return flag.is_on
    return list(flag.values) if row.takes == "many" else row.reads(flag.value)
