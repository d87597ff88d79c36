"""YAML that starts servers: Kubernetes manifests, compose files, values of charts.

Sources: `Container` of the Kubernetes API (command, args, env, resources), with LeaderWorkerSet
and KServe, which embed it; `PodSpec.nodeSelector` and `NodeSelectorTerm`; NVIDIA's GPU feature
discovery for the label of the product; the Compose specification (image, command, entrypoint,
environment, deploy). Charts: vLLM's production stack (`servingEngineSpec.modelSpec` in
helm/values.yaml and helm/templates/deployment-vllm-multi.yaml): `vllmConfig`, `lmcacheConfig`,
`nodeSelectorTerms`; vLLM's `--config`, a YAML file of long flags (`load_config_file` in
vllm/utils/argparse_utils.py).

A container is read at any depth; the nearest enclosing `replicas` gives the count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mist_sim.bounds import SCENARIO_BYTES
from mist_sim.errors import ScenarioError
from mist_sim.hardware import load_gpu
from mist_sim.inputs import text_of
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.from_vllm.handlers.caches import NO_DISK
from mist_sim.scenario.from_vllm.server import is_known
from mist_sim.scenario.from_vllm.wrappers.command import SERVE, Command, Devices, Surroundings
from mist_sim.scenario.from_vllm.wrappers.launchers import NOT_READ, inside
from mist_sim.scenario.from_vllm.wrappers.shells import Variables, simple_commands

_REFERENCE = re.compile(r"\$\((\w+)\)")
_VARIABLE = re.compile("[A-Z][A-Z0-9_]*")
_GPUS = re.compile(r"(?:nvidia|amd)\.com/gpu")
_NOT_SERVERS = ("env", "environment", "initContainer", "initContainers")
_MOST_PLACES = 20_000  # aliases let a short text have any number of them
_GROUP = "leaderWorkerTemplate"
_SKIPPED = "is skipped; if it spreads requests, `router` says how, else they go in turn"
_COUNTS = ("replicas", "replicaCount", "minReplicas", "scale")


def commands_of(documents: Sequence[Any]) -> Iterator[Command]:
    """Yield vLLM's commands in parsed YAML documents, in their order.

    A variable without a value takes that of the one key of its name, as charts write such keys
    into the container's environment.
    """
    found = list(_commands(documents))
    for name in _others(documents) if found else ():
        found[0].around.assumed(f"service {name}", _SKIPPED)
    keys = _variables_among(documents) if any("$" in w for c in found for w in c.words) else {}
    for command in found:
        used = {name for word in command.words for name in _names(word) if name in keys}
        if used:
            command.around.assumed(", ".join(sorted(used)), "as the keys of these names say")
        expand = Variables({name: keys[name] for name in used})
        words = [expand.expanded(word) if "$" in word else word for word in command.words]
        yield replace(command, words=tuple(words))


def _others(documents: Sequence[Any]) -> Iterator[str]:
    """Yield the services of compose files that start no vLLM."""
    for document in documents:
        services = document.get("services") if isinstance(document, dict) else None
        for name, service in services.items() if isinstance(services, dict) else ():
            if isinstance(service, dict) and not any(_commands([service])):
                yield str(name)


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
    rest = [_Place(_spread(document), 1, {}) for document in reversed(documents)]
    for _ in range(_MOST_PLACES):
        if not rest:
            return
        place = rest.pop()
        inner = place.inner()
        if isinstance(place.part, dict):
            count = _count(place.part, place.count)
            labels = {**place.labels, **_labels_of(place.part)}
            found = list(_own(place.part, count, labels))
            for command in found:
                command.around.in_group = place.in_group
            yield from found
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
    return _is_model_spec(part) or _is_config(part)


def _own(part: Mapping[str, Any], count: int, labels: Mapping[str, str]) -> Iterator[Command]:
    """Yield the commands of a mapping itself, not of those nested in it."""
    if _is_model_spec(part):
        around = _around(part, count, labels)
        words = _words_of(part, around)
        yield around.command(SERVE, words)
    elif _is_config(part):
        yield Surroundings(count=count).command(SERVE, _flags_from(part))
    elif _is_container(part):
        yield from _of_container(part, _around(part, count, labels))


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
    starts = list(inside(around.image, [], arguments, around)) if not entrypoint else []
    yield from starts or inside(around.image, entrypoint, arguments, around)


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
    _note_labels(labels, around)
    for key in ("env", "environment", "envVars"):
        around.variables.update(_variables(part.get(key)))
    for key in ("env_file", "envFrom"):
        if part.get(key):
            around.assumed(key, NOT_READ)
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
            around.no_effect(name, "the arguments have its value")
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


# --- labels of nodes ----------------------------------------------------------------------------

_PRODUCT = "nvidia.com/gpu.product"
_SELECTOR = f"nodeSelector.{_PRODUCT}"
_BRAND = re.compile("^(NVIDIA-)?(GeForce-)?", re.IGNORECASE)
_TERMS = "nodeSelectorTerms"
_REQUIRED = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", _TERMS)


def _labels_of(part: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that the nodes of a pod must have; several values of one with commas."""
    selector = part.get("nodeSelector")
    found = dict(selector) if isinstance(selector, dict) else {}
    return {str(key): str(value) for key, value in {**found, **dict(_affinity(part))}.items()}


