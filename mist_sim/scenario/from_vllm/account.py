"""The account of a command line: the effect of each flag, and the reason."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.flags import Entry, Flag

Verdict = Literal["applied", "no effect", "refused"]

_UNSET = re.compile(  # a variable of a shell or of Kubernetes, the first of a sum, a command
    r"\$\{?(?P<a>\w+)|\$\((?P<b>[A-Z_][A-Z0-9_]*)\)|\$\(\( *\$?\{?(?P<c>[A-Za-z_]\w*)|\$\(|`"
)


@dataclass(frozen=True, slots=True)
class Item:
    """One flag of a command line, or one key of a flag's JSON, and its effect.

    flag: as it is written, with its value if that matters; values of flags without effect are left
        out, since some are secrets. why: the key that it sets; why it changes no time; why it
        cannot be honoured, and what to write instead.
    is_assumed: whether something is assumed: the meaning of a name, or that times do not change
        although a real server's do.
    """

    flag: str
    verdict: Verdict
    why: str
    is_assumed: bool = False


@dataclass
class Account:
    """Collects items; a command line with faults is read to its end.

    A flag is given as such, or as it is to be written there.
    """

    items: list[Item] = field(default_factory=list, kw_only=True)

    def applied(self, flag: Flag | Entry | str, key: str) -> None:
        """Note a flag that the scenario applies. key: its key there."""
        self._note(flag, "applied", key)

    def taken(self, flag: Flag | Entry | str, key: str) -> None:
        """Note a flag that is applied with its most probable meaning."""
        self._note(flag, "applied", key, is_assumed=True)

    def no_effect(self, flag: Flag | Entry | str, why: str) -> None:
        """Note a flag that changes no simulated time."""
        self._note(flag, "no effect", why)

    def assumed(self, flag: Flag | Entry | str, why: str) -> None:
        """Note a flag whose effect on times is not simulated. why: the assumption instead."""
        self._note(flag, "no effect", why, is_assumed=True)

    def refused(self, flag: Flag | Entry | str, why: str) -> None:
        """Note a flag that cannot be honoured. why: and what to write instead."""
        self._note(flag, "refused", without_value(_written(flag)) or why)

    def overrule(self, names: Collection[str], why: str, verdict: Verdict = "no effect") -> None:
        """Note that another flag overrides flags that were read before, or contradicts them."""
        self.items = [
            Item(item.flag, verdict, why) if item.flag.partition(" ")[0] in names else item
            for item in self.items
        ]

    def _note(
        self, flag: Flag | Entry | str, verdict: Verdict, why: str, *, is_assumed: bool = False
    ) -> None:
        self.items.append(Item(_written(flag), verdict, why, is_assumed))


def _written(flag: Flag | Entry | str) -> str:
    return flag if isinstance(flag, str) else flag.written


def without_value(text: str) -> str:
    """Return what to do about a variable of a text that has no value; empty if there is none."""
    unset = _UNSET.search(text)
    if unset is None:
        return ""
    name = unset["a"] or unset["b"] or unset["c"]
    if name is None:
        return "what a command prints is not known here; write its value there"
    if name.isdecimal():
        return f"${name} is an argument of the script, not known here; write its value there"
    return f"{name} has no value here; write {name}=... in front of the command"


@dataclass(frozen=True, slots=True)
class Statement:
    """The account of one command.

    command: such as "vllm serve". items: in the order in which they were read.
    """

    command: str
    items: tuple[Item, ...]

    @property
    def faults(self) -> list[str]:
        """The refusals, as lines of a message."""
        refused = [item for item in self.items if item.verdict == "refused"]
        return [f"{self.command} {item.flag}".rstrip() + f": {item.why}" for item in refused]


def faults_of(statements: Iterable[Statement]) -> list[str]:
    """Return the refusals of all commands, each once."""
    return list(dict.fromkeys(fault for each in statements for fault in each.faults))


def check(statements: Iterable[Statement], problems: Iterable[str] = ()) -> None:
    """Raise ScenarioError that lists all refused flags and further problems, if any."""
    faults = [*faults_of(statements), *problems]
    if len(faults) == 1:
        raise ScenarioError(faults[0])
    if faults:
        lines = "\n".join(f"  {fault}" for fault in faults)
        raise ScenarioError(f"{len(faults)} arguments cannot be honoured:\n{lines}")
