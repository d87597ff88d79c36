"""Plugins of every family: their purpose and their parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import RenderableType

from mist_sim.cli.listings.look import described, named, with_broken
from mist_sim.scenario.format.docstrings import documented
from mist_sim.scenario.format.fields import Quantity
from mist_sim.scenario.format.parts import Part
from mist_sim.scenario.plugins import FAMILIES


def plugins(family_name: str, place: str) -> RenderableType:
    """Return the plugins of a family, with their parameters. place: of a plugin in a scenario."""
    family = FAMILIES[family_name]
    table = named("type", f"in a scenario: {place}")
    for name in family.registry.usable():
        model = family.part_type(name)
        parameters = ", ".join(_parameters(model))
        table.add_row(name, described(_summary(model), parameters))
    return with_broken(table, family.registry.unloadable().values())


def _parameters(model: type[Part]) -> Iterator[str]:
    """Yield a plugin's parameters: "name", with its unit and default where it has them."""
    defaults = model.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    for info in model.model_fields.values():
        name = info.alias or ""
        if name in defaults and name != "type":
            value = defaults[name]
            yield f"{name} = {value if isinstance(value, str) else json.dumps(value)}"
        elif name not in ("", "type"):
            kinds = [mark.kind.base for mark in info.metadata if isinstance(mark, Quantity)]
            yield f"{name} (required{''.join(f', in {unit}' for unit in kinds)})"


def _summary(model: type[Part]) -> str:
    """Return the first paragraph of a class's docstring, without parameters."""
    names = [info.alias or name for name, info in model.model_fields.items()]
    paragraphs, _ = documented(model.plugin, names)
    return next(iter(paragraphs), "")
