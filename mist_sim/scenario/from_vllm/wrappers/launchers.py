"""Programs that start vLLM: shells, environments, process managers, containers; its own names.

Sources: the options of `docker run` (docs.docker.com) and `podman run` (docs.podman.io); the entry
points of vllm/vllm-openai: `vllm serve`, and up to 0.11 `python3 -m
vllm.entrypoints.openai.api_server`, which take the same arguments; its tags on Docker Hub, which
are vLLM's versions, v0.19.0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from mist_sim.errors import cut
from mist_sim.scenario.engines.versions import LATEST, OLDEST, spelt
from mist_sim.scenario.from_vllm.wrappers.command import (
    LOADS,
    NAMES,
    PROGRAMS,
    SERVE,
    Command,
    Devices,
    Surroundings,
)
from mist_sim.scenario.from_vllm.wrappers.shells import ASSIGNMENT, Variables, simple_commands

_SHELLS, _CONTAINERS, _STARTERS = NAMES["shells"], NAMES["containers"], NAMES["starters"]
_KEYWORDS, _LOOPS = NAMES["keywords"], NAMES["loops"]
_HOST = "starting a program differently changes no step; overhead includes where its threads run"
_SEQUENCE = re.compile(r"\{(\d+)\.\.(\d+)\}|[$`]\(?seq (?:(\d+) )?(\d+)[)`]")
_DEPTH = 8


@dataclass
class _Branches:
    """An `if` or `case` that is being read, or a loop over the script's own arguments.

    first, before: the values at the beginning of the first branch, and of this one. holds: whether
    it is taken; None if the text does not say. is_if: no `case`. is_read: the words after its test
    are. was_taken: whether one of the branches before it is. loops: of a loop over the script's own
    arguments, which are none here, the loops in it that are open; None for others.
    """

    first: Variables
    before: Variables
    holds: bool | None
    is_if: bool
    is_read: bool = False
    was_taken: bool | None = False
    is_first: bool = True
    loops: int | None = None

    def next(self, words: Sequence[str], variables: Variables) -> None:
        """Leave a branch for that of `elif` or `else`."""
        self.leave(variables)
        self.before = variables.kept()
        self.is_first = self.is_read = False
        if self.was_taken is False:
            self.was_taken = self.holds
        test = _holds(words[1:]) if words[0] == "elif" else True
        self.holds = False if self.was_taken or test is False else test
        if self.was_taken is None and self.holds:
            self.holds = None

    def leave(self, variables: Variables) -> None:
        """Forget what a branch sets that is not taken."""
        if self.holds is False:
            variables.go_back(self.before)


class _Script:
    """Which commands of a script run, and how often: its branches and loops as they are read.

    set_there: names of variables that branches set of which it is not known whether they are taken.
    loops: those that are open, as written, and how often each runs; None if the text does not say.
    """

    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self.branches: list[_Branches] = []
        self.loops: list[tuple[str, int | None]] = []
        self.set_there: dict[str, None] = {}

    def runs(self, words: Sequence[str]) -> bool:
        """Enter, change or leave a branch; return whether the words are in one that is taken."""
        self._branch(words)
        if all(each.holds is not False for each in self.branches):
            return True
        over = next((each for each in reversed(self.branches) if each.loops is not None), None)
        if over is None or over.loops is None:
            return False
        if words[0] in ("for", "while", "until"):  # also the loop itself, which begins at -1
            over.loops += 1
        elif words[0] == "done" and over.loops:
            over.loops -= 1
        elif words[0] == "done":
            over.leave(self.variables)
            self.branches.remove(over)
        return False

    def _branch(self, words: Sequence[str]) -> None:
        inner, variables = self.branches[-1] if self.branches else None, self.variables
        if words[0] == "while" and ("$#" in words or words[1:2] == ["getopts"]):
            before = variables.kept()
            self.branches.append(_Branches(before, before, False, True, is_read=True, loops=-1))
        elif words[0] in ("if", "case"):
            is_if = words[0] == "if"
            test = _holds(words[1:]) if is_if else None
            self.branches.append(_Branches(variables.kept(), variables.kept(), test, is_if))
        elif inner is None:
            return
        elif words[0] in ("elif", "else"):
            inner.next(words, variables)
        elif words[0] in ("fi", "esac"):
            is_read = all(each.holds is not False for each in self.branches[:-1])
            if is_read and (inner.holds is None or inner.was_taken is None):
                old, new = inner.first.values, variables.values.items()
                self.set_there |= dict.fromkeys(k for k, value in new if old.get(k) != value)
            inner.leave(variables)
            self.branches.pop()
        elif not inner.is_read:
            if words[0] != "then":  # the test has a second part
                inner.holds = None
            inner.is_read = True

    def is_loop(self, words: Sequence[str]) -> bool:
        """Enter or leave a loop; return whether that is all that the words do."""
        if words[0] == "done":
            del self.loops[-1:]
        elif words[0] == "for":
            self.loops.append((cut(" ".join(words)), _times(words[3:])))
        elif words[0] in _LOOPS:
            self.loops.append((words[0], 1))
        return words[0] in ("done", "for")

    def note(self, command: Command) -> None:
        """Note in a command's account what the loops and branches around it do to it."""
        around = command.around
        for written, number in self.loops:
            if written in _LOOPS:
                around.no_effect(written, "a server is started again when it ends, not here")
            elif command.name != SERVE:
                around.assumed(written, "the benchmark runs once; mist run --replications N")
            elif number is None:
                around.assumed(written, "one server is started; --set clients.0.count=N")
            else:
                around.applied(written, f"count: {number}")
        if self.set_there:
            names = ", ".join(self.set_there)
            around.assumed("if", f"{names} as read in its branches; set them in front")
        if any(each.holds is None and not each.is_first for each in self.branches):
            around.assumed("else", "all branches are read; leave out those not taken")


