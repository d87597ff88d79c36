"""YAML 1.2, read safely and strictly, and written so that it reads back the same."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.reader import ReaderError

from mist_sim.bounds import NESTING, SCENARIO_BYTES
from mist_sim.errors import ScenarioError, brief


def read_text(path: Path) -> str:
    """Return a file's text. Raises ScenarioError unless it can be read as UTF-8, and is short."""
    try:
        with path.open("rb") as file:
            return decoded(file.read(SCENARIO_BYTES + 1), str(path))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error


def decoded(content: bytes, source: str) -> str:
    """Return the text of a file's bytes, of which at most `SCENARIO_BYTES` are taken.

    source: what messages call it. Raises ScenarioError.
    """
    if len(content) > SCENARIO_BYTES:
        raise ScenarioError(
            f"{source}: must have <= {SCENARIO_BYTES} bytes; requests belong in a trace "
            "(workload.trace), equal clients under one name (count)"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ScenarioError(
            f"{source}:{line}: not UTF-8 text (byte {error.object[error.start]:#04x}); "
            "save the file as UTF-8"
        ) from None


def parse(text: str, source: str) -> Any:
    """Return what a YAML text says.

    Raises ScenarioError with `source`, line and column for text that is no YAML, and for keys
    that are given twice.
    """
    try:
        with catch_warnings():  # a name may be given again (YAML 1.2, 3.2.2.2)
            simplefilter("ignore", ReusedAnchorWarning)
            return _yaml().load(text)
    except DuplicateKeyError as error:
        raise ScenarioError(f"{source}{_place(error)}: {_twice(str(error.problem))}") from None
    except MaxDepthExceededError as error:
        raise ScenarioError(
            f"{source}{_place(error)}: must have <= {NESTING} levels of lists and mappings"
        ) from None
    except MarkedYAMLError as error:
        context = f" ({error.context})" if error.context else ""
        raise ScenarioError(
            f"{source}{_place(error)}: not valid YAML: {error.problem}{context}"
        ) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        raise ScenarioError(
            f"{source}:{line}:{column}: not valid YAML: the character "
            f"{brief(text[error.position])} is not allowed"
        ) from None
    except TypeError:  # a list of lists as a key
        raise ScenarioError(f"{source}: not valid YAML: keys must be text") from None
    except (YAMLError, ValueError) as error:
        raise ScenarioError(f"{source}: not valid YAML: {error}") from None


def dump(data: Any) -> str:
    """Return plain data (mappings, lists, text, numbers, null) as YAML text."""
    text = StringIO()
    _yaml().dump(data, text)
    return text.getvalue()


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)  # the C parser knows YAML 1.1 only, where `no` is false
    yaml.max_depth = NESTING
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 1_000
    yaml.representer.ignore_aliases = lambda _: True
    return yaml


def _place(error: MarkedYAMLError) -> str:
    mark = error.problem_mark
    return f":{mark.line + 1}:{mark.column + 1}" if mark else ""


def _twice(problem: str) -> str:
    """Shorten 'found duplicate key "a" with value "2" (original value: "1")'."""
    key = problem.split('"')[1] if problem.count('"') > 1 else "?"
    return f"the key {brief(key)} is given twice; remove one"
