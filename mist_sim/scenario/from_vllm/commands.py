"""Translates vLLM's command lines into the keys of a scenario."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mist_sim.bounds import SCENARIO_BYTES
from mist_sim.errors import ScenarioError, brief, listed
from mist_sim.inputs import text_of
from mist_sim.scenario.engines.versions import VERSIONS, spelt
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.from_vllm.account import Item, Statement, check
from mist_sim.scenario.from_vllm.generators import workload_of
from mist_sim.scenario.from_vllm.handlers.caches import with_state_cache
from mist_sim.scenario.from_vllm.loads import SAMPLING
from mist_sim.scenario.from_vllm.serve import read_server
from mist_sim.scenario.from_vllm.server import ELSEWHERE, Server, devices_item
from mist_sim.scenario.from_vllm.wrappers.command import (
    BENCH,
    COMMANDS,
    LOADS,
    SERVE,
    Command,
    Devices,
    Surroundings,
)
from mist_sim.scenario.from_vllm.wrappers.launchers import commands_in, engine_of
from mist_sim.scenario.from_vllm.wrappers.manifests import commands_of, overrule_gpu
from mist_sim.scenario.from_vllm.wrappers.shells import Variables, simple_commands
from mist_sim.user_paths import user_path

_STDIN = "-"
_YAML = (".yaml", ".yml", ".json")
_LONGEST_PATH = 1000
_FILE_NAME = re.compile(r"\S*/\S*|\S+\.(ya?ml|json|sh|txt|service)")
_UNIT = re.compile(r"^ExecStart=[-@:+!]*|^Environment=", re.MULTILINE)  # of systemd
_BLOCK = re.compile(  # of Markdown, as deep in a list as it may be
    r"^(?P<deep>[ \t>]*)(?P<fence>```+|~~~+)[^\n`]*\n(?P<code>.*?)^(?P=deep)(?P=fence)",
    re.MULTILINE | re.DOTALL,
)
_DOCUMENT = re.compile(r"^---[ \t\r\f\v]*(?:\n|\Z)", re.MULTILINE)  # the line between two
_ROOT_PROMPT = re.compile(r"^[ \t]*#[ \t]*(?=vllm )", re.MULTILINE)


def read(text: str) -> tuple[list[Command], list[str]]:
    """Return vLLM's commands in a text, and the names of other programs that it starts.

    text: a command line or a script as a shell takes it, Kubernetes manifests, a compose file or
        values of a chart; the path of a file that holds one of them, or the arguments of
        `vllm serve` alone; "-" for standard input. Raises ScenarioError for a text without a
        command of vLLM.
    """
    path = _path_of(text)
    whole = _whole(text, path)
    found, others = _of_blocks(whole) or _read(whole, path)
    if not found and path is not None and whole.lstrip().startswith("-"):
        words = [word for line in simple_commands(whole, Variables()) for word in line]
        found = [Surroundings().command(SERVE, words)]
    if not found:
        found, others = commands_in(_ROOT_PROMPT.sub("", whole))
    if found:
        return found, others
    got = f"the file {path} with other text" if path else brief(text.strip())
    if path is None and _FILE_NAME.fullmatch(text.strip()):
        raise ScenarioError(
            f"--from-vllm: there is no file {brief(text.strip())}, and it is no command "
            f"line of {' or '.join(COMMANDS)}"
        )
    if text == _STDIN:
        got = "other text on standard input"
    raise ScenarioError(
        f"--from-vllm must be a command line of {' or '.join(COMMANDS)}, as a shell, a container "
        f"or a manifest starts it, or a file that holds one, got {got}; loads may also be of "
        f"{', '.join(dict.fromkeys(name for name in LOADS.values() if name != BENCH))}"
    )


def _path_of(text: str) -> Path | None:
    """Return the file that a text names; None if it is not a file's name."""
    if "\n" in text or len(text) > _LONGEST_PATH:
        return None
    try:
        path = user_path(text)
    except ScenarioError:  # a command line is mostly too long for a name
        return None
    return path if path.is_file() else None