def commands_in(
    text: str, around: Surroundings | None = None, depth: int = 0
) -> tuple[list[Command], list[str]]:
    """Return vLLM's commands in a shell's text, and the other programs that it starts.

    Of an `if` whose test compares values that the text says, the branch that is taken is read.
    """
    around = around or Surroundings()
    variables = Variables(dict(around.variables), exported=set(around.variables))
    script = _Script(variables)
    found: list[Command] = []
    others: list[str] = []
    for words in simple_commands(text, variables):
        if not script.runs(words):
            continue
        in_case = bool(script.branches) and not script.branches[-1].is_if
        if found and words[0].startswith("--") and not in_case:  # the backslash before it got lost
            found[-1] = replace(found[-1], words=(*found[-1].words, *words))
            continue
        if script.is_loop(words):
            continue
        here = around.copy()
        here.variables |= variables.environment
        here.count *= prod(number or 1 for _, number in script.loops)
        mine = list(unwrapped(words, here, depth))
        for command in mine:
            script.note(command)
        found += mine
        if not mine:
            others += _programs(words)
    return found, others


_TESTS = {"[[": "]]", "[": "]"}
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_HOLDS: dict[str, Callable[[str, str], bool]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
}


def _holds(words: Sequence[str]) -> bool | None:
    """Return whether a test of texts holds; None if it is another, or its values are not known.

    A model's id is no folder.
    """
    if words[:1] == ["!"]:
        inner = _holds(words[1:])
        return None if inner is None else not inner
    if not words or words[-1] != _TESTS.get(words[0]) or any(c in w for w in words for c in "$`*?"):
        return None
    match words[1:-1]:
        case ["!", *rest]:
            return _holds(["!", "[", *rest, "]"])
        case ["-z" | "-n" as sign, value]:
            return bool(value) is (sign == "-n")
        case ["-d", value] if not value or _HUB_ID.fullmatch(value):
            return False
        case [left, sign, right] if sign in _HOLDS:
            return _HOLDS[sign](left, right)
    return None


_NAME = re.compile(r"[A-Za-z_][\w.+-]*")


def _programs(words: Sequence[str]) -> list[str]:
    """Return the name of the program that a command starts; none for the shell's own."""
    rest = [word for word in words if word not in _KEYWORDS]
    name = rest[0].rpartition("/")[2] if rest else ""
    is_own = name in NAMES["builtins"] or words[0] in ("case", "for")
    return [] if is_own or not _NAME.fullmatch(name) else [name]


def _times(items: Sequence[str]) -> int | None:
    """Return how often a loop over these words runs; None if the text does not say."""
    total = 0
    for item in items:
        bounds = _SEQUENCE.fullmatch(item)
        if bounds is not None:
            first, last = bounds[1] or bounds[3] or "1", bounds[2] or bounds[4]
            total += max(int(last[:9]) - int(first[:9]) + 1, 0)
        elif any(sign in item for sign in "$`*?{"):
            return None
        else:
            total += 1
    return total or None


