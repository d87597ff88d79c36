"""One entry of a catalog, or of a user's file, as written there."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from mist_sim.cli.listings.catalogs import own_model
from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware import load_gpu, load_host
from mist_sim.hardware.devices import gpu_names, host_names, whole_table
from mist_sim.models import load_model
from mist_sim.models.model_loading import model_names
from mist_sim.scenario.presets import preset_names, preset_path
from mist_sim.user_paths import user_path

if TYPE_CHECKING:
    from rich.console import RenderableType

_BELOW = ("sources", "aliases")
_KERNELS = "# Kernels of architecture = {!r}, which the line above names:"


def entry(family: str, name: str) -> str | RenderableType:
    """Return the text of an entry of one of `ENTRIES`, or of a file of the user's own.

    Of a user's own `config.json` it returns the sizes that are read from it.

    Raises ScenarioError for an unknown one, and for a file that is no such entry.
    """
    return ENTRIES[family](name)


def _gpu(name: str) -> str:
    gpu = load_gpu(name)
    if _is_of_catalog(gpu, gpu_names(), load_gpu):
        text = _text("mist_sim.hardware", "catalog", gpu.name, ".toml")
        text = text.replace("\naliases = ", "\n# aliases = ")  # a file has none, and its own name
        text = text.replace("\nmemory = ", f"\nbased_on = {json.dumps(gpu.name)}\nmemory = ", 1)
    else:
        text = toml_text(whole_table(user_path(name)))
    if not gpu.architecture:
        return text
    kernels = _text("mist_sim.hardware", "architectures", gpu.architecture, ".toml")
    shown = "\n".join(f"# {line}".rstrip() for line in kernels.splitlines())
    return f"{text}\n{_KERNELS.format(gpu.architecture)}\n{shown}\n"


def _host(name: str) -> str:
    host = load_host(name)
    if _is_of_catalog(host, host_names(), load_host):
        return _text("mist_sim.hardware", "catalog/hosts", host.name, ".toml")
    return user_path(name).read_text(encoding="utf-8")


def _model(name: str) -> str | RenderableType:
    model = load_model(name)
    if _is_of_catalog(model, model_names(), load_model):
        return _text("mist_sim.models", "catalog", model.name, ".json")
    return own_model(model)


def _is_of_catalog(found: Any, names: Collection[str], load: Callable[[str], Any]) -> bool:
    """Tell whether something is an entry of a catalog; a file may bear the name of one."""
    return found.name in names and load(found.name) == found


def _preset(name: str) -> str:
    if name not in preset_names():
        hint = did_you_mean(name, preset_names())
        known = ", ".join(preset_names())
        raise ScenarioError(f"no preset is named {brief(name)}{hint} Known: {known}")
    return preset_path(name).read_text(encoding="utf-8")


def _text(package: str, folder: str, name: str, ending: str) -> str:
    place = resources.files(package).joinpath(*folder.split("/"), name + ending)
    return place.read_text(encoding="utf-8")


def toml_text(table: Mapping[str, object]) -> str:
    """Return a table as TOML, its sources below the figures."""
    lines = [f"{key} = {_value(value)}" for key, value in table.items() if key not in _BELOW]
    sources = table.get("sources")
    if isinstance(sources, Mapping) and sources:
        lines += ["", "[sources]"]
        lines += [f"{json.dumps(key)} = {_value(source)}" for key, source in sources.items()]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{json.dumps(key)} = {_value(each)}" for key, each in value.items())
        return f"{{{pairs}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)  # strings, numbers and truth are alike in TOML


ENTRIES: Mapping[str, Callable[[str], str | RenderableType]] = {
    "models": _model,
    "gpus": _gpu,
    "hosts": _host,
    "presets": _preset,
}
"""Families whose entries are files, each with what returns the text of one."""
