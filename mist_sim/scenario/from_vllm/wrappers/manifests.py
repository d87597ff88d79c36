"""YAML that starts servers: Kubernetes manifests, compose files, values of charts.

Sources: `Container` of the Kubernetes API (command, args, env, resources), with LeaderWorkerSet and
KServe, which embed it; the Compose specification (image, command, entrypoint, environment, deploy).
A container is read at any depth; the nearest enclosing `replicas` gives the count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mist_sim.errors import ScenarioError
from mist_sim.scenario.from_vllm.server import is_known
from mist_sim.scenario.from_vllm.wrappers import charts
from mist_sim.scenario.from_vllm.wrappers.command import SERVE, Command, Devices, Surroundings
from mist_sim.scenario.from_vllm.wrappers.containers import NOT_READ, inside
from mist_sim.scenario.from_vllm.wrappers.launchers import unwrapped
from mist_sim.scenario.from_vllm.wrappers.node_labels import labels_of, note_labels
from mist_sim.scenario.from_vllm.wrappers.shells import Variables, simple_commands

_REFERENCE = re.compile(r"\$\((\w+)\)")
_VARIABLE = re.compile("[A-Z][A-Z0-9_]*")
_GPUS = re.compile(r"(?:nvidia|amd)\.com/gpu")
_NOT_SERVERS = ("env", "environment", "initContainer", "initContainers")
_MOST_PLACES = 20_000  # aliases let a short text have any number of them
_GROUP = "leaderWorkerTemplate"
_COUNTS = ("replicas", "replicaCount", "minReplicas", "scale")


def commands_of(documents: Sequence[Any]) -> Iterator[Command]:
    """Yield vLLM's commands in parsed YAML documents, in their order.

    A variable without a value takes that of the one key of its name, as charts write such keys
    into the container's environment.
    """
    found = list(_commands(documents))
    keys = _variables_among(documents) if any("$" in w for c in found for w in c.words) else {}
    for command in found:
        used = {name for word in command.words for name in _names(word) if name in keys}
        if used:
            command.around.assumed(", ".join(sorted(used)), "as the keys of these names say")
        expand = Variables({name: keys[name] for name in used})
        words = [expand.expanded(word) if "$" in word else word for word in command.words]
        yield replace(command, words=tuple(words))


def _names(word: str) -> list[str]:
    return re.findall(r"\$\{?(\w+)", word)


def _variables_among(documents: Sequence[Any]) -> dict[str, str]:
    """Return the values of keys that are named as variables and have one value."""
    found: dict[str, set[str]] = {}
    rest = list(documents)
    for _ in range(_MOST_PLACES):
        if not rest:
            break
        part = rest.pop()
        inner = part.items() if isinstance(part, dict) else enumerate(part)
        for key, value in inner:
            if isinstance(value, dict | list):
                rest.append(value)
            elif value is not None and _VARIABLE.fullmatch(str(key)):
                found.setdefault(str(key), set()).add(str(value))
    return {name: next(iter(values)) for name, values in found.items() if len(values) == 1}


def _commands(documents: Sequence[Any]) -> Iterator[Command]:
    rest = [_Place(charts.spread(document), 1, {}) for document in reversed(documents)]
    for _ in range(_MOST_PLACES):
        if not rest:
            return
        place = rest.pop()
        inner = place.inner()
        if isinstance(place.part, dict):
            count = _count(place.part, place.count)
            labels = {**place.labels, **labels_of(place.part)}
            found = list(_own(place.part, count, labels))
            yield from _of_several_nodes(found) if place.in_group else found
            if _says_all(place.part):
                continue
            inner = [replace(each, count=count, labels=labels) for each in inner]
        rest += reversed(inner)
    raise ScenarioError(f"--from-vllm: must have <= {_MOST_PLACES} lists and mappings in YAML")


@dataclass(frozen=True)
class _Place:
    """A part of a document.

    count: copies of what is in it. labels: of the nodes where it runs. in_group: beside other
    containers.
    """

    part: Any
    count: int
    labels: Mapping[str, str]
    in_group: bool = False

    def inner(self) -> list[_Place]:
        """Return the lists and mappings in it."""
        part = self.part
        pairs = part.items() if isinstance(part, dict) else enumerate(part)
        return [
            _Place(value, self.count, self.labels, self.in_group or key == _GROUP)
            for key, value in pairs
            if isinstance(value, dict | list) and key not in _NOT_SERVERS
        ]


def _says_all(part: Mapping[str, Any]) -> bool:
    return charts.is_model_spec(part) or charts.is_config(part)


def _own(part: Mapping[str, Any], count: int, labels: Mapping[str, str]) -> Iterator[Command]:
    """Yield the commands of a mapping itself, not of those nested in it."""
    if charts.is_model_spec(part):
        around = _around(part, count, labels)
        words = charts.words_of(part, around)
        yield around.command(SERVE, words)
    elif charts.is_config(part):
        yield Surroundings(count=count).command(SERVE, charts.flags_from(part))
    elif _is_container(part):
        yield from _of_container(part, _around(part, count, labels))


def _of_several_nodes(commands: Sequence[Command]) -> list[Command]:
    """Return commands that span the GPUs of several containers."""
    return [replace(command, in_group=True) for command in commands]


def _count(part: Mapping[str, Any], count: int) -> int:
    """Return how many copies of a mapping's containers run. A leader with its workers is one."""
    deploy = part.get("deploy")  # of a compose file
    found = [part.get(key) for key in _COUNTS]
    found += [deploy.get("replicas")] if isinstance(deploy, dict) else []
    own = next((n for n in found if isinstance(n, int) and not isinstance(n, bool)), None)
    return count if own is None else count * max(own, 0)


