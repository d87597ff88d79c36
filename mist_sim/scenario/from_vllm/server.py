"""A client of a scenario as it grows from the flags of `vllm serve`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from mist_sim.errors import brief
from mist_sim.scenario.from_vllm.account import Account
from mist_sim.scenario.from_vllm.flags import Flag

ELSEWHERE = "engine"
"""The version of a server whose version `--set` says, so that it is not known here."""


class Server:
    """The state of a server after the flags read so far.

    said: all flags of the command, by name; the last of equal ones. variables: of its environment.
    overrides: keys that `--set` gives, so that the command line need not. gpu: of the server, by
    name; empty if it is not known.
    engine: its version, None: the newest; ELSEWHERE where `--set` says it.
    client: keys of the client. workload: keys of the workload, such as a limit of answers.
    front_end: keys of the front end.
    handled: variables that a flag has accounted for. part: the flag by which the command starts
        another node of a server whose first command is elsewhere; empty if it does not.
    """

    def __init__(
        self,
        said: Mapping[str, Flag],
        variables: Mapping[str, str],
        overrides: Collection[str] = (),
        gpu: str = "",
        engine: str | None = None,
    ) -> None:
        self.said = said
        self.gpu = gpu
        self.engine = engine
        self.variables = variables
        self.overrides = overrides
        self.account = Account()
        self.client: dict[str, Any] = {}
        self.workload: dict[str, Any] = {}
        self.front_end: dict[str, Any] = {}
        self.handled: set[str] = set()
        self.part = ""

    def set(self, key: str, value: Any, flag: Flag | str) -> None:
        """Set a key of the client, a dotted path, and note the flag that sets it."""
        place = self.client
        *path, last = key.split(".")
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value
        self.account.applied(flag if isinstance(flag, str) else flag.written, _shown(key, value))

    def number(self, name: str) -> int:
        """Return a flag's whole number; 1 where it is not there or no number."""
        value = self.said[name].value if name in self.said else "1"
        return int(value) if value.isdecimal() and len(value) < 10 else 1

    @property
    def num_ranks(self) -> int:
        """GPUs of one engine."""
        return self.number("--tensor-parallel-size") * self.number("--pipeline-parallel-size")

    @property
    def num_gpus(self) -> int:
        """GPUs of all its engines."""
        return self.num_ranks * self.number("--data-parallel-size")

    def is_set_elsewhere(self, key: str) -> bool:
        """Whether `--set` says a key, or a part of it, of some client or of all."""
        return any(path == key or f".{key}" in f".{path}" for path in self.overrides)

    def is_set_whole(self, key: str) -> bool:
        """Whether `--set` says all of a list, of some client or of all, and not a part of it."""
        return any(f".{path}".endswith(f".{key}") for path in self.overrides)


Handler = Callable[[Flag, Server], None]
"""Honours a flag, or notes in the account why not."""


def _shown(key: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return f"{key}: {str(value).lower() if value is not None else 'null'}"
    return f"{key}: {value if isinstance(value, str | int | float) else brief(value)}"
