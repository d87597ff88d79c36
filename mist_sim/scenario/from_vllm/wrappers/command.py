"""One command of vLLM, with the wrappers around it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mist_sim.scenario.from_vllm.account import Account

SERVE, BENCH = "vllm serve", "vllm bench serve"
COMMANDS = (SERVE, BENCH)
"""vLLM's own for servers."""

PROGRAMS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("programs.toml").read_text("utf-8")
)
LOADS = {tuple(words.split()): name for words, name in PROGRAMS["loads"].items()}
"""Load generators by the words that start them, longer ones first."""

NAMES = {kind: names.split() for kind, names in PROGRAMS["names"].items()}
"""Names of programs, keywords and options by what they are."""


@dataclass(frozen=True, eq=False)
class Devices:
    """GPUs that a container reserves; all commands in it share one of these.

    flag: as its file says them. number: of one copy of it; None where the file leaves it open.
    """

    flag: str
    number: int | None


@dataclass
class Surroundings(Account):
    """What the wrappers around a command give it, and the account of them.

    variables: of its environment, by name. image: of its container, with its tag. devices: the GPUs
    of its container; None if it says none. count: how many run. gpu: which they are, of the
    catalog; empty if unknown. in_group: whether further containers have further GPUs for it.
    """

    variables: dict[str, str] = field(default_factory=dict)
    image: str = ""
    devices: Devices | None = None
    count: int = 1
    gpu: str = ""
    in_group: bool = False

    def command(self, name: str, words: Iterable[str]) -> Command:
        """Return a command that has these; later changes of variables are not its own."""
        return Command(name, tuple(words), replace(self, variables=dict(self.variables)))

    def copy(self) -> Surroundings:
        """Return the same, to be added to."""
        return replace(self, variables=dict(self.variables), items=list(self.items))


@dataclass(frozen=True)
class Command:
    """A command. name: `SERVE`, or of `LOADS`. words: its arguments."""

    name: str
    words: tuple[str, ...]
    around: Surroundings
