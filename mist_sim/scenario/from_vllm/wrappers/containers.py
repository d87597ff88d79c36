"""`docker run IMAGE ...` and its like: variables, GPUs, and the arguments behind the image.

Sources: the options of `docker run` (docs.docker.com) and `podman run` (docs.podman.io); the entry
points of vllm/vllm-openai: `vllm serve`, and up to 0.11 `python3 -m
vllm.entrypoints.openai.api_server`, which take the same arguments.

Tags of container images: which version of vLLM they hold, and whose defaults are nearest.

Source: the tags of vllm/vllm-openai on Docker Hub are vLLM's versions, v0.19.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from mist_sim.errors import cut
from mist_sim.scenario.engines.engine_version import LATEST, OLDEST
from mist_sim.scenario.engines.version_names import spelt
from mist_sim.scenario.from_vllm.account import Account
from mist_sim.scenario.from_vllm.wrappers.command import SERVE, Command, Devices, Surroundings

_TAG = re.compile(r"v?(\d+)\.(\d+)(?:\.\w+)*(?:[-_].*)?")
_OFFICIAL = ("vllm/vllm-openai", "vllm/vllm-openai-rocm")
_OLDEST = (0, 8)  # the first version in which v1 is the default


def engine_of(image: str, account: Account) -> str | None:
    """Return the engine version that an image's tag names, noting assumptions.

    None if the tag names no version, or an unknown one.
    """
    name, _, tag = image.rpartition("/")[2].partition(":")
    place = image.partition("@")[0].removesuffix(f":{tag}" if tag else "")
    found = _TAG.fullmatch(tag)
    if not place.endswith(_OFFICIAL) or found is None:
        account.no_effect(f"image {name}:{tag}" if tag else f"image {name}", _no_version(tag))
        return None
    asked = (int(found[1]), int(found[2]))
    if asked < _OLDEST:
        account.refused(
            f"image {name}:{tag}",
            "versions before 0.8 have another engine, v0; instead: --engine vllm-0.10, whose "
            "scheduler is v1's",
        )
        return None
    nearest = min(max(asked, (0, OLDEST)), (0, LATEST))
    engine = spelt(re.split("[-_]", tag)[0] if nearest == asked else f"vllm-0.{nearest[1]}")
    if nearest == asked:
        account.applied(f"image {name}:{tag}", f"engine: {engine}")
    else:
        account.taken(
            f"image {name}:{tag}",
            f"engine: {engine}, of the known ones the nearest; --engine says another",
        )
    return engine


def _no_version(tag: str) -> str:
    what = f"the tag {tag} names" if tag else "without a tag it names"
    return f"{what} no version of vLLM; --engine says it"


CONTAINERS = ("docker", "podman", "nerdctl")
_RUN = ("run", "create", "exec")
_SWITCHES = frozenset(
    [
        "--detach",
        "--interactive",
        "--tty",
        "--rm",
        "--privileged",
        "--init",
        "--read-only",
        "--no-healthcheck",
        "--publish-all",
        "--oom-kill-disable",
        "--quiet",
        "--replace",
        "--sig-proxy",
        "--no-hosts",
        "--tls-verify",
    ]
)
_LETTERS = re.compile(r"-[ditPq]+")
_HOST = ("--cpus", "--cpu-shares", "--cpuset-cpus", "--cpuset-mems", "--memory", "-m")
_PLAIN = "it is the container's, and changes no step"
_LIMITED = "host times are those of overhead"

NOT_READ = "variables that are elsewhere are not read; give those of vLLM in the text"

Unwrap = Callable[[list[str], Surroundings], Iterator[Command]]


def contained(words: list[str], around: Surroundings, unwrap: Unwrap) -> Iterator[Command]:
    """Yield the commands that a container runs. unwrap: the same for words without a container."""
    if "run" not in words[1:3] and not set(words[1:3]) & set(_RUN):
        return
    rest = words[next(i for i, word in enumerate(words) if word in _RUN) + 1 :]
    entrypoint, rest = _options(rest, around)
    if not rest:
        return
    image, arguments = rest[0], rest[1:]
    if words[1] != "exec":
        around.image = image
    yield from inside(image, entrypoint, arguments, around, unwrap)


def inside(
    image: str, entrypoint: list[str], arguments: list[str], around: Surroundings, unwrap: Unwrap
) -> Iterator[Command]:
    """Yield the commands of a container, given its image and its own command, if any.

    entrypoint: empty for the image's own, which is vLLM's server in images named after it.
    """
    if entrypoint:
        yield from unwrap([*entrypoint, *arguments], around)
        return
    found = list(unwrap(list(arguments), around.copy())) if arguments else []
    if found:
        yield from found
    elif is_vllm(image) or _are_the_servers(arguments):
        if not is_vllm(image):
            around.account.assumed(f"image {cut(image)}", "its entry point is vLLM's server")
        own = arguments[1:] if arguments[:1] == ["serve"] else arguments
        yield around.command(SERVE, own)


def _are_the_servers(arguments: list[str]) -> bool:
    """Whether arguments alone are those of vLLM's server."""
    names = [word.partition("=")[0] for word in arguments]
    return "--model" in names and names[0].startswith("--")


