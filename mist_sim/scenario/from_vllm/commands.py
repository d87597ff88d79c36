"""Translates vLLM's command lines into the keys of a scenario."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mist_sim.errors import ScenarioError, listed
from mist_sim.scenario.engines.version_names import spelt
from mist_sim.scenario.engines.versions import VERSIONS
from mist_sim.scenario.from_vllm.account import Item, Statement, check
from mist_sim.scenario.from_vllm.command_texts import read
from mist_sim.scenario.from_vllm.generators.known import workload_of
from mist_sim.scenario.from_vllm.generators.workloads import SAMPLING
from mist_sim.scenario.from_vllm.handlers.state_flags import with_state_cache
from mist_sim.scenario.from_vllm.serve import ARITIES, SHORT, read_server
from mist_sim.scenario.from_vllm.server import ELSEWHERE
from mist_sim.scenario.from_vllm.wrappers.command import SERVE, Command
from mist_sim.scenario.from_vllm.wrappers.container_images import engine_of


@dataclass(frozen=True)
class FromVllm:
    """A scenario's keys from command lines.

    keys: top-level keys of a scenario and their values. account: the effect of each flag, by
    command. others: programs that the texts start beside vLLM.
    """

    keys: dict[str, Any]
    account: tuple[Statement, ...]
    others: tuple[str, ...] = ()

    def checked(self) -> FromVllm:
        """Return itself. Raises ScenarioError with all faults where a flag is refused."""
        check(self.account)
        return self

    @property
    def left_out(self) -> tuple[str, ...]:
        """Flags that change no time."""
        return self._names(is_assumed=False)

    @property
    def assumed(self) -> tuple[Item, ...]:
        """Flags with an assumption, and the assumption."""
        found = {item: None for each in self.account for item in each.items if item.is_assumed}
        return tuple(found)

    @property
    def assumptions(self) -> list[str]:
        """A sentence for each assumption and each flag that is not read; results repeat them."""
        found = [f"Assumed for {item.flag}: {item.why}" for item in self.assumed]
        return found + [f"Not read, another program: {other}" for other in self.others]

    @property
    def overrides(self) -> dict[str, Any]:
        """The keys as overrides (`--set`) of a scenario that may have its own workload."""
        keys = dict(self.keys)
        workload = keys.get("workload", {})
        if "lengths" not in workload and "trace" not in workload:
            keys.pop("workload", None)
            keys |= {f"workload.{key}": value for key, value in workload.items()}
        return keys

    def _names(self, *, is_assumed: bool) -> tuple[str, ...]:
        names = [
            item.flag
            for each in self.account
            for item in each.items
            if item.verdict == "no effect" and item.is_assumed is is_assumed
        ]
        return tuple(dict.fromkeys(names))


def from_vllm(
    commands: Iterable[str],
    *,
    gpu: str | None = None,
    engine: str | None = None,
    overrides: Collection[str] = (),
) -> FromVllm:
    """Return the scenario keys of command lines of `vllm serve` and of load generators.

    commands: one `vllm serve` or several, at most one `vllm bench serve` or other load generator,
        as they stand in a shell,
        a script, a container or a manifest, or files that hold them. Equal servers become one
        client with a count. gpu: which the servers have, if known. engine: their version, which
        overrides that of an image. overrides: keys that are set elsewhere. Raises ScenarioError
        with every argument that cannot be honoured, and what to write instead.
    """
    return read_commands(commands, gpu=gpu, engine=engine, overrides=overrides).checked()


def read_commands(
    commands: Iterable[str],
    *,
    gpu: str | None = None,
    engine: str | None = None,
    overrides: Collection[str] = (),
) -> FromVllm:
    """Do the same as `from_vllm`, but report refused flags in the account only."""
    found: list[Command] = []
    others: list[str] = []
    for text in commands:
        mine, more = read(text)
        found += mine
        others += more
    version = (engine and spelt(engine)) or (ELSEWHERE if "engine" in overrides else None)
    reader = _Reader(version, overrides, gpu or "")
    for command in found:
        reader.take(command)
    keys = reader.keys(gpu)
    said = FromVllm(keys, tuple(reader.account), tuple(dict.fromkeys(others)))
    if not said.assumptions:
        return said
    return replace(said, keys={**keys, "assumptions": said.assumptions})


class _Reader:
    """Gathers clients and a workload from commands, one after another."""

    def __init__(self, engine: str | None, overrides: Collection[str], gpu: str) -> None:
        self.account: list[Statement] = []
        self._engine = engine
        self._overrides = overrides
        self._gpu = gpu
        self._servers: list[tuple[dict[str, Any], int]] = []
        self._parts: list[str] = []
        self._workload: dict[str, Any] = {}
        self._load = ""
        self._sampling: dict[str, Any] = {}
        self._limits: dict[str, Any] = {}
        self._front_end: dict[str, Any] = {}

    def take(self, command: Command) -> None:
        """Read one command."""
        if command.name == SERVE:
            self._take_server(command)
        else:
            self._take_load(command)

    def _take_load(self, command: Command) -> None:
        if self._workload:
            twice = (
                f"{command.name} is given twice"
                if command.name == self._load
                else (f"{self._load} and {command.name} are given")
            )
            raise ScenarioError(f"--from-vllm: {twice}; remove one")
        self._load = command.name
        self._workload, account, engine = workload_of(command.name, command.words, ARITIES, SHORT)
        self._sampling = self._workload.pop(SAMPLING, {})
        if engine:
            self._front_end |= self._workload.pop("front_end")
            self._take_server(replace(command, words=tuple(engine)))
            self._note(command, account.items, around=False)
            return
        for name in command.variables:
            account.no_effect(name, "it is the benchmark's, not the server's")
        self._note(command, account.items)

    def _take_server(self, command: Command) -> None:
        engine = None
        if command.image and self._engine is None:
            engine = engine_of(command.image, command.around)
        elif command.image:
            command.around.no_effect(f"image {_tag(command.image)}", "--engine says the version")
        version = self._engine or engine
        server = read_server(
            command.words,
            command.variables,
            num_gpus=command.num_gpus,
            overrides=self._overrides,
            gpu=self._gpu,
            engine=version,
        )
        self._note(command, server.account.items)
        self._limits |= server.workload
        self._front_end |= server.front_end
        if server.part:
            self._parts.append(server.part)
            return
        client = {**server.client, **({"engine": engine} if engine else {})}
        if command.count:
            self._servers.append((client, command.count))

    def _note(self, command: Command, items: Sequence[Item], *, around: bool = True) -> None:
        before = command.around.items if around else []
        self.account.append(Statement(command.name, (*before, *items)))

    def keys(self, gpu: str | None) -> dict[str, Any]:
        """Return the combined scenario keys of all commands."""
        if not self._servers and self._parts:
            raise ScenarioError(
                f"--from-vllm: {listed(dict.fromkeys(self._parts))} starts a further node of a "
                "server; give that of the first node, too"
            )
        if not self._servers and gpu:
            raise ScenarioError(f"--gpu has no effect without {SERVE}")
        asked = self._sampling if self._workload else None
        servers = [
            (_with_defaults(client, asked, self._engine or client.get("engine")), count)
            for client, count in self._servers
        ]
        keys = _clients(servers, gpu) if servers else {}
        keys |= self._workload
        if self._front_end:
            keys["front_end"] = self._front_end
        if self._limits:
            keys["workload"] = {**keys.get("workload", {}), **self._limits}
        return keys


def _with_defaults(
    client: Mapping[str, Any], asked: Mapping[str, Any] | None, engine: str | None
) -> dict[str, Any]:
    """Return a server's client with its version's values for what the command leaves out.

    asked: sampling options of a benchmark; None without one. engine: the version; "engine" if it
    is set elsewhere, so that it is not known here.
    """
    version = None if engine == ELSEWHERE else engine
    return _sampled(with_state_cache(client, version), asked, engine)


_LAST_GREEDY = 14
"""Of vLLM 0.14: the last whose benchmark sends a temperature of 0 where it says none.

