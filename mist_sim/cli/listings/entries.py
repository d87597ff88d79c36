"""One entry of a catalog, as its file has it: what a file of one's own may begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources

from mist_sim.errors import ScenarioError, brief, did_you_mean
from mist_sim.hardware import load_gpu, load_host
from mist_sim.models import load_model
from mist_sim.scenario.presets import preset_names, preset_path

_KERNELS = "# Kernels of architecture = {!r}, which a file of your own only names:"


def entry(family: str, name: str) -> str:
    """Return the text of an entry of one of `ENTRIES`. Raises ScenarioError for an unknown one."""
    return ENTRIES[family](name)


def _gpu(name: str) -> str:
    gpu = load_gpu(name)
    text = _text("mist_sim.hardware", "catalog", gpu.name, ".toml")
    if not gpu.architecture:
        return text
    kernels = _text("mist_sim.hardware", "architectures", gpu.architecture, ".toml")
    return f"{text}\n{_KERNELS.format(gpu.architecture)}\n{kernels}"


def _host(name: str) -> str:
    return _text("mist_sim.hardware", "catalog/hosts", load_host(name).name, ".toml")


def _model(name: str) -> str:
    return _text("mist_sim.models", "catalog", load_model(name).name, ".json")


def _preset(name: str) -> str:
    if name not in preset_names():
        hint = did_you_mean(name, preset_names())
        known = ", ".join(preset_names())
        raise ScenarioError(f"no preset is named {brief(name)}{hint} Known: {known}")
    return preset_path(name).read_text(encoding="utf-8")


def _text(package: str, folder: str, name: str, ending: str) -> str:
    place = resources.files(package).joinpath(*folder.split("/"), name + ending)
    if not place.is_file():
        raise ScenarioError(f"NAME must be one of the catalog, got {brief(name)}, a file of yours")
    return place.read_text(encoding="utf-8")


ENTRIES: Mapping[str, Callable[[str], str]] = {
    "models": _model,
    "gpus": _gpu,
    "hosts": _host,
    "presets": _preset,
}
"""Families whose entries are files, each with what returns the text of one."""
