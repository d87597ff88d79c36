"""Spec files: a TOML table becomes a dataclass, and strings with units become numbers.

Some come with the package, in a folder with a file for each: catalogs and presets.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_args, get_origin

from mist_sim.bounds import NESTING, TOML_BYTES
from mist_sim.checks import hints_of
from mist_sim.errors import ScenarioError, brief, did_you_mean, printable, require_known
from mist_sim.inputs import check_plain, text_of
from mist_sim.units import Kind

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from _typeshed import DataclassInstance

Table = Mapping[str, object]

_DOTTED = re.compile(rf"(?:\.[\w\s\"'-]*){{{NESTING + 1}}}", re.ASCII)
Spec = TypeVar("Spec", bound="DataclassInstance")


def texts_in(package: str, folder: str, ending: str) -> dict[str, str]:
    """Return the texts of a folder's files that end so, by name without the ending, sorted."""
    files = _files_in(package, folder, ending)
    return {name: entry.read_text("utf-8") for name, entry in files.items()}


class Tables(Mapping[str, Table]):
    """The tables of a folder's TOML files, by name without the ending, sorted.

    Each file is read when its table is asked for.
    """

    def __init__(self, package: str, folder: str) -> None:
        self._files = _files_in(package, folder, ".toml")
        self._read: dict[str, Table] = {}

    def __getitem__(self, name: str) -> Table:
        if name not in self._read:
            text = self._files[name].read_text("utf-8")
            self._read[name] = parse_toml(text, f"{name}.toml")
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _files_in(package: str, folder: str, ending: str) -> dict[str, Traversable]:
    place = resources.files(package).joinpath(*folder.split("/"))
    entries = sorted(place.iterdir(), key=lambda entry: entry.name)
    return {
        entry.name.removesuffix(ending): entry for entry in entries if entry.name.endswith(ending)
    }


def tables_in(package: str, folder: str) -> Tables:
    """Return the tables of a folder's TOML files."""
    return Tables(package, folder)


def name_of(text: str, tables: Mapping[str, Table]) -> str | None:
    """Return the table that a name or one of its `aliases`, in any case, stands for."""
    if text.lower() in tables:
        return text.lower()
    for name, table in tables.items():
        aliases = table.get("aliases")
        if isinstance(aliases, list) and text.lower() in aliases:
            return name
    return None


def all_names(tables: Mapping[str, Table]) -> list[str]:
    """Return the names of tables and their `aliases`."""
    others = (table.get("aliases") for table in tables.values())
    return [*tables, *(str(each) for some in others if isinstance(some, list) for each in some)]


def unknown_name(
    name: str, problem: str, tables: Mapping[str, Table], *, or_a_file: bool = True
) -> ScenarioError:
    """Return the error for a name that no table has. or_a_file: whether a path may be given."""
    hint, known = did_you_mean(name.lower(), tables), ", ".join(sorted(tables))
    path = "; or give the path of a TOML spec file" if or_a_file else ""
    return ScenarioError(f"{problem} {brief(name)}{hint} Known: {known}{path}")


def load_toml(path: Path) -> Table:
    """Return the table of a TOML file. Raises ScenarioError if it cannot be read or parsed."""
    table = parse_toml(text_of(path, TOML_BYTES), str(path))
    check_plain(table, str(path))
    return table


def parse_toml(text: str, where: str) -> Table:
    """Return the table of a TOML text. Raises ScenarioError if it cannot be parsed."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > NESTING and _DOTTED.search(line):
            raise ScenarioError(f"{where}:{number}: a key must have <= {NESTING} dots")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{where}: not valid TOML: {error}") from None


def toml_string(text: str) -> str:
    """Return a text as a string of a TOML file."""
    return json.dumps(printable(text), ensure_ascii=False)  # of printable text the forms are equal


def read_table(cls: type[Spec], table: object, where: str, prefix: str = "") -> Spec:
    """Return a dataclass made of a table; strings become quantities of the kind the field names.

    where: the file, which messages start with. prefix: where the table is in it, such as "draw.".
    Raises ScenarioError for keys that are unknown or missing, and for values that are not right.
    """
    place = f"{where}: {prefix.removesuffix('.')}".removesuffix(": ")
    if not isinstance(table, dict):
        raise ScenarioError(f"{place} must be a table, got {brief(table)}")
    hints = dict(hints_of(cls))
    for item in fields(cls):
        if not item.metadata.get("in_files", True):
            del hints[item.name]
    for key in table:
        if not isinstance(key, str):
            raise ScenarioError(f"{place}: keys must be text, got {brief(key)}")
        require_known(key, hints, f"{place}: unknown key")
    missing = [item.name for item in fields(cls) if _is_required(item) and item.name not in table]
    if missing:
        raise ScenarioError(f"{place}: missing {', '.join(missing)}")
    values = {key: _convert(hints[key], item, where, prefix + key) for key, item in table.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise ScenarioError(f"{place}: {error}") from None


def _convert(hint: Any, value: object, where: str, name: str) -> object:
    """Return a value of a spec as the type of its field."""
    choices = [choice for choice in get_args(hint) if choice is not NoneType]
    if NoneType in get_args(hint) and len(choices) == 1:
        hint = choices[0]
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
        if kind := next((mark for mark in marks if isinstance(mark, Kind)), None):
            return _quantity(kind, value, f"{where}: {name}")
    if isinstance(hint, type) and is_dataclass(hint):
        return read_table(hint, value, where, f"{name}.")
    if get_origin(hint) is Mapping:
        if not isinstance(value, dict):
            raise ScenarioError(f"{where}: {name} must be a table, got {brief(value)}")
        inner = get_args(hint)[1]
        return {key: _convert(inner, item, where, f"{name}.{key}") for key, item in value.items()}
    words, kinds = _PLAIN.get(hint, _PLAIN[str])
    if not isinstance(value, kinds) or isinstance(value, bool) != (hint is bool):
        raise ScenarioError(f"{where}: {name} must be {words}, got {brief(value)}")
    return float(cast("float", value)) if hint is float else value


_PLAIN: Mapping[Any, tuple[str, Any]] = {
    float: ("a number", int | float),
    bool: ("true or false", bool),
    int: ("a whole number", int),
    str: ("a string", str),
}


def _quantity(kind: Kind, value: object, place: str) -> float:
    try:
        return kind.parse(value)
    except ScenarioError as error:
        raise ScenarioError(f"{place}: {error}") from None


def _is_required(item: Any) -> bool:
    return item.default is MISSING and item.default_factory is MISSING