def _whole(text: str, path: Path | None) -> str:
    if path is not None:
        return text_of(path, SCENARIO_BYTES)
    if text.strip() == _STDIN:
        return yaml_text.decoded(sys.stdin.buffer.read(SCENARIO_BYTES + 1), "standard input")
    if len(text) > SCENARIO_BYTES:
        raise ScenarioError(f"--from-vllm: must have <= {SCENARIO_BYTES} characters")
    return text


def _of_blocks(text: str) -> tuple[list[Command], list[str]] | None:
    """Return the commands of a Markdown text's code blocks; None for a text without any."""
    blocks = [block["code"] for block in _BLOCK.finditer(text)]
    read = [_read(code, None) for code in blocks]
    found = [command for commands, _ in read for command in commands]
    return (found, [other for _, others in read for other in others]) if found else None


def _read(text: str, path: Path | None) -> tuple[list[Command], list[str]]:
    """Return the commands of a YAML mapping, else those of shell text."""
    documents = _documents(text, path)
    if documents:
        return list(commands_of(documents)), []
    shell = _UNIT.sub(lambda each: "export " if each[0].startswith("Env") else "", text)
    return commands_in(shell, Surroundings())


def _documents(text: str, path: Path | None) -> list[Any]:
    """Return the mappings of a YAML text; none if it is shell text."""
    is_yaml = path is not None and path.suffix.lower() in _YAML
    if not is_yaml and not (
        "\n" in text and ":" in text and "vllm serve" not in text.split("\n", maxsplit=1)[0]
    ):
        return []
    source = str(path) if path else "--from-vllm"
    try:
        found = [yaml_text.parse(part, source) for part in _DOCUMENT.split(text) if part.strip()]
    except ScenarioError:
        if is_yaml:
            raise
        return []
    return [document for document in found if isinstance(document, dict | list)]


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
        told = (it.flag for it in self._items if it.verdict == "no effect" and not it.is_assumed)
        return tuple(dict.fromkeys(told))

    @property
    def assumed(self) -> tuple[Item, ...]:
        """Flags with an assumption, and the assumption."""
        return tuple(dict.fromkeys(item for item in self._items if item.is_assumed))

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

    @property
    def _items(self) -> list[Item]:
        return [item for each in self.account for item in each.items]


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
    reader.note_devices()
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
        self._devices: dict[Devices, list[Server]] = {}
        self._places: dict[Devices, int] = {}  # of a statement that says what becomes of them
        self._workload: dict[str, Any] = {}
        self._load = ""
        self._loads: list[dict[str, Any]] = []  # of all lines of the generator
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
        if self._load and command.name != self._load:
            raise ScenarioError(
                f"--from-vllm: {self._load} and {command.name} are given; remove one"
            )
        keys, load, engine = workload_of(command.name, command.words)
        self._loads.append(keys)
        if self._load:
            return
        self._load = command.name
        self._workload = dict(keys)
        self._sampling = self._workload.pop(SAMPLING, {})
        if engine:
            self._front_end |= self._workload.pop("front_end")
            self._take_server(replace(command, words=tuple(engine)))
            self._note(command, load.items)
            return
        for name in command.around.variables:
            load.no_effect(name, "it is the benchmark's, not the server's")
        self._note(command, [*command.around.items, *load.items])

    def _take_server(self, command: Command) -> None:
        around, engine = command.around, None
        if around.image and self._engine is None:
            engine = engine_of(around)
        elif around.image:
            tag = around.image.rpartition("/")[2]
            around.no_effect(f"image {tag}", "--engine says the version")
        if self._gpu:
            overrule_gpu(around, self._gpu)
        devices = None if around.in_group else around.devices
        server = read_server(
            command.words,
            around.variables,
            num_gpus=None if devices is None else devices.number,
            overrides=self._overrides,
            gpu=self._gpu or around.gpu,
            engine=self._engine or engine,
        )
        if devices is not None:
            self._devices.setdefault(devices, []).append(server)
        self._note(command, [*around.items, *server.items])
        self._limits |= server.workload
        self._front_end |= server.front_end
        if server.part:
            self._parts.append(server.part)
            return
        gpu = {"gpu": around.gpu} if around.gpu and not self._gpu else {}
        client = {**gpu, **server.client, **({"engine": engine} if engine else {})}
        if around.count:
            self._servers.append((client, around.count))

    def _note(self, command: Command, items: Sequence[Item]) -> None:
        if command.around.devices is not None:
            self._places.setdefault(command.around.devices, len(self.account))
        self.account.append(Statement(command.name, tuple(items)))

    def note_devices(self) -> None:
        """Note what becomes of the GPUs of each container, of which its servers use some."""
        for devices, place in self._places.items():
            item = devices_item(devices.flag, devices.number, self._devices.get(devices, []))
            said = self.account[place]
            self.account[place] = replace(said, items=(*said.items, item))

    def keys(self, gpu: str | None) -> dict[str, Any]:
        """Return the combined scenario keys of all commands."""
        if len(self._loads) > 1:
            raise ScenarioError(_several(self._load, self._loads))
        if not self._servers and self._parts:
            raise ScenarioError(
                f"--from-vllm: {listed(dict.fromkeys(self._parts))} starts a further node of a "
                "server; give that of the first node, too"
            )
        if not self._servers and gpu:
            raise ScenarioError(f"--gpu has no effect without {SERVE}")
        servers = [
            (self._with_defaults(client, self._engine or client.get("engine")), count)
            for client, count in self._servers
        ]
        keys = _clients(servers, gpu) if servers else {}
        keys |= self._workload
        if self._front_end:
            keys["front_end"] = self._front_end
        if self._limits:
            keys["workload"] = {**keys.get("workload", {}), **self._limits}
        return keys

    def _with_defaults(self, client: Mapping[str, Any], engine: str | None) -> dict[str, Any]:
        """Return a server's client with its version's values for what the commands leave out.

        engine: the version; "engine" if it is set elsewhere, so that it is not known here.
        """
        asked, version = self._sampling, VERSIONS.get(engine or "")
        is_old = version is not None and version.minor <= _LAST_GREEDY
        if self._load == BENCH and is_old and "temperature" not in asked:
            asked = {"temperature": 0, **asked}
            self._note_greedy()
        return _sampled(with_state_cache(client, None if engine == ELSEWHERE else engine), asked)

    def _note_greedy(self) -> None:
        self.account = [
            replace(each, items=(*each.items, _GREEDY))
            if each.command == BENCH and _GREEDY not in each.items
            else each
            for each in self.account
        ]