def _affinity(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the labels that a part's one term asks for."""
    terms: Any = part
    for key in _REQUIRED:
        terms = terms.get(key) if isinstance(terms, dict) else None
    terms = terms or part.get(_TERMS)
    term = terms[0] if isinstance(terms, list) and len(terms) == 1 else None
    asked = term.get("matchExpressions") if isinstance(term, dict) else None
    for each in asked if isinstance(asked, list) else ():
        values = each.get("values") if isinstance(each, dict) else None
        if isinstance(values, list) and each.get("operator") == "In":
            yield str(each.get("key")), ",".join(map(str, values))


def _note_labels(labels: Mapping[str, str], around: Surroundings) -> None:
    """Note the labels of a pod's nodes, and the GPU that one of them names."""
    for key, value in labels.items():
        if key == _PRODUCT:
            _note_product(_SELECTOR, value, around)
        else:
            why = "which nodes they are changes no time; --gpu says which GPUs they have"
            around.no_effect(f"nodeSelector.{key}", why)


def _note_product(flag: str, product: str, around: Surroundings) -> None:
    """Note the GPU of a node's label `nvidia.com/gpu.product`, such as NVIDIA-A100-SXM4-80GB.

    flag: the key that says it.
    """
    if not product:
        return
    try:
        around.gpu = load_gpu(_BRAND.sub("", product)).name
    except ScenarioError:
        around.assumed(f"{flag} {product}", "no such GPU is known; --gpu says which")
    else:
        around.applied(f"{flag} {product}", "clients.gpu")


def overrule_gpu(around: Surroundings, gpu: str) -> None:
    """Note that --gpu says the GPU; refused where the labels of the nodes say another."""
    around.overrule(("requestGPUType",), "--gpu says which")
    is_read = any(
        item.flag.startswith(f"{_SELECTOR} ") and item.verdict == "applied" for item in around.items
    )
    if is_read and not _is_of(gpu, around.gpu):
        why = f"that is {around.gpu}, and --gpu says {gpu}; leave one of them out"
        around.overrule((_SELECTOR,), why, verdict="refused")
    else:
        around.overrule((_SELECTOR,), "--gpu says which")


def _is_of(gpu: str, name: str) -> bool:
    """Whether a GPU is that of a name, or made from it; an unknown one is told of elsewhere."""
    try:
        return load_gpu(gpu).based_on == name
    except ScenarioError:
        return True


# --- charts, and files of arguments -------------------------------------------------------------

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ROLES = {"producer": "kv_producer", "consumer": "kv_consumer"}
_LMCACHE = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
_SAID = ("enabled", "kvRole", "cpuOffloadingBufferSize", "maxLocalCpuSize", "logLevel", "remoteUrl")
_DISKS = ("diskOffloadingBufferSize", "maxLocalDiskSize")
_NO_DISK = f"{NO_DISK}, without the key"
_ROUTERS = {
    "roundrobin": "round_robin",
    "session": "session_affinity",
    "prefixaware": "prefix_affinity",
}
_NOT_FLAGS = ("extraArgs", "v1", "v0", "enable")
_SPELT = {"--enable-lo-ra": "--enable-lora"}


def _is_model_spec(part: Mapping[str, Any]) -> bool:
    """Whether a mapping is one model of the production stack's values."""
    return "modelURL" in part


def _words_of(part: Mapping[str, Any], around: Surroundings) -> list[str]:
    """Return vLLM's arguments for a model's values, and note its image and variables."""
    repository, tag = part.get("repository", "vllm/vllm-openai"), part.get("tag", "latest")
    around.image = f"{repository}:{tag}"
    _note_product("requestGPUType", str(part.get("requestGPUType") or ""), around)
    words = [str(part["modelURL"])]
    config = part.get("vllmConfig")
    if isinstance(config, dict):
        for key, value in config.items():
            if key not in _NOT_FLAGS:
                words += _flag(f"--{_CAPITAL.sub('-', str(key)).lower()}", value)
        if "enablePrefixCaching" not in config:
            words += ["--no-enable-prefix-caching"]
        for key, engine in (("v1", "1"), ("v0", "0")):
            if str(config.get(key)) == "1":
                around.variables["VLLM_USE_V1"] = engine
        extra = config.get("extraArgs")
        words += [str(word) for word in extra] if isinstance(extra, list) else []
    if part.get("enableLoRA"):
        words += ["--enable-lora"]
    if part.get("enableTool"):
        words += ["--enable-auto-tool-choice"]
    if "routingLogic" in part:
        _note_router(str(part["routingLogic"]), around)
    cache = part.get("lmcacheConfig")
    if isinstance(cache, dict) and cache.get("enabled"):
        words += _cache(cache, around)
    return words


def _spread(document: Any) -> Any:
    """Return values of the production stack with what all models share written into each.

    `routerSpec.routingLogic` and, as `lmcacheConfig.remoteUrl`, the store of `cacheserverSpec`.
    Other documents are returned unchanged.
    """
    engines = document.get("servingEngineSpec") if isinstance(document, dict) else None
    if not isinstance(engines, dict) or not isinstance(engines.get("modelSpec"), list):
        return document
    router, store = document.get("routerSpec"), document.get("cacheserverSpec")
    shared = {}
    if isinstance(router, dict) and "routingLogic" in router:
        shared["routingLogic"] = router["routingLogic"]
    found = []
    for model in engines["modelSpec"]:
        own = {**model, **shared} if isinstance(model, dict) else model
        cache = own.get("lmcacheConfig") if isinstance(own, dict) else None
        if isinstance(cache, dict) and isinstance(store, dict) and store.get("enabled", store):
            own["lmcacheConfig"] = {"remoteUrl": "cacheserverSpec", **cache}
        found.append(own)
    return {**document, "servingEngineSpec": {**engines, "modelSpec": found}}


def _note_router(logic: str, around: Surroundings) -> None:
    flag = f"routingLogic {logic}"
    if logic in _ROUTERS:
        around.assumed(
            flag, f"requests are spread by the scenario's router; --set router={_ROUTERS[logic]}"
        )
    elif logic == "disaggregated_prefill":
        around.no_effect(flag, "the roles of the servers say who computes prompts")
    else:
        around.assumed(flag, "requests are spread by the scenario's router")


def _cache(cache: Mapping[str, Any], around: Surroundings) -> Iterator[str]:
    """Yield the connector for LMCache's values, and note its variables."""
    role = _ROLES.get(str(cache.get("kvRole", "")).removeprefix("kv_"), _LMCACHE["kv_role"])
    size = cache.get("cpuOffloadingBufferSize", cache.get("maxLocalCpuSize"))
    if size is not None:
        around.variables |= {"LMCACHE_LOCAL_CPU": "True", "LMCACHE_MAX_LOCAL_CPU_SIZE": str(size)}
    for key, name in (("logLevel", "LMCACHE_LOG_LEVEL"), ("remoteUrl", "LMCACHE_REMOTE_URL")):
        if key in cache:
            around.variables[name] = str(cache[key])
    for key, value in cache.items():
        if key in _DISKS and value:
            around.refused(f"lmcacheConfig.{key}", _NO_DISK)
        elif key not in _SAID:
            around.assumed(f"lmcacheConfig.{key}", "LMCache keeps blocks as a tier does")
    yield "--kv-transfer-config"
    yield json.dumps({**_LMCACHE, "kv_role": role})


def _is_config(part: Mapping[str, Any]) -> bool:
    """Whether a mapping is a file of vLLM's `--config`: long flags without their dashes."""
    return (
        "model" in part
        and all(isinstance(key, str) for key in part)
        and any(str(key).replace("_", "-") in _TELLING for key in part)
    )


_TELLING = (
    *("tensor-parallel-size", "max-model-len", "gpu-memory-utilization", "max-num-seqs"),
    *("max-num-batched-tokens", "kv-cache-dtype", "served-model-name", "enable-prefix-caching"),
)


def with_config(words: Sequence[str]) -> tuple[list[str], str]:
    """Return arguments with those of the file of `--config` before them, and what is wrong with it.

    The words of `--config` stay; a fault is empty where there is none.
    """
    position = next((i for i, word in enumerate(words) if word.startswith("--config")), None)
    if position is None or words[position].partition("=")[0] != "--config":
        return list(words), ""
    name = words[position].partition("=")[2] or "".join(words[position + 1 : position + 2])
    path = Path(name)
    if not path.is_file():
        return list(words), "there is no such file here; instead: its keys as arguments"
    part = yaml_text.parse(text_of(path, SCENARIO_BYTES), name)
    if not isinstance(part, dict):
        return list(words), "the file must have keys and values"
    return [*_flags_from(part), *words], ""


def _flags_from(part: Mapping[str, Any]) -> list[str]:
    """Return the words of a file of long flags."""
    return [word for key, value in part.items() for word in _flag(f"--{key}", value)]


def _flag(flag: str, value: Any) -> list[str]:
    """Return the words of a key and its value."""
    flag = _SPELT.get(flag, flag).replace("_", "-")
    if value is True:
        return [flag]
    if value is False:
        return [f"--no-{flag[2:]}"] if not flag.startswith("--no-") else []
    if value is None:
        return []
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
