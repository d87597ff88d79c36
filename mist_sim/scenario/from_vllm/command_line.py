"""A shell's command line as words, and a parser that says in our words what is wrong."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from mist_sim.bounds import SCENARIO_BYTES
from mist_sim.errors import ScenarioError, brief, cut, did_you_mean
from mist_sim.inputs.files import text_of
from mist_sim.user_paths import user_path

_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_MODULE = "vllm.entrypoints.openai.api_server"
COMMANDS = ("vllm serve", "vllm bench serve")


_PROXY = "toy_proxy_server.py"  # vLLM's example of what stands before prompts and answers apart


def split_all(text: str) -> list[tuple[str, list[str]]]:
    """Return what `split` does of each command, where a script starts several servers.

    text: as in `split`; of several commands, each begins a line, and "&" may end it. The line that
        starts vLLM's example of a proxy is left out.
    """
    path = user_path(text) if "\n" not in text and len(text) < 1000 else None
    is_file = path is not None and path.is_file()
    whole = text_of(path, SCENARIO_BYTES) if path is not None and is_file else text
    lines = [line.strip() for line in whole.replace("\\\n", " ").splitlines()]
    starts = [line for line in lines if line and not line.startswith("#") and _PROXY not in line]
    servers = [line for line in starts if line.startswith("vllm ")]
    if len(servers) < len(starts) or not servers:
        return [split(text)]
    return [split(line.removesuffix("&")) for line in servers]


def split(text: str) -> tuple[str, list[str]]:
    """Return which of `COMMANDS` a command line is, and its arguments.

    text: the command line as a shell takes it, or the path of a file that holds it or the arguments
        of `vllm serve` alone. Lines may end in a backslash; "#" begins a comment. Variables before
        the command are refused.
    Raises ScenarioError for what is neither.
    """
    path = user_path(text) if "\n" not in text and len(text) < 1000 else None
    is_file = path is not None and path.is_file()
    if path is not None and is_file:
        text = text_of(path, SCENARIO_BYTES)
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ScenarioError(f"--from-vllm: not a command line: {error}") from None
    if words and _VARIABLE.fullmatch(words[0]):
        name = words[0].partition("=")[0]
        raise ScenarioError(
            f"--from-vllm: variables of the environment are not read, got {cut(name)}; remove it, "
            "and give the option that it stands for"
        )
    if words[:2] == ["vllm", "serve"]:
        return COMMANDS[0], words[2:]
    if words[:3] == ["vllm", "bench", "serve"]:
        return COMMANDS[1], words[3:]
    if len(words) > 2 and words[1:3] == ["-m", _MODULE]:
        return COMMANDS[0], words[3:]
    if is_file and words and words[0].startswith("-"):
        return COMMANDS[0], words
    got = f"the file {path} with other text" if is_file else brief(text.strip())
    raise ScenarioError(
        f"--from-vllm must be a command line of {' or '.join(COMMANDS)}, or a file that holds "
        f"one, got {got}"
    )


class Parser(ArgumentParser):
    """Takes dashes and underscores alike, as vLLM's `FlexibleArgumentParser` does."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse finds wrong."""
        raise ScenarioError(f"{self.prog}: {cut(message, 1_000)}")

    def add_switches(self, names: Iterable[str], *short: str) -> None:
        """Add arguments that are on, or off with "no-"; None where they are not there."""
        for name in names:
            self.add_argument(name, *short, action=BooleanOptionalAction, default=None)

    def parsed(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the arguments that are there, by flag. Raises ScenarioError for unknown ones."""
        found, unknown = self.parse_known_args([_dashed(word) for word in words])
        if unknown:
            known = [flag for action in self._actions for flag in action.option_strings]
            flag = unknown[0].partition("=")[0]
            raise ScenarioError(
                f"{self.prog} {cut(unknown[0])}: not known{did_you_mean(flag, known)} Leave it "
                "out if it changes no time, or say what it stands for with --set"
            )
        return {
            name if name == "model_tag" else f"--{name.replace('_', '-')}": value
            for name, value in vars(found).items()
            if value is not None
        }


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    flag, equals, value = word.partition("=")
    if "." in flag:
        raise ScenarioError(
            f"{cut(flag)}: keys of JSON are not read one by one; give one JSON object"
        )
    return flag.replace("_", "-") + equals + value