def _several(name: str, loads: Sequence[Mapping[str, Any]]) -> str:
    """Return the message for several lines of a load generator, with what they differ in."""
    leaves = [dict(_leaves(each)) for each in loads]
    keys = dict.fromkeys(key for each in leaves for key in each)
    values = {key: list(dict.fromkeys(str(each.get(key)) for each in leaves)) for key in keys}
    differ = [f"{key} {','.join(each)}" for key, each in values.items() if len(each) > 1]
    kept = (
        f"keep one, and try the values of a key with mist run --vary; they differ in "
        f"{'; '.join(differ)}"
    )
    times = "twice" if len(loads) == 2 else f"{len(loads)} times"
    return f"--from-vllm: {name} is given {times}; {kept if differ else 'remove one'}"


def _leaves(keys: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


_LAST_GREEDY = 14
"""Of vLLM 0.14: the last whose benchmark sends a temperature of 0 where it says none.

Later ones leave it to the server (vllm/benchmarks/serve.py), as other load generators do.
"""

_GREEDY = Item("a line without --temperature", "applied", f"{SAMPLING}.temperature: 0")


def _sampled(client: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client whose requests have the sampling options that a benchmark asks for.

    At a temperature of 0 only penalties are left to say.
    """
    sampling = {**client.get(SAMPLING, {}), **asked}
    if sampling.get("temperature") == 0:
        sampling = {key: value for key, value in sampling.items() if key not in ("top_p", "top_k")}
    return {**client, SAMPLING: sampling} if sampling else dict(client)


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