def _is_container(part: Mapping[str, Any]) -> bool:
    says = any(part.get(key) for key in ("command", "args", "entrypoint", "storageUri"))
    return says and ("image" in part or "containers" not in part)


def _of_container(part: Mapping[str, Any], around: Surroundings) -> Iterator[Command]:
    """Yield the commands of a container.

    In compose files, whose services have no `name`, `command` is what `args` is elsewhere.
    """
    image = part.get("image")
    is_compose = "args" not in part and "name" not in part and isinstance(image, str)
    command = _words(part.get("command"), around)
    arguments = _words(part.get("args"), around)
    entrypoint = _words(part.get("entrypoint"), around)
    if is_compose:
        arguments = command
    else:
        entrypoint = command or entrypoint
    for each in (image, part):  # a chart's image, which may have the command as well
        if isinstance(each, dict) and "repository" in each:
            image = f"{each['repository']}:{each.get('tag', 'latest')}"
    if "vllm" in str(part.get("modelFormat", "")).lower():  # of KServe
        image = image or "vllm"
        arguments = _of_a_store(str(part.get("storageUri", "")), arguments)
    around.image = Variables(dict(around.variables)).expanded(str(image or ""))
    starts = list(inside(around.image, [], arguments, around, unwrapped)) if not entrypoint else []
    yield from starts or inside(around.image, entrypoint, arguments, around, unwrapped)


def _of_a_store(uri: str, arguments: list[str]) -> list[str]:
    """Return arguments with the model that KServe loads from the hub, which `/mnt/models` is."""
    name = uri.removeprefix("hf://").partition(":")[0]
    if name == uri or not uri:
        return arguments
    found = [word.replace("/mnt/models", name) for word in arguments]
    says = any(word.partition("=")[0] == "--model" for word in found) or name in found
    return found if says else [*found, "--model", name]


def _around(part: Mapping[str, Any], count: int, labels: Mapping[str, str]) -> Surroundings:
    """Return the variables, GPUs and copies of a container. labels: of its nodes."""
    around = Surroundings(count=count)
    note_labels(labels, around)
    for key in ("env", "environment", "envVars"):
        around.variables.update(_variables(part.get(key)))
    for key in ("env_file", "envFrom"):
        if part.get(key):
            around.account.assumed(key, NOT_READ)
    around.devices = _devices(part)
    return around


def _variables(part: Any) -> Iterator[tuple[str, str]]:
    """Yield the variables of `env: [{name, value}]`, `environment: {K: V}` or `[K=V]`."""
    if isinstance(part, dict):
        yield from (
            (str(name), "" if value is None else str(value)) for name, value in part.items()
        )
    for item in part if isinstance(part, list) else ():
        if isinstance(item, dict) and "name" in item:
            yield str(item["name"]), str(item.get("value", ""))
        elif isinstance(item, str):
            name, _, value = item.partition("=")
            yield name, value


def _words(part: Any, around: Surroundings) -> list[str]:
    """Return the words of a command that is a list, or one text that a shell would split."""
    if part is None:
        return []
    if isinstance(part, str):
        variables = Variables(dict(around.variables))
        return [word for words in simple_commands(part, variables) for word in words]
    words = [str(word) for word in part if not isinstance(word, dict | list)]
    known = dict(around.variables)
    for name in {name for word in words for name in _REFERENCE.findall(word)} & known.keys():
        if not is_known(name):
            around.account.no_effect(name, "the arguments have its value")
            around.variables.pop(name, None)
    expand = Variables(known)
    return [
        expand.expanded(_REFERENCE.sub(lambda m: known.get(m[1], m[0]), word)) for word in words
    ]


def _devices(part: Mapping[str, Any]) -> Devices | None:
    """Return the GPUs that a container reserves; None if it says nothing of them."""
    own = part.get("requestGPU")
    if isinstance(own, int):
        return Devices(f"requestGPU {own}", own) if own else None
    resources = part.get("resources")
    for key in ("limits", "requests"):
        said = resources.get(key) if isinstance(resources, dict) else None
        for name, number in (said if isinstance(said, dict) else {}).items():
            if _GPUS.fullmatch(str(name)) and str(number).isdecimal() and int(number):
                return Devices(f"resources.{key}.{name} {number}", int(number))
    return _compose_devices(part.get("deploy")) or _listed_devices(part.get("gpus"), "gpus")


def _compose_devices(deploy: Any) -> Devices | None:
    """Return the GPUs of `deploy.resources.reservations.devices`."""
    for key in ("resources", "reservations", "devices"):
        deploy = deploy.get(key) if isinstance(deploy, dict) else None
    return _listed_devices(deploy, "devices")


def _listed_devices(said: Any, flag: str) -> Devices | None:
    """Return the GPUs of a compose file's list of devices; `all` is any number."""
    if said == "all":
        return Devices(f"{flag} all", None)
    for device in said if isinstance(said, list) else ():
        if not isinstance(device, dict):
            continue
        ids, number = device.get("device_ids"), device.get("count")
        if isinstance(ids, list):
            names = ",".join(map(str, ids))
            return Devices(f"{flag} device_ids {names}", len(names.split(",")))
        if isinstance(number, int):
            return Devices(f"{flag} count {number}", number)
        if number == "all":
            return Devices(f"{flag} count all", None)
    return None
