"""Finds a model by name in the catalog, or reads the `config.json` that a path leads to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from mist_sim.bounds import CONFIG_BYTES
from mist_sim.errors import ScenarioError, brief, nearest
from mist_sim.inputs import object_in, object_of
from mist_sim.models.spec import ModelSpec
from mist_sim.spec_files import texts_in
from mist_sim.user_paths import user_path

# a number of parameters, or a kind of model: from there a name says no more of its series
_SIZE = re.compile(
    r"[\d.]+[bt]|\d+x\d+b|\d+e|v0\.\d|flash|air|pro|nano|super|ultra|scout|maverick|instruct|fp8|nvfp4"
    r"|math|small|h|coder|base|distill|\d{4}|question|minilm"
)
APPROXIMATE = "approximate:"
"""Before the path of a config: take its model as the nearest known one."""


def model_names(*, with_aliases: bool = False) -> list[str]:
    """Return the names of the catalog, sorted. with_aliases: those of repositories, too."""
    return sorted(_entries() if with_aliases else _catalog())


def family_of(name: str) -> str:
    """Return the series that a model of the catalog belongs to: its name up to a size or a kind.

    "qwen3.5-397b-a17b" is of qwen3.5, "deepseek-v4-flash-nvfp4" of deepseek-v4.
    """
    pieces = name.split("-")
    kept = next((n for n, piece in enumerate(pieces) if n and _SIZE.fullmatch(piece)), len(pieces))
    return "-".join(pieces[:kept])


def names_of(model: str) -> list[str]:
    """Return all names of a model of the catalog, in small letters."""
    return _names(model, _catalog()[model])


def repository_of(name: str) -> str | None:
    """Return the repository on Hugging Face that a name of the catalog is of, in its own case.

    name: in any case. None for one that the catalog does not have, such as a path.
    """
    wanted = name.lower()
    if (entry := _entries().get(wanted)) is None:
        return None
    config = _catalog()[entry]
    names = [each for each in _said_names(config) if "/" in each]
    if "/" in wanted:
        return next(each for each in names if each.lower() == wanted)
    others = [each for each in names if f"/{_bare(wanted)}" in _bare(each)]  # without its owner
    ends = (each for each in others if _bare(each).endswith(_bare(wanted)))
    return next(ends, [*others, str(config["hf_id"])][0])


def _bare(name: str) -> str:
    """Return a name without case and hyphens: llama3.3-70b is Llama-3.3-70B."""
    return name.lower().replace("-", "")


def load_model(name_or_path: str) -> ModelSpec:
    """Return a model of the catalog, or one read from a Hugging Face `config.json`.

    name_or_path: a catalog name ("llama-3.1-70b") or Hugging Face id
        ("meta-llama/Llama-3.1-70B"), in any case; or the path of a `config.json`, or of a
        folder that holds one. "./NAME" is always a path. "approximate:PATH" reads a model of
        unknown architecture as the nearest known one.

    Raises ScenarioError with the file and the key when there is no such model, when the file
    cannot be read, or when it describes a model that is not simulated.
    """
    if (name := _entries().get(name_or_path.lower())) is not None:
        return _catalog_model(name)
    is_nearest = name_or_path.startswith(APPROXIMATE)
    path = user_path(name_or_path.removeprefix(APPROXIMATE))
    if path.is_dir() and name_or_path:
        path /= "config.json"
    if path.is_file() or path.name == "config.json":
        config = _read_config(path)
        name = _name_of(path.resolve(), config) if path.name == "config.json" else path.stem
        try:
            return ModelSpec.from_config(config, name=name, source=str(path), is_nearest=is_nearest)
        except (OverflowError, TypeError) as error:
            raise ScenarioError(f"{path}: a value has the wrong type or size: {error}") from error
    raise ScenarioError(
        f"no model and no file is named {brief(name_or_path)}"
        f"{nearest(name_or_path.lower(), _entries())} mist list models shows all; "
        "or give the path of a Hugging Face config.json"
    )


_SAYS_NOTHING = re.compile(
    "checkpoints?|configs?|data|downloads?|files?|hf|huggingface|models?|outputs?|snapshots|te?mp"
    "|weights|work"
)
"""Names of folders that tell no model."""


def _name_of(path: Path, config: Mapping[str, object]) -> str:
    """Return a model's name: its folder's, or that in its config, or else its architecture."""
    folder = path.parent.name
    if folder and not _SAYS_NOTHING.fullmatch(folder.lower()):
        return folder
    said = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[-1]
    if said and not _SAYS_NOTHING.fullmatch(said.lower()):
        return said
    return str(config.get("model_type") or folder or "model")


def load_generating(name_or_path: str) -> ModelSpec:
    """Return a model as `load_model` does, to generate with.

    Raises ScenarioError for an encoder as well.
    """
    model = load_model(name_or_path)
    check_generates(model)
    return model


def check_generates(model: ModelSpec) -> None:
    """Raise ScenarioError for an encoder."""
    if model.is_encoder:
        raise ScenarioError(
            f"{model.name} is an encoder: it reads a text in one pass, has no KV cache and "
            "generates nothing; it can be the embedder or the reranker of a client of type rag"
        )


@cache
def _catalog() -> Mapping[str, Mapping[str, object]]:
    texts = texts_in("mist_sim.models", "catalog", ".json")
    written = {name: object_of(text, f"{name}.json") for name, text in texts.items()}
    return {name: _with_base(config, written) for name, config in written.items()}


@cache
def _catalog_model(name: str) -> ModelSpec:
    config = _catalog()[name]
    return ModelSpec.from_config(config, name=name, source=str(config["source"]))


def _with_base(
    config: Mapping[str, object], written: Mapping[str, Mapping[str, object]]
) -> Mapping[str, object]:
    """Return an entry completed from the one it is `based_on`, without that one's names."""
    if "based_on" not in config:
        return config
    base = _with_base(written[str(config["based_on"])], written)
    return {**base, "aliases": [], **config}


def _names(name: str, config: Mapping[str, object]) -> list[str]:
    return [name, *(other.lower() for other in _said_names(config))]


def _said_names(config: Mapping[str, object]) -> list[str]:
    aliases = config.get("aliases")
    others = aliases if isinstance(aliases, list) else []
    return [str(each) for each in (config["hf_id"], *others)]


@cache
def _entries() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, config in _catalog().items():
        for each in _names(name, config):
            found.setdefault(each, name)
    return found


def _read_config(path: Path) -> Mapping[str, object]:
    """Read a config, with the number formats that older modelopt checkpoints keep beside it."""
    config, beside = _read_file(path), path.with_name("hf_quant_config.json")
    if path.name != "config.json" or config.get("quantization_config") or not beside.is_file():
        return config
    return {**config, "quantization_config": {"quant_method": "modelopt", **_read_file(beside)}}


def _read_file(path: Path) -> Mapping[str, object]:
    return object_in(path, CONFIG_BYTES)
