"""Files that a scenario names: found beside the scenario file, else in the working directory.

A relative path is looked for in the folder of the scenario file first and in the working directory
second. Found paths are stored relative to the working directory, so that the resolved scenario,
which lies in another folder, works from the same place. Absolute paths stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from mist_sim.bounds import TEXT_LENGTH
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.inputs import PLAIN, is_there, names_in
from mist_sim.user_paths import user_path

Folder = Path | None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a scenario comes from: the validation context.

    source: what messages call it; "" for none. folder: where its relative paths begin, beside the
    working directory. overrides: the dotted paths that were set from outside.
    allow_programs: whether programs that it names may run. said: its keys, before defaults.
    """

    source: str = ""
    folder: Folder = None
    overrides: tuple[str, ...] = ()
    allow_programs: bool = True
    said: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def sets(self, place: Sequence[str | int]) -> bool:
        """Tell whether an override set a key, or one that contains it."""
        path = ".".join(map(str, place))
        return any(f"{path}.".startswith(f"{override}.") for override in self.overrides)


def named_file(text: str, info: ValidationInfo) -> str:
    """Return the path of a file or folder; a validator. Raises ScenarioError if not found."""
    return find(text, _folder(info))


def spec(text: str, info: ValidationInfo, suffix: str, load: Callable[[str], object]) -> str:
    """Return the catalog name or the path of a model or GPU; a validator.

    A text is a path if it begins with ".", "/" or "~", ends in `suffix`, or names a file beside the
    scenario file and no catalog entry. load: reads either; its ScenarioError is passed on.
    """
    if len(text) > TEXT_LENGTH:  # a validator before that of a field knows no bound of it
        raise ScenarioError(f"must have <= {TEXT_LENGTH} characters")
    folder = _folder(info)
    if text.startswith((".", "/", "~")) or text.endswith(suffix):
        found = _as_path(find(text, folder))
        load(found)
        return found
    try:
        load(text)
    except ScenarioError:
        beside = folder / text if folder else None
        if beside is None or not text or not is_there(beside):
            raise
        found = _as_path(_from_here(beside))
        load(found)
        return found
    return text


def named(suffix: str, load: Callable[[str], object]) -> Callable[[str, ValidationInfo], str]:
    """Return the validator of names of a catalog's entries and of paths; see `spec`."""
    return lambda text, info: spec(text, info, suffix, load)


def find(text: str, folder: Folder) -> str:
    """Return the path to an existing file; see the module's docstring."""
    if not text:
        raise ScenarioError("must not be empty")
    path = user_path(text)
    if path.is_absolute():
        if is_there(path):
            return str(path)
        raise ScenarioError(f"no file {text}{_similar([path])}")
    if folder is not None and is_there(folder / path):
        return _from_here(folder / path)
    if is_there(path):
        return text
    if folder is None or folder.resolve() == Path.cwd():
        raise ScenarioError(f"no file {text} in the working directory{_similar([path])}")
    raise ScenarioError(
        f"no file {folder / path} (beside the scenario) and no file {text} "
        f"(in the working directory){_similar([folder / path, path])}"
    )


def _folder(info: ValidationInfo) -> Folder:
    return info.context.folder if isinstance(info.context, Origin) else None


def _from_here(path: Path) -> str:
    """Return a path relative to the working directory; absolute where there is no such path.

    Raises ScenarioError for a folder whose name could not stand in a scenario.
    """
    try:
        found = Path(os.path.relpath(path)).as_posix()
    except ValueError:  # another drive
        found = str(path.resolve())
    if not found.isprintable():
        raise ScenarioError(f"the path {brief(found)} {PLAIN}; rename the folder")
    return found


def _as_path(text: str) -> str:
    """Write a path so that it cannot be taken for a name in a catalog."""
    return text if "/" in text or Path(text).is_absolute() else f"./{text}"


def _similar(paths: list[Path]) -> str:
    for path in paths:
        hint = did_you_mean(path.name, names_in(path.parent))
        if hint != ".":
            return hint
    return "."