def unwrapped(words: list[str], around: Surroundings, depth: int = 0) -> Iterator[Command]:
    """Yield the commands of vLLM that the words of one command start; none for another program."""
    while words:
        name = words[0].rpartition("/")[2]
        assigned = ASSIGNMENT.fullmatch(words[0])
        start = start_of(words)
        if start is not None:
            before = words[: len(words) - len(start[1])]
            if name not in {words[0] for words in LOADS}:
                around.no_effect(cut(" ".join(before)), _HOST)
            yield around.command(*start)
            return
        if assigned is not None:
            around.variables[assigned[1]] = assigned[3]
            words = words[1:]
        elif name in _KEYWORDS:
            words = words[1:]
        elif name == "eval" and depth < _DEPTH:
            yield from commands_in(" ".join(words[1:]), around, depth + 1)[0]
            return
        elif name in _SHELLS and depth < _DEPTH:
            yield from _of_a_shell(words, around, depth)
            return
        elif name in _CONTAINERS and depth < _DEPTH:
            yield from _contained(words, around, depth + 1)
            return
        elif name in ("kubectl", "oc") and words[1:2] == ["run"] and depth < _DEPTH:
            yield from _pod(words, around, depth + 1)
            return
        elif name in _STARTERS or name.startswith("python"):
            words = _behind(words, name, around)
        else:
            return


