"""Reads the texts of `--from-vllm`: command lines, scripts, manifests, or files of them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mist_sim.bounds import SCENARIO_BYTES
from mist_sim.errors import ScenarioError, brief
from mist_sim.inputs.files import text_of
from mist_sim.scenario.format import yaml_text
from mist_sim.scenario.from_vllm.wrappers.command import (
    BENCH,
    COMMANDS,
    LOADS,
    SERVE,
    Command,
    Surroundings,
)
from mist_sim.scenario.from_vllm.wrappers.launchers import commands_in
from mist_sim.scenario.from_vllm.wrappers.manifests import commands_of
from mist_sim.scenario.from_vllm.wrappers.shells import Variables, simple_commands
from mist_sim.user_paths import user_path

_STDIN = "-"
_YAML = (".yaml", ".yml", ".json")
_LONGEST_PATH = 1000
_FILE_NAME = re.compile(r"\S*/\S*|\S+\.(ya?ml|json|sh|txt|service)")
_UNIT = re.compile(r"^ExecStart=[-@:+!]*|^Environment=", re.MULTILINE)  # of systemd
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
    found, others = _read(whole, path)
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
        found = [yaml_text.parse(part, source) for part in _parts(text)]
    except ScenarioError:
        if is_yaml:
            raise
        return []
    return [document for document in found if isinstance(document, dict | list)]


def _parts(text: str) -> list[str]:
    """Return the documents of a YAML stream."""
    parts = [""]
    for line in text.splitlines(keepends=True):
        if line.rstrip() == "---":
            parts.append("")
        else:
            parts[-1] += line
    return [part for part in parts if part.strip()]
