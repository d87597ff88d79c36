"""Keys of clients: names of models, GPUs, hosts and engines, and numbers with their bounds."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from mist_sim.bounds import COUNT, NAME_LENGTH, TEXT_LENGTH
from mist_sim.clients.options.engine_config import AUTO_LENGTH
from mist_sim.errors import ScenarioError
from mist_sim.hardware import host_from_table, load_gpu, load_host
from mist_sim.models import load_generating, load_model
from mist_sim.models.model_loading import APPROXIMATE
from mist_sim.scenario.engines.versions import NAMES, known_name
from mist_sim.scenario.format import paths
from mist_sim.scenario.format.fields import as_tuple
from mist_sim.scenario.format.problems import shown


def _model(text: str, info: ValidationInfo) -> str:
    if not text.startswith(APPROXIMATE):
        try:
            return paths.spec(text, info, ".json", load_generating)
        except ScenarioError:
            if not _takes_nearest(info):
                raise

    def load(path: str) -> object:
        return load_generating(f"{APPROXIMATE}{path}")

    return APPROXIMATE + paths.spec(text.removeprefix(APPROXIMATE), info, ".json", load)


def _takes_nearest(info: ValidationInfo) -> bool:
    """Whether the scenario takes unknown models as the nearest known ones."""
    said = info.context.said if isinstance(info.context, paths.Origin) else None
    return said is not None and said.get("approximate") is True


def _gpu(said: object, info: ValidationInfo) -> object:
    if isinstance(said, str):
        return paths.spec(said, info, ".toml", load_gpu)
    if not isinstance(said, dict):
        raise ScenarioError(f"must be a name, a path or a mapping, got {shown(said)}")
    if isinstance(base := said.get("based_on"), str):
        try:
            said = {**said, "based_on": paths.spec(base, info, ".toml", load_gpu)}
        except ScenarioError as error:
            raise ScenarioError(f"based_on: {error}") from None
    load_gpu(said)
    return said


def _host(said: object, info: ValidationInfo) -> object:
    if isinstance(said, str):
        return paths.spec(said, info, ".toml", load_host)
    if isinstance(said, dict):
        host_from_table(said, name="host", source="its mapping")
    elif said is not None:
        raise ScenarioError(f"must be a name, a path or a mapping, got {shown(said)}")
    return said


ModelName = Annotated[
    str,
    Field(
        max_length=TEXT_LENGTH,
        description="a catalog name, a Hugging Face id, or the path of a config.json",
    ),
    AfterValidator(_model),
]
PassModelName = Annotated[
    str,
    Field(
        max_length=TEXT_LENGTH,
        description="a catalog name, a Hugging Face id, or the path of a config.json; an encoder, "
        "or a language model that reads texts in one pass",
    ),
    AfterValidator(paths.named(".json", load_model)),
]
HostName = Annotated[str | dict[str, Any] | None, BeforeValidator(_host)]
GpuName = Annotated[
    Annotated[str, Field(max_length=TEXT_LENGTH)] | dict[str, Any], BeforeValidator(_gpu)
]
EngineName = Annotated[
    str,
    BeforeValidator(known_name),
    Field(json_schema_extra={"enum": list(NAMES)}),
]
Name = Annotated[
    str,
    Field(min_length=1, max_length=NAME_LENGTH, description="unique in the scenario"),
]
AtLeastOne = Annotated[int, Field(ge=1, le=COUNT)]
ContextTokens = Annotated[
    int,
    Field(le=COUNT),
    BeforeValidator(lambda said: AUTO_LENGTH if said == "auto" else said),
    WithJsonSchema({"anyOf": [{"maximum": COUNT, "type": "integer"}, {"const": "auto"}]}),
]
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
