"""Checks that a file's measurements are of the simulated model and GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from mist_sim.errors import ScenarioError, brief, listed
from mist_sim.hardware.cluster import Cluster
from mist_sim.hardware.devices.device_loading import device_of, load_gpu
from mist_sim.hardware.devices.specs import GpuSpec
from mist_sim.inputs.files import text_of
from mist_sim.models.model_loading import load_model
from mist_sim.models.spec import ModelSpec

_ENTRY = re.compile(r"(\w+):(.*)")
_FLAG = re.compile(r"\s+enabled:(.*)")
_DIGITS = 9  # of a number of ranks that anybody has
_ON, _OFF = ("true", "yes", "on"), ("false", "no", "off")  # of YAML 1.1


def check_measured(notes: Mapping[str, str], model: ModelSpec, cluster: Cluster, where: str) -> str:
    """Refuse measurements of another model, GPU or number of ranks; missing keys are not checked.

    notes: model and gpu by any name of the catalog; hardware, another name of the GPU;
        tensor_parallel_size.
    Return why a GPU based on the measured one needs a `step_time_scale`; empty if it has its rates.
    Raises ScenarioError with the key and both values.
    """
    gpus = [notes[key] for key in ("gpu", "hardware") if notes.get(key)]
    _check("model", [notes["model"]] if notes.get("model") else [], model.name, _model, where)
    own, device, other_rates = cluster.gpu, device_of(cluster.gpu), ""
    if gpus and own.name not in map(_gpu, gpus):
        _check("gpu", gpus, device.name, _gpu, where)
        other_rates = _other_rates(own, device, where)
    ranks = [notes["tensor_parallel_size"]] if notes.get("tensor_parallel_size") else []
    _check("tensor_parallel_size", ranks, str(cluster.tensor_parallel_size), str, where)
    return other_rates


def read_meta(folder: Path) -> tuple[dict[str, str], str]:
    """Return the top-level entries of a profile's meta.yaml, and the file's name.

    Nested entries: only `enabled`, as "skew_fit.enabled".

    The file lies in the folder, or above it if the folder is for one number of ranks (tp2). Empty
    without a file.
    """
    file = folder / "meta.yaml"
    if not file.is_file() and re.fullmatch(r"tp\d+", folder.resolve().name):
        file = folder.resolve().parent / "meta.yaml"
    if not file.is_file():
        return {}, str(file)
    entries, last = {}, ""
    for line in text_of(file).splitlines():
        if found := _ENTRY.fullmatch(line):
            last = found[1]
            entries[last] = _value(found[2])
        elif found := _FLAG.fullmatch(line):
            entries.setdefault(f"{last}.enabled", _value(found[1]))
    return entries, str(file)


def _value(text: str) -> str:
    """Return the value after a key, without comment and quotes."""
    return text.partition("#")[0].strip().strip("'\"")


def is_on(notes: Mapping[str, str], key: str, where: object) -> bool:
    """Tell whether a part of a profile is enabled (the default).

    Raises ScenarioError for anything but true and false.
    """
    said = notes.get(f"{key}.enabled", "true").lower()
    if said not in (*_ON, *_OFF):
        raise ScenarioError(
            f"{where}: meta.yaml: {key}.enabled must be true or false, got {brief(said)}"
        )
    return said in _ON


def profiled_ranks(folder: Path, notes: Mapping[str, str]) -> int:
    """Return the tensor_parallel_size of a profile's kernels.

    From the folder's name (tp2), or the only one of `tp_degrees` in its meta.yaml; 1 if neither
    gives it.
    """
    named = re.fullmatch(r"tp(\d+)", folder.resolve().name)
    degrees = [named[1]] if named else re.findall(r"\d+", notes.get("tp_degrees", ""))
    return int(degrees[0][:_DIGITS]) if len(degrees) == 1 else 1


def _check(
    key: str, measured: list[str], own: str, name_of: Callable[[str], str], where: str
) -> None:
    if measured and own not in [name_of(name) for name in measured]:
        raise ScenarioError(
            f"{where}: {key} must be what the client has, {own}, got {listed(measured, ' / ')}; "
            "take a table that was measured so, or correct the entry"
        )


def _other_rates(own: GpuSpec, device: GpuSpec, where: str) -> str:
    """Say that a GPU has other rates than the measured device; empty if it has the same."""
    for name in ("flops", "memory_bandwidth"):
        if getattr(own, name) != getattr(device, name):
            return (
                f"{where}: {name} of {own.name} must be that of {device.name}, on which the times "
                "were measured; set step_time_scale of the client to the ratio of step times, or "
                "leave it out"
            )
    return ""


def _model(name: str) -> str:
    try:
        return load_model(name).name
    except ScenarioError:
        return name


def _gpu(name: str) -> str:
    try:
        return load_gpu(name).name
    except ScenarioError:
        return name