Later ones leave it to the server (vllm/benchmarks/serve.py).
"""


def _sampled(
    client: Mapping[str, Any], asked: Mapping[str, Any] | None, engine: str | None
) -> dict[str, Any]:
    """Return a client whose requests have the sampling options of a benchmark.

    asked: None without a benchmark. At a temperature of 0 only penalties are left to say.
    """
    sampling = {**client.get(SAMPLING, {}), **(asked or {})}
    version = VERSIONS.get(engine or "")
    if asked is not None and version and version.minor <= _LAST_GREEDY:
        sampling["temperature"] = asked.get("temperature", 0)
    if sampling.get("temperature") == 0:
        sampling = {key: value for key, value in sampling.items() if key not in ("top_p", "top_k")}
    return {**client, SAMPLING: sampling} if sampling else dict(client)


def _tag(image: str) -> str:
    return image.rpartition("/")[2]


def _clients(servers: Sequence[tuple[Mapping[str, Any], int]], gpu: str | None) -> dict[str, Any]:
    """Return model, engine and clients; equal servers become one client with a count."""
    shared = {
        key: values[0]
        for key in ("model", "engine")
        if len(values := list(dict.fromkeys(server.get(key) for server, _ in servers))) == 1
        and values[0] is not None
    }
    found: list[dict[str, Any]] = []
    counts: list[int] = []
    for server, count in servers:
        own = {key: value for key, value in server.items() if key not in shared}
        if own in found:
            counts[found.index(own)] += count
        else:
            found.append(own)
            counts.append(count)
    names = [f"llm-{each['role']}" if "role" in each else "llm" for each in found]
    clients = [
        {
            "name": name if names.count(name) == 1 else f"{name}-{names[:k].count(name) + 1}",
            **({"count": count} if count > 1 else {}),
            **({"gpu": gpu} if gpu else {}),
            **client,
        }
        for k, (name, count, client) in enumerate(zip(names, counts, found, strict=True))
    ]
    return {**shared, "clients": clients}