def start_of(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return which command begins here, and its arguments; None for none that is known."""
    rest = list(words)
    name = rest[0].rpartition("/")[2] if rest else ""
    if name.startswith("python") or name in ("torchrun", "pypy"):
        module = _module(rest)
        if module is None:
            return None
        name, rest = module[0], [module[0], *module[1]]
        if name in PROGRAMS["modules"]:
            return PROGRAMS["modules"][name], rest[1:]
        name = "vllm" if name in NAMES["mains"] else name
    script = PROGRAMS["scripts"].get(name)
    if script is not None:
        return script, rest[1:]
    if (name, *rest[1:2]) == ("vllm", "serve"):
        return SERVE, rest[2:]
    for start, load in LOADS.items():
        if (name, *rest[1 : len(start)]) == start:
            return load, rest[len(start) :]
    return None


def _module(words: list[str]) -> tuple[str, list[str]] | None:
    """Return the module or the script that Python runs, and its arguments."""
    for position, word in enumerate(words[1:], start=1):
        if word == "-m" and position + 1 < len(words):
            return words[position + 1], words[position + 2 :]
        name = word.rpartition("/")[2]
        if name in PROGRAMS["scripts"]:
            return name, words[position + 1 :]
        if name.endswith(".py"):
            return None
    return None


def _of_a_shell(words: list[str], around: Surroundings, depth: int) -> Iterator[Command]:
    """Yield what `sh -c TEXT` starts."""
    for position, word in enumerate(words[1:], start=1):
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            text = " ".join(words[position + 1 : position + 2])
            found, _ = commands_in(text, around, depth + 1)
            yield from found
            return


def _behind(words: list[str], name: str, around: Surroundings) -> list[str]:
    """Return what a program starts: the words from the first on that begin a command we know."""
    for position in range(1, len(words)):
        rest = words[position:]
        head = rest[0].rpartition("/")[2]
        shell = head in _SHELLS and any(word.startswith("-") and "c" in word for word in rest[1:3])
        container = head in _CONTAINERS and rest[1:2] == ["run"]
        if (
            start_of(rest)
            or shell
            or container
            or (ASSIGNMENT.fullmatch(rest[0]) and "==" not in rest[0])
            or head in _STARTERS
        ):
            around.no_effect(cut(" ".join(words[:position])), _HOST)
            return rest
    return []


# --- containers ---------------------------------------------------------------------------------

_TAG = re.compile(r"v?(\d+)\.(\d+)(?:\.\w+)*(?:[-_].*)?")
_OFFICIAL = ("vllm/vllm-openai", "vllm/vllm-openai-rocm")
_OLDEST = (0, 8)  # the first version in which v1 is the default


def engine_of(around: Surroundings) -> str | None:
    """Return the engine version that the tag of a container's image names, noting assumptions.

    None if the tag names no version, or an unknown one.
    """
    image = around.image
    name, _, tag = image.rpartition("/")[2].partition(":")
    place = image.partition("@")[0].removesuffix(f":{tag}" if tag else "")
    found = _TAG.fullmatch(tag)
    if not place.endswith(_OFFICIAL) or found is None:
        around.no_effect(f"image {name}:{tag}" if tag else f"image {name}", _no_version(tag))
        return None
    asked = (int(found[1]), int(found[2]))
    if asked < _OLDEST:
        around.refused(
            f"image {name}:{tag}",
            "versions before 0.8 have another engine, v0; instead: --engine vllm-0.10, whose "
            "scheduler is v1's",
        )
        return None
    nearest = min(max(asked, (0, OLDEST)), (0, LATEST))
    engine = spelt(re.split("[-_]", tag)[0] if nearest == asked else f"vllm-0.{nearest[1]}")
    if nearest == asked:
        around.applied(f"image {name}:{tag}", f"engine: {engine}")
    else:
        around.taken(
            f"image {name}:{tag}",
            f"engine: {engine}, of the known ones the nearest; --engine says another",
        )
    return engine


def _no_version(tag: str) -> str:
    what = f"the tag {tag} names" if tag else "without a tag it names"
    return f"{what} no version of vLLM; --engine says it"


_RUN = ("run", "create", "exec")
_LETTERS = re.compile(r"-[ditPq]+")
_PLAIN = "it is the container's, and changes no step"

NOT_READ = "variables that are elsewhere are not read; give those of vLLM in the text"


def _contained(words: list[str], around: Surroundings, depth: int) -> Iterator[Command]:
    """Yield the commands that a container runs."""
    if "run" not in words[1:3] and not set(words[1:3]) & set(_RUN):
        return
    rest = words[next(i for i, word in enumerate(words) if word in _RUN) + 1 :]
    entrypoint, rest = _options(rest, around)
    if not rest:
        return
    image, arguments = rest[0], rest[1:]
    if words[1] != "exec":
        around.image = image
    yield from inside(image, entrypoint, arguments, around, depth)


def inside(
    image: str,
    entrypoint: list[str],
    arguments: list[str],
    around: Surroundings,
    depth: int = 0,
) -> Iterator[Command]:
    """Yield the commands of a container, given its image and its own command, if any.

    entrypoint: empty for the image's own, which is vLLM's server in images named after it.
    """
    if entrypoint:
        yield from unwrapped([*entrypoint, *arguments], around, depth)
        return
    found = list(unwrapped(list(arguments), around.copy(), depth)) if arguments else []
    if found:
        yield from found
    elif _is_vllm(image) or _are_the_servers(arguments):
        if not _is_vllm(image):
            around.assumed(f"image {cut(image)}", "its entry point is vLLM's server")
        own = arguments[1:] if arguments[:1] == ["serve"] else arguments
        yield around.command(SERVE, own)


def _are_the_servers(arguments: list[str]) -> bool:
    """Whether arguments alone are those of vLLM's server."""
    names = [word.partition("=")[0] for word in arguments]
    return "--model" in names and names[0].startswith("--")


def _pod(words: list[str], around: Surroundings, depth: int) -> Iterator[Command]:
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
            around.no_effect(name, _PLAIN)
    yield from inside(
        image, arguments if is_own else [], [] if is_own else arguments, around, depth
    )


def _is_vllm(image: str) -> bool:
    """Whether an image is named after vLLM, so that its entry point is the server."""
    return "vllm" in image.rpartition("/")[2].partition(":")[0].lower() or "vllm-openai" in image


def _options(words: list[str], around: Surroundings) -> tuple[list[str], list[str]]:
    """Read the options of a container, and return its entry point and what follows them."""
    entrypoint: list[str] = []
    position = 0
    while position < len(words) and words[position].startswith("-"):
        name, equals, value = words[position].partition("=")
        position += 1
        if name in NAMES["switches"] or _LETTERS.fullmatch(name):
            around.no_effect(name, _PLAIN)
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
    elif name in NAMES["limits"]:
        around.assumed(name, "host times are those of overhead")
    elif name == "--env-file":
        around.assumed(name, NOT_READ)
    elif name == "--entrypoint":
        around.no_effect(f"{name} {value}", "it is the command that is read")
    else:
        around.no_effect(name, _PLAIN)


def _num_gpus(value: str) -> int | None:
    """Return how many GPUs `--gpus` gives: 2, or "device=0,1"; None for all."""
    text = value.strip("\"'")
    if text.isdecimal():
        return int(text)
    if text.startswith("device="):
        return len(text.removeprefix("device=").strip("\"'").split(","))
    return None
