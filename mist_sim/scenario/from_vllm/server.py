"""A client of a scenario as it grows from the flags of `vllm serve`."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from re import Pattern
from typing import Any

from mist_sim.errors import MistError, brief, cut
from mist_sim.models import ModelSpec, load_model
from mist_sim.scenario.engines.versions import version_of
from mist_sim.scenario.from_vllm.account import Account, Item
from mist_sim.scenario.from_vllm.flags import Entry, Flag
from mist_sim.scenario.from_vllm.tables import (
    ASSUMED,
    NO_EFFECT,
    REFUSED_VARIABLES,
    Row,
    mapping,
    row_of_entry,
)

ELSEWHERE = "engine"
"""The version of a server whose version `--set` says, so that it is not known here."""

DEFAULT = "that is so by default"


@dataclass(eq=False)
class Server(Account):
    """The state of a server after the flags read so far, and the account of these.

    said: all flags of the command, by name; the last of equal ones. variables: of its environment.
    overrides: keys that `--set` gives, so that the command line need not. gpu: of the server, by
    name; empty if it is not known.
    engine: its version, None: the newest; ELSEWHERE where `--set` says it.
    client: keys of the client. workload: keys of the workload, such as a limit of answers.
    front_end: keys of the front end.
    handled: variables that a flag has accounted for. part: the flag by which the command starts
        another node of a server whose first command is elsewhere; empty if it does not.
    """

    said: Mapping[str, Flag]
    variables: Mapping[str, str]
    overrides: Collection[str] = ()
    gpu: str = ""
    engine: str | None = None
    client: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    front_end: dict[str, Any] = field(default_factory=dict)
    handled: set[str] = field(default_factory=set)
    part: str = ""

    def set(self, key: str, value: Any, flag: Flag | Entry | str) -> None:
        """Set a key of the client, a dotted path, and note the flag that sets it."""
        place = self.client
        *path, last = key.split(".")
        for step in path:
            place = place.setdefault(step, {})
        place[last] = value
        self.applied(flag, _shown(key, value))

    def number(self, name: str) -> int:
        """Return a flag's whole number; 1 where it is not there or no number."""
        value = self.said[name].value if name in self.said else "1"
        return int(value) if value.isdecimal() and len(value) < 10 else 1

    def is_on(self, name: str) -> bool:
        """Whether the command turns a switch on."""
        return name in self.said and self.said[name].is_on

    @property
    def spec(self) -> ModelSpec | None:
        """Its model; None where it cannot be read."""
        try:
            return load_model(str(self.client.get("model")))
        except MistError:
            return None

    @property
    def minor(self) -> float:
        """Minor number of its version; 0 if that is not known here."""
        return 0 if self.engine == ELSEWHERE else version_of(self.engine).minor

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


