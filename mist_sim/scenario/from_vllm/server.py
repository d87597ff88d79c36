"""A client of a scenario as it grows from the flags of `vllm serve`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from re import Pattern
from typing import Any

from mist_sim.errors import brief
from mist_sim.scenario.engines.version_names import version_of
from mist_sim.scenario.from_vllm.account import Account, Item
from mist_sim.scenario.from_vllm.flags import Flag
from mist_sim.scenario.from_vllm.tables import ASSUMED, NO_EFFECT, REFUSED_VARIABLES

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


Handler = Callable[[Flag, Server], None]
"""Honours a flag, or notes in the account why not."""


def _shown(key: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return f"{key}: {str(value).lower() if value is not None else 'null'}"
    return f"{key}: {value if isinstance(value, str | int | float) else brief(value)}"


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_PACKAGES = ("VLLM_", "LMCACHE_")


def account_for(server: Server, *, num_gpus: int | None) -> None:
    """Note the effect of each variable that no flag has accounted for; values are not shown.

    num_gpus: GPUs of the server's container; None if unknown.
    """
    for name, value in server.variables.items():
        if name not in server.handled:
            _account(name, value, server)
    seen = num_gpus if num_gpus is not None else visible(server)
    if seen is not None and seen < server.num_gpus and not _spans_nodes(server):
        server.account.refused(
            "",
            f"it may use {seen} GPUs, and asks for {server.num_gpus} (tensor, pipeline and data "
            "parallel); give it as many",
        )


def _account(name: str, value: str, server: Server) -> None:
    reason = _of(name, NO_EFFECT)
    if name in REFUSED_VARIABLES:
        neutral, why = REFUSED_VARIABLES[name]
        if value.lower() in neutral:
            server.account.no_effect(name, "that is so by default")
        else:
            server.account.refused(name, why)
    elif name in _VISIBLE:
        server.account.no_effect(name, "which GPUs they are changes no time; it names enough")
    elif (kept := _of(name, ASSUMED)) is not None:
        server.account.assumed(name, kept)
    elif reason is not None or not name.startswith(_PACKAGES):
        server.account.no_effect(name, reason or "it is no variable of vLLM's")
    else:
        server.account.refused(
            name, "not a variable that is known here; leave it out if it changes no time"
        )


def is_known(name: str) -> bool:
    """Whether it is known what a variable of vLLM's environment does."""
    tables = (NO_EFFECT, ASSUMED)
    return name in REFUSED_VARIABLES or any(_of(name, table) is not None for table in tables)


def _of(name: str, table: Iterable[tuple[Pattern[str], str]]) -> str | None:
    return next((why for pattern, why in table if pattern.fullmatch(name)), None)


def visible(server: Server) -> int | None:
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
    several = "--nnodes" in said or "--data-parallel-size-local" in said or bool(server.part)
    backend = said.get("--distributed-executor-backend")
    return (
        several
        or (backend is not None and backend.value == "ray")
        or ("--data-parallel-backend" in said)
    )
