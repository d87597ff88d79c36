"""The sampling defaults in a model's `generation_config.json`, by name, or beside its config."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path

from mist_sim.bounds import CONFIG_BYTES
from mist_sim.errors import MistError
from mist_sim.inputs import object_in
from mist_sim.models.model_loading import repository_of
from mist_sim.user_paths import user_path

FILE = "generation_config.json"
_TABLE = "generation_configs.csv"

# Values that vLLM does not take from a file, since they equal transformers' defaults. Source:
# GenerationConfig.to_diff_dict, which get_diff_sampling_param in vllm/config/model.py asks.
_SAYS_NOTHING = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0}


def asked_by_model(name_or_path: str) -> Mapping[str, float] | None:
    """Return what a model's file says of sampling, by its own names; None: it was not looked up.

    name_or_path: as `load_model` takes it. A checkpoint on this machine without the file says
    nothing.

    Raises ScenarioError for a file that cannot be read.
    """
    repository = repository_of(name_or_path)
    if repository is not None:
        return _known().get(repository.lower())
    file = beside(name_or_path)
    return told(file) if file else {}


def told(file: Path) -> Mapping[str, float]:
    """Return what such a file says of sampling. Raises ScenarioError if it cannot be read."""
    return {
        key: value
        for key, value in read(file).items()
        if key in _SAYS_NOTHING and isinstance(value, int | float) and value != _SAYS_NOTHING[key]
    }


def read(file: Path) -> Mapping[str, object]:
    """Return all keys of such a file that say anything. Raises ScenarioError for a damaged one."""
    found = object_in(file, CONFIG_BYTES)
    return {key: value for key, value in found.items() if _SAYS_NOTHING.get(key) != value}


def beside(folder: str) -> Path | None:
    """Return the file beside a model's config, if it is on this machine."""
    if not folder:
        return None
    try:
        path = user_path(folder)
    except MistError:
        return None
    found = (path if path.is_dir() else path.parent) / FILE
    is_model = path.is_dir() or path.name.endswith(".json")
    return found if is_model and found.is_file() else None


@cache
def _known() -> Mapping[str, Mapping[str, float]]:
    """Values that were looked up, by repository in small letters."""
    text = files("mist_sim.models").joinpath(_TABLE).read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        row["hf_id"].lower(): {key: float(row[key]) for key in _SAYS_NOTHING if row[key]}
        for row in rows
    }