def _shown(key: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return f"{key}: {str(value).lower() if value is not None else 'null'}"
    return f"{key}: {value if isinstance(value, str | int | float) else brief(value)}"


# --- what becomes of a flag ---------------------------------------------------------------------

Handler = Callable[[Any, Server], None]
"""Honours a flag, or an entry of its JSON, or notes in the account why not."""

HANDLERS: dict[str, Handler] = {}
"""Handlers of flags that need more than a row, by name."""


def handler(function: Handler) -> Handler:
    """Register what a row names by the function's name."""
    HANDLERS[function.__name__] = function
    return function


def settle(row: Row, said: Flag | Entry, server: Server) -> None:
    """Do what its row says of a flag, or of an entry of its JSON."""
    case = row.case(said)
    if case is not None:
        if case[1] == "set":
            server.set(case[2], case[3], said)
        else:
            _NOTES[case[1]](server, said, case[2])
    elif row.by:
        HANDLERS[row.by](said, server)
    elif row.fate == "set" and isinstance(said, Entry):
        server.set(row.key, said.value, said)
    elif row.fate == "set" and isinstance(said, Flag):
        _honour(said, row, server)
    elif row.fate in ("no effect", "assumed"):  # values are left out, since some are secrets
        is_on = isinstance(said, Flag) and said.is_on
        _NOTES[row.fate](server, row.flag if is_on else said, row.why)
    elif row.fate == "refused" and row.asks_for_nothing(said):
        server.no_effect(said, "it asks for what is simulated")
    elif row.fate == "refused" and row.key and server.is_set_whole(row.key):
        server.applied(said, f"{row.key}, which --set says")
    elif row.fate == "refused":
        server.refused(said, row.why)


_NOTES: Mapping[str, Callable[[Account, Flag | Entry | str, str], None]] = {
    "no effect": Account.no_effect,
    "assumed": Account.assumed,
    "refused": Account.refused,
}


def _honour(flag: Flag, row: Row, server: Server) -> None:
    """Set the key of a row to what reads the flag's values, or say what is wrong with them."""
    if row.takes == "switch":
        server.set(row.key, flag.is_on, flag)
        return
    try:
        values: list[Any] = [row.reads(value) for value in flag.values]
    except ArgumentTypeError as error:
        server.refused(flag, str(error))
        return
    except ValueError:
        kind = getattr(row.reads, "__name__", "")
        server.refused(flag, f"invalid {kind} value: {cut(flag.value)!r}")
        return
    if row.choices and values[0] not in row.choices:
        server.refused(flag, f"invalid choice (choose from {', '.join(row.choices)})")
        return
    value = values if row.takes == "many" else values[0]
    none = flag.name == "--long-prefill-token-threshold" and value == 0
    server.set(row.key, None if none else value, flag)


def entries_of(flag: Flag, server: Server) -> dict[str, Any]:
    """Return the entries of a flag's JSON; none, and a fault in the account, where it is none."""
    try:
        found = mapping(flag.value)
    except (ArgumentTypeError, RecursionError) as error:
        server.refused(flag.name, str(error))
        return {}
    if not found:
        server.no_effect(flag.name, "it says nothing")
    return found


@handler
def entries(flag: Flag, server: Server) -> None:
    """Settle each entry of a flag's JSON by the rows that `flags.toml` has for the flag."""
    said = entries_of(flag, server)
    for key, value in said.items():
        entry = Entry(f"{flag.name} {key}={cut(str(value))}", value, said)
        settle(row_of_entry(flag.name.removeprefix("--"), key), entry, server)


# --- variables, and GPUs of a container ---------------------------------------------------------

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_PACKAGES = ("VLLM_", "LMCACHE_")


def account_for(server: Server, *, num_gpus: int | None) -> None:
    """Note the effect of each variable that no flag has accounted for; values are not shown.

    num_gpus: GPUs of the server's container; None if unknown.
    """
    for name, value in server.variables.items():
        if name not in server.handled:
            _account(name, value, server)
    seen = num_gpus if num_gpus is not None else _visible(server)
    if seen is not None and seen < server.num_gpus and not _spans_nodes(server):
        server.refused(
            "",
            f"it may use {seen} GPUs, and asks for {server.num_gpus} (tensor, pipeline and data "
            "parallel); give it as many",
        )


def _account(name: str, value: str, server: Server) -> None:
    reason = _of(name, NO_EFFECT)
    if name in REFUSED_VARIABLES:
        neutral, why = REFUSED_VARIABLES[name]
        if value.lower() in neutral:
            server.no_effect(name, DEFAULT)
        else:
            server.refused(name, why)
    elif name in _VISIBLE:
        server.no_effect(name, "which GPUs they are changes no time; it names enough")
    elif (kept := _of(name, ASSUMED)) is not None:
        server.assumed(name, kept)
    elif reason is not None or not name.startswith(_PACKAGES):
        server.no_effect(name, reason or "it is no variable of vLLM's")
    else:
        server.refused(
            name, "not a variable that is known here; leave it out if it changes no time"
        )


def is_known(name: str) -> bool:
    """Whether it is known what a variable of vLLM's environment does."""
    tables = (NO_EFFECT, ASSUMED)
    return name in REFUSED_VARIABLES or any(_of(name, table) is not None for table in tables)


def _of(name: str, table: Iterable[tuple[Pattern[str], str]]) -> str | None:
    return next((why for pattern, why in table if pattern.fullmatch(name)), None)


def _visible(server: Server) -> int | None:
    """Return how many GPUs the environment shows; None if it does not say."""
    for name in _VISIBLE[:2]:
        value = server.variables.get(name, "").strip()
        if value and value.replace(",", "").replace(" ", "").isalnum():
            return len(value.rstrip(",").split(","))
    return None


_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_USED = "dollars and energy are those of the GPUs that a server uses"


def devices_item(flag: str, number: int | None, servers: Collection[Server]) -> Item:
    """Return what becomes of the GPUs that a container reserves.

    flag: that says them. number: in one copy of the container; None if it leaves that open.
    servers: all in the container; none where what is in it serves nothing, or has others, too.
    """
    used = sum(server.num_gpus for server in servers)
    is_part = any(_spans_nodes(each) for each in servers)
    is_open = any(each.is_set_elsewhere(size) for each in servers for size in _SIZES)
    if not used or number is None or is_part or is_open:
        return Item(flag, "no effect", f"{_USED}; --gpu says which they are")
    if number <= used:
        return Item(flag, "no effect", "its servers use them all; --gpu says which they are")
    why = (
        f"each copy reserves {number} GPUs and uses {used}; dollars and energy count those used, "
        f"the rent of all {number} is {number / used:.3g} times as much"
    )
    return Item(flag, "no effect", why, is_assumed=True)


def _spans_nodes(server: Server) -> bool:
    """Whether a flag says that further nodes have further GPUs."""
    said = server.said
    of_several = ("--nnodes", "--data-parallel-size-local", "--data-parallel-backend")
    backend = said.get("--distributed-executor-backend")
    by_ray = backend is not None and backend.value == "ray"
    return bool(server.part) or by_ray or any(name in said for name in of_several)