def pod(words: list[str], around: Surroundings, unwrap: Unwrap) -> Iterator[Command]:
    """Yield the commands of `kubectl run NAME --image=IMAGE ... -- ARGUMENTS`."""
    end = words.index("--") if "--" in words else len(words)
    options, arguments = words[2:end], words[end + 1 :]
    image, is_own = "", False
    for position, word in enumerate(options):
        name, equals, value = word.partition("=")
        value = value if equals else "".join(options[position + 1 : position + 2])
        if name == "--image":
            image = around.image = value
        elif name == "--env":
            around.variables[value.partition("=")[0]] = value.partition("=")[2]
        elif name == "--command":
            is_own = value.lower() != "false" if equals else True
        elif name.startswith("-"):
            around.account.no_effect(name, _PLAIN)
    yield from inside(
        image, arguments if is_own else [], [] if is_own else arguments, around, unwrap
    )


def is_vllm(image: str) -> bool:
    """Whether an image is named after vLLM, so that its entry point is the server."""
    return "vllm" in image.rpartition("/")[2].partition(":")[0].lower() or "vllm-openai" in image


def _options(words: list[str], around: Surroundings) -> tuple[list[str], list[str]]:
    """Read the options of a container, and return its entry point and what follows them."""
    entrypoint: list[str] = []
    position = 0
    while position < len(words) and words[position].startswith("-"):
        name, equals, value = words[position].partition("=")
        position += 1
        if name in _SWITCHES or _LETTERS.fullmatch(name):
            around.account.no_effect(name, _PLAIN)
            continue
        if not equals and re.fullmatch(r"-[evp]\S+", name):
            name, value = name[:2], name[2:]
        elif not equals:
            value = words[position] if position < len(words) else ""
            position += 1
        if name == "--entrypoint":
            entrypoint = value.split()
        _option(name, value, around)
    return entrypoint, words[position:]


def _option(name: str, value: str, around: Surroundings) -> None:
    if name in ("-e", "--env"):
        variable, _, content = value.partition("=")
        around.variables[variable] = content  # accounted for as a variable
    elif name == "--gpus":
        around.devices = Devices(f"{name} {value}", _num_gpus(value))
    elif name in _HOST:
        around.account.assumed(name, _LIMITED)
    elif name == "--env-file":
        around.account.assumed(name, NOT_READ)
    elif name == "--entrypoint":
        around.account.no_effect(f"{name} {value}", "it is the command that is read")
    else:
        around.account.no_effect(name, _PLAIN)


def _num_gpus(value: str) -> int | None:
    """Return how many GPUs `--gpus` gives: 2, or "device=0,1"; None for all."""
    text = value.strip("\"'")
    if text.isdecimal():
        return int(text)
    if text.startswith("device="):
        return len(text.removeprefix("device=").strip("\"'").split(","))
    return None
