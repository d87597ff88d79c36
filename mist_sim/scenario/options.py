"""Options of an engine as `mist list options` and the reference show them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from mist_sim.registry import comes_with_package
from mist_sim.scenario.engines.defaults import by_gpu
from mist_sim.scenario.format.docstrings import documented_with_bases
from mist_sim.scenario.format.families import Family
from mist_sim.scenario.format.parts import Part, Settings
from mist_sim.scenario.from_vllm.tables import OPTIONS
from mist_sim.scenario.sections.clients.family import CLIENT
from mist_sim.scenario.sections.clients.llm import LlmPart

_BY_ENGINE = "by engine"
_OF_THE_ENGINE = ("kv_cache.gpu_memory_utilization",)  # null is what the version takes


@dataclass(frozen=True, slots=True)
class EngineOption:
    """One option of a client of type llm.

    key: below `clients.N`. types: the plugins that have it, if not all of a family do, or if its
        default or meaning differs (each variant is an option of its own).
    default: as written in a file; None if the option is required.
    values: all possible values, if these are words.
    vllm: the flag of `vllm serve`, or why there is none; None if unknown.
    """

    key: str
    types: tuple[str, ...]
    default: str | None
    values: tuple[str, ...]
    vllm: str | None
    meaning: str


def engine_options() -> list[EngineOption]:
    """Return all options of a client that runs a language model, in the order of the schema."""
    found: list[EngineOption] = []
    for field, info in CLIENT.part_type("llm").model_fields.items():
        name = info.alias or field
        if field in LlmPart.model_fields:
            continue
        mark = _mark(info)
        if isinstance(mark, Settings):
            found += _of_part(f"{name}.", mark.model)
        elif isinstance(mark, Family):
            found += _of_family(f"{name}.", mark)
        else:
            default = None if info.is_required() else _default(info)
            found.append(_option(name, default, _words(info), info.description or ""))
    return found


def _inside(found: object) -> Iterator[object]:
    """Yield what is in a field's annotation, markers among it, from the outside inwards."""
    yield found
    inner: tuple[object, ...] = get_args(found)
    if isinstance(found, FieldInfo):
        inner = (*found.metadata, found.annotation)
    for each in inner:
        yield from _inside(each)


def _mark(info: FieldInfo) -> Settings | Family | None:
    """Return the marker that says which part a field holds."""
    return next((each for each in _inside(info) if isinstance(each, Settings | Family)), None)


def _of_family(prefix: str, family: Family) -> Iterator[EngineOption]:
    """Yield the options of a family's plugins; one that several plugins have comes once."""
    plugins = {
        name: family.part_type(name)
        for name, plugin in family.registry.usable().items()
        if comes_with_package(plugin)
    }
    meaning = f"the {family.registry.member} of the engine"
    yield _option(prefix + "type", family.default, tuple(plugins), meaning)
    types: dict[EngineOption, list[str]] = {}
    for name, model in plugins.items():
        for option in _of_part(prefix, model):
            types.setdefault(option, []).append(name)
    keys = list(dict.fromkeys(option.key for option in types))
    for option, names in sorted(types.items(), key=lambda item: keys.index(item[0].key)):
        yield option if len(names) == len(plugins) else replace(option, types=tuple(names))


def _of_part(prefix: str, model: type[Part]) -> Iterator[EngineOption]:
    infos = {info.alias or "": info for info in model.model_fields.values()}
    names = [name for name in infos if name != "type"]
    _, meanings = documented_with_bases(model.plugin, names)
    defaults = model.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    for name in names:
        mark = _mark(infos[name])
        if isinstance(mark, Settings):
            yield from _of_part(f"{prefix}{name}.", mark.model)
        else:
            default = None
            if name in defaults:
                default = by_gpu(prefix + name, defaults[name]) or _written(defaults[name])
                default = _BY_ENGINE if prefix + name in _OF_THE_ENGINE else default
            yield _option(prefix + name, default, _words(infos[name]), meanings.get(name, ""))


def _option(key: str, default: str | None, values: tuple[str, ...], meaning: str) -> EngineOption:
    return EngineOption(key, (), default, values, OPTIONS.get(key), meaning)


def _default(info: FieldInfo) -> str:
    """Return a default as written in a file, or a text on what it depends on."""
    made = info.default_factory is not None
    return _BY_ENGINE if made else _written(info.default)


def _words(info: FieldInfo) -> tuple[str, ...]:
    """Return the words that a field may have as its value."""
    words = (get_args(each) for each in _inside(info) if get_origin(each) is Literal)
    return tuple(word for each in words for word in each if isinstance(word, str))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
